"""Fixed shortest routes, as in routers with one entry a destination."""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.baselines.tuning import TUNING
from synth.model.collective import Ints
from synth.model.compiled import Runner, choose_runner
from synth.model.deadline import check_deadline
from topologies.arrays import index_among, positions
from topologies.errors import NoRoute, TooManySends
from topologies.network import Network


class Routes:
    """The next link toward each goal from every rank.

    A route has the fewest hops and, of these, the least sum of α (in whole picoseconds). Of equal next ranks the one
    whose number in the topology is nearest goes first, then the smaller number. On grids and tori that is
    dimension-order routing, the innermost dimension first. Of parallel links the widest goes first. The methods take
    arrays of local ranks, and only goals that the constructor got.

    Attributes:
        network: The network.
        most: Most entries of `expand`.
    """

    def __init__(self, net: Network, goals: Ints, most: int = TUNING.most_sends, run: Runner | None = None) -> None:
        """Build the tables toward `goals`.

        Args:
            net: The network.
            goals: Local ranks in any order, repetitions allowed.
            most: Most entries of `expand`.
            run: Runner of the loop; None: the interpreter, while that is faster than loading the compiled loop.
        """
        self.network, self.most = net, most
        distinct_goals = np.unique(goals)
        self._row = index_among(net.nranks, distinct_goals)
        order = np.argsort(net.dst, kind="stable")
        ptr = np.searchsorted(net.dst[order], np.arange(net.nranks + 1))
        run = run or choose_runner(2e-7 * len(distinct_goals) * net.nlinks)  # The interpreter takes some 0.2 µs a link.
        alpha_ps = np.rint(net.alpha_us * 1e6).astype(np.int64)
        columns = run.columns(
            distinct_goals, ptr, order, net.src, net.dst, net.ranks, alpha_ps, net.bandwidth_gbs,
            *(np.zeros(net.nranks, dtype=np.int64) for _ in range(2)),
            *(np.full(len(distinct_goals) * net.nranks, -1, dtype=np.int32) for _ in range(2)),
        )  # fmt: skip
        run(_fill, *columns)
        self._link, self._hops = (np.asarray(table, dtype=np.int32) for table in columns[-2:])

    def link(self, at: Ints, goal: Ints) -> Ints:
        """Return the link from each `at` toward its `goal`, shape (n,).

        It is -1 where there is no route, and at the goal itself.
        """
        return np.asarray(self._link[self._row[goal] * self.network.nranks + at], dtype=np.int64)

    def hops(self, at: Ints, goal: Ints) -> Ints:
        """Return the number of links from each `at` to its `goal`, shape (n,).

        It is 0 at the goal itself, -1 where there is no route.
        """
        return np.asarray(self._hops[self._row[goal] * self.network.nranks + at], dtype=np.int64)

    def expand(self, at: Ints, goal: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the links of every message from at[i] to goal[i].

        Returns:
            (message, link, hop), each of shape (entries,): one entry a link, message by message, each from hop 0 on;
            none for a message whose rank is its goal. A message is named by its index i.

        Raises:
            NoRoute: A message cannot get to its goal.
            TooManySends: There are more entries than `most`.
            TimeUp: The time of the work around is over.
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
        position, moving, hop = np.array(at), np.flatnonzero(hops > 0), 0
        while len(moving):
            check_deadline()
            next_link = self.link(position[moving], goal[moving])
            link[begin[moving] + hop] = next_link
            position[moving] = self.network.dst[next_link]
            hop += 1
            moving = moving[hops[moving] > hop]
        message = np.repeat(np.arange(len(at)), hops)
        return message, link, positions(hops)


def _fill(  # Over ten parameters, as a compiled loop takes every array by itself.
    goals: Any, into_ptr: Any, into: Any, src: Any, dst: Any, number: Any, alpha_ps: Any, width: Any, cost: Any,
    queue: Any, link: Any, hops: Any,
) -> None:  # fmt: skip
    """Find routes breadth first from every goal against the links, and write them to `link` and `hops`.

    Args:
        goals: Local ranks, each once.
        into_ptr: Start of each rank's links in `into`.
        into: Links that come into each rank.
        src: Source of each link.
        dst: Destination of each link.
        number: Number of each rank in the topology, by which equal routes are chosen.
        alpha_ps: α of each link in picoseconds.
        width: Bandwidth of each link.
        cost: Room for a number for each rank; it is overwritten.
        queue: Room for a number for each rank; it is overwritten.
        link: Table of -1, a row of ranks a goal; it gets the next link from each rank, where there is one.
        hops: Table of -1, a row of ranks a goal; it gets the number of links from each rank, where there is a route.
    """
    n = len(number)
    for row in range(len(goals)):
        first = row * n
        queue[0] = goals[row]
        cost[goals[row]] = 0
        hops[first + goals[row]] = 0
        next_place, reached = 0, 1
        while next_place < reached:
            v = queue[next_place]
            away = hops[first + v]
            if reached == n and away == hops[first + queue[n - 1]]:
                break  # No rank is further away, so this rank is on no other rank's route.
            next_place += 1
            for i in range(into_ptr[v], into_ptr[v + 1]):
                edge = into[i]
                u = src[edge]
                through = alpha_ps[edge] + cost[v]
                known_hops = hops[first + u]
                if known_hops < 0:
                    hops[first + u] = away + 1
                    queue[reached] = u
                    reached += 1
                elif known_hops != away + 1 or through > cost[u]:
                    continue
                elif through == cost[u]:
                    current_link = link[first + u]
                    w = dst[current_link]
                    near, far = abs(number[v] - number[u]), abs(number[w] - number[u])
                    if v == w:
                        if width[edge] <= width[current_link]:
                            continue
                    elif near > far or (near == far and number[v] > number[w]):
                        continue
                cost[u] = through
                link[first + u] = edge
