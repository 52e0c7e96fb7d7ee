"""Choose among plans for concurrent groups the one whose programs are fastest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

import numpy as np

from synth.concurrent.plans import ConcurrentPlan
from synth.concurrent.union import UnionProblem
from synth.model.deadline import TimeUp, limited, now
from synth.model.problem import Problem
from synth.search.executor import Executor
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError


class GroupExecutor(Protocol):
    """The lowering of plans for one executor."""

    def isolated(self, problem: Problem) -> Executor | None:
        """Return the executor for the algorithms of one group; None if the programs of one group are not compared."""

    def rank_sends(self, union: UnionProblem) -> int | None:
        """Return how many sends a rank may take part in for each of its groups, on average; None for any number."""

    def time_us(self, union: UnionProblem, algorithm: Algorithm) -> float:
        """Return the time of a plan's programs in µs.

        Raises:
            InputError: The executor can hold no program of the plan.
        """


def choose_executable(
    contenders: Sequence[ConcurrentPlan],
    best: ConcurrentPlan,
    executor: GroupExecutor,
    most: int,
    until: float,
    say: Callable[[str], None],
) -> ConcurrentPlan:
    """Return the plan whose programs are fastest; the best plan if there are no programs of any in time.

    Once there are programs, it ends at a plan whose schedule is no faster than they are.

    Args:
        contenders: One or more plans, in the order in which they are lowered; a plan may occur again.
        best: The best plan by the times of schedules.
        executor: The lowering of plans.
        most: Most plans that become programs; those that the executor cannot hold do not count.
        until: Reading of `now` at which the budget ends; half of the time left is for the files of the chosen plan.
        say: Receives a line before a step that takes long.
    """
    chosen, least_us, lowered = best, np.inf, 0
    until = now() + (until - now()) / 2
    for plan in dict.fromkeys(contenders):
        over = lowered >= most or plan.makespan_us >= least_us
        if now() >= until or (np.isfinite(least_us) and over):
            break
        say("lowering")
        with suppress(InputError, TimeUp):
            time_us = limited(until, partial(executor.time_us, plan.problem, plan.algorithm))
            lowered += 1
            if time_us < least_us * (1 - 1e-9):
                chosen, least_us = plan, time_us
    return chosen
