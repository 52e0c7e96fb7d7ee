"""Fixed shortest routes, as routers with one entry a destination know them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from synth.baselines.tuning import TUNING
from synth.model.collective import Ints
from synth.model.compiled import Runner, choose_runner
from topologies.arrays import index_among, positions
from topologies.errors import NoRoute, TooManySends
from topologies.network import Network


class Routes:
    """The next link toward each goal from every rank.

    A route has the fewest hops and, of these, the least sum of α (in whole picoseconds). Of equal next ranks the
    one whose number in the topology is nearest goes first, then the smaller number: on grids and tori that is
    dimension-order routing, the innermost dimension first. Of parallel links the widest goes first.
    """

    def __init__(self, net: Network, goals: Ints, most: int = TUNING.most_sends, run: Runner | None = None) -> None:
        """Tables toward `goals`.

        Args:
            goals: int, local ranks in any order, repetitions allowed.
            most: see `expand`.
            run: how the loop is run; None: interpreted while that takes less time than to load it.
        """
        self.network, self.most = net, most
        wanted = np.unique(goals)
        self._row = index_among(net.nranks, wanted)
        order = np.argsort(net.dst, kind="stable")
        ptr = np.searchsorted(net.dst[order], np.arange(net.nranks + 1))
        run = run or choose_runner(2e-7 * len(wanted) * net.nlinks)  # by the interpreter a link takes some 0.2 µs
        alpha_ps = np.rint(net.alpha_us * 1e6).astype(np.int64)
        columns = run.columns(
            wanted, ptr, order, net.src, net.dst, net.ranks, alpha_ps, net.bandwidth_gbs,
            *(np.zeros(net.nranks, dtype=np.int64) for _ in range(2)),
            *(np.full(len(wanted) * net.nranks, -1, dtype=np.int32) for _ in range(2)),
        )  # fmt: skip
        run(_fill, *columns)
        self._link, self._hops = (np.asarray(table, dtype=np.int32) for table in columns[-2:])

    def link(self, at: Ints, goal: Ints) -> Ints:
        """The link from each `at` toward its `goal`, -1 where there is none (or none is needed)."""
        return np.asarray(self._link[self._row[goal] * self.network.nranks + at], dtype=np.int64)

    def hops(self, at: Ints, goal: Ints) -> Ints:
        """Links on the route from each `at` to its `goal`; -1 where there is none."""
        return np.asarray(self._hops[self._row[goal] * self.network.nranks + at], dtype=np.int64)

    def expand(self, at: Ints, goal: Ints) -> tuple[Ints, Ints, Ints]:
        """Every message from at[i] to goal[i], link by link.

        Returns:
            (message, link, hop): one entry a link, message by message, each from hop 0 on.

        Raises:
            NoRoute: a message that cannot get to its goal.
            TooManySends: more entries than `most`.
        """
        hops = self.hops(at, goal)
        if (hops < 0).any():
            lost = int(np.argmax(hops < 0))
            a, b = (int(self.network.ranks[rank[lost]]) for rank in (at, goal))
            raise NoRoute(f"baseline: rank {a} cannot reach rank {b}")
        total = int(hops.sum())
        if total > self.most:
            raise TooManySends(f"baseline: has {total} sends over fixed routes, {self.most} at most; use fewer ranks")
        begin = np.cumsum(hops) - hops
        link = np.empty(total, dtype=np.int64)
        here, moving, hop = np.array(at), np.flatnonzero(hops > 0), 0
        while len(moving):
            taken = self.link(here[moving], goal[moving])
            link[begin[moving] + hop] = taken
            here[moving] = self.network.dst[taken]
            hop += 1
            moving = moving[hops[moving] > hop]
        message = np.repeat(np.arange(len(at)), hops)
        return message, link, positions(hops)


def reverse_links(net: Network) -> Network:
    """The same network with every link reversed."""
    return replace(net, src=net.dst, dst=net.src, hyperlinks=None)


def _fill(
    goals: Any, into_ptr: Any, into: Any, src: Any, dst: Any, number: Any, alpha_ps: Any, width: Any, cost: Any,
    queue: Any, link: Any, hops: Any,
) -> None:  # fmt: skip
    """Breadth first from every goal against the links; writes `link` and `hops`, one row of ranks a goal."""
    n = len(number)
    for row in range(len(goals)):
        first = row * n
        queue[0] = goals[row]
        cost[goals[row]] = 0
        hops[first + goals[row]] = 0
        at, found = 0, 1
        while at < found:
            v = queue[at]
            away = hops[first + v]
            if found == n and away == hops[first + queue[n - 1]]:
                break  # nobody is further away, so nobody's next rank can be this one
            at += 1
            for i in range(into_ptr[v], into_ptr[v + 1]):
                edge = into[i]
                u = src[edge]
                through = alpha_ps[edge] + cost[v]
                known = hops[first + u]
                if known < 0:
                    hops[first + u] = away + 1
                    queue[found] = u
                    found += 1
                elif known != away + 1 or through > cost[u]:
                    continue
                elif through == cost[u]:
                    other = link[first + u]
                    w = dst[other]
                    near, far = abs(number[v] - number[u]), abs(number[w] - number[u])
                    if v == w:
                        if width[edge] <= width[other]:
                            continue
                    elif near > far or (near == far and number[v] > number[w]):
                        continue
                cost[u] = through
                link[first + u] = edge
