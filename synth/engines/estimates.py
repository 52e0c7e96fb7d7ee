"""Estimates of the size of a schedule from the problem only."""

from __future__ import annotations

import math

from synth.model.problem import Problem


def estimated_sends(problem: Problem) -> int:
    """Estimate how many sends a schedule with these chunks has (for a quotient problem: the sends of the quotient).

    It is one send for each rank and chunk of the postcondition, and of the precondition too where the collective
    reduces. Where these are at most 0.3 · ranks a chunk, the number is multiplied by an estimate of the mean hops.
    """
    collective, net = problem.collective, problem.network
    pairs = len(collective.post)
    if collective.reducing:
        pairs += len(collective.pre)
    goals = pairs / max(1, collective.nchunks)
    if goals > 0.3 * problem.nranks:
        return pairs
    return int(pairs * _mean_hops(net.nranks, net.nlinks))


def _mean_hops(nranks: int, nlinks: int) -> float:
    """Estimate the mean number of links between two ranks, at least 1, from the mean number of links that leave a rank.

    Up to 8 links a rank it is the mean distance in a torus with so many links a rank, above that a logarithm of the
    number of ranks.
    """
    degree = max(2.0, nlinks / max(1, nranks))
    if degree > 8:
        return max(1.0, math.log(max(2, nranks)) / math.log(degree))
    return max(1.0, math.pow(nranks, 2 / degree) * degree / 8)  # The mean distance in a torus.
