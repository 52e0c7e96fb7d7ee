"""Plans for concurrent groups that need no search of their own: isolated schedules put together, direct, reordered.

Each is a union problem, with the chunks that the plan has, and a schedule of it whose times are to be set anew.
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

Restate = Callable[[Sequence[Collective]], UnionProblem]  # the same groups with other collectives
Plan = tuple[UnionProblem, Schedule]

TOGETHER, DIRECT = "planned together", "direct"
AT_ONCE, IN_TURN, WITHIN = "each alone, at once", "in turn, overlapped", "each without relays"
REORDERED = ", reordered"

_UNEVEN = 8  # how many times finer the chunks of large messages are cut than those of small ones
_ROUNDS, _FEWER_ROUNDS = 16, 6  # of trying orders
_MANY = 100_000  # sends from which on fewer rounds are made
_FIRM = 1.5  # how strongly a group that is slowed more than the mean is moved forward


@dataclass(frozen=True, eq=False)
class ConcurrentPlan:
    """A plan for all groups.

    Attributes:
        problem: the groups as one problem, with the chunks that the plan has.
        algorithm: of the union, replayed.
        method: how it was made.
    """

    problem: UnionProblem
    algorithm: Algorithm
    method: str

    @cached_property
    def at_size(self) -> Schedule:
        """The schedule with its times at the message size that is asked."""
        return timed(self.problem, self.algorithm.schedule, self.problem.size_bytes)

    @cached_property
    def times_us(self) -> Floats:
        """When each group is done, shape (groups,)."""
        return times_by_group(self.problem, self.at_size)

    @property
    def makespan_us(self) -> float:
        """When the last group is done."""
        return float(self.times_us.max())

    def parts_of(self, refined: UnionProblem) -> int:
        """Into how many parts the plan cuts the chunks of `refined`."""
        return self.problem.collective.nchunks // refined.collective.nchunks

    def slowdown(self, isolated_us: Floats) -> float:
        """The largest time in the plan / time in isolation over the groups."""
        return float((self.times_us / isolated_us).max())


def at_once(isolated: Sequence[Isolated], restate: Restate) -> Plan:
    """Every group as it is best in isolation, all begun at once."""
    asked = restate([one.problem.collective for one in isolated])
    return asked, merge_schedules(asked, [one.schedule for one in isolated])


def in_turn(isolated: Sequence[Isolated], restate: Restate) -> Plan:
    """The same one after another, the shortest first, overlapped as far as the links allow."""
    times_us = np.array([one.time_us for one in isolated])
    begin = np.zeros(len(isolated))
    order = np.argsort(times_us, kind="stable")
    begin[order] = np.cumsum(times_us[order]) - times_us[order]
    late = [
        replace(
            one, schedule=replace(one.schedule, start_us=one.schedule.start_us + at, end_us=one.schedule.end_us + at)
        )
        for one, at in zip(isolated, begin.tolist(), strict=True)
    ]
    return at_once(late, restate)


def within_groups(within: UnionProblem, isolated: Sequence[Isolated], restate: Restate) -> Plan:
    """Every group as it is best without relays, all begun at once, as a plan of the groups with relays.

    Args:
        within: the groups without relays. isolated: their best schedules.
    """
    collectives = [one.problem.collective for one in isolated]
    schedule = merge_schedules(within.restated(collectives, "none", ()), [one.schedule for one in isolated])
    asked = restate(collectives)
    # the union's ranks come first in both, in one order
    links = links_among(asked.network, np.arange(len(within.group)))[0]
    return asked, replace(schedule, link=links[schedule.link])


def direct(asked: UnionProblem, restate: Restate, chunks: int | None = None) -> Plan | None:
    """What a library without a plan would do: every message over a fixed shortest path, all groups' at once.

    The union's own direct plan where everybody may relay and the union has one; else each group's, begun together.
    None where a group has none, where it cannot have so many chunks, or where it is too large.

    Args:
        chunks: of every block; as few as it needs when None.
    """
    # an allreduce needs a share a rank
    shares = [m.collective.nranks for m in asked.members if m.collective.kind.in_shares]
    if chunks is not None and any(chunks % share for share in shares):
        return None
    try:
        found = _direct_of_union(asked, restate, chunks) if asked.allowed is None else None
        if found is not None:
            return found
        parts = _direct_of_groups(asked)
    except InputError:
        return None
    if parts is None:
        return None
    counts = [_refinement(chunks, part.chunks) for part in parts]
    refined = restate([subdivided(part.problem.collective, count) for part, count in zip(parts, counts, strict=True)])
    schedules = [
        timed(problem, refine_sends(part.schedule, count), member.size_bytes)
        for problem, part, count, member in zip(isolated_problems(refined), parts, counts, asked.members, strict=True)
    ]
    return refined, merge_schedules(refined, schedules)


def _direct_of_union(asked: UnionProblem, restate: Restate, chunks: int | None) -> Plan | None:
    made = baseline_named(with_blocks_as_chunks(asked), "direct", asked.size_bytes)
    if not made:
        return None
    times = made[0].problem.collective.nchunks // asked.collective.nchunks
    count = _refinement(chunks, times)
    refined = restate([subdivided(m.collective, times * count) for m in asked.members])
    return refined, refine_sends(made[0].schedule, count)


def _direct_of_groups(asked: UnionProblem) -> list[Algorithm] | None:
    """Each group's direct plan in isolation; None where one has none."""
    found = []
    known: dict[bytes, list[Algorithm]] = {}
    for problem, member in zip(isolated_problems(asked), asked.members, strict=True):
        digest = problem_digest(problem, member.size_bytes)
        if digest not in known:
            known[digest] = baseline_named(with_blocks_as_chunks(problem), "direct", member.size_bytes)
        if not known[digest]:
            return None
        found.append(known[digest][0])
    return found


