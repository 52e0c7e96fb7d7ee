"""Reduction programs for the all-reduces of given groups, as plans that compete with the searched plans."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from synth.concurrent.executable import GroupExecutor
from synth.concurrent.plans import ConcurrentPlan
from synth.concurrent.union import Member, union_problem
from synth.model.deadline import TimeUp, limited
from synth.parallelism.reduction.concrete import described
from synth.parallelism.reduction.join_steps import Reduction
from synth.parallelism.reduction.reduce_programs import ALL, METHOD, ProgramSearch, ReductionProgram
from synth.parallelism.reduction.requests import group_hierarchy
from synth.parallelism.reduction.sequences import sequences
from synth.parallelism.reduction.states import ALLREDUCE, SynthesisHierarchy
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, find_levels, nested
from topologies.network import links_among
from topologies.topology import Topology

MOST = 3  # Sequences, the best by the formula, that are tried; those whose steps do not fit give no plan.
LEVELS = 3  # Of a group; the synthesis over more levels takes seconds.
LOWERED = 512  # Sends a rank of a plan to lower; finer chunks gain little and take the search's time.
PROGRAMS = 0.3  # Share of a budget for groups that programs get.


def program_plans(
    topology: Topology,
    members: Sequence[Member],
    *,
    relays: str = "none",
    hierarchy: Hierarchy | None = None,
    until: float = math.inf,
    executor: GroupExecutor | None = None,
) -> Iterator[ConcurrentPlan]:
    """Yield the best programs of at least two steps by the formula, with baseline schedules for their steps.

    There is none unless the groups all-reduce messages of one size and lie equally over at least two levels. There is
    none either, without an error, if no levels are found or ranks do not reach each other. The best program by the
    formula comes first; the plans' times may have another order.

    Args:
        topology: The topology.
        members: One or more groups.
        relays: Ranks that may forward besides a group's own ranks: "none" or "all".
        hierarchy: Levels of the topology; None: the levels that are found in it.
        until: Time of `synth.model.deadline.now` at which the generator ends, even while it builds a program.
        executor: The executor that will run the programs; None: any number of sends is allowed.
    """
    if any(m.collective.name != ALLREDUCE or m.size_bytes != members[0].size_bytes for m in members):
        return
    if len({len(m.ranks) for m in members}) > 1:
        return
    try:
        levels = find_levels(topology) if hierarchy is None else hierarchy
        grouped, within = nested(levels, np.array([m.ranks for m in members], dtype=np.int64))
        if len(within) < 2:
            return
        group_levels = group_hierarchy([level.name for level in within], [level.size for level in within], LEVELS)
        groups = tuple(map(tuple, grouped.reshape(len(members), -1).tolist()))
        request = Reduction(topology, groups, float(members[0].size_bytes), relays)
        search = limited(until, lambda: ProgramSearch(request, group_levels, sequences(group_levels), executor))
        if executor is not None:
            search.most_sends = min(search.most_sends, LOWERED * sum(map(len, groups)))
        for steps in [steps for steps in search.ranked if len(steps) > 1][:MOST]:
            program = limited(until, partial(search.by_library, steps, ALL))
            if program is not None:
                yield _reordered_plan(program, members, group_levels, relays)
    except (InputError, TimeUp):
        return  # There are no levels, ranks do not reach each other, or the time is over.


def _reordered_plan(
    program: ReductionProgram, members: Sequence[Member], hierarchy: SynthesisHierarchy, relays: str
) -> ConcurrentPlan:
    """Return a program as a plan of groups whose ranks have another order: the same sends between the same ranks."""
    joined = program.algorithm
    chunked = joined.problem.members[0].collective  # type: ignore[attr-defined]
    problem = union_problem(joined.problem.topology, [replace(m, collective=chunked) for m in members], relays)
    place = {rank: at for at, rank in enumerate(problem.ranks)}
    links = links_among(problem.network, np.array([place[rank] for rank in joined.problem.ranks]))[0]
    schedule = replace(joined.schedule, link=links[joined.schedule.link])
    step_names = " – ".join(
        "{collective} {slice} {form}".format(**described(step, hierarchy)) for step in program.steps
    )
    algorithm = Algorithm(problem, schedule, joined.engine, size_bytes=joined.size_bytes)
    return ConcurrentPlan(problem, algorithm, f"{METHOD}: {step_names}")
