"""Forwarding: the best path from every switch to every rank, through switches only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from topologies.arrays import Bools, Floats, Ints, index_among
from topologies.topology import Topology


@dataclass(frozen=True, eq=False)
class Tables:
    """Best paths from each switch to each of D wanted ranks, through switches only."""

    edge_link: Ints  # (E,), physical switch→switch links sorted by source switch
    edge_start: Ints  # (nswitches + 1,), edges of switch s are edge_start[s]:edge_start[s+1]
    edge_to: Ints  # (E,), the switch each edge leads to
    best: Bools  # (E, D), whether the edge is on an equally best path to the wanted rank
    last: Ints  # (nswitches, D), the link from the switch straight to the rank where that is best, else -1
    reach: Bools  # (nswitches, D)


def forwarding_tables(topology: Topology, ranks: Ints) -> Tables:
    """Each switch's paths to `ranks`, compared from itself on: least α, then most bandwidth, then fewest hops.

    α is compared in whole picoseconds, so that the order in which the same figures are added up decides nothing.
    """
    n, nswitches, wanted = topology.nranks, len(topology.switches), len(ranks)
    picos = np.rint(topology.alpha_us * 1e6)
    gbs = topology.bandwidth_gbs
    src, dst = topology.link_src, topology.link_dst
    column = index_among(n, ranks)

    down = np.flatnonzero((src >= n) & (dst < n))
    down = down[column[dst[down]] >= 0]
    at = (src[down] - n, column[dst[down]])
    last = np.full((nswitches, wanted), -1, dtype=np.int64)
    last[at] = down
    alpha = np.full((nswitches, wanted), np.inf)
    alpha[at] = picos[down]
    rate = np.zeros((nswitches, wanted))
    rate[at] = gbs[down]
    straight_alpha, straight_rate = alpha.copy(), rate.copy()

    edges = np.flatnonzero((src >= n) & (dst >= n))  # sorted by source, as all links are
    tail, head = src[edges] - n, dst[edges] - n
    start = np.searchsorted(tail, np.arange(nswitches + 1))
    if not len(edges):
        return Tables(edges, start, head, np.zeros((0, wanted), dtype=bool), last, last >= 0)
    sources = np.flatnonzero(np.diff(start))
    blocks = start[sources]
    cost, width = picos[edges][:, None], gbs[edges][:, None]

    def relax(values: Floats, better: np.ufunc, over_edges: Callable[[], Floats]) -> None:
        """Improves what switches have by what their edges offer them, until nothing changes."""
        while True:
            found = better(values[sources], better.reduceat(over_edges(), blocks))
            if (found == values[sources]).all():
                return
            values[sources] = found

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
    """The physical links from each `switch` to the rank in `column`, a column a hop, -1 where the path has ended.

    spread: picks one of several equally best edges: spread mod choices at the first switch that has a choice, the
    quotient at the next, so that a fat tree's destinations fill all its spines (D-mod-k routing).
    """
    at, quotient = switch.copy(), spread.copy()
    moving = np.arange(len(switch))
    hops: list[Ints] = []
    while len(moving):
        taken = np.full(len(switch), -1, dtype=np.int64)
        final = tables.last[at[moving], column[moving]]
        taken[moving] = final
        moving = moving[final < 0]
        # A last link is fewer hops than any edge, so an edge is only taken where there is none.
        order = np.argsort(at[moving], kind="stable")
        moving = moving[order]
        here = at[moving]
        for group in np.split(np.arange(len(moving)), np.flatnonzero(np.diff(here)) + 1):
            if not len(group):
                continue
            who = moving[group]
            s = int(at[who[0]])
            low, high = int(tables.edge_start[s]), int(tables.edge_start[s + 1])
            open_edges = tables.best[low:high][:, column[who]]
            upto = np.cumsum(open_edges, axis=0)
            choices = upto[-1]
            pick = np.argmax(upto == quotient[who] % choices + 1, axis=0)
            quotient[who] //= choices
            taken[who] = tables.edge_link[low + pick]
            at[who] = tables.edge_to[low + pick]
        hops.append(taken)
    return hops
