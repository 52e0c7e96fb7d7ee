"""One group's answer by itself: with what several groups at once are compared, and of what they can be made."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from synth.baselines import baseline
from synth.bounds.lengths import from_loads
from synth.bounds.prove import Bound, prove, tighten
from synth.concurrent.union import Together, alone, split
from synth.engines.flow.search import FLOW, FlowSearch, close_enough, estimated_sends
from synth.model.collective import Floats
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.portfolio import search
from synth.search.result import Options
from synth.solvers.workers import Workers
from synth.symmetry.relabelling import IsomorphicGroups
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS, time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.arrays import row_entries
from topologies.errors import InputError
from topologies.subnetwork import links_among

__all__ = [
    "Alone",
    "answer_alone",
    "busy_us",
    "each_alone",
    "one_chunk",
    "parts_alone",
    "shared_name",
]

Say = Callable[[str], None]

_COMPARED = 300_000  # sends up to which what a vendor library would run is tried too
_FEW = 16  # ranks up to which the interpreted router is tried too
_ROUTE_BUDGET_S = 5.0  # of which it counts a part as work, not by the clock
_SHARE = 0.75  # of the time, for the schedule; the rest is for the bound


@dataclass(frozen=True, eq=False)
class Alone:
    """A group's best answer while all others are idle.

    Attributes:
        problem: of the group's ranks and everybody who may relay for it, with the chunks that the schedule has.
        schedule: replayed, and timed at the group's size.
        engine: what found it.
        bound: on the time of any algorithm of that problem; message sizes are the group's own.
    """

    problem: Problem
    schedule: Schedule
    engine: str
    bound: Bound

    @property
    def size_bytes(self) -> float:
        """The group's."""
        return self.schedule.size_bytes

    @cached_property
    def time_us(self) -> float:
        return time_us(self.problem, self.schedule)

    @cached_property
    def bound_us(self) -> float:
        return self.bound.at(self.size_bytes)[0]


def shared_name(problem: Problem, size_bytes: float) -> bytes:
    """The same for problems that differ only in which ranks of the topology they are about.

    Local ranks, links and resources have the same numbers, so one's schedule is the other's.
    """
    net, collective = problem.network, problem.collective
    told = hashlib.sha256(repr((collective.name, collective.chunks, net.nranks, float(size_bytes))).encode())
    for column in (
        net.src, net.dst, net.alpha_us, net.bandwidth_gbs, net.uses_ptr, net.uses_idx, net.capacity_gbs,
        collective.reduces, collective.fraction, collective.pre, collective.post,
    ):  # fmt: skip
        told.update(str(column.shape).encode())
        told.update(np.ascontiguousarray(column).tobytes())
    return told.digest()


def one_chunk(problem: Problem) -> Problem:
    """The problem with every chunk called a block of its own, as baselines and searches want it stated."""
    if problem.collective.chunks == 1:
        return problem
    return replace(problem, collective=replace(problem.collective, chunks=1))


def answer_alone(
    problem: Problem,
    size_bytes: float,
    workers: Workers,
    *,
    chunks: int | None = None,
    engine: str = "auto",
    budget_s: float = 30.0,
    say: Say = lambda _: None,
) -> Alone:
    """The best answer found for one group by itself, and its bound.

    Args:
        problem: with the chunks that the group's collective has; `chunks` of each are pinned, any where None.
        engine: flow; or auto, which also tries what a vendor library would run and, for few ranks, `route`.
        budget_s: seconds; there is an answer even where they are few.

    Raises:
        InputError: chunks that cannot get to where they are wanted.
    """
    begun = time.monotonic()
    bound = prove(problem, max_flow=problem.nranks <= 4 * _FEW)
    found: list[Algorithm] = []

    def add(asked: Problem, schedule: Schedule, _size: int) -> float:
        found.append(Algorithm(asked, schedule, FLOW))
        return found[-1].time_us(size_bytes)

    size = max(1, round(size_bytes))
    if engine == "auto" and chunks is None and problem.collective.chunks == 1:
        if estimated_sends(problem) <= _COMPARED:
            found += baseline(problem)
        if problem.nranks <= _FEW:
            say("routing")
            more = search(problem, Options(size=size, engine="route", budget_s=_ROUTE_BUDGET_S), workers)
            found += [served.algorithm for served in more.ranges]
            bound = bound.merged(more.bound.witnesses)
    best_us = min((a.time_us(size_bytes) for a in found), default=np.inf)
    if best_us > bound.at(size_bytes)[0] * close_enough(0):
        until = begun + _SHARE * budget_s
        try:
            FlowSearch(problem, bound, add, size=size, chunks=chunks, deadline=until, say=say).run()
        except InputError:  # of sums where links go one way only
            if not found:
                raise
    best = min(found, key=lambda a: (a.time_us(size_bytes), len(a.schedule)))
    schedule = timed(best.problem, best.schedule, size_bytes)
    enough_us = best.time_us(size_bytes) / close_enough(0)
    if bound.at(size_bytes)[0] < enough_us:
        # a good plan's loads say much already
        bound = bound.merged([from_loads(problem, busy_us(best.problem, schedule))])
    loads = partial(busy_us, best.problem, schedule)
    until = begun + budget_s
    for better in tighten(problem, bound, loads, size_bytes, enough_us, workers, until, say):
        bound = better
    return Alone(best.problem, schedule, best.engine, bound)


