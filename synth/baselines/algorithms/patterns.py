"""Patterns of exchanges that papers state by formula; `exchange` builds the algorithms from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from synth.baselines.algorithms.exchange import Goals, Pattern, along, exchange_baselines, fewest, in_turns, mirrored
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.algorithms.spreading import GATHERING
from synth.baselines.fifo import Unordered
from synth.model.problem import Problem
from topologies.errors import TooManySends

_MOST_PAIRS = 100_000_000  # pairs of partner and block: about a second

Concurrent = Sequence[Pattern]
"""Patterns that run at once, each with an equal part of every block: one algorithm."""


def bucket(problem: Problem) -> list[Concurrent]:
    """Return rings along one dimension of a grid after another (Jain and Sabharwal, ICPP 2010), in both directions.

    Neighbours on the lines of a dimension send each other what they lack. There are as many concurrent exchanges as
    dimensions, each of which begins with another one. They take as many hops as the grid's diameter, and on a torus
    every link carries as much. It is for grids of any extents, with or without links around.

    Returns:
        A list of one; empty where a line has other links too, that is, where two members are linked that are not
        neighbours.
    """
    extents = grid_extents(problem)
    k, net = problem.collective.nranks, problem.network
    linked = np.zeros((k, k), dtype=bool)
    inside = (net.src < k) & (net.dst < k)
    linked[net.src[inside], net.dst[inside]] = True
    lines = []
    for dimension, extent in enumerate(extents):
        place = np.arange(extent)
        neighbours = [
            along(extents, dimension, (place + direction) % extent) for direction in ((1, -1) if extent > 2 else (1,))
        ]
        phase = [np.where(linked[np.arange(k), goals], goals, -1) for goals in neighbours]
        around = all((goals >= 0).all() for goals in phase)
        lines.append([phase] * (extent // 2 if around else extent - 1))
        for goals in phase:
            linked[np.flatnonzero(goals >= 0), goals[goals >= 0]] = False
    if linked.any():
        return []
    return [[[phase for i in range(len(lines)) for phase in lines[d - i]] for d in range(len(lines))]]


def multiplying(problem: Problem) -> list[Concurrent]:
    """Return recursive multiplying (Ruefenacht, Bull, Booth, Parallel Computing 69, 2017), as a list of one.

    It is doubling with more partners a phase, which joins all members of a line of the grid; the factors are the grid's
    extents. In a full mesh that is one phase, the direct exchange of all with all; in a product of full meshes (a
    hypercube, a DGX-1) it is one phase a dimension. There are as many concurrent exchanges as dimensions, and each ends
    with another one. Whole sums are exchanged where members of a line are neighbours: an allreduce in as many hops as
    the network's diameter, for short messages. It takes any number of ranks.

    Raises:
        TooManySends: There are lines of very many members.
    """
    extents, k = grid_extents(problem), problem.collective.nranks
    if k * k * sum(extents) > _MOST_PAIRS:
        raise TooManySends(f"baseline: multiplying among {k} ranks has too many partners and blocks; use fewer ranks")
    lines = [[[(np.arange(extent) + away) % extent for away in range(1, extent)]] for extent in extents]
    return [[in_turns(lines, extents, d) for d in range(len(extents))]]


def trivance(problem: Problem) -> list[Concurrent]:
    """Return Trivance (Jürß, Addanki, Schmid, arXiv 2602.17254), as a list of one: ⌈log₃ n⌉ steps on a ring of n.

    Each step of a dimension joins members 3^i places away on either side. A grid of D dimensions has D concurrent
    exchanges, each of which ends with another dimension. It takes any extents: nothing is sent to a member that has it
    already. Whole sums are exchanged where all extents are powers of three (otherwise two windows of sums would
    overlap).
    """
    extents = grid_extents(problem)
    lines = [trivance_line(extent) for extent in extents]
    return [[in_turns(lines, extents, first) for first in range(len(extents))]]


def trivance_line(extent: int) -> Pattern:
    """Return Trivance's partners on a ring of `extent` places, the farthest first: both sides in each phase.

    On two places there is one phase with one partner. In phase i of ⌈log₃ extent⌉, from the last, the partners are 3^i
    places away; on one place there is no phase.
    """
    place, steps = np.arange(extent), range(fewest(3, extent))
    if extent == 2:
        return [[1 - place]]
    return [[(place + 3**step) % extent, (place - 3**step) % extent] for step in reversed(steps)]


def swing(problem: Problem) -> list[Concurrent]:
    """Return Swing (De Sensi, Bonato, Saam, Hoefler, NSDI 2024): partners nearer than those of recursive doubling.

    On a torus of D dimensions (sections 3 and 4) it is 2·D concurrent exchanges of equal parts, two that end with each
    dimension: one, and its mirror image, so that both directions of all dimensions are in use. Whole sums are exchanged
    where all extents are powers of two.

    Returns:
        A list of one; empty where an extent is odd (the source has one odd ring, whose last member talks to all
        others).
    """
    extents = grid_extents(problem)
    if any(extent % 2 for extent in extents):
        return []
    lines = [swing_line(extent) for extent in extents]
    mirror = [[[mirrored(goals) for goals in phase] for phase in line] for line in lines]
    dimensions = range(len(extents))
    return [[in_turns(directed, extents, first) for first in dimensions for directed in (lines, mirror)]]


def swing_line(extent: int) -> Pattern:
    """Return partners on a ring with an even number of places, the farthest first (section 3.1, equations 1 and 2).

    There are ⌈log₂ extent⌉ phases of one partner each, as `swing_partners` states them.
    """
    return [[swing_partners(extent, step)] for step in reversed(range(fewest(2, extent)))]


def swing_partners(extent: int, step: int) -> Goals:
    """Return the place to which each place sends: Σ (-2)^i, i = 0 … step, places further on, from odd ones as far back.

    Args:
        extent: Number of places of the ring, even.
        step: Number of the step, from 0.

    Returns:
        Shape (extent,), modulo the extent.
    """
    place = np.arange(extent)
    away = (1 - (-2) ** (step + 1)) // 3
    return np.asarray((place + np.where(place % 2, -away, away)) % extent)


def bine(problem: Problem) -> list[Concurrent]:
    """Return Bine trees (De Sensi and others, SC 2025): binomial trees numbered in base -2, so that edges are short.

    A butterfly's partners are those of Swing's line, since negabinary numbers that differ in their last step+1 digits
    differ by Σ (-2)^i; the links do not matter. The tree of a root is that of its block in the butterfly, distances
    halving.

    Returns:
        Algorithms of one exchange each: on a grid one with one dimension after the other, and one in the order of the
        group. One is left out where the number of members (on a grid, an extent) is odd.
    """
    even = [
        e for e in dict.fromkeys([grid_extents(problem), (problem.collective.nranks,)]) if not any(x % 2 for x in e)
    ]
    return [[in_turns([swing_line(extent) for extent in extents], extents, len(extents) - 1)] for extents in even]


def pat(problem: Problem) -> list[Concurrent]:
    """Return PAT, parallel aggregated trees (Jeaugey, arXiv 2506.20252), as a list of one.

    It is dissemination with the far partners first. Every rank's block goes down a binomial tree, the longest edges
    first, while few blocks cross them, as in NCCL. It takes any number of ranks. An allreduce is a reduce-scatter and
    then an all-gather. Buffers have the size that they need. In the source small buffers cut the near phases into more
    phases, which moves the same chunks over the same links.
    """
    return [[pattern[::-1] for pattern in concurrent] for concurrent in dissemination(problem)]


def dissemination(problem: Problem) -> list[Concurrent]:
    """Return dissemination (Bruck, Ho, Kipnis, Upfal, Weathersby, IEEE TPDS 8, 1997): partners at powers of two.

    In phase i of ⌈log₂ n⌉, from 0, every member sends 2^i places back all that the goal lacks. It is a list of one
    exchange. Whole sums are exchanged where n is a power of two.
    """
    k = problem.collective.nranks
    return [[[[(np.arange(k) - (1 << step)) % k] for step in range(fewest(2, k))]]]


def recursive_doubling(problem: Problem) -> list[Concurrent]:
    """Return recursive doubling and halving (Thakur, Rabenseifner and Gropp 2005, sections 3 and 4).

    In phase i = 0, 1, … positions that differ in bit i exchange all that they have. It is a list of one exchange; empty
    for collectives other than allgather, reducescatter and allreduce, and where the number of ranks is no power of two.
    """
    k = problem.collective.nranks
    if problem.collective.name not in GATHERING or k & (k - 1):
        return []
    return [[[[np.arange(k) ^ (1 << bit)] for bit in range(k.bit_length() - 1)]]]


PATTERNS: dict[str, Callable[[Problem], list[Concurrent]]] = {
    "recursive doubling": recursive_doubling,
    "bucket": bucket,
    "multiplying": multiplying,
    "trivance": trivance,
    "swing": swing,
    "bine": bine,
    "pat": pat,
    "dissemination": dissemination,
}


def pattern_baselines(name: str, problem: Problem, most: int) -> list[Unordered]:
    """Build the algorithms of one name of `PATTERNS`; empty for collectives or groups that it does not suit.

    Args:
        name: A name of `PATTERNS`, which is also that of the algorithms.
        problem: The problem with one chunk a block.
        most: Most sends of an algorithm.

    Raises:
        NoRoute: Two partners have no route.
        TooManySends: There are more than `most` sends.
    """
    return [plan for patterns in PATTERNS[name](problem) for plan in exchange_baselines(problem, name, patterns, most)]
