"""Cheapest trees from any rank to any set of ends within any latency; loops.

It is Dreyfus and Wagner's table (1971) with a dimension for the latency, in levels. The cheapest tree from v to a set
of ends within a level is the cheapest of three: a tree within the level before; a link from v and a tree from its far
end within the latency that the link leaves; or two trees from v that share out the ends. The last level has no limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner

BEYOND = 1e299  # more than the cost of any tree
_END, _BEFORE, _SPLIT = -1, -2, -3  # how a tree continues without a link; _SPLIT - s: split into s and the other ends


class Arborescences:
    """The cheapest out-trees of a network.

    Attributes:
        cost: Cost of the cheapest tree within a level from rank v to all of set s of the ends (bit i: ends[i]), BEYOND
            or more where there is none; float, shape (levels, sets, ranks).
    """

    def __init__(self, nranks: int, src: Ints, dst: Ints, level: Ints, ends: list[int], levels: int) -> None:
        """Build an empty table; `find` fills it.

        Args:
            nranks: Number of ranks.
            src: Source rank of each link.
            dst: Destination rank of each link.
            level: Levels of latency that each link takes, 1 or more.
            ends: Ranks that trees may have to reach, each once.
            levels: Number of levels of the table.
        """
        self.src, self.dst, self.level = (np.array(column, dtype=np.int64) for column in (src, dst, level))
        self._own = np.zeros(nranks, dtype=np.int64)
        self._own[ends] = 1 << np.arange(len(ends))
        shape = levels, 1 << len(ends), nranks
        self.cost, self._how = np.zeros(shape), np.zeros(shape, dtype=np.int32)

    def find(self, run: Runner, length: Floats, endless: bool = True) -> None:
        """Compute the table for lengths ≥ 0 of the links, or for lengths by level.

        Args:
            run: Runner of the compiled loops.
            length: Length of each link, shape (links,), or of each link in every level, shape (levels, links).
            endless: Whether the last level has no limit.
        """
        # A copy even of one level: a loop is compiled again for an array that it may not write.
        length = np.array(np.broadcast_to(length, (len(self.cost), len(self.src))), dtype=np.float64, order="C")
        run(_fill, self.src, self.dst, self.level, length, self._own, self.cost, self._how, endless)

    def set_of(self, ranks: Ints | list[int]) -> int:
        """Return the set of these ranks, each one of the ends and named once, as a number: bit i for ends[i]."""
        return int(self._own[np.asarray(ranks, dtype=np.int64)].sum())

    def tree(self, roots: dict[int, int], within: int) -> tuple[int, ...]:
        """Return the links of a cheapest tree within a level, each after the link that leads to it, all of them needed.

        There must be a tree: `cost` is below BEYOND.

        Args:
            roots: Each root with the set of ends that it must reach; the trees of several roots have no rank in common.
            within: The level.
        """
        return self._prune(roots, sorted(self._links_of_trees(roots, within)))

    def timed(self, roots: dict[int, int], within: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the links of a cheapest tree within a level, and the levels that a chunk waits before each.

        The links are in the order of their starts. Waiting may pay where lengths differ by level. Use it only for a
        table whose last level has a limit. The arguments are those of `tree`.
        """
        level_of_link, ends = self._links_of_trees(roots, within), sum(roots.values())
        reached_at, wait_of_link = dict.fromkeys(roots, within), dict[int, int]()
        for link in sorted(level_of_link, key=lambda link: (-level_of_link[link], link)):
            u, v = int(self.src[link]), int(self.dst[link])
            if v not in reached_at and reached_at.get(u, -1) >= level_of_link[link]:
                reached_at[v] = level_of_link[link] - int(self.level[link])
                wait_of_link[link] = reached_at[u] - level_of_link[link]
        needed: set[int] = set()
        for link in reversed(wait_of_link):
            if int(self._own[self.dst[link]]) & ends or int(self.dst[link]) in needed:
                needed.add(int(self.src[link]))
        used_links = [x for x in wait_of_link if int(self._own[self.dst[x]]) & ends or int(self.dst[x]) in needed]
        return tuple(used_links), tuple(wait_of_link[link] for link in used_links)

    def _links_of_trees(self, roots: dict[int, int], within: int) -> dict[int, int]:
        """Return the links of cheapest trees, each with the highest level at which a tree takes it."""
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

    def _prune(self, roots: dict[int, int], links: list[int]) -> tuple[int, ...]:
        """Return the links of the path of least latency to each end, each after the link that leads to it.

        Where the parts of a tree meet again by chance, the links that are not needed are left out.

        Args:
            roots: Each root with the set of ends that it must reach.
            links: Links of the trees.
        """
        levels_to, link_to, frontier = dict.fromkeys(roots, 0), dict[int, int](), set(roots)
        order: list[int] = []
        while frontier:
            v = min(frontier, key=lambda rank: (levels_to[rank], rank))
            frontier.remove(v)
            order.append(v)
            for link in links:
                w, distance = int(self.dst[link]), levels_to[v] + int(self.level[link])
                if self.src[link] == v and distance < levels_to.get(w, 1 << 60):
                    levels_to[w], link_to[w] = distance, link
                    frontier.add(w)
        ends = sum(roots.values())
        needed = {v for v in order if int(self._own[v]) & ends}
        for v in order[::-1]:
            if v in needed and v not in roots:
                needed.add(int(self.src[link_to[v]]))
        return tuple(link_to[v] for v in order if v in needed and v not in roots)


def _fill(src: Any, dst: Any, level: Any, length: Any, own: Any, cost: Any, how: Any, endless: bool) -> None:
    """Compute the table in place: `cost`, and in `how` the next link of each tree, or _END, _BEFORE or a split.

    Args:
        src: Source rank of each link.
        dst: Destination rank of each link.
        level: Levels of latency that each link takes.
        length: Length of each link in every level, shape (levels, links).
        own: For each rank the set of ends with this rank only; 0 for a rank that is no end.
        cost: Costs, shape (levels, sets, ranks), written except for the empty set.
        how: Shape of `cost`: link, or number of links + link for a link that takes no level; see _END for the rest.
        endless: Whether the last level has no limit.
    """
    levels, sets, n = cost.shape
    count = len(src)
    low = np.empty(sets)  # least cost of each set over all ranks, to skip splits that cannot be cheaper
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
            while part > s ^ part:  # Each split comes once.
                if low[part] + low[s ^ part] < min(high, BEYOND):
                    for v in range(n):
                        total = cost[h, part, v] + cost[h, s ^ part, v]
                        if total < cost[h, s, v]:
                            cost[h, s, v], how[h, s, v] = total, _SPLIT - part
                part = (part - 1) & s
            better = endless and h == levels - 1
            while better:  # Without a limit a tree may take any number of links more.
                better = False
                for link in range(count):
                    through = length[h, link] + cost[h, s, dst[link]]
                    if through < cost[h, s, src[link]]:
                        cost[h, s, src[link]], how[h, s, src[link]] = through, count + link
                        better = True
            low[s] = cost[h, s, 0]
            for v in range(1, n):
                low[s] = min(low[s], cost[h, s, v])
