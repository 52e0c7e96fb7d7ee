"""Cheapest trees from any rank to any set of ends within any latency; loops.

Dreyfus and Wagner's table (1971) with a dimension for the latency, in levels: the cheapest tree from v to a set of ends
within a level is one within the level before, or a link from v and, from its far end, a tree within what the link's
latency leaves, or two from v that share out the ends. The last level is without limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner

BEYOND = 1e299  # no tree costs so much
_END, _BEFORE, _SPLIT = -1, -2, -3  # how a tree goes on where it does not by a link; _SPLIT - s: into s and the rest


class Arborescences:
    """The cheapest out-trees of a network.

    Attributes:
        cost: float, shape (levels, sets, ranks): of the cheapest tree within a level from rank v to all of set s of the
            ends (bit i: ends[i]); BEYOND and more where there is none.
    """

    def __init__(self, nranks: int, src: Ints, dst: Ints, level: Ints, ends: list[int], levels: int) -> None:
        """Over links src→dst that take so many levels each, 1 or more; no costs are known yet."""
        self.src, self.dst, self.level = (np.array(column, dtype=np.int64) for column in (src, dst, level))
        self._own = np.zeros(nranks, dtype=np.int64)
        self._own[ends] = 1 << np.arange(len(ends))
        shape = levels, 1 << len(ends), nranks
        self.cost, self._how = np.zeros(shape), np.zeros(shape, dtype=np.int32)

    def find(self, run: Runner, length: Floats, endless: bool = True) -> None:
        """Fill the table for lengths ≥ 0 of the links, or of each in every level, shape (levels, links).

        endless: whether the last level is without limit.
        """
        length = np.ascontiguousarray(np.broadcast_to(length, (len(self.cost), len(self.src))), dtype=np.float64)
        run(_fill, self.src, self.dst, self.level, length, self._own, self.cost, self._how, endless)

    def set_of(self, ranks: Ints | list[int]) -> int:
        """The set of some ends as a number."""
        return int(self._own[np.asarray(ranks, dtype=np.int64)].sum())

    def tree(self, roots: dict[int, int], within: int) -> tuple[int, ...]:
        """The links of a cheapest tree within a level, each behind the one that leads to it, none of no use.

        roots: each with the set that it must reach; of more than one the trees have no rank in common.
        """
        return self._pruned(roots, sorted(self._taken(roots, within)))

    def timed(self, roots: dict[int, int], within: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The same, and for how many levels each waits: where lengths differ by level that may pay.

        Of no use where the last level is without limit.
        """
        taken, ends = self._taken(roots, within), sum(roots.values())
        came, waits = dict.fromkeys(roots, within), dict[int, int]()
        for link in sorted(taken, key=lambda one: (-taken[one], one)):
            u, v = int(self.src[link]), int(self.dst[link])
            if v not in came and came.get(u, -1) >= taken[link]:
                came[v] = taken[link] - int(self.level[link])
                waits[link] = came[u] - taken[link]
        needed: set[int] = set()
        for link in reversed(waits):
            if int(self._own[self.dst[link]]) & ends or int(self.dst[link]) in needed:
                needed.add(int(self.src[link]))
        kept = [x for x in waits if int(self._own[self.dst[x]]) & ends or int(self.dst[x]) in needed]
        return tuple(kept), tuple(waits[link] for link in kept)

    def _taken(self, roots: dict[int, int], within: int) -> dict[int, int]:
        """The links of cheapest trees, each with the highest level at which it is taken."""
        links: dict[int, int] = {}
        waiting, count = [(within, ends, root) for root, ends in roots.items()], len(self.src)
        while waiting:
            h, s, v = waiting.pop()
            how = int(self._how[h, s, v])
            if how == _BEFORE:
                waiting.append((h - 1, s, v))
            elif how >= 0:
                links[how % count] = max(links.get(how % count, 0), h)
                waiting.append((h if how >= count else h - int(self.level[how]), s, int(self.dst[how % count])))
            elif how <= _SPLIT:
                waiting += [(h, _SPLIT - how, v), (h, s ^ (_SPLIT - how), v)]
        return links

    def _pruned(self, roots: dict[int, int], links: list[int]) -> tuple[int, ...]:
        """Where the parts of a tree meet again by chance, one path to each rank is enough: the least latency's."""
        far, by, left = dict.fromkeys(roots, 0), dict[int, int](), set(roots)
        order: list[int] = []
        while left:
            v = min(left, key=lambda rank: (far[rank], rank))
            left.remove(v)
            order.append(v)
            for link in links:
                w, there = int(self.dst[link]), far[v] + int(self.level[link])
                if self.src[link] == v and there < far.get(w, 1 << 60):
                    far[w], by[w] = there, link
                    left.add(w)
        ends = sum(roots.values())
        needed = {v for v in order if int(self._own[v]) & ends}
        for v in order[::-1]:
            if v in needed and v not in roots:
                needed.add(int(self.src[by[v]]))
        return tuple(by[v] for v in order if v in needed and v not in roots)


def _fill(src: Any, dst: Any, level: Any, length: Any, own: Any, cost: Any, how: Any, endless: bool) -> None:
    levels, sets, n = cost.shape
    count = len(src)
    low = np.empty(sets)  # by set, over all ranks: what cannot be undercut is not looked at
    for h in range(levels):
        for s in range(1, sets):
            for v in range(n):
                if own[v] == s:
                    cost[h, s, v], how[h, s, v] = 0.0, _END
                elif h > 0:
                    cost[h, s, v], how[h, s, v] = cost[h - 1, s, v], _BEFORE
                else:
                    cost[h, s, v], how[h, s, v] = 2 * BEYOND, _END
            for link in range(count):
                if level[link] <= h:
                    through = length[h, link] + cost[h - level[link], s, dst[link]]
                    if through < cost[h, s, src[link]]:
                        cost[h, s, src[link]], how[h, s, src[link]] = through, link
            high = 0.0
            for v in range(n):
                high = max(high, cost[h, s, v])
            part = (s - 1) & s
            while part > s ^ part:  # each two parts once
                if low[part] + low[s ^ part] < min(high, BEYOND):
                    for v in range(n):
                        both = cost[h, part, v] + cost[h, s ^ part, v]
                        if both < cost[h, s, v]:
                            cost[h, s, v], how[h, s, v] = both, _SPLIT - part
                part = (part - 1) & s
            better = endless and h == levels - 1
            while better:  # any number of links more
                better = False
                for link in range(count):
                    through = length[h, link] + cost[h, s, dst[link]]
                    if through < cost[h, s, src[link]]:
                        cost[h, s, src[link]], how[h, s, src[link]] = through, count + link
                        better = True
            low[s] = cost[h, s, 0]
            for v in range(1, n):
                low[s] = min(low[s], cost[h, s, v])
