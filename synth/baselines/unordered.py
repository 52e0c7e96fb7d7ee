"""A baseline whose sends have no order yet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from synth.baselines.fifo import served
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.verify.algorithm import Algorithm


class Unordered(NamedTuple):
    """What is sent, for a problem with the chunks that this needs.

    Attributes:
        engine: what the algorithms are called.
        queued: the schedule in the order to which its queues come, for a size of the smallest chunk in bytes.
        by_step: None, or the schedule in the order of its steps.
        settled: that order is the queues' for all sizes.
    """

    problem: Problem
    engine: str
    queued: Callable[[float], Schedule]
    by_step: Schedule | None = None
    settled: bool = False

    def algorithms(self, size_bytes: float | None) -> list[Algorithm]:
        """Algorithms for the order at a message size; for the different orders at several, and by step, when None."""
        smallest = float(self.problem.collective.fraction.min())
        sizes = TUNING.orders_bytes if size_bytes is None else (size_bytes * smallest,)
        orders = [] if self.settled else [partial(self.queued, chunk_bytes) for chunk_bytes in sizes]
        made: list[Algorithm] = []
        for order in orders:
            self._add(made, order())
            if len(made[0].schedule) > TUNING.ordered_once:
                return made
        if self.by_step is not None and (self.settled or size_bytes is None):
            self._add(made, self.by_step)
        return made

    def _add(self, made: list[Algorithm], schedule: Schedule) -> None:
        if not any(same_order(schedule, known.schedule) for known in made):
            made.append(Algorithm(self.problem, schedule, self.engine))


def stepped(problem: Problem, schedule: Schedule, engine: str, settled: bool = False) -> Unordered:
    """A plan of sends that go by step, or as ports serve them."""
    return Unordered(problem, engine, partial(served, problem, schedule), schedule, settled)


def same_order(one: Schedule, two: Schedule) -> bool:
    """Whether the same sends stand in the same order."""
    columns = ("chunk", "link", "step", "reduces")
    return all(np.array_equal(getattr(one, name), getattr(two, name)) for name in columns)
