"""Recursive multiplying (Ruefenacht, Bull, Booth, Parallel Computing 69, 2017): doubling with more partners a phase."""

from __future__ import annotations

import numpy as np

from synth.baselines.algorithms.exchange import Pattern, exchange_baselines, in_turns
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem
from topologies.errors import TooManySends

NAME = "multiplying"
_MOST_PAIRS = 100_000_000  # pairs of partner and block: about a second


def multiplying_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build exchanges in which each phase joins all members of a line of the grid; the factors are the grid's extents.

    In a full mesh that is one phase, the direct exchange of all with all; in a product of full meshes (a hypercube, a
    DGX-1) it is one phase a dimension. There are as many concurrent exchanges as dimensions, and each begins with
    another one. Whole sums are exchanged where members of a line are neighbours: an allreduce in as many hops as the
    network's diameter, for short messages. It takes any number of ranks.

    Raises:
        TooManySends: There are more than `most` sends, or lines of very many members.
    """
    extents, k = grid_extents(problem), problem.collective.nranks
    if k * k * sum(extents) > _MOST_PAIRS:
        raise TooManySends(f"baseline: {NAME} among {k} ranks has too many partners and blocks; use fewer ranks")
    lines: list[Pattern] = []
    for extent in extents:
        place = np.arange(extent)
        lines.append([[(place + away) % extent for away in range(1, extent)]])
    return exchange_baselines(problem, NAME, [in_turns(lines, extents, d) for d in range(len(extents))], most)
