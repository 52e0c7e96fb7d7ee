"""Recursive doubling and halving (Thakur, Rabenseifner and Gropp 2005, sections 3 and 4)."""

from __future__ import annotations

import numpy as np

from synth.baselines.algorithms.exchange import exchange_baselines
from synth.baselines.algorithms.spreading import GATHERING
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem

NAME = "recursive doubling"


def doubling_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build recursive doubling: in phase i = 0, 1, … positions that differ in bit i exchange all that they have.

    This is an allgather; a reduce-scatter is the same backwards (recursive halving); an allreduce is both, and also an
    exchange of whole sums. Empty for other collectives and where the number of ranks is no power of two.
    """
    k = problem.collective.nranks
    if problem.collective.name not in GATHERING or k & (k - 1):
        return []
    partners = np.arange(k) ^ (1 << np.arange(k.bit_length() - 1))[:, None]
    return exchange_baselines(problem, NAME, [[[goals] for goals in partners]], most)
