"""How large an answer will be, told from the problem alone."""

from __future__ import annotations

import math

from synth.model.problem import Problem


def estimated_sends(problem: Problem) -> int:
    """About how many sends a schedule with these chunks has (of a quotient problem: of what it holds)."""
    collective, net = problem.collective, problem.network
    pairs = len(collective.post)
    if collective.reducing:
        pairs += len(collective.pre)
    goals = pairs / max(1, collective.nchunks)
    if goals > 0.3 * problem.nranks:
        return pairs
    return int(pairs * _mean_hops(net.nranks, net.nlinks))


def _mean_hops(nranks: int, nlinks: int) -> float:
    """About how far apart two ranks are, from the number of links a rank."""
    degree = max(2.0, nlinks / max(1, nranks))
    if degree > 8:
        return max(1.0, math.log(max(2, nranks)) / math.log(degree))
    return max(1.0, math.pow(nranks, 2 / degree) * degree / 8)  # of a torus
