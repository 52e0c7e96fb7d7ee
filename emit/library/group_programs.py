"""Lowering of concurrent groups' plans to the programs of a target, checked and timed as one.

Groups that share no rank, relays included, get one program each, for communicators of their own. Groups that share
ranks get one program of all ranks, which is checked against what all groups want.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emit.compiler.fill import ProgramRequest
from emit.library.lowered import Lowered
from emit.library.programs import MOST_SENDS, Programs, executor_for
from emit.targets import check_overlap
from emit.timing.timed import TimedProgram
from synth.concurrent.isolated import problem_digest
from synth.concurrent.union import UnionProblem, split_by_group
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.settings import NONE, TargetSettings
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError


@dataclass(frozen=True, eq=False)
class GroupProgram:
    """A program of one or all groups of a plan.

    Attributes:
        algorithm: Algorithm that it runs.
        size_bytes: Its message size in bytes.
        programs: Lowering that made it.
        by: The lowered program.
        groups: Positions of its groups in the plan, from 0.
    """

    algorithm: Algorithm
    size_bytes: float
    programs: Programs
    by: Lowered
    groups: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class ConcurrentPrograms:
    """The programs of all groups of a plan.

    Attributes:
        parts: The programs.
        time_us: Their time in µs when they are called at the same time.
    """

    parts: tuple[GroupProgram, ...]
    time_us: float


class GroupPrograms:
    """A lowering of plans for concurrent groups for one target.

    Attributes:
        settings: The target and its limits.

    Raises:
        InputError: If the settings say that groups overlap and the target (also an unknown one) has no packets that
            this concerns, or if the number of SMs is below 1. Other faults of the settings appear when a plan is
            lowered.
    """

    def __init__(self, settings: TargetSettings) -> None:
        if settings.groups_overlap:
            check_overlap(settings.name)
        if settings.sms is not None and settings.sms < 1:
            raise InputError(f"--sms {settings.sms}: is not possible; it must be 1 or more")
        self.settings = settings
        self._lowered: dict[Algorithm, ConcurrentPrograms | InputError] = {}

    def isolated(self, problem: Problem) -> Programs | None:
        """Return the lowering of one group's algorithms.

        None means that programs are not asked for, or that the target cannot express the group's collective by itself.
        """
        try:
            return executor_for(problem, self.settings)
        except InputError:  # The target may still express the union.
            return None

    def rank_sends(self, union: UnionProblem) -> int | None:
        """Return how many sends a rank may take part in for each of its groups, on average; None for any number.

        It is at least 1. None means that programs are not asked for, or that the target cannot express the union.
        """
        if self.settings.name == NONE:
            return None
        programs = self.isolated(union)
        most = max(Counter(rank for member in union.members for rank in member.ranks).values())
        return None if programs is None else max(1, programs.rank_sends // most)

    def time_us(self, union: UnionProblem, algorithm: Algorithm) -> float:
        """Lower a plan if that is still to do, and return the time in µs of its programs when they run concurrently.

        Raises:
            InputError: If the target can hold no programs of the plan.
        """
        return self.lower(union, algorithm).time_us

    def lower(self, union: UnionProblem, algorithm: Algorithm) -> ConcurrentPrograms:
        """Lower a plan to programs that are checked and timed as one.

        The result, or the error, is remembered by the algorithm.

        Args:
            union: The groups as one problem.
            algorithm: Algorithm of the union.

        Raises:
            InputError: If the target can hold no programs of the plan.
        """
        if algorithm not in self._lowered:
            try:
                self._lowered[algorithm] = self._lower(union, algorithm)
            except InputError as error:
                self._lowered[algorithm] = error
        lowered = self._lowered[algorithm]
        if isinstance(lowered, InputError):
            raise lowered
        return lowered

    def _lower(self, union: UnionProblem, algorithm: Algorithm) -> ConcurrentPrograms:
        """Lower a plan to one program of all ranks if groups share ranks, relays included, else to one per group.

        Raises:
            InputError: If the algorithm has more than MOST_SENDS sends, or the target can hold no programs of the plan.
        """
        if len(algorithm.schedule) > MOST_SENDS:
            raise InputError(f"an executor's file of {len(algorithm.schedule)} sends would be too large")
        size = union.size_bytes
        parts = split_by_group(union, timed(union, algorithm.schedule, size))
        ranks = [rank for problem, _ in parts for rank in problem.ranks]
        if len(set(ranks)) < len(ranks):
            programs = Programs(union, self.settings)
            lowered = _lower_at(programs, algorithm, size)
            parts_lowered = [GroupProgram(algorithm, size, programs, lowered, tuple(range(len(parts))))]
        else:
            parts_lowered = self._lower_each(union, algorithm, parts)
        return ConcurrentPrograms(tuple(parts_lowered), _concurrent_us(union, parts_lowered))

    def _lower_each(
        self, union: UnionProblem, algorithm: Algorithm, parts: Sequence[tuple[Problem, Schedule]]
    ) -> list[GroupProgram]:
        """Lower each group's part of a plan for the group's message size.

        Groups with equal problems and schedules share a program.

        Args:
            union: The groups as one problem.
            algorithm: Algorithm of the union.
            parts: Per group, its problem and its schedule.

        Returns:
            The program of each group, in the order of the groups.
        """
        lowered_parts: dict[tuple[bytes, ...], Lowered] = {}
        group_programs = []
        for group, (problem, schedule) in enumerate(parts):
            programs, size = Programs(problem, self.settings), union.member_bytes(group, union.size_bytes)
            own = Algorithm(problem, schedule, algorithm.engine, size_bytes=size)
            # Groups with equal problems and schedules share a program.
            columns = (schedule.chunk, schedule.link, schedule.step, schedule.reduces, schedule.start_us)
            key = (problem_digest(problem, size), *(column.tobytes() for column in columns))
            if key not in lowered_parts:
                lowered_parts[key] = _lower_at(programs, own, size)
            group_programs.append(GroupProgram(own, size, programs, lowered_parts[key], (group,)))
        return group_programs


def _lower_at(programs: Programs, algorithm: Algorithm, size_bytes: float) -> Lowered:
    """Lower an algorithm for one message size in bytes, rounded to a whole number and at least 1.

    The protocol is that of the costs, or without costs the one that the size chooses.
    """
    size = max(1, round(size_bytes))
    protocol = programs.problem.topology.protocol or programs.protocol(size)
    return programs.lower_once(algorithm, ProgramRequest(protocol, size, size, (size,)))


def _concurrent_us(union: UnionProblem, parts: Sequence[GroupProgram]) -> float:
    """Return the time in µs of a plan's programs when they run concurrently."""
    return concurrent_us(union, parts, [part.by.predictor for part in parts])


def concurrent_us(union: UnionProblem, parts: Sequence[GroupProgram], predictors: Sequence[TimedProgram]) -> float:
    """Return the time in µs of programs that run concurrently in place of a plan's programs, each at its group's size.

    Args:
        union: The groups' problem.
        parts: The plan's programs.
        predictors: Predictor of the program that stands in the place of each, in the same order.
    """
    position_of = {rank: position for position, rank in enumerate(union.ranks)}
    rank_positions = [np.array([position_of[rank] for rank in part.algorithm.problem.ranks]) for part in parts]
    sizes = [part.size_bytes * part.by.scale for part in parts]
    chunk_bytes = [predictor.chunk_bytes(size) for predictor, size in zip(predictors, sizes, strict=True)]
    return predictors[0].concurrent_us(predictors, rank_positions, chunk_bytes, union.topology, union.ranks)
