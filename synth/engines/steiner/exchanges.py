"""All-reduces that meet at both ends of a link: each end sends the other what it has, and both have all.

Trees come up to both ends, which share out the contributors; then both ends exchange what came, and trees go down from
both, which share out the goals. That is one link less, one behind the other, than up to one rank and down from it: as
many as the longest path of the tree has, which no schedule over the tree can undercut.
"""

from __future__ import annotations

import numpy as np

from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.model.collective import Floats, Ints
from topologies.network import Network

_Side = tuple[Arborescences | None, int, int]


class Exchanges:
    """Links of a network with one back each, over which two ranks can exchange what they have.

    Attributes:
        forth, back: links u→v and v→u, u < v; shape (exchanges,).
    """

    def __init__(self, net: Network) -> None:
        at: dict[tuple[int, int], list[int]] = {}
        for link, ends in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True)):
            at.setdefault(ends, []).append(link)
        both = [(x, y) for (u, v), links in at.items() if u < v for x in links for y in at.get((v, u), ())]
        self.forth, self.back = np.array(both, dtype=np.int64).reshape(-1, 2).T
        self._ends = net.src[self.forth], net.dst[self.forth]

    def __len__(self) -> int:
        return len(self.forth)

    def levels(self, level: Ints) -> Ints:
        """How many levels each takes, where links take so many: shape (exchanges,)."""
        return np.asarray(np.maximum(level[self.forth], level[self.back]))

    def least(self, table: Arborescences, ends: int) -> Floats:
        """The least cost of trees from both ranks that share out some ends, shape (levels, exchanges)."""
        u, v = self._ends
        least = np.full((len(table.cost), len(self)), 2 * BEYOND)
        for some in _parts(ends):
            np.minimum(least, table.cost[:, some, u] + table.cost[:, ends ^ some, v], out=least)
        return least

    def shares(self, table: Arborescences, ends: int, number: int, level: int) -> dict[int, int]:
        """Both ranks of an exchange, and which of the ends each has in the cheapest trees within a level."""
        u, v = (int(side[number]) for side in self._ends)
        parts = np.array(_parts(ends))
        some = int(parts[(table.cost[level, parts, u] + table.cost[level, ends ^ parts, v]).argmin()])
        return {u: some, v: ends ^ some}

    def meeting(
        self, roots: Ints, place: int, above: _Side, below: _Side
    ) -> tuple[dict[int, int], dict[int, int], tuple[int, ...]]:
        """Where all meets, with the ends that come up and go down there, and the links over which it is exchanged.

        Args:
            place: of the roots, or after these of the exchanges.
            above, below: the table of what comes up, or goes down, with its ends and the level that it has.
        """
        if place < len(roots):
            root = int(roots[place])
            return {root: above[1]}, {root: below[1]}, ()
        one = place - len(roots)
        (rise, holders, begin), (fall, goals, end) = above, below
        assert rise is not None
        assert fall is not None
        both = self.shares(rise, holders, one, begin), self.shares(fall, goals, one, end)
        return *both, (int(self.forth[one]), int(self.back[one]))


def _parts(ends: int) -> list[int]:
    """All subsets but none and all."""
    found, some = [], (ends - 1) & ends
    while some:
        found.append(some)
        some = (some - 1) & ends
    return found


def sums_within(rise: Floats, fall: Floats, between: Ints | int = 0) -> tuple[Floats, Ints]:
    """The least cost within each level of what comes up and then goes down, and the level within which it comes up.

    Args:
        rise, fall: least costs within each level, the last without limit; shape (levels, meetings).
        between: levels between both, at each meeting.
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
    """Least costs within a level of each meeting, BEYOND where it is below 0; level: shape (…, meetings or 1)."""
    return np.where(level >= 0, cost[np.maximum(level, 0), np.arange(cost.shape[1])], 2 * BEYOND)
