"""Swing (De Sensi, Bonato, Saam, Hoefler, NSDI 2024): partners nearer than those of recursive doubling, for tori."""

from __future__ import annotations

import numpy as np

from synth.baselines.algorithms.exchange import Goals, Pattern, exchange_baselines, fewest, in_turns, mirrored
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem

NAME = "swing"


def swing_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build Swing on a torus of D dimensions (sections 3 and 4): 2·D concurrent exchanges of equal parts.

    Each exchange begins with another dimension, and each has a mirror image, so that both directions of all dimensions
    are in use. Whole sums are exchanged where all extents are powers of two.

    Empty where an extent is odd (the source has one odd ring, whose last member talks to all others), and for
    collectives that are not exchanged.
    """
    extents = grid_extents(problem)
    if any(extent % 2 for extent in extents):
        return []
    lines = [swing_line(extent) for extent in extents]
    mirror = [[[mirrored(goals) for goals in phase] for phase in line] for line in lines]
    patterns = [
        in_turns(directed_lines, extents, first) for first in range(len(extents)) for directed_lines in (lines, mirror)
    ]
    return exchange_baselines(problem, NAME, patterns, most)


def swing_line(extent: int) -> Pattern:
    """Return partners on a ring with an even number of places, the farthest first (section 3.1, equations 1 and 2)."""
    return [[swing_partners(extent, step)] for step in reversed(range(fewest(2, extent)))]


def swing_partners(extent: int, step: int) -> Goals:
    """Return partners: even places look Σ (-2)^i, i = 0 … step, places further on, odd ones as far back."""
    place = np.arange(extent)
    away = (1 - (-2) ** (step + 1)) // 3
    return np.asarray((place + np.where(place % 2, -away, away)) % extent)
