"""The engine `milp`: the best schedule by time slots for one message size and number of chunks, and its dual bound."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.edge_colouring import slotted
from synth.engines.greedy import route
from synth.engines.request import Candidate, Options, Outcome, Progress, Request, SlotClaim
from synth.engines.time_slots.encoding import read_schedule, slot_model
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.phases.split import Phase, phases
from synth.timing.simulate import predict_us

NAME = "milp"


@dataclass(frozen=True)
class Tuning:
    """How large a program may be, and how long it may take.

    Attributes:
        most_ranks: up to which it is tried at all.
        slots: in the time of the best known schedule: more resolve α better, and make the program larger.
        most_variables: sends × slots that solvers finish in seconds.
        chunks: numbers of chunks a block that are tried where none is pinned.
        near: time / bound from which on it is not asked for a size, unless by name.
        share, share_by_name: of the time left, for one program.
    """

    most_ranks: int = 32
    slots: int = 16
    most_variables: int = 4000
    chunks: tuple[int, ...] = (1, 2)
    near: float = 1.01
    share: float = 0.2
    share_by_name: float = 0.9


def accepts(problem: Problem, options: Options) -> str:
    """Few ranks, one phase; unasked only where no one step suits all links."""
    if problem.nranks > Tuning.most_ranks or problem.quotient is not None or problem.allowed is not None:
        return f"milp is for one group of {Tuning.most_ranks} ranks at most; this problem has {problem.nranks}"
    if len(phases(problem)) > 1:
        return f"milp is for collectives that copy, or that sum for one rank each; {problem.collective.name} does both"
    if options.engine != "milp":
        if options.pinned:
            return "a shape is asked for"
        if np.ptp(problem.network.alpha_us) == 0:
            return "where all links have one α, steps say as much"
    return ""


def solve(problem: Problem, request: Request, tuning: Tuning | None = None) -> Iterator[Outcome]:
    """A schedule and a claim for every size that answers are shown at and that is not at its bound yet."""
    tuning = tuning or Tuning()
    options, known = request.options, request.known
    asked = options.engine == "milp"
    (phase,) = phases(problem)
    for size in [options.size] if options.size is not None else known.shown_bytes():
        if not asked and known.best_us(size) <= request.bound.at(size)[0] * tuning.near:
            continue
        for chunks in tuning.chunks if options.chunks is None else (options.chunks,):
            yield Progress(f"time slots: {chunks} chunks")
            left_s = request.deadline - time.monotonic()
            budget_s = left_s * (tuning.share_by_name if asked else tuning.share)
            found = _in_slots(phase, chunks, size, request, budget_s, tuning)
            if found is not None:
                schedule, claim = found
                finer = problem.with_chunks(claim.chunks)
                yield Candidate(finer, slotted(finer, schedule), NAME, size)
                yield claim


def _in_slots(
    phase: Phase, chunks: int, size: int, request: Request, budget_s: float, tuning: Tuning
) -> tuple[Schedule, SlotClaim] | None:
    """The best schedule of the asked problem (by way of its phase) that is found, and what is proved of all.

    None where the program is too large, or the solver failed or had no time.
    """
    copying = phase.apply(chunks)
    cells = copying.network.nlinks * copying.collective.nchunks * tuning.slots
    if cells > 10 * tuning.most_variables or budget_s <= 0.05:
        return None
    known = min(
        (route.solve(copying, size, depth) for depth in (0.0, 0.5, 1.0)), key=lambda s: predict_us(copying, s, size)
    )
    ceiling_us = predict_us(copying, known, size)
    model = slot_model(copying, size, ceiling_us, tuning.slots)
    if len(model.sends) > tuning.most_variables:
        return None
    until = time.monotonic() + budget_s * 1.5 + 2
    result = request.workers.answer(until, "milp", model.program, budget_s, request.options.seed)
    if result is None:
        return None
    bound_us = ceiling_us  # where nothing beats the schedule that is known
    if result.status != "infeasible":
        bound_us = min(result.report.dual_bound, ceiling_us)
    if result.solution is not None:
        found = read_schedule(copying, model, np.flatnonzero(result.solution.values[:-1] > 0.5))
        if predict_us(copying, found, size) < ceiling_us:
            known = found
    claim = SlotClaim(size, phase.asked_chunks(chunks), bound_us, result.solver)
    return phase.invert(chunks, known), claim
