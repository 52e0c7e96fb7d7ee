"""Which of several plans for concurrent groups is run: the one whose programs take least."""

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
from synth.search.pool import Executor
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError


class GroupExecutor(Protocol):
    """What lowers plans for an executor."""

    def isolated(self, problem: Problem) -> Executor | None:
        """What lowers the algorithms of one group; None where that is no question for it."""

    def rank_sends(self, union: UnionProblem) -> int | None:
        """How many sends a rank may take part in for each of its groups; see `Options`."""

    def time_us(self, union: UnionProblem, algorithm: Algorithm) -> float:
        """What a plan takes when it is executed, in µs. Raises InputError where it cannot be."""


def choose_executable(
    ranked: Sequence[ConcurrentPlan], executor: GroupExecutor, most: int, until: float, say: Callable[[str], None]
) -> ConcurrentPlan:
    """The plan whose programs take least; the first where the executor can hold none.

    Args:
        ranked: the best first, by their schedules. most: that become programs.
        until: of `now`: of the whole budget; half of what is left of it is for the files of what is chosen.
    """
    chosen, least_us, made = ranked[0], np.inf, 0
    until = now() + (until - now()) / 2
    for plan in dict.fromkeys(ranked):
        over = made >= most or plan.makespan_us >= least_us
        if now() >= until or (np.isfinite(least_us) and over):
            break
        say("lowering")
        with suppress(InputError, TimeUp):
            time_us = limited(until, partial(executor.time_us, plan.problem, plan.algorithm))
            made += 1
            if time_us < least_us * (1 - 1e-9):
                chosen, least_us = plan, time_us
    return chosen
