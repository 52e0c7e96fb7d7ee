"""Reduction programs for all-reduces of given groups, as plans that compete with those searched for."""

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
from synth.parallelism.concrete import described
from synth.parallelism.join_steps import Reduction
from synth.parallelism.reduce_programs import ALL, METHOD, ProgramSearch, ReductionProgram
from synth.parallelism.requests import group_hierarchy
from synth.parallelism.sequences import sequences
from synth.parallelism.states import ALLREDUCE, SynthesisHierarchy
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.levels.hierarchy import Hierarchy, find_levels, nested
from topologies.network import links_among
from topologies.topology import Topology

MOST = 3  # programs, the best by the formula
LEVELS = 3  # of a group: all sequences over more take seconds
LOWERED = 512  # sends a rank of what is to be lowered: finer chunks would gain little and take the search's time
PROGRAMS = 0.3  # of a budget for groups, how much is for programs


def program_plans(
    topology: Topology,
    members: Sequence[Member],
    *,
    relays: str = "none",
    hierarchy: Hierarchy | None = None,
    until: float = math.inf,
    most: int = MOST,
    executor: GroupExecutor | None = None,
) -> Iterator[ConcurrentPlan]:
    """The best programs of at least two steps by the formula, with what a library would run in their steps.

    None where the groups do not all-reduce one size, or do not lie alike over two levels or more.

    Args:
        relays: "none" or "all": who may forward beside a group's own ranks.
        hierarchy: of the topology; None: the levels that it has.
        until: of `synth.model.deadline.now`: after it none is made.
        executor: what is to run them; None: any number of sends will do.
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
        own = group_hierarchy([level.name for level in within], [level.size for level in within], LEVELS)
        groups = tuple(map(tuple, grouped.reshape(len(members), -1).tolist()))
        asked = Reduction(topology, groups, float(members[0].size_bytes), relays)
        search = limited(until, lambda: ProgramSearch(asked, own, sequences(own), executor))
        if executor is not None:
            search.most_sends = min(search.most_sends, LOWERED * sum(map(len, groups)))
        for steps in [steps for steps in search.ranked if len(steps) > 1][:most]:
            program = limited(until, partial(search.by_library, steps, ALL))
            if program is not None:
                yield _as_asked(program, members, own, relays)
    except (InputError, TimeUp):
        return  # no levels, ranks that do not reach each other, or no time


def _as_asked(
    program: ReductionProgram, members: Sequence[Member], hierarchy: SynthesisHierarchy, relays: str
) -> ConcurrentPlan:
    """A program as a plan of groups whose ranks stand in another order: the same sends between the same ranks."""
    made = program.algorithm
    chunked = made.problem.members[0].collective  # type: ignore[attr-defined]
    problem = union_problem(made.problem.topology, [replace(m, collective=chunked) for m in members], relays)
    place = {rank: at for at, rank in enumerate(problem.ranks)}
    links = links_among(problem.network, np.array([place[rank] for rank in made.problem.ranks]))[0]
    schedule = replace(made.schedule, link=links[made.schedule.link])
    words = " – ".join("{collective} {slice} {form}".format(**described(step, hierarchy)) for step in program.steps)
    algorithm = Algorithm(problem, schedule, made.engine, size_bytes=made.size_bytes)
    return ConcurrentPlan(problem, algorithm, f"{METHOD}: {words}")
