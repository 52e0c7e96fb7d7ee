"""The steps of a reduction program as one schedule of the all-reduce, without barriers between them.

A step's schedule is one of the union of its groups (`synth.concurrent.union`). Its chunks are consecutive pieces of
their reduction group's message; a send stands later, by number of step, than all of the program's steps before, so that
what it carries is what these have brought to its source, and it starts as soon as that is there.
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
from synth.parallelism.concrete import ConcreteStep
from synth.parallelism.states import ALLREDUCE, Groups
from synth.timing.simulate import Clock, time_us
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.network import links_among
from topologies.topology import Topology

FINENESS = (1, 2, 4, 8, 16)  # into how many parts the smallest chunks are cut, that steps may overlap
MOST_SENDS = 1_000_000  # of a joined schedule
_FINE_SENDS = 200_000  # of one whose chunks are cut finer than the steps need
_WORTH = 0.003  # what finer chunks must gain
ENGINE = "reduction program"


@dataclass(frozen=True, eq=False)
class Reduction:
    """What is to be reduced: the same over several groups at once.

    Attributes:
        groups: ranks of each reduction group, in the order of their coordinates in the synthesis hierarchy.
        size_bytes: of each group's message.
        relays: who may forward beside a group's own ranks: "none" or "all".
    """

    topology: Topology
    groups: Groups
    size_bytes: float
    relays: str = "none"

    @property
    def pieces(self) -> int:
        return len(self.groups[0])

    def problem(self, parts: int = 1) -> UnionProblem:
        """The all-reduce of all groups with so many chunks a piece."""
        return union_problem(self.topology, self.members(self.pieces * parts), self.relays)

    def members(self, chunks: int) -> list[Member]:
        """The groups with their all-reduces, in so many chunks each."""
        collective = named(ALLREDUCE, self.pieces, chunks)
        return [Member(group, collective, self.size_bytes) for group in self.groups]

    def step_members(self, step: ConcreteStep) -> list[Member]:
        """The groups of a step as concurrent groups with a chunk a block, one reduction group's after the other's."""
        named_once = cache(named)
        return [
            Member(
                tuple(ranks[device] for device in group),
                named_once(step.collective, len(group), 1),
                self.size_bytes * len(pieces) / self.pieces,
            )
            for ranks in self.groups
            for group, pieces in zip(step.groups, step.pieces, strict=True)
        ]


@dataclass(frozen=True, eq=False)
class StepSchedule:
    """A schedule of a step's groups at once, timed at the step's size; `time_us`: what it takes by itself."""

    problem: UnionProblem
    schedule: Schedule
    engine: str
    time_us: float


def join_steps(
    asked: Reduction, steps: Sequence[ConcreteStep], schedules: Sequence[StepSchedule], most_sends: int = MOST_SENDS
) -> Algorithm:
    """The program as a verified algorithm, in the order and with the number of chunks that take least at its size.

    Raises InputError where it would have more than `most_sends` sends however it is cut, and ScheduleError where
    schedules of different steps do not go together (a relay of one holds sums of another).
    """
    least = math.lcm(*map(partial(_least_parts, asked), steps, schedules))
    sends = sum(
        len(made.schedule) * asked.pieces * least // _most_chunks(asked, step, made)
        for step, made in zip(steps, schedules, strict=True)
    )
    best: tuple[float, UnionProblem, Schedule] | None = None
    for fineness in FINENESS:
        coarser = best is not None and best[1].collective.chunks < asked.pieces * least * fineness // 2
        if sends * fineness > (min(most_sends, _FINE_SENDS) if best else most_sends) or coarser:
            break  # coarser: the last cut gained nothing
        problem = asked.problem(least * fineness)
        for schedule in _orders(
            problem, _columns(asked, problem, steps, schedules, least * fineness), asked.size_bytes
        ):
            timed = Clock(problem, schedule).timed(asked.size_bytes)
            took_us = time_us(problem, timed)
            gain = _WORTH if best is not None and best[1] is not problem else 1e-9
            if best is None or took_us < best[0] * (1 - gain):
                best = took_us, problem, timed
    if best is None:
        raise InputError(f"the program has {sends} sends; it must be {most_sends} at most")
    engines = ", ".join(dict.fromkeys(made.engine for made in schedules))
    return Algorithm(best[1], best[2], f"{ENGINE} ({engines})", size_bytes=asked.size_bytes)


def _least_parts(asked: Reduction, step: ConcreteStep, made: StepSchedule) -> int:
    """Into how many chunks a piece must be cut, that each chunk of the step's schedule is a whole number of them."""
    counts = [member.collective.nchunks for member in made.problem.members]
    many = [len(pieces) for pieces in step.pieces] * len(asked.groups)
    return math.lcm(*(count // math.gcd(count, own) for count, own in set(zip(counts, many, strict=True))))


def _most_chunks(asked: Reduction, step: ConcreteStep, made: StepSchedule) -> int:
    """Chunks that the step's schedule would have of a whole message, in its finest group."""
    counts = [member.collective.nchunks for member in made.problem.members]
    return max(1, max(counts) * asked.pieces // min(map(len, step.pieces)))


@dataclass(frozen=True, eq=False)
class _Columns:
    """Rows of a joined schedule; `stage`: the step of the program; `part`: which chunk of its piece it sends."""

    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools
    stage: Ints
    part: Ints

    def ordered(self, *keys: Ints) -> Schedule:
        """In the order of keys, the first counting most, then of the rows."""
        order = np.lexsort(keys[::-1])
        return untimed(self.chunk[order], self.link[order], self.step[order], self.reduces[order])


def _columns(
    asked: Reduction,
    problem: UnionProblem,
    steps: Sequence[ConcreteStep],
    schedules: Sequence[StepSchedule],
    parts: int,
) -> _Columns:
    place = {rank: at for at, rank in enumerate(problem.ranks)}
    made, rounds = [], 0
    for stage, (step, own) in enumerate(zip(steps, schedules, strict=True)):
        base, fine = _fine_chunks(asked, step, own, parts)
        times = np.array([len(row) for row in fine])
        links = links_among(problem.network, np.array([place[rank] for rank in own.problem.ranks]))[0]
        rows = own.schedule
        many = times[rows.chunk]
        row = np.repeat(np.arange(len(rows)), many)
        within = np.arange(len(row)) - np.repeat(np.cumsum(many) - many, many)
        chunk = np.concatenate(fine)[base[rows.chunk[row]] + within]
        link, reduces, number = links[rows.link[row]], rows.reduces[row], np.full(len(row), stage)
        made.append((chunk, link, rows.step[row] + rounds, reduces, number, chunk % parts))
        rounds += rows.nsteps
    return _Columns(*(np.concatenate(column) for column in zip(*made, strict=True)))


def _fine_chunks(asked: Reduction, step: ConcreteStep, made: StepSchedule, parts: int) -> tuple[Ints, list[Ints]]:
    """For every chunk of the step's union, the joined problem's chunks that it is, and where their list begins."""
    within = len(step.groups)
    fine: list[Ints] = []
    for number, member in enumerate(made.problem.members):
        whose, group = divmod(number, within)
        pieces = np.array(step.pieces[group])
        own = ((whose * asked.pieces + pieces)[:, None] * parts + np.arange(parts)).ravel()
        fine += np.split(own, member.collective.nchunks)
    sizes = np.array([len(row) for row in fine])
    return np.cumsum(sizes) - sizes, fine


def _orders(problem: UnionProblem, columns: _Columns, size_bytes: float) -> Iterator[Schedule]:
    """Orders in which the sends may be served; which is best depends on what the steps share."""
    by_step = columns.ordered(columns.step)
    yield by_step
    chunk_bytes = size_bytes * float(problem.collective.fraction.min())
    yield served(problem, by_step, chunk_bytes)
    if columns.part.any():
        by_part = columns.ordered(columns.stage, columns.part, columns.step)
        yield by_part
        yield columns.ordered(columns.part + columns.stage, columns.step)
        yield served(problem, by_part, chunk_bytes)
