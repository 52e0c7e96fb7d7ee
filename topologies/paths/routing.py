"""Forwarding: the best path from every switch to every rank, through switches only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from topologies.arrays import Bools, Floats, Ints, index_among
from topologies.topology import Topology


@dataclass(frozen=True, eq=False)
class Tables:
    """The best paths from each switch to each of D destination ranks, through switches only.

    Attributes:
        edge_link: Physical link of each of the E edges from switch to switch, sorted by source: int64 (E,).
        edge_start: Edges of switch s are edge_start[s]:edge_start[s+1]: int64 (nswitches + 1,).
        edge_to: Switch that each edge leads to: int64 (E,).
        best: Whether the edge is on an equally best path to the rank: bool (E, D).
        last: Link from the switch straight to the rank where that is best, else -1: int64 (nswitches, D).
        reach: Whether the switch reaches the rank: bool (nswitches, D).
    """

    edge_link: Ints
    edge_start: Ints
    edge_to: Ints
    best: Bools
    last: Ints
    reach: Bools


def forwarding_tables(topology: Topology, ranks: Ints) -> Tables:
    """Return each switch's best paths to `ranks`: least α, then most bandwidth, then fewest hops, from the switch on.

    α is compared in whole picoseconds, so that the order in which equal figures are summed decides nothing.

    Args:
        topology: The topology.
        ranks: Destinations, each once, in the order of the tables' columns: int64 (D,).
    """
    n, nswitches, ncolumns = topology.nranks, len(topology.switches), len(ranks)
    picos = np.rint(topology.alpha_us * 1e6)
    gbs = topology.bandwidth_gbs
    src, dst = topology.link_src, topology.link_dst
    column = index_among(n, ranks)

    down_links = np.flatnonzero((src >= n) & (dst < n))
    down_links = down_links[column[dst[down_links]] >= 0]
    place = (src[down_links] - n, column[dst[down_links]])
    last = np.full((nswitches, ncolumns), -1, dtype=np.int64)
    last[place] = down_links
    alpha = np.full((nswitches, ncolumns), np.inf)
    alpha[place] = picos[down_links]
    rate = np.zeros((nswitches, ncolumns))
    rate[place] = gbs[down_links]
    straight_alpha, straight_rate = alpha.copy(), rate.copy()

    edges = np.flatnonzero((src >= n) & (dst >= n))  # Sorted by source, as all links are.
    tail, head = src[edges] - n, dst[edges] - n
    start = np.searchsorted(tail, np.arange(nswitches + 1))
    if not len(edges):
        return Tables(edges, start, head, np.zeros((0, ncolumns), dtype=bool), last, last >= 0)
    sources = np.flatnonzero(np.diff(start))
    blocks = start[sources]
    cost, width = picos[edges][:, None], gbs[edges][:, None]

    def relax(values: Floats, better: np.ufunc, over_edges: Callable[[], Floats]) -> None:
        """Replace in place the values of switches by better ones that their edges offer, until nothing improves.

        Args:
            values: Value of each switch for each destination: float64 (nswitches, D).
            better: np.minimum or np.maximum.
            over_edges: Function that returns what each edge offers by the present values: float64 (edges, D).
        """
        while True:
            improved = better(values[sources], better.reduceat(over_edges(), blocks))
            if (improved == values[sources]).all():
                return
            values[sources] = improved

    relax(alpha, np.minimum, lambda: cost + alpha[head])
    reach = np.isfinite(alpha)
    best = (cost + alpha[head] == alpha[tail]) & reach[tail]
    straight = (straight_alpha == alpha) & reach

    rate = np.where(straight, straight_rate, 0.0)
    relax(rate, np.maximum, lambda: np.where(best, np.minimum(width, rate[head]), 0.0))
    best &= np.minimum(width, rate[head]) == rate[tail]
    straight &= straight_rate == rate

    hops = np.where(straight, 1.0, np.inf)
    relax(hops, np.minimum, lambda: np.where(best, hops[head] + 1, np.inf))
    best &= hops[head] + 1 == hops[tail]
    return Tables(edges, start, head, best, np.where(straight, last, -1), reach)


def follow(tables: Tables, switch: Ints, column: Ints, spread: Ints) -> list[Ints]:
    """Return the physical links from each `switch` to the rank in `column`, an array per hop, -1 after the path's end.

    Each array is int64 (paths,); the last hop's link leads to the rank.

    Args:
        tables: The forwarding tables.
        switch: Switch at which each path begins, numbered from 0 after the ranks: int64 (paths,).
        column: Column of `tables` of each path's destination, which the switch must reach: int64 (paths,).
        spread: Number that picks one of several equally best edges: spread mod choices at the first switch that has a
            choice, the quotient at the next, so that the destinations of a fat tree fill all its spines (D-mod-k
            routing): int64 (paths,).
    """
    current, quotient = switch.copy(), spread.copy()
    moving = np.arange(len(switch))
    hops: list[Ints] = []
    while len(moving):
        hop_links = np.full(len(switch), -1, dtype=np.int64)
        final = tables.last[current[moving], column[moving]]
        hop_links[moving] = final
        moving = moving[final < 0]
        # A direct link to the rank has fewer hops than any edge, so an edge is followed only where there is none.
        order = np.argsort(current[moving], kind="stable")
        moving = moving[order]
        switches = current[moving]
        for group in np.split(np.arange(len(moving)), np.flatnonzero(np.diff(switches)) + 1):
            if not len(group):
                continue
            paths = moving[group]
            s = int(current[paths[0]])
            low, high = int(tables.edge_start[s]), int(tables.edge_start[s + 1])
            open_edges = tables.best[low:high][:, column[paths]]
            upto = np.cumsum(open_edges, axis=0)
            choices = upto[-1]
            pick = np.argmax(upto == quotient[paths] % choices + 1, axis=0)
            quotient[paths] //= choices
            hop_links[paths] = tables.edge_link[low + pick]
            current[paths] = tables.edge_to[low + pick]
        hops.append(hop_links)
    return hops
