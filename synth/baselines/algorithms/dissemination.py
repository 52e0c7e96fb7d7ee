"""Dissemination (Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE TPDS 8, 1997): partners at powers of two."""

from __future__ import annotations

import numpy as np

from synth.baselines.algorithms.exchange import Pattern, exchange_baselines, fewest
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem

NAME = "dissemination"


def dissemination_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build ⌈log₂ n⌉ phases: in phase i every member sends 2^i places back all that the goal lacks.

    Whole sums are exchanged where n is a power of two. Empty for collectives that are not exchanged.
    """
    k = problem.collective.nranks
    return exchange_baselines(problem, NAME, [doubling_line(k)], most)


def doubling_line(k: int) -> Pattern:
    """Return partners 1, 2, 4, … places back."""
    return [[(np.arange(k) - (1 << step)) % k] for step in range(fewest(2, k))]
