"""Bine trees (De Sensi and others, SC 2025): binomial trees numbered in base -2, so that their edges are short."""

from __future__ import annotations

from synth.baselines.algorithms.exchange import exchange_baselines, in_turns
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.algorithms.swing import swing_line
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem

NAME = "bine"


def bine_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build Bine butterflies for exchanges and Bine trees for broadcast and reduce, in the order of the group.

    A butterfly's partners are those of Swing's line, since negabinary numbers that differ in their last step+1 digits
    differ by Σ (-2)^i; the links do not matter. On a grid there is also one with one dimension after the other. The
    tree of a root is that of its block in the butterfly, distances halving.

    Empty where the number of members (on a grid, an extent) is odd, and for collectives that are not exchanged.
    """
    plans: list[Unordered] = []
    for extents in dict.fromkeys([grid_extents(problem), (problem.collective.nranks,)]):
        if not any(extent % 2 for extent in extents):
            lines = [swing_line(extent) for extent in extents]
            plans += exchange_baselines(problem, NAME, [in_turns(lines, extents, len(extents) - 1)], most)
    return plans
