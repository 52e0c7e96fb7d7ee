"""Isolated runs: each group's best answer while all others are idle, with which concurrent plans are compared."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from synth.bounds.prove import Bound
from synth.bounds.witness import Witness
from synth.concurrent.union import UnionProblem, isolated_problems, split_by_group
from synth.engines.flow.tuning import SEARCH as FLOW
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.plans import SearchPlan, Stage
from synth.search.pool import Executor
from synth.search.result import Report
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.symmetry.relabelling import IsomorphicGroups
from synth.timing.simulate import time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.network import links_among

# A group's isolated run is one of many and has a part of a second: constructive engines only.
ISOLATED = SearchPlan(
    stages=(
        Stage("baseline", most_sends=300_000, always=True),
        Stage("route", most_ranks=16),
        Stage("flow", share=0.75, gap=FLOW.near),  # the rest is for the bound
    ),
    rest=False,
    work_s=0.5,
    patient=True,
    met=FLOW.near,
    max_flow_ranks=64,
    quick_bounds=True,
)


@dataclass(frozen=True, eq=False)
class Isolated:
    """A group's best answer while all others are idle.

    Attributes:
        problem: of the group's ranks and everybody who may relay for it, with the chunks that the schedule has.
        schedule: replayed, and timed at the group's size.
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
        """When its last send has arrived."""
        return time_us(self.problem, self.schedule)

    @cached_property
    def bound_us(self) -> float:
        """The bound at its size."""
        return self.bound.at(self.size_bytes)[0]