def _refinement(chunks: int | None, made: int) -> int:
    """Into how many parts the chunks of a plan with `made` a block are cut, where their number is pinned."""
    return 1 if chunks is None else max(1, chunks // made)


def refine_sends(schedule: Schedule, times: int) -> Schedule:
    """The same sends with every chunk cut into `times` parts, which follow each other; to be timed anew."""
    if times == 1:
        return schedule
    part = np.tile(np.arange(times), len(schedule))
    row = np.repeat(np.arange(len(schedule)), times)
    return untimed(schedule.chunk[row] * times + part, schedule.link[row], schedule.step[row], schedule.reduces[row])


def even_counts(members: Sequence[Member]) -> list[int]:
    """Into how many parts each group's chunks are to be cut so that all are of like sizes, and all ranks busy.

    An allreduce is cut into a share a rank; of messages of different sizes the larger are cut finer.
    """
    shares, sizes = [], []
    for member in members:
        whole = member.collective
        shares.append(whole.nranks if whole.kind.in_shares and whole.chunks % whole.nranks else 1)
        sizes.append(float(whole.fraction.max()) * member.size_bytes / shares[-1])
    least = max(min(sizes), max(sizes) / _UNEVEN)
    return [share * max(1, round(size / least)) for share, size in zip(shares, sizes, strict=True)]


def refined_union(asked: UnionProblem, restate: Restate, chunks: int | None) -> UnionProblem:
    """The union with the chunks from which an engine begins: so many a block, even ones when None."""
    counts = even_counts(asked.members) if chunks is None else [chunks] * len(asked.members)
    subdivided_once = cache(subdivided)  # many groups have one collective
    refined = restate([subdivided_once(m.collective, n) for m, n in zip(asked.members, counts, strict=True)])
    # a block is what the engine asks for part by part
    return replace(refined, collective=replace(refined.collective, chunks=chunks or 1))


def faster_parts(plan: ConcurrentPlan, isolated: Mapping[int, Isolated]) -> dict[int, Isolated]:
    """Those of some groups' isolated runs (by group) that their parts of a plan beat, replaced by these parts."""
    faster = {}
    parts = isolated_parts(plan.problem, plan.at_size, list(isolated))
    for (group, own), (problem, part) in zip(isolated.items(), parts, strict=True):
        # beside no others it is as fast at least, but a greedy clock may not see that
        best = min(timed(problem, part, own.size_bytes), part, key=partial(time_us, problem))
        if time_us(problem, best) < own.time_us * (1 - 1e-9):
            replay(problem, best)
            faster[group] = Isolated(problem, best, plan.algorithm.engine, own.bound)
    return faster


def fairer(asked: UnionProblem, schedule: Schedule, size_bytes: float, isolated_us: Floats) -> Schedule | None:
    """The schedule in the order with the smallest largest slowdown, then makespan; None where none is better.

    A schedule's rows stand in order of priority. Each group's rows keep their order among themselves, which any
    schedule of the group allows; how early they stand among all others is what is tried: every group's times are
    stretched by a factor, and rows stand in the order of these stretched times. The factors start at 1; those of
    groups that are slowed more than the geometric mean shrink.

    Args:
        schedule: of the union; need not be timed.
        size_bytes: the union's message size.
        isolated_us: what each group takes in isolation, shape (groups,).
    """
    group = asked.group_of_chunk[schedule.chunk]
    at_size = timed(asked, schedule, size_bytes)
    when = _in_order(at_size.start_us, group, len(asked.members))
    slow = times_by_group(asked, at_size) / isolated_us
    best, found = _score(slow, isolated_us), None
    stretch = np.zeros(len(isolated_us))  # logarithms
    for _ in range(_ROUNDS if len(schedule) < _MANY else _FEWER_ROUNDS):
        logs = np.log(slow)
        stretch -= _FIRM * (logs - logs.mean())
        order = np.argsort(when * np.exp(stretch - stretch.max())[group], kind="stable")
        trial = timed(asked, schedule.take(order), size_bytes)
        slow = times_by_group(asked, trial) / isolated_us
        score = _score(slow, isolated_us)
        if score < best:
            best, found = score, trial
    return found


def _score(slow: Floats, isolated_us: Floats) -> tuple[float, float]:
    """What is less is fairer; differences that rounding makes do not count."""
    return float(f"{slow.max():.9g}"), float(f"{(slow * isolated_us).max():.9g}")


def _in_order(start_us: Floats, group: Ints, groups: int) -> Floats:
    """Starts that never go back within a group: sorted by them, a group's rows keep their order."""
    when = np.empty(len(start_us))
    order = np.argsort(group, kind="stable")
    for rows in np.split(order, np.searchsorted(group[order], np.arange(1, groups))):
        when[rows] = np.maximum.accumulate(start_us[rows])
    return when
