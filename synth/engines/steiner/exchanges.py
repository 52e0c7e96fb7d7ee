"""All-reduces that meet at the two ends of a link: each end sends its part to the other end, and both have the sum.

Trees come up to the two ends, which share out the contributors. Then the ends exchange their parts, and trees go down
from each end, which share out the goals. That is one link less in a row than up to one rank and down from it: as many
as the longest path of the tree has, which no schedule over the tree can undercut.
"""

from __future__ import annotations

import numpy as np

from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.model.collective import Floats, Ints
from topologies.network import Network

_Side = tuple[Arborescences | None, int, int]


class Exchanges:
    """Pairs of opposite links, over which two ranks can exchange their parts.

    Attributes:
        forth: Link u→v of each exchange, u < v, int, shape (exchanges,).
        back: Link v→u of each exchange, int, shape (exchanges,).
    """

    def __init__(self, net: Network) -> None:
        links_between: dict[tuple[int, int], list[int]] = {}
        for link, ends in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True)):
            links_between.setdefault(ends, []).append(link)
        link_pairs = [
            (x, y)
            for (u, v), links in links_between.items()
            if u < v
            for x in links
            for y in links_between.get((v, u), ())
        ]
        self.forth, self.back = np.array(link_pairs, dtype=np.int64).reshape(-1, 2).T
        self._ends = net.src[self.forth], net.dst[self.forth]

    def __len__(self) -> int:
        return len(self.forth)

    def levels(self, level: Ints) -> Ints:
        """Return the larger of the levels of each exchange's two links, from `level` of every link.

        The shape is (exchanges,).
        """
        return np.asarray(np.maximum(level[self.forth], level[self.back]))

    def least(self, table: Arborescences, ends: int) -> Floats:
        """Return the least cost of trees from both ranks that share out a set of ends, shape (levels, exchanges).

        Each rank must get at least one end; the cost is BEYOND or more where that is impossible.
        """
        u, v = self._ends
        least = np.full((len(table.cost), len(self)), 2 * BEYOND)
        for subset in _parts(ends):
            np.minimum(least, table.cost[:, subset, u] + table.cost[:, ends ^ subset, v], out=least)
        return least

    def shares(self, table: Arborescences, ends: int, number: int, level: int) -> dict[int, int]:
        """Return the two ranks of an exchange, each with its ends in the cheapest trees within a level.

        Args:
            table: The table of the trees.
            ends: The set of ends to share out, two or more.
            number: Index of the exchange.
            level: The level.
        """
        u, v = (int(side[number]) for side in self._ends)
        parts = np.array(_parts(ends))
        best_subset = int(parts[(table.cost[level, parts, u] + table.cost[level, ends ^ parts, v]).argmin()])
        return {u: best_subset, v: ends ^ best_subset}

    def meeting(
        self, roots: Ints, place: int, above: _Side, below: _Side
    ) -> tuple[dict[int, int], dict[int, int], tuple[int, ...]]:
        """Return the roots of a meeting with their ends above and below, and the links of its exchange.

        Args:
            roots: The ranks at which trees may meet.
            place: Index into the roots, or after these into the exchanges.
            above: The table of the trees up, with their ends and their level.
            below: The table of the trees down, with their ends and their level.

        Returns:
            Each root with the ends of its tree up; each root with the ends of its tree down; the links of the exchange,
            none where the trees meet at one rank.
        """
        if place < len(roots):
            root = int(roots[place])
            return {root: above[1]}, {root: below[1]}, ()
        exchange = place - len(roots)
        (rise, holders, begin), (fall, goals, end) = above, below
        assert rise is not None
        assert fall is not None
        ends_of_roots = self.shares(rise, holders, exchange, begin), self.shares(fall, goals, exchange, end)
        return *ends_of_roots, (int(self.forth[exchange]), int(self.back[exchange]))


def _parts(ends: int) -> list[int]:
    """Return all subsets of a set, as bit masks in descending order, but the empty set and the whole."""
    subsets, subset = [], (ends - 1) & ends
    while subset:
        subsets.append(subset)
        subset = (subset - 1) & ends
    return subsets


def sums_within(rise: Floats, fall: Floats, between: Ints | int = 0) -> tuple[Floats, Ints]:
    """Return the least cost within each level of trees up and then trees down, and the level of the trees up.

    Both have the shape of `rise`.

    Args:
        rise: Least costs of trees up within each level, the last without limit; shape (levels, meetings).
        fall: The same of trees down.
        between: Levels between the trees up and the trees down, at each meeting.
    """
    levels = len(rise)
    cost, first = np.full(rise.shape, 2 * BEYOND), np.zeros(rise.shape, dtype=np.int64)
    for h in range(levels - 1):
        sums = rise[: h + 1] + at_levels(fall, h - np.arange(h + 1)[:, None] - between)
        first[h] = sums.argmin(axis=0)
        cost[h] = sums.min(axis=0)
    cost[-1], first[-1] = rise[-1] + fall[-1], levels - 1
    return cost, first


def at_levels(cost: Floats, level: Ints) -> Floats:
    """Return the least costs within a level of each meeting, more than BEYOND where the level is below 0.

    Args:
        cost: Least costs within each level, shape (levels, meetings).
        level: Levels, shape (…, meetings or 1).
    """
    return np.where(level >= 0, cost[np.maximum(level, 0), np.arange(cost.shape[1])], 2 * BEYOND)
