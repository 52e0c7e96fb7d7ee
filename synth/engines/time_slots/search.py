"""One problem, one message size, one number of chunks: the best schedule by time slots, and its dual bound."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from synth.engines.greedy import route
from synth.engines.time_slots.encoding import read_schedule, slot_model
from synth.model.schedule import Schedule
from synth.phases.phases import Phase
from synth.solvers.workers import Workers
from synth.timing.simulate import predict_us

NAME = "milp"
_SLOTS = 16  # in the time of the best known schedule
_MOST_VARIABLES = 4000


@dataclass(frozen=True)
class SlotClaim:
    """No schedule with so many chunks a block is faster than `bound_us` for messages of `size` bytes."""

    size: int
    chunks: int
    bound_us: float
    solver: str


def in_slots(
    workers: Workers, form: Phase, chunks: int, size: int, budget_s: float, seed: int
) -> tuple[Schedule, SlotClaim] | None:
    """The best schedule of the asked problem (by way of `form`) that is found, and what is proved of all.

    None where the program would be too large, or the solver failed or had no time.
    """
    copying = form.apply(chunks)
    if (
        copying.network.nlinks * copying.collective.nchunks * _SLOTS > 10 * _MOST_VARIABLES
        or budget_s <= 0.05
    ):
        return None
    known = min(
        (route.solve(copying, size, depth) for depth in (0.0, 0.5, 1.0)),
        key=lambda s: predict_us(copying, s, size),
    )
    ceiling = predict_us(copying, known, size)
    model = slot_model(copying, size, ceiling, _SLOTS)
    if len(model.sends) > _MOST_VARIABLES:
        return None
    result = workers.answer(time.monotonic() + budget_s * 1.5 + 2, "milp", model.program, budget_s, seed)
    if result is None:
        return None
    bound_us = ceiling  # where nothing beats the schedule that is known
    if result.status != "infeasible":
        bound_us = min(result.report.dual_bound, ceiling)
    if result.solution is not None:
        found = read_schedule(copying, model, np.flatnonzero(result.solution.values[:-1] > 0.5))
        if predict_us(copying, found, size) < ceiling:
            known = found
    claim = SlotClaim(size, form.asked_chunks(chunks), bound_us, result.solver)
    return form.invert(chunks, known), claim
