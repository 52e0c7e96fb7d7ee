"""The steps of a reduction program joined as one schedule of the all-reduce, without barriers between them.

The schedule of a step is one of the union of its groups (`synth.concurrent.union`). Its chunks are consecutive pieces
of the message of their reduction group. The numbers of a step's sends follow those of all steps before it, so that a
send carries the data that these steps bring to its source; it starts as soon as that data is there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from synth.baselines.fifo import served
from synth.concurrent.union import Member, UnionProblem, union_problem
from synth.model.collective import Bools, Ints, named
from synth.model.schedule import Schedule, untimed
from synth.parallelism.reduction.concrete import ConcreteStep
from synth.parallelism.reduction.states import ALLREDUCE, Groups
from synth.timing.simulate import Clock, time_us
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.network import links_among
from topologies.topology import Topology

FINENESS = (1, 2, 4, 8, 16)  # Cuts of the smallest chunks; finer chunks let steps overlap.
MOST_SENDS = 1_000_000  # Of a joined schedule.
_FINE_SENDS = 200_000  # Of one with finer chunks than the steps need.
_WORTH = 0.003  # The share of the time that finer chunks must gain.
ENGINE = "reduction program"


@dataclass(frozen=True, eq=False)
class Reduction:
    """A request: the same all-reduce in several groups at the same time.

    Attributes:
        topology: The topology.
        groups: Ranks of each reduction group, in the order of their coordinates in the synthesis hierarchy.
        size_bytes: Size of each group's message in bytes.
        relays: Ranks that may forward besides a group's own ranks: "none" or "all".
    """

    topology: Topology
    groups: Groups
    size_bytes: float
    relays: str = "none"

    @property
    def pieces(self) -> int:
        """Return the number of pieces of a message, which is the number of ranks of a group."""
        return len(self.groups[0])

    def problem(self, parts: int = 1) -> UnionProblem:
        """Return the all-reduce of all groups with `parts` chunks a piece.

        Raises:
            InputError: The ranks of a group do not reach each other by the rule for relays, or the problem is too large
                for the memory.
        """
        return union_problem(self.topology, self.members(self.pieces * parts), self.relays)

    def members(self, chunks: int) -> list[Member]:
        """Return the groups with their all-reduces of `chunks` chunks a message."""
        collective = named(ALLREDUCE, self.pieces, chunks)
        return [Member(group, collective, self.size_bytes) for group in self.groups]

    def step_members(self, step: ConcreteStep) -> list[Member]:
        """Return the groups of a step as concurrent groups with a chunk a block.

        The groups of the first reduction group come first, in the order of `step.groups`, then those of the second one.
        """
        cached_collective = cache(named)
        return [
            Member(
                tuple(ranks[device] for device in group),
                cached_collective(step.collective, len(group), 1),
                self.size_bytes * len(pieces) / self.pieces,
            )
            for ranks in self.groups
            for group, pieces in zip(step.groups, step.pieces, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class StepSchedule:
    """A schedule of a step's groups that run at the same time.

    Attributes:
        problem: The union of the groups.
        schedule: The schedule, timed at the step's size.
        engine: Name of the engine or baseline.
        time_us: Time of this schedule without the other steps, in µs.
    """

    problem: UnionProblem
    schedule: Schedule
    engine: str
    time_us: float


def join_steps(
    request: Reduction, steps: Sequence[ConcreteStep], schedules: Sequence[StepSchedule], most_sends: int = MOST_SENDS
) -> Algorithm:
    """Build the program as a verified algorithm, with the order and number of chunks that are fastest at its size.

    Args:
        request: The request.
        steps: The program's steps.
        schedules: A schedule of each step, whose groups are `request.step_members(step)`.
        most_sends: Most sends of the program.

    Raises:
        InputError: The program has more than `most_sends` sends with the coarsest chunks that the schedules allow, or
            see `Reduction.problem`.
        ScheduleError: Schedules of different steps do not fit (a relay of one holds sums of another).
        ScheduleRefused: As for ScheduleError, where only the replay sees it.
    """
    least_parts = math.lcm(*map(partial(_least_parts, request), steps, schedules))
    sends = sum(
        len(step_schedule.schedule) * request.pieces * least_parts // _most_chunks(request, step, step_schedule)
        for step, step_schedule in zip(steps, schedules, strict=True)
    )
    best: tuple[float, UnionProblem, Schedule] | None = None
    for fineness in FINENESS:
        no_gain = best is not None and best[1].collective.chunks < request.pieces * least_parts * fineness // 2
        if sends * fineness > (min(most_sends, _FINE_SENDS) if best else most_sends) or no_gain:
            break
        problem = request.problem(least_parts * fineness)
        for schedule in _orders(
            problem, _columns(request, problem, steps, schedules, least_parts * fineness), request.size_bytes
        ):
            timed = Clock(problem, schedule).timed(request.size_bytes)
            took_us = time_us(problem, timed)
            gain = _WORTH if best is not None and best[1] is not problem else 1e-9
            if best is None or took_us < best[0] * (1 - gain):
                best = took_us, problem, timed
    if best is None:
        raise InputError(f"the program has {sends} sends; it must be {most_sends} at most")
    engines = ", ".join(dict.fromkeys(step_schedule.engine for step_schedule in schedules))
    return Algorithm(best[1], best[2], f"{ENGINE} ({engines})", size_bytes=request.size_bytes)


def _least_parts(request: Reduction, step: ConcreteStep, step_schedule: StepSchedule) -> int:
    """Return the number of chunks a piece that makes each chunk of the step's schedule a whole number of them."""
    counts = [member.collective.nchunks for member in step_schedule.problem.members]
    piece_counts = [len(pieces) for pieces in step.pieces] * len(request.groups)
    return math.lcm(
        *(count // math.gcd(count, npieces) for count, npieces in set(zip(counts, piece_counts, strict=True)))
    )


def _most_chunks(request: Reduction, step: ConcreteStep, step_schedule: StepSchedule) -> int:
    """Return the number of chunks that a whole message would have in the finest group of the step's schedule."""
    counts = [member.collective.nchunks for member in step_schedule.problem.members]
    return max(1, max(counts) * request.pieces // min(map(len, step.pieces)))


@dataclass(frozen=True, eq=False)
class _JoinedColumns:
    """The sends of a joined schedule, as columns.

    Attributes:
        chunk: Chunk of the joined problem.
        link: Link of the joined problem's network.
        step: Step of the joined schedule.
        reduces: True if the send reduces.
        stage: Step of the program.
        part: Position of the chunk in its piece.
    """

    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools
    stage: Ints
    part: Ints

    def ordered(self, *keys: Ints) -> Schedule:
        """Return the sends sorted by the keys, of which the first counts most; equal ones keep their order."""
        order = np.lexsort(keys[::-1])
        return untimed(self.chunk[order], self.link[order], self.step[order], self.reduces[order])


def _columns(
    request: Reduction,
    problem: UnionProblem,
    steps: Sequence[ConcreteStep],
    schedules: Sequence[StepSchedule],
    parts: int,
) -> _JoinedColumns:
    """Collect the sends of all steps as columns, with the chunks and links of the joined problem.

    Args:
        request: The reduction.
        problem: The joined problem.
        steps: The steps.
        schedules: The schedule of each step.
        parts: Chunks of the joined problem that a piece has.
    """
    place = {rank: at for at, rank in enumerate(problem.ranks)}
    stage_columns, first_step = [], 0
    for stage, (step, step_schedule) in enumerate(zip(steps, schedules, strict=True)):
        base, fine = _fine_chunks(request, step, step_schedule, parts)
        times = np.array([len(row) for row in fine])
        links = links_among(problem.network, np.array([place[rank] for rank in step_schedule.problem.ranks]))[0]
        rows = step_schedule.schedule
        repeats = times[rows.chunk]
        row = np.repeat(np.arange(len(rows)), repeats)
        within = np.arange(len(row)) - np.repeat(np.cumsum(repeats) - repeats, repeats)
        chunk = np.concatenate(fine)[base[rows.chunk[row]] + within]
        link, reduces, number = links[rows.link[row]], rows.reduces[row], np.full(len(row), stage)
        stage_columns.append((chunk, link, rows.step[row] + first_step, reduces, number, chunk % parts))
        first_step += rows.nsteps
    return _JoinedColumns(*(np.concatenate(column) for column in zip(*stage_columns, strict=True)))


def _fine_chunks(
    request: Reduction, step: ConcreteStep, step_schedule: StepSchedule, parts: int
) -> tuple[Ints, list[Ints]]:
    """Return where the list of each chunk of the step's union begins, and the lists of the joined problem's chunks."""
    within = len(step.groups)
    fine: list[Ints] = []
    for number, member in enumerate(step_schedule.problem.members):
        reduction_group, group = divmod(number, within)
        pieces = np.array(step.pieces[group])
        fine_chunks = ((reduction_group * request.pieces + pieces)[:, None] * parts + np.arange(parts)).ravel()
        fine += np.split(fine_chunks, member.collective.nchunks)
    sizes = np.array([len(row) for row in fine])
    return np.cumsum(sizes) - sizes, fine


def _orders(problem: UnionProblem, columns: _JoinedColumns, size_bytes: float) -> Iterator[Schedule]:
    """Yield orders in which the sends may be served; the best one depends on the resources that the steps share."""
    by_step = columns.ordered(columns.step)
    yield by_step
    chunk_bytes = size_bytes * float(problem.collective.fraction.min())
    yield served(problem, by_step, chunk_bytes)
    if columns.part.any():
        by_part = columns.ordered(columns.stage, columns.part, columns.step)
        yield by_part
        yield columns.ordered(columns.part + columns.stage, columns.step)
        yield served(problem, by_part, chunk_bytes)
