"""Isolated runs: each group's best answer while all other groups are idle, to compare concurrent plans with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from synth.bounds.prove import Bound
from synth.bounds.witness import Witness
from synth.concurrent.union import UnionProblem, isolated_problems, split_by_group
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.executor import Executor
from synth.search.plans import ISOLATED
from synth.search.result import Report
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.symmetry.relabelling import IsomorphicGroups
from synth.timing.simulate import time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.network import links_among


@dataclass(frozen=True, eq=False)
class Isolated:
    """A group's best answer while all other groups are idle.

    Attributes:
        problem: Problem of the group's ranks and its relays, with the chunks of the schedule.
        schedule: Schedule, replayed, and timed at the group's size.
        engine: Name of the engine that found it.
        bound: Lower limit on the time of any algorithm of that problem, by the group's own message size. Its numbers
            hold for every isomorphic group, but its witnesses name local ranks and resources of the group that was
            searched, which is the first of them in the question; another group may number its relays otherwise.
    """

    problem: Problem
    schedule: Schedule
    engine: str
    bound: Bound

    @property
    def size_bytes(self) -> float:
        """Return the group's message size in bytes."""
        return self.schedule.size_bytes

    @cached_property
    def time_us(self) -> float:
        """Return when the last send has arrived, in µs."""
        return time_us(self.problem, self.schedule)

    @cached_property
    def bound_us(self) -> float:
        """Return the bound at the group's size, in µs."""
        return self.bound.at(self.size_bytes)[0]


def problem_digest(problem: Problem, size_bytes: float) -> bytes:
    """Return a digest that is equal for problems that differ only in which ranks of the topology they are about.

    Local ranks, links and resources of such problems have the same numbers, so a schedule of one is a schedule of the
    other. The message size in bytes must be equal too.
    """
    net, collective = problem.network, problem.collective
    digest = hashlib.sha256(repr((collective.name, collective.chunks, net.nranks, float(size_bytes))).encode())
    for column in (
        net.src, net.dst, net.alpha_us, net.bandwidth_gbs, net.gap_us, net.uses_ptr, net.uses_idx, net.capacity_gbs,
        *(() if net.switch_graph is None else net.switch_graph.columns),
        collective.reduces, collective.fraction, collective.pre, collective.post,
    ):  # fmt: skip
        digest.update(str(column.shape).encode())
        digest.update(np.ascontiguousarray(column).tobytes())
    return digest.digest()


def with_blocks_as_chunks(problem: Problem) -> Problem:
    """Return the problem with every chunk called a block of its own, which is how baselines want it stated."""
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
    """Search the best answer of one group by itself.

    Args:
        problem: Problem with the chunks that the group's collective has.
        size_bytes: The group's message size in bytes; it is searched at a whole number of bytes, at least 1.
        options: Chunks (into how many each chunk is cut; any number if None), engine, sends a rank, and budget; nothing
            else of it counts. There is an answer even with a budget of 0.
        workers: Solver processes.
        report: Receives what is tried, and the latest algorithm or None; None for no reports.
        executor: Executor of the answer; None if only its schedule counts.

    Returns:
        The answer with its bound, and whether Ctrl-C cut the search short.

    Raises:
        InputError: Chunks cannot get to where they are wanted.
        KeyboardInterrupt: Ctrl-C came before there was an answer.
    """
    options = Options(
        max(1, round(size_bytes)), options.chunks, engine=options.engine, budget_s=options.budget_s,
        rank_sends=options.rank_sends,
    )  # fmt: skip
    result = search(problem, options, workers, report, ISOLATED, executor)
    if not result.ranges and result.stop_reason == "interrupted":
        raise KeyboardInterrupt  # Ctrl-C came before any answer.
    best = result.ranges[0].algorithm
    schedule = timed(best.problem, best.schedule, size_bytes)
    return Isolated(best.problem, schedule, best.engine, result.bound), result.stop_reason == "interrupted"


