"""Make plans for concurrent groups without a search of their own: isolated schedules merged, direct plans, reordering.

Each plan is a union problem, with the chunks of the plan, and a schedule of it whose times are still to be set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial

import numpy as np

from synth.baselines import baseline_named
from synth.concurrent.isolated import Isolated, isolated_parts, problem_digest, with_blocks_as_chunks
from synth.concurrent.union import (
    Member,
    UnionProblem,
    isolated_problems,
    merge_schedules,
    times_by_group,
)
from synth.model.collective import Collective, Floats, Ints, subdivided
from synth.model.schedule import Schedule, untimed
from synth.timing.simulate import time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.errors import InputError
from topologies.network import links_among

Restate = Callable[[Sequence[Collective]], UnionProblem]  # It states the same groups with other collectives.
Plan = tuple[UnionProblem, Schedule]

REORDERED = ", reordered"

_UNEVEN = 8  # The chunks of large messages are cut at most so many times finer than those of small ones.
_ROUNDS, _FEWER_ROUNDS = 16, 6  # Rounds of trying orders.
_MANY = 100_000  # From so many sends on there are fewer rounds.
_FIRM = 1.5  # The strength with which a group that is slowed more than the mean moves forward.


@dataclass(frozen=True, eq=False)
class ConcurrentPlan:
    """A plan for all groups.

    Attributes:
        problem: The groups as one problem, with the chunks that the plan has.
        algorithm: Algorithm of the union, replayed.
        method: How the plan was made, in words: the name of a stage of `synth.search.plans.GROUPS`, maybe followed by
            `REORDERED`; or what the plans that existed before the search say.
    """

    problem: UnionProblem
    algorithm: Algorithm
    method: str

    @cached_property
    def at_size(self) -> Schedule:
        """Return the schedule with its times at the message size of the question."""
        return timed(self.problem, self.algorithm.schedule, self.problem.size_bytes)

    @cached_property
    def times_us(self) -> Floats:
        """Return when each group is done, in µs, shape (groups,)."""
        return times_by_group(self.problem, self.at_size)

    @property
    def makespan_us(self) -> float:
        """Return when the last group is done, in µs."""
        return float(self.times_us.max())

    def parts_of(self, refined: UnionProblem) -> int:
        """Return into how many parts the plan cuts each chunk of `refined`, the same groups with fewer chunks."""
        return self.problem.collective.nchunks // refined.collective.nchunks

    def slowdown(self, isolated_us: Floats) -> float:
        """Return the largest time in the plan / time in isolation over the groups.

        Args:
            isolated_us: Time of each group in isolation, in µs, shape (groups,).
        """
        return float((self.times_us / isolated_us).max())


def at_once(isolated: Sequence[Isolated], restate: Restate) -> Plan:
    """Return the plan in which every group's isolated schedule begins at once: the union, and its untimed schedule.

    Args:
        isolated: Each group's best answer.
        restate: States the groups as one problem with the collectives of these answers.
    """
    union = restate([answer.problem.collective for answer in isolated])
    return union, merge_schedules(union, [answer.schedule for answer in isolated])


def in_turn(isolated: Sequence[Isolated], restate: Restate) -> Plan:
    """Return the plan in which isolated schedules run one after another, the shortest first, as early as links allow.

    Arguments and result are those of `at_once`.
    """
    times_us = np.array([answer.time_us for answer in isolated])
    begin = np.zeros(len(isolated))
    order = np.argsort(times_us, kind="stable")
    begin[order] = np.cumsum(times_us[order]) - times_us[order]
    late = [
        replace(
            answer,
            schedule=replace(
                answer.schedule, start_us=answer.schedule.start_us + at, end_us=answer.schedule.end_us + at
            ),
        )
        for answer, at in zip(isolated, begin.tolist(), strict=True)
    ]
    return at_once(late, restate)


def within_groups(within: UnionProblem, isolated: Sequence[Isolated], restate: Restate) -> Plan:
    """Return the plan of isolated schedules without relays, all begun at once, as a plan of groups that may use relays.

    It is the union with relays, and its untimed schedule.

    Args:
        within: The groups without relays.
        isolated: Their best schedules.
        restate: States the groups again, with relays, for other collectives.
    """
    collectives = [answer.problem.collective for answer in isolated]
    schedule = merge_schedules(within.restated(collectives, "none", ()), [answer.schedule for answer in isolated])
    union = restate(collectives)
    # The union's ranks come first in both networks, in the same order.
    links = links_among(union.network, np.arange(len(within.group)))[0]
    return union, replace(schedule, link=links[schedule.link])


def direct(union: UnionProblem, restate: Restate, chunks: int | None = None) -> Plan | None:
    """Return the plan of a library that does not plan: every message of every group over a fixed shortest path.

    If every rank may relay and the union has a direct plan, it is that one; else each group's direct plan, begun
    together.

    Args:
        union: The groups as one problem.
        restate: States the groups again for other collectives.
        chunks: Chunks of every block that the question pins; None: as few as the plan needs.

    Returns:
        The plan; None if a group has no direct plan, or none with so many chunks, or if it is too large.
    """
    # An all-reduce needs one share a rank.
    shares = [m.collective.nranks for m in union.members if m.collective.kind.in_shares]
    if chunks is not None and any(chunks % share for share in shares):
        return None
    try:
        plan = _direct_of_union(union, restate, chunks) if union.allowed_holders is None else None
        if plan is not None:
            return plan
        parts = _direct_of_groups(union)
    except InputError:
        return None
    if parts is None:
        return None
    counts = [_refinement(chunks, part.chunks) for part in parts]
    refined = restate([subdivided(part.problem.collective, count) for part, count in zip(parts, counts, strict=True)])
    schedules = [
        timed(problem, refine_sends(part.schedule, count), member.size_bytes)
        for problem, part, count, member in zip(isolated_problems(refined), parts, counts, union.members, strict=True)
    ]
    return refined, merge_schedules(refined, schedules)


def _direct_of_union(union: UnionProblem, restate: Restate, chunks: int | None) -> Plan | None:
    """Return the direct plan of all groups as one problem in which every rank may relay; None if there is none.

    Args:
        union: As in `direct`; every rank may relay.
        restate: As in `direct`.
        chunks: As in `direct`. Chunks are cut into equal parts, so a number that is no multiple of what the plan has is
            rounded down, but not below that.

    Returns:
        The groups with the chunks of the plan, and its untimed schedule; or None.

    Raises:
        InputError: The plan has too many sends, or the groups with its chunks are too large.
    """
    baselines = baseline_named(with_blocks_as_chunks(union), "direct", union.size_bytes)
    if not baselines:
        return None
    times = baselines[0].problem.collective.nchunks // union.collective.nchunks
    count = _refinement(chunks, times)
    refined = restate([subdivided(m.collective, times * count) for m in union.members])
    return refined, refine_sends(baselines[0].schedule, count)


def _direct_of_groups(union: UnionProblem) -> list[Algorithm] | None:
    """Return each group's direct plan in isolation; None if one group has none.

    Groups whose problems differ only in their ranks share one plan.
    """
    algorithms = []
    algorithms_of: dict[bytes, list[Algorithm]] = {}
    for problem, member in zip(isolated_problems(union), union.members, strict=True):
        digest = problem_digest(problem, member.size_bytes)
        if digest not in algorithms_of:
            algorithms_of[digest] = baseline_named(with_blocks_as_chunks(problem), "direct", member.size_bytes)
        if not algorithms_of[digest]:
            return None
        algorithms.append(algorithms_of[digest][0])
    return algorithms


def _refinement(chunks: int | None, plan_chunks: int) -> int:
    """Return into how many parts the chunks of a plan are cut so that a block has a pinned number of chunks.

    The quotient is rounded down, but at least 1.

    Args:
        chunks: The pinned number; None for no cut.
        plan_chunks: Chunks of a block in the plan.
    """
    return 1 if chunks is None else max(1, chunks // plan_chunks)


def refine_sends(schedule: Schedule, times: int) -> Schedule:
    """Return the same sends with every chunk cut into `times` parts that follow each other, in order, in the same step.

    The result has no times and no messages of joined sends, except for 1 part: then it is `schedule` itself.
    """
    if times == 1:
        return schedule
    part = np.tile(np.arange(times), len(schedule))
    row = np.repeat(np.arange(len(schedule)), times)
    return untimed(schedule.chunk[row] * times + part, schedule.link[row], schedule.step[row], schedule.reduces[row])


def even_counts(members: Sequence[Member]) -> list[int]:
    """Return into how many parts each group's chunks are cut so that all have similar sizes and all ranks are busy.

    An all-reduce is cut into one share a rank, unless its chunks are such shares already. Larger chunks are then cut
    finer, at most 8 times as fine as the smallest.
    """
    shares, sizes = [], []
    for member in members:
        whole = member.collective
        shares.append(whole.nranks if whole.kind.in_shares and whole.chunks % whole.nranks else 1)
        sizes.append(float(whole.fraction.max()) * member.size_bytes / shares[-1])
    least = max(min(sizes), max(sizes) / _UNEVEN)
    return [share * max(1, round(size / least)) for share, size in zip(shares, sizes, strict=True)]


def refined_union(union: UnionProblem, restate: Restate, chunks: int | None) -> UnionProblem:
    """Return the union with the chunks that an engine begins with: `chunks` a block, or similar sizes if None.

    Raises:
        InputError: So many chunks do not fit in memory.
    """
    counts = even_counts(union.members) if chunks is None else [chunks] * len(union.members)
    subdivided_once = cache(subdivided)  # Many groups have the same collective.
    refined = restate([subdivided_once(m.collective, n) for m, n in zip(union.members, counts, strict=True)])
    # The engine asks for a block part by part.
    return replace(refined, collective=replace(refined.collective, chunks=chunks or 1))


def faster_parts(plan: ConcurrentPlan, isolated: Mapping[int, Isolated]) -> dict[int, Isolated]:
    """Return the parts of a plan that beat the isolated runs of their groups, by the group's position.

    Each part is a new isolated run, replayed, with the bound of the old one. Its times are those in the plan, or those
    without the other groups if they are less.

    Args:
        plan: Plan of all groups.
        isolated: Isolated runs of the groups to compare, by the group's position.
    """
    faster = {}
    parts = isolated_parts(plan.problem, plan.at_size, list(isolated))
    for (group, own), (problem, part) in zip(isolated.items(), parts, strict=True):
        # Without other groups the part is at least as fast, but the greedy clock may not see that.
        best = min(timed(problem, part, own.size_bytes), part, key=partial(time_us, problem))
        if time_us(problem, best) < own.time_us * (1 - 1e-9):
            replay(problem, best)
            faster[group] = Isolated(problem, best, plan.algorithm.engine, own.bound)
    return faster


def fairer(union: UnionProblem, schedule: Schedule, size_bytes: float, isolated_us: Floats) -> Schedule | None:
    """Return the schedule in the order with the smallest largest slowdown, then makespan; None if no order is better.

    Only a few orders are tried. The result is timed at `size_bytes`.

    The rows of a schedule stand in order of priority. Each group's rows keep their order among themselves, which is an
    order that any schedule of the group allows. How early they stand among all others is varied: every group's times
    are stretched by a factor, and rows stand in the order of these stretched times. The factors start at 1; those of
    groups that are slowed more than the geometric mean shrink.

    Args:
        union: The groups as one problem.
        schedule: Schedule of the union; it need not be timed.
        size_bytes: The union's message size.
        isolated_us: Time of each group in isolation, in µs, shape (groups,).
    """
    group = union.group_of_chunk[schedule.chunk]
    at_size = timed(union, schedule, size_bytes)
    when = _in_order(at_size.start_us, group, len(union.members))
    slow = times_by_group(union, at_size) / isolated_us
    best, fairest = _score(slow, isolated_us), None
    stretch = np.zeros(len(isolated_us))  # Logarithms of the factors.
    for _ in range(_ROUNDS if len(schedule) < _MANY else _FEWER_ROUNDS):
        logs = np.log(slow)
        stretch -= _FIRM * (logs - logs.mean())
        order = np.argsort(when * np.exp(stretch - stretch.max())[group], kind="stable")
        trial = timed(union, schedule.take(order), size_bytes)
        slow = times_by_group(union, trial) / isolated_us
        score = _score(slow, isolated_us)
        if score < best:
            best, fairest = score, trial
    return fairest


def _score(slow: Floats, isolated_us: Floats) -> tuple[float, float]:
    """Return a key that is smaller for a fairer schedule: largest slowdown, then makespan in µs, to nine digits.

    Args:
        slow: Time in the plan / time in isolation, shape (groups,).
        isolated_us: Time of each group in isolation, in µs, shape (groups,).
    """
    return float(f"{slow.max():.9g}"), float(f"{(slow * isolated_us).max():.9g}")


def _in_order(start_us: Floats, group: Ints, groups: int) -> Floats:
    """Return start times that never go back within a group, so that sorting by them keeps each group's order.

    A row gets the latest start of its group up to this row.

    Args:
        start_us: Start of each row, in µs.
        group: Group of each row.
        groups: Number of groups.
    """
    when = np.empty(len(start_us))
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.searchsorted(group[order], np.arange(1, groups))):
        when[rows] = np.maximum.accumulate(start_us[rows])
    return when