def each_alone(
    asked: Together,
    workers: Workers,
    *,
    chunks: int | None = None,
    engine: str = "auto",
    until: float = np.inf,
    say: Say = lambda _: None,
) -> tuple[list[Alone], bool]:
    """Every group's answer by itself; groups to which all looks alike are answered once.

    Args:
        until: of `time.monotonic()`: what there is time for is shared out evenly.

    Returns:
        The answers, and whether Ctrl-C came: what was left was done in haste.
    """
    alike = IsomorphicGroups(asked.problem.topology)
    first = _first_of_a_kind(asked, alike)
    left = sum(group == source for group, (source, _) in enumerate(first))
    found: list[Alone] = []
    interrupted = False
    for group, (source, by) in enumerate(first):
        member = asked.members[group]
        if group == source:
            one = partial(
                answer_alone,
                alone(asked, [group])[0],
                member.size_bytes,
                workers,
                chunks=chunks,
                engine=engine,
                say=partial(_said, say, f"group {member.label} alone: "),
            )
            share = 0.0 if interrupted else max(0.0, until - time.monotonic()) / left
            try:
                found.append(one(budget_s=share))
            except KeyboardInterrupt:
                if interrupted:
                    raise
                interrupted = True
                found.append(one(budget_s=0.0))
            left -= 1
        elif by is None:
            found.append(found[source])
        else:
            known = found[source]
            problem = alone(asked, [group])[0]
            finer = problem.with_chunks(known.problem.collective.nchunks // problem.collective.nchunks)
            moved = alike.translate_schedule(known.problem, known.schedule, finer, by)
            replay(finer, moved)
            found.append(replace(known, problem=finer, schedule=moved))
    return found, interrupted


def _said(say: Say, before: str, text: str) -> None:
    say(before + text)


def _first_of_a_kind(asked: Together, alike: IsomorphicGroups) -> list[tuple[int, tuple[int, ...] | None]]:
    """For each group the first that is like it (maybe itself), and the shifts that bring that one onto it.

    None for the shifts where the two problems have the same numbers anyway.
    """
    names: dict[bytes, int] = {}
    kinds: dict[tuple[int, int, float], list[tuple[int, Problem]]] = {}
    found: list[tuple[int, tuple[int, ...] | None]] = []
    for group, member in enumerate(asked.members):
        problem = alone(asked, [group])[0]
        size = float(member.size_bytes)
        same = names.setdefault(shared_name(problem, size), group)
        if same != group:
            found.append((same, None))
            continue
        others = kinds.setdefault((len(problem.group), problem.nranks, size), [])
        ways = ((other, alike.find_translation(known, problem)) for other, known in others)
        like = next(((other, by) for other, by in ways if by is not None), None)
        if like is None:
            others.append((group, problem))
        found.append(like or (group, None))
    return found


def busy_us(problem: Problem, schedule: Schedule) -> Floats:
    """How long a timed schedule keeps each resource busy, shape (nresources,)."""
    net = problem.network
    count = np.diff(net.uses_ptr)[schedule.link]
    used = net.uses_idx[row_entries(net.uses_ptr, schedule.link)]
    work = problem.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk] * US_PER_BYTE_AT_1_GBS
    return np.bincount(used, np.repeat(work, count), net.nresources) / net.capacity_gbs


def parts_alone(
    asked: Together, schedule: Schedule, groups: Sequence[int] | None = None
) -> Iterator[tuple[Problem, Schedule]]:
    """Each group's sends (or those of some groups) as a schedule of the group's problem by itself, `groups.alone`.

    Raises ScheduleRefused where a chunk is at a rank at which its group's may not be.
    """
    parts = split(asked, schedule)
    for group in range(len(parts)) if groups is None else groups:
        problem, part = parts[group]
        (whole,) = alone(asked, [group])
        place = {rank: i for i, rank in enumerate(whole.ranks)}
        links = links_among(whole.network, np.array([place[rank] for rank in problem.ranks]))[0]
        yield whole, replace(part, link=links[part.link])