def run_each_isolated(
    union: UnionProblem,
    options: Options,
    workers: Workers,
    until: float,
    report: Callable[[str], None],
    executor_of: Callable[[Problem], Executor | None] = lambda _: None,
) -> tuple[list[Isolated], bool]:
    """Search the isolated run of every group; isomorphic groups are searched once.

    Args:
        union: The groups as one problem.
        options: See `run_isolated`; its budget does not count.
        workers: Solver processes.
        until: Reading of `now`; the time until then is shared evenly.
        report: Receives what is tried.
        executor_of: Returns the executor of a group's answer, by its problem; None if only its schedule counts.

    Returns:
        The answer of each group in the order of the union, and whether Ctrl-C came, so that the later ones were made in
        haste. Groups whose problems are equal but for the ranks share one object.

    Raises:
        InputError: See `run_isolated`.
        KeyboardInterrupt: Ctrl-C came a second time.
    """
    isomorphic = IsomorphicGroups(union.topology)
    problems = isolated_problems(union)
    sources = _first_of_a_kind(union, problems, isomorphic)
    to_search = sum(group == source for group, (source, _) in enumerate(sources))
    answers: list[Isolated] = []
    interrupted = False
    for group, (source, by) in enumerate(sources):
        problem, member = problems[group], union.members[group]
        if group == source:
            tell = partial(_report_group, report, member.label)
            share_s = 0.0 if interrupted else max(0.0, until - now()) / to_search
            executor = executor_of(problem)
            try:
                hurried = replace(options, budget_s=share_s)
                answer, cut = run_isolated(problem, member.size_bytes, hurried, workers, tell, executor)
            except KeyboardInterrupt:
                if interrupted:
                    raise
                hurried = replace(options, budget_s=0.0)
                answer, _ = run_isolated(problem, member.size_bytes, hurried, workers, tell, executor)
                cut = True
            interrupted |= cut
            answers.append(answer)
            to_search -= 1
        elif by is None:
            answers.append(answers[source])
        else:
            source_answer = answers[source]
            refined = replace(problem, collective=source_answer.problem.collective)  # As the engine cut it.
            moved = isomorphic.translate_schedule(source_answer.problem, source_answer.schedule, refined, by)
            replay(refined, moved)
            answers.append(replace(source_answer, problem=refined, schedule=moved))
    return answers, interrupted


def engine_of(answers: Sequence[Isolated]) -> str:
    """Return the names of the engines of the answers as one text, each once, sorted and separated by ", "."""
    return ", ".join(sorted({answer.engine for answer in answers}))


def _report_group(report: Callable[[str], None], label: str, text: str, _: Algorithm | None) -> None:
    """Report what is tried for one group."""
    report(f"group {label} alone: {text}")


def _first_of_a_kind(
    union: UnionProblem, problems: Sequence[Problem], isomorphic: IsomorphicGroups
) -> list[tuple[int, tuple[int, ...] | None]]:
    """Return for each group the first group isomorphic to it, maybe itself, with the translation of ranks.

    Both groups must have the same message size. The translation is None if both problems have the same local numbers.

    Returns:
        (position of the first group, translation) of each group, in their order.
    """
    digests: dict[bytes, int] = {}
    kinds: dict[tuple[int, int, float], list[tuple[int, Problem]]] = {}
    sources: list[tuple[int, tuple[int, ...] | None]] = []
    for group, (problem, member) in enumerate(zip(problems, union.members, strict=True)):
        size = float(member.size_bytes)
        same = digests.setdefault(problem_digest(problem, size), group)
        if same != group:
            sources.append((same, None))
            continue
        candidates = kinds.setdefault((len(problem.group), problem.nranks, size), [])
        images = (
            (candidate, isomorphic.find_translation(candidate_problem, problem))
            for candidate, candidate_problem in candidates
        )
        first = next(((candidate, by) for candidate, by in images if by is not None), None)
        if first is None:
            candidates.append((group, problem))
        sources.append(first or (group, None))
    return sources


def isolated_parts(
    union: UnionProblem, schedule: Schedule, groups: Sequence[int] | None = None
) -> Iterator[tuple[Problem, Schedule]]:
    """Yield the sends of each group as a schedule of the group's isolated problem, with the times that they have.

    Args:
        union: The groups as one problem.
        schedule: Schedule of the union.
        groups: Positions of the groups that are wanted, in this order; None for all.

    Raises:
        ScheduleRefused: A chunk is at a rank at which its group's chunks may not be.
    """
    parts = split_by_group(union, schedule)
    for group in range(len(parts)) if groups is None else groups:
        problem, part = parts[group]
        (whole,) = isolated_problems(union, [group])
        place = {rank: i for i, rank in enumerate(whole.ranks)}
        links = links_among(whole.network, np.array([place[rank] for rank in problem.ranks]))[0]
        yield whole, replace(part, link=links[part.link])


def own_witnesses(isolated: Sequence[Isolated], size_bytes: float) -> list[Witness]:
    """Return the groups' own bounds, restated for the message size of a union.

    Only their numbers are good; they are no proofs for the union. Groups that share one answer count once.

    Args:
        isolated: The answers of the groups.
        size_bytes: Message size of the union in the question, in bytes, to which the groups' sizes belong.
    """
    witnesses = []
    for answer in dict.fromkeys(isolated):
        ratio = answer.size_bytes / size_bytes
        witnesses += [replace(w, per_byte_us=w.per_byte_us * ratio) for w in answer.bound.witnesses]
    return witnesses
