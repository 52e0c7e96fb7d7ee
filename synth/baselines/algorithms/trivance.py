"""Trivance (Jürß, Addanki, Schmid, arXiv 2602.17254): each step joins both neighbours' sums, in ⌈log₃ n⌉ steps."""

from __future__ import annotations

import numpy as np

from synth.baselines.algorithms.exchange import Pattern, exchange_baselines, fewest, in_turns
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem

NAME = "trivance"


def trivance_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build exchanges in which each step of a dimension joins members 3^i places away on either side.

    A grid of D dimensions has D concurrent exchanges, each of which begins with another dimension. It takes any
    extents: nothing is sent to a member that has it already. Whole sums are exchanged where all extents are powers of
    three (otherwise two windows of sums would overlap).
    """
    extents = grid_extents(problem)
    lines = [trivance_line(extent) for extent in extents]
    return exchange_baselines(problem, NAME, [in_turns(lines, extents, first) for first in range(len(extents))], most)


def trivance_line(extent: int) -> Pattern:
    """Return partners on a ring, the farthest first."""
    place, steps = np.arange(extent), range(fewest(3, extent))
    if extent == 2:
        return [[1 - place]]
    return [[(place + 3**step) % extent, (place - 3**step) % extent] for step in reversed(steps)]
