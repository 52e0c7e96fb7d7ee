"""Schedules of one step: the same collective in many groups at the same time, on the links that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from synth.baselines import LIBRARY, baseline_named
from synth.concurrent.isolated import problem_digest
from synth.concurrent.search import plan
from synth.concurrent.union import UnionProblem, isolated_problems, merge_schedules, union_problem
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.parallelism.reduction.concrete import ConcreteStep
from synth.parallelism.reduction.join_steps import Reduction, StepSchedule
from synth.solvers.workers import Workers
from synth.timing.simulate import time_us, timed
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, TooManySends


def library_schedules(request: Reduction, step: ConcreteStep, names: Iterable[str] = LIBRARY) -> list[StepSchedule]:
    """Return what a vendor library would run in all groups at once, one schedule a baseline, the fastest first.

    Equal groups run the same algorithm. The list is empty if no baseline has this collective in these groups, or if the
    ranks of a group do not reach each other.

    Args:
        request: The request.
        step: One of its steps.
        names: Names of `synth.baselines.BASELINES`; one that not every group can run gives no schedule.
    """
    try:
        union = union_problem(request.topology, request.step_members(step), request.relays)
    except InputError:
        return []
    problems = isolated_problems(union)
    digests = [
        problem_digest(problem, member.size_bytes) for problem, member in zip(problems, union.members, strict=True)
    ]
    step_schedules = []
    for name in names:
        algorithm_of_digest: dict[bytes, Algorithm | None] = {}
        for digest, problem, member in zip(digests, problems, union.members, strict=True):
            if digest not in algorithm_of_digest:
                algorithm_of_digest[digest] = _fastest(problem, name, member.size_bytes)
        algorithms = [algorithm_of_digest[digest] for digest in digests]
        if all(algorithms):
            step_schedules.append(
                _merged_schedule(request, union, [algorithm for algorithm in algorithms if algorithm is not None], name)
            )
    return sorted(step_schedules, key=lambda step_schedule: step_schedule.time_us)


def _fastest(problem: Problem, name: str, size_bytes: float) -> Algorithm | None:
    """Return the fastest algorithm of a baseline for a problem, or None if there is none or it has too many sends."""
    with suppress(TooManySends):
        algorithms = baseline_named(problem, name, size_bytes)
        return min(algorithms, key=lambda algorithm: algorithm.time_us(size_bytes), default=None)
    return None


def _merged_schedule(
    request: Reduction, union: UnionProblem, algorithms: Sequence[Algorithm], name: str
) -> StepSchedule:
    """Merge an algorithm for each group into one schedule of the step."""
    problem = union.restated([algorithm.problem.collective for algorithm in algorithms], request.relays, ())
    merged = merge_schedules(
        problem, [algorithm.timed(m.size_bytes) for algorithm, m in zip(algorithms, union.members, strict=True)]
    )
    schedule = timed(problem, merged, problem.size_bytes)
    return StepSchedule(problem, schedule, name, time_us(problem, schedule))


def searched_schedule(request: Reduction, step: ConcreteStep, budget_s: float, workers: Workers | None) -> StepSchedule:
    """Return the best schedule for the step's groups that a search of `budget_s` seconds (more than 0) finds.

    Raises:
        InputError: The ranks of a group do not reach each other, or the groups cannot be searched otherwise.
    """
    result = plan(
        request.topology,
        request.step_members(step),
        relays=request.relays,
        budget=budget_s,
        workers=workers,
        begun=now(),
    )
    return StepSchedule(result.problem, result.at_size, result.algorithm.engine, result.makespan_us)
