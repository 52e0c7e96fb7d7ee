"""Concurrent groups as the programs of a target: lowered, checked and timed together.

Groups that share no rank, relays included, get a program each, for communicators of their own. Groups that share ranks
get one program of all ranks, which is checked against what all groups want.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emit.library.lowered import Lowered
from emit.library.programs import MOST_SENDS, NONE, Programs, executor_for
from emit.targets import check_overlap
from emit.timing.predict import Timed
from synth.concurrent.isolated import problem_digest
from synth.concurrent.union import UnionProblem, split_by_group
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError


@dataclass(frozen=True, eq=False)
class GroupProgram:
    """One program: of which groups, and whose algorithm it runs at which message size in bytes (its own)."""

    algorithm: Algorithm
    size_bytes: float
    programs: Programs
    by: Lowered
    groups: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ConcurrentPrograms:
    """The programs of all groups, and what they take when they are called at the same time."""

    parts: tuple[GroupProgram, ...]
    time_us: float


class GroupPrograms:
    """What lowers plans for concurrent groups for one target.

    sms, groups_overlap, scratch_limit: as `Programs` takes them. Raises InputError for a target that is not
    known, or has no packets, and for threadblocks that cannot be.
    """

    def __init__(
        self, target: str, sms: int | None = None, groups_overlap: bool = False, scratch_limit: int | None = None
    ) -> None:
        if groups_overlap:
            check_overlap(target)
        if sms is not None and sms < 1:
            raise InputError(f"--sms {sms}: is not possible; it must be 1 or more")
        self.target, self.sms, self.groups_overlap, self.scratch_limit = target, sms, groups_overlap, scratch_limit
        self._made: dict[Algorithm, ConcurrentPrograms | InputError] = {}

    def isolated(self, problem: Problem) -> Programs | None:
        """What lowers one group's algorithms; None where the target cannot express them by themselves."""
        try:
            return executor_for(problem, self.target, self.sms, self.groups_overlap, self.scratch_limit)
        except InputError:  # the union may be another matter
            return None

    def rank_sends(self, union: UnionProblem) -> int | None:
        """How many sends a rank may take part in for each of its groups, on average; None: any number."""
        if self.target == NONE:
            return None
        able = self.isolated(union)
        most = max(Counter(rank for member in union.members for rank in member.ranks).values())
        return None if able is None else max(1, able.rank_sends // most)

    def time_us(self, union: UnionProblem, algorithm: Algorithm) -> float:
        """What a plan's programs take together, in µs. Raises InputError as `lower`."""
        return self.lower(union, algorithm).time_us

    def lower(self, union: UnionProblem, algorithm: Algorithm) -> ConcurrentPrograms:
        """A plan's programs, made once. Raises InputError where the target can hold none."""
        if algorithm not in self._made:
            try:
                self._made[algorithm] = self._lower(union, algorithm)
            except InputError as error:
                self._made[algorithm] = error
        made = self._made[algorithm]
        if isinstance(made, InputError):
            raise made
        return made

    def _programs(self, problem: Problem) -> Programs:
        return Programs(problem, self.target, self.sms, self.groups_overlap, self.scratch_limit)

    def _lower(self, union: UnionProblem, algorithm: Algorithm) -> ConcurrentPrograms:
        if len(algorithm.schedule) > MOST_SENDS:
            raise InputError(f"an executor's file of {len(algorithm.schedule)} sends would be too large")
        size = union.size_bytes
        parts = split_by_group(union, timed(union, algorithm.schedule, size))
        ranks = [rank for problem, _ in parts for rank in problem.ranks]
        if len(set(ranks)) < len(ranks):
            programs = self._programs(union)
            by = _lower_at(programs, algorithm, size)
            made = [GroupProgram(algorithm, size, programs, by, tuple(range(len(parts))))]
        else:
            made = self._lower_each(union, algorithm, parts)
        return ConcurrentPrograms(tuple(made), _concurrent_us(union, made))

    def _lower_each(
        self, union: UnionProblem, algorithm: Algorithm, parts: Sequence[tuple[Problem, Schedule]]
    ) -> list[GroupProgram]:
        known: dict[tuple[bytes, ...], Lowered] = {}
        made = []
        for group, (problem, schedule) in enumerate(parts):
            programs, size = self._programs(problem), union.member_bytes(group, union.size_bytes)
            own = Algorithm(problem, schedule, algorithm.engine, size_bytes=size)
            # groups that are alike have one program
            columns = (schedule.chunk, schedule.link, schedule.step, schedule.reduces, schedule.start_us)
            key = (problem_digest(problem, size), *(column.tobytes() for column in columns))
            if key not in known:
                known[key] = _lower_at(programs, own, size)
            made.append(GroupProgram(own, size, programs, known[key], (group,)))
        return made


def _lower_at(programs: Programs, algorithm: Algorithm, size_bytes: float) -> Lowered:
    size = max(1, round(size_bytes))
    protocol = programs.problem.topology.protocol or programs.protocol(size)
    return programs.lower_once(algorithm, protocol, size, size, sizes=(size,))


def _concurrent_us(union: UnionProblem, parts: Sequence[GroupProgram]) -> float:
    return concurrent_us(union, parts, [part.by.predictor for part in parts])


def concurrent_us(union: UnionProblem, parts: Sequence[GroupProgram], predictors: Sequence[Timed]) -> float:
    """What programs take together that stand in the place of a plan's, in µs."""
    place = {rank: at for at, rank in enumerate(union.ranks)}
    where = [np.array([place[rank] for rank in part.algorithm.problem.ranks]) for part in parts]
    sizes = [part.size_bytes * part.by.scale for part in parts]
    chunk_bytes = [predictor.chunk_bytes(size) for predictor, size in zip(predictors, sizes, strict=True)]
    return predictors[0].concurrent_us(predictors, where, chunk_bytes, union.topology, union.ranks)
