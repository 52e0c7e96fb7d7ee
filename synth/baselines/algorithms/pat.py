"""PAT, parallel aggregated trees (Jeaugey, arXiv 2506.20252): dissemination with the far partners first, as in NCCL."""

from __future__ import annotations

from synth.baselines.algorithms.dissemination import doubling_line
from synth.baselines.algorithms.exchange import exchange_baselines
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem

NAME = "pat"


def pat_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build PAT: every rank's block goes down a binomial tree, the longest edges first, while few blocks cross them.

    It takes any number of ranks. It serves allgather and reducescatter (the same backwards); an allreduce is one after
    the other. Buffers have the size that they need. In the source small buffers cut the near phases into more phases,
    which moves the same chunks over the same links.
    """
    k = problem.collective.nranks
    return exchange_baselines(problem, NAME, [doubling_line(k)[::-1]], most)
