"""The engine `skewed`: all-to-alls of given sizes, balanced over NICs or links, by one plan for each size.

It uses the planner of `prepare`, which is made for sizes that change at every step. Here the unit of size is a cell,
the amount in which programs hold the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import numpy as np

from synth.engines.request import Candidate, Options, Outcome, Request
from synth.engines.skewed.prepare import interpreted_s, planner_for, shape_for
from synth.engines.skewed.routes.routed import RoutedShape
from synth.engines.skewed.schedule import NAME, cut_as_planned, schedule_of
from synth.engines.skewed.shape import GroupShape
from synth.model.collective import Collective, Ints
from synth.model.common_chunk import common_chunk
from synth.model.compiled import choose_runner
from synth.model.problem import Problem
from topologies.errors import InputError


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for an all-to-all of given sizes of one group."""
    if problem.collective.name != "alltoallv":
        return "skewed is for alltoallv"
    if problem.quotient is not None or problem.allowed_holders is not None or problem.relays:
        return "skewed takes one group without relays, and no quotient problems"
    if problem.protocols:
        return "skewed takes one protocol of an executor's costs at a time"
    if problem.collective.chunks != 1 or options.pinned:
        return "skewed cuts blocks by itself; leave --chunks, --steps and --rounds out"
    try:
        _shape(problem)
    except InputError as error:
        return f"skewed: {error}"
    return ""


def solve(problem: Problem, request: Request) -> Iterator[Outcome]:
    """Yield a plan for each size; it is never slower than straight paths, but cuts only at cells."""
    shape = _shape(problem)
    units = _units(problem.collective)
    for size in request.sizes:
        cell_bytes = float(problem.collective.fraction.sum() / units.sum()) * size
        interpreted = choose_runner(interpreted_s(shape)).interpreted
        plan = planner_for(shape, cell_bytes, interpreted).plan(units)
        whole = replace(problem, collective=cut_as_planned(problem.collective, plan, units))
        yield Candidate(whole, schedule_of(plan), NAME, size)


@lru_cache(maxsize=2)
def _shape(problem: Problem) -> GroupShape | RoutedShape:
    """Return the shape of the problem's group; InputError if it does not fit."""
    # A shape has bounds, which count all paths.
    net = None if problem.network.switch_graph is not None else problem.network
    return shape_for(problem.topology, problem.group, net)


def _units(collective: Collective) -> Ints:
    """Return the cells of each block, int64, shape (k, k); a block with any bytes has at least one."""
    cells = common_chunk(collective)
    units = np.zeros((collective.nranks, collective.nranks), dtype=np.int64)
    units[_ends(collective)] = cells.count
    return units


def _ends(collective: Collective) -> tuple[Ints, Ints]:
    """Return the source and the goal of every chunk of an all-to-all, each int64, shape (chunks,)."""
    source, goal = np.zeros((2, collective.nchunks), dtype=np.int64)
    source[collective.pre[:, 1]], goal[collective.post[:, 1]] = collective.pre[:, 0], collective.post[:, 0]
    return source, goal