def problem_digest(problem: Problem, size_bytes: float) -> bytes:
    """The same for problems that differ only in which ranks of the topology they are about.

    Local ranks, links and resources have the same numbers, so one's schedule is the other's.
    """
    net, collective = problem.network, problem.collective
    digest = hashlib.sha256(repr((collective.name, collective.chunks, net.nranks, float(size_bytes))).encode())
    for column in (
        net.src, net.dst, net.alpha_us, net.bandwidth_gbs, net.uses_ptr, net.uses_idx, net.capacity_gbs,
        collective.reduces, collective.fraction, collective.pre, collective.post,
    ):  # fmt: skip
        digest.update(str(column.shape).encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


def with_blocks_as_chunks(problem: Problem) -> Problem:
    """The problem with every chunk called a block of its own, as baselines want it stated."""
    if problem.collective.chunks == 1:
        return problem
    return replace(problem, collective=replace(problem.collective, chunks=1))


def run_isolated(
    problem: Problem,
    size_bytes: float,
    options: Options,
    workers: Workers,
    report: Report | None = None,
    executor: Executor | None = None,
) -> tuple[Isolated, bool]:
    """The best answer found for one group by itself, with its bound; and whether Ctrl-C cut it short.

    Args:
        problem: with the chunks that the group's collective has.
        options: chunks (of each of these; any where None), engine, sends a rank, and budget: there is an answer even
            where it is 0.
        executor: what is to run the answer; None: its schedule is all that counts.

    Raises:
        InputError: chunks that cannot get to where they are wanted.
    """
    options = Options(
        max(1, round(size_bytes)), options.chunks, engine=options.engine, budget_s=options.budget_s,
        rank_sends=options.rank_sends,
    )  # fmt: skip
    found = search(problem, options, workers, report, ISOLATED, executor)
    if not found.ranges and found.ended == "interrupted":
        raise KeyboardInterrupt  # before there was anything
    best = found.ranges[0].algorithm
    schedule = timed(best.problem, best.schedule, size_bytes)
    return Isolated(best.problem, schedule, best.engine, found.bound), found.ended == "interrupted"


def run_each_isolated(
    asked: UnionProblem,
    options: Options,
    workers: Workers,
    until: float,
    report: Callable[[str], None],
    executor_of: Callable[[Problem], Executor | None] = lambda _: None,
) -> tuple[list[Isolated], bool]:
    """Every group's isolated run; isomorphic groups are searched once.

    Args:
        options: see `run_isolated`.
        until: of `now`: what there is time for is shared out evenly.
        executor_of: what is to run a group's answer, by its problem.

    Returns:
        The answers, and whether Ctrl-C came: what was left was done in haste.
    """
    isomorphic = IsomorphicGroups(asked.topology)
    problems = isolated_problems(asked)
    sources = _first_of_a_kind(asked, problems, isomorphic)
    left = sum(group == source for group, (source, _) in enumerate(sources))
    found: list[Isolated] = []
    interrupted = False
    for group, (source, by) in enumerate(sources):
        problem, member = problems[group], asked.members[group]
        if group == source:
            tell = partial(_report_group, report, member.label)
            share_s = 0.0 if interrupted else max(0.0, until - now()) / left
            executor = executor_of(problem)
            try:
                hurried = replace(options, budget_s=share_s)
                one, cut = run_isolated(problem, member.size_bytes, hurried, workers, tell, executor)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                hurried = replace(options, budget_s=0.0)
                one, _ = run_isolated(problem, member.size_bytes, hurried, workers, tell, executor)
                cut = True
            interrupted |= cut
            found.append(one)
            left -= 1
        elif by is None:
            found.append(found[source])
        else:
            known = found[source]
            refined = problem.with_chunks(known.problem.collective.nchunks // problem.collective.nchunks)
            moved = isomorphic.translate_schedule(known.problem, known.schedule, refined, by)
            replay(refined, moved)
            found.append(replace(known, problem=refined, schedule=moved))
    return found, interrupted


def engine_of(answers: Sequence[Isolated]) -> str:
    """What found them, by name."""
    return ", ".join(sorted({one.engine for one in answers}))


def _report_group(report: Callable[[str], None], label: str, text: str, _: Algorithm | None) -> None:
    report(f"group {label} alone: {text}")


def _first_of_a_kind(
    asked: UnionProblem, problems: Sequence[Problem], isomorphic: IsomorphicGroups
) -> list[tuple[int, tuple[int, ...] | None]]:
    """For each group the first isomorphic to it (maybe itself), and the translation (None: numbers are the same)."""
    digests: dict[bytes, int] = {}
    kinds: dict[tuple[int, int, float], list[tuple[int, Problem]]] = {}
    found: list[tuple[int, tuple[int, ...] | None]] = []
    for group, (problem, member) in enumerate(zip(problems, asked.members, strict=True)):
        size = float(member.size_bytes)
        same = digests.setdefault(problem_digest(problem, size), group)
        if same != group:
            found.append((same, None))
            continue
        others = kinds.setdefault((len(problem.group), problem.nranks, size), [])
        images = ((other, isomorphic.find_translation(known, problem)) for other, known in others)
        first = next(((other, by) for other, by in images if by is not None), None)
        if first is None:
            others.append((group, problem))
        found.append(first or (group, None))
    return found


def isolated_parts(
    asked: UnionProblem, schedule: Schedule, groups: Sequence[int] | None = None
) -> Iterator[tuple[Problem, Schedule]]:
    """Each group's sends (or those of some groups) as a schedule of the group's problem by itself.

    Raises ScheduleRefused where a chunk is at a rank at which its group's may not be.
    """
    parts = split_by_group(asked, schedule)
    for group in range(len(parts)) if groups is None else groups:
        problem, part = parts[group]
        (whole,) = isolated_problems(asked, [group])
        place = {rank: i for i, rank in enumerate(whole.ranks)}
        links = links_among(whole.network, np.array([place[rank] for rank in problem.ranks]))[0]
        yield whole, replace(part, link=links[part.link])


def own_witnesses(isolated: Sequence[Isolated], size_bytes: float) -> list[Witness]:
    """The groups' own bounds at the sizes of a union whose message has `size_bytes`; good for their numbers only."""
    found = []
    for one in dict.fromkeys(isolated):
        ratio = one.size_bytes / size_bytes
        found += [replace(w, per_byte_us=w.per_byte_us * ratio) for w in one.bound.witnesses]
    return found
