"""Schedules of one step: the same collective in many groups at once, on the links that they share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from synth.baselines import LIBRARY, baseline_named
from synth.concurrent.isolated import problem_digest
from synth.concurrent.search import plan
from synth.concurrent.union import UnionProblem, isolated_problems, merge_schedules, union_problem
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.parallelism.concrete import ConcreteStep
from synth.parallelism.join_steps import Reduction, StepSchedule
from synth.solvers.workers import Workers
from synth.timing.simulate import time_us, timed
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, TooManySends


def library_schedules(asked: Reduction, step: ConcreteStep, names: Iterable[str] = LIBRARY) -> list[StepSchedule]:
    """What a vendor library would run, begun in all groups at once; the fastest first, one a baseline.

    Groups that are alike run the same. Empty where there is none for this collective in these groups, or where ranks of
    one of them do not reach each other.
    """
    try:
        union = union_problem(asked.topology, asked.step_members(step), asked.relays)
    except InputError:
        return []
    problems = isolated_problems(union)
    digests = [
        problem_digest(problem, member.size_bytes) for problem, member in zip(problems, union.members, strict=True)
    ]
    found = []
    for name in names:
        known: dict[bytes, Algorithm | None] = {}
        for digest, problem, member in zip(digests, problems, union.members, strict=True):
            if digest not in known:
                known[digest] = _fastest(problem, name, member.size_bytes)
        each = [known[digest] for digest in digests]
        if all(each):
            found.append(_at_once(asked, union, [own for own in each if own is not None], name))
    return sorted(found, key=lambda made: made.time_us)


def _fastest(problem: Problem, name: str, size_bytes: float) -> Algorithm | None:
    with suppress(TooManySends):
        made = baseline_named(problem, name, size_bytes)
        return min(made, key=lambda own: own.time_us(size_bytes), default=None)
    return None


def _at_once(asked: Reduction, union: UnionProblem, each: Sequence[Algorithm], name: str) -> StepSchedule:
    problem = union.restated([own.problem.collective for own in each], asked.relays, ())
    merged = merge_schedules(problem, [own.timed(m.size_bytes) for own, m in zip(each, union.members, strict=True)])
    schedule = timed(problem, merged, problem.size_bytes)
    return StepSchedule(problem, schedule, name, time_us(problem, schedule))


def searched_schedule(asked: Reduction, step: ConcreteStep, budget_s: float, workers: Workers | None) -> StepSchedule:
    """The best plan for the step's groups that a search of so many seconds comes to."""
    found = plan(
        asked.topology, asked.step_members(step), relays=asked.relays, budget=budget_s, workers=workers, begun=now()
    )
    return StepSchedule(found.problem, found.at_size, found.algorithm.engine, found.makespan_us)
