"""All-reduce at one go: the fewest rounds for a number of steps and chunks, by bisection."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from synth.engines.ksync.pareto import REFUTED, Claim, Pins, Shape, StepSearch, Verdict
from synth.timing.rounds import rounds as rounds_of

PART = "sums exchanged"  # what claims about `engines.direct` are about
_MOST_EXTRA_ROUNDS = 12  # above the bound; with more there is no reason to have so few steps


def fewest_rounds(
    search: StepSearch, steps: int, chunks: int, ratio_bound: float, pins: Pins, say: Callable[[str], None]
) -> Claim:
    """The best shape found, and whether it is the best there is.

    What cannot be done in so many rounds cannot be done in fewer. Without a shape the claim is complete if the
    pinned number of rounds was refuted.
    """
    problem = search.copying(chunks)
    low = max(steps, int(np.ceil(ratio_bound * chunks - 1e-9)))
    high = low + _MOST_EXTRA_ROUNDS if pins.rounds is None else pins.rounds
    if pins.rounds is not None and pins.chunks is not None:
        low = max(low, pins.rounds)  # this one shape, unless the bound rules it out
    best: Verdict | None = None
    refuted: list[Shape] = []
    least = low  # rounds that are proved to be needed
    effort = math.inf if low == high else search.effort
    asked = high
    while low <= high and search.left() > 0:
        say(f"all-reduce at one go: {steps} steps, {asked} rounds, {chunks} chunks")
        verdict = search.decide(Shape(steps, asked, chunks), effort)
        if verdict.schedule is not None:
            asked = min(asked, rounds_of(problem, verdict.schedule))
            best = replace(verdict, shape=Shape(steps, asked, chunks))
            high = asked - 1
        else:
            if verdict.status == "unsat":
                refuted.append(verdict.shape)
                least = asked + 1
            low = asked + 1
        asked = (low + high) // 2
    # where no solver was needed: every step takes a round, or the bound leaves no fewer
    plain = "rounds ≥ steps" if steps >= ratio_bound * chunks else "cut"
    by = REFUTED if refuted else plain
    if best is None:
        complete = pins.rounds is not None and least > pins.rounds
    else:
        complete = pins.rounds is None and best.shape.rounds <= least
    return Claim(steps, least / chunks, by, best, complete, chunks, None, tuple(refuted), PART, True)
