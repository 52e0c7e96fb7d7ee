"""How far data can spread by messages: with a gap after each message, few nodes can know of each other by any time.

Let P(t) be the most nodes whose data can be in one node by t. A message takes at least α between nodes, and each door
of a node (a place where one message at a time can enter) lets messages start at least a gap apart. So P(t) is at most
1, plus, for each door and k = 0, 1, …, P(t - α - k·gap). Reversed in time, the same counts the nodes that one node's
data can reach. This is the argument in the LogP model (Karp, Sahay, Santos, Schauser, SPAA 1993), for nodes with
several doors.
"""

from __future__ import annotations

from heapq import heappop, heappush
from math import ceil, floor, log2

import numpy as np

SAME = 1e-9  # times that differ by this part, by rounding, count as equal
_SLOTS = 1200  # of time, about, in which messages with data are counted (30 ms)
_MOST_SLOTS = 5 * _SLOTS


class Spread:
    """How many nodes one node's data can reach by a time, or in reverse, how many nodes' data can reach one node."""

    def __init__(self, doors: int, own_doors: int, alpha_us: float, gap_us: float, inner_us: float) -> None:
        """Begin with one node at time 0.

        Args:
            doors: Most messages at once at a node.
            own_doors: Most messages at once at the rank.
            alpha_us: Least latency between nodes in µs.
            gap_us: Least gap in µs.
            inner_us: Least latency inside nodes in µs.
        """
        self._doors, self._own = doors, own_doors
        self._alpha_us, self._inner_us = alpha_us, inner_us
        self._starts = ceil(inner_us / gap_us * (1 - SAME))  # Messages that a door can start during an inner send.
        self._gap_us = gap_us
        self._steps: list[tuple[float, int]] = [(0.0, 1)]

    def least_us(self, nodes: int, ranks: int) -> float:
        """Return the least time in µs in which so many nodes, the rank's own among them, can be reached (`_done`).

        Args:
            nodes: Number of nodes.
            ranks: Fewest ranks of another node to which the data must go.
        """
        self._count(nodes)
        # `_done` calls `_from_rank` at its time, or earlier by an inner send or by α, and `_from_rank` looks at the
        # steps at its time, or earlier by as much. So the result changes only at steps, or later by a sum of two of
        # these.
        shifts = (0.0, self._inner_us, 2 * self._inner_us, self._alpha_us, self._alpha_us + self._inner_us)
        times = sorted(
            {time + shift + more for time, _ in self._steps for shift in shifts for more in (0.0, self._alpha_us)}
        )
        return next(time for time in times if self._done(time * (1 + SAME) + SAME, ranks) >= nodes)

    def least_us_with_data(self, nodes: int, block_us: float, of_rank: bool) -> float:
        """Return a time in µs before which so many nodes cannot be reached, where data count.

        Time is counted in slots, and every duration is rounded down to whole ones. It is 0 where a gap is shorter than
        a slot, so that it counts little.

        Args:
            nodes: Number of nodes, the rank's own among them.
            block_us: Least time in µs in which a door passes the data of one node.
            of_rank: Whether all data must come to the rank; else to any ranks of its node.
        """
        about_us = self._alpha_us * log2(2 * nodes) + (nodes - 1) * (block_us + self._gap_us) / self._doors
        if self._gap_us * _SLOTS < about_us:
            return 0.0
        gap = ceil(self._gap_us * _SLOTS / about_us)
        slot_us = self._gap_us / gap
        alpha, inner = (floor(us / slot_us * (1 + SAME)) for us in (self._alpha_us, self._inner_us))
        longest = ceil(nodes * block_us / slot_us)
        # The data of how many nodes a message of 0, 1, … slots can carry.
        carried = (np.arange(longest + 1) + 1) * slot_us / block_us
        # By the end of each slot: nodes that are reached, and those of which one door has passed the data.
        reached, passed = np.ones(_MOST_SLOTS), np.zeros(_MOST_SLOTS)
        for slot in range(1, _MOST_SLOTS):
            if slot >= alpha:
                reached[slot] = min(nodes, 1 + self._doors * passed[slot - alpha])
            total = reached[slot]
            if of_rank:
                direct = self._own * self._starts * reached[slot - alpha] if slot >= alpha else 0.0
                total = min(total, (reached[slot - inner] if slot >= inner else 0.0) + direct)
            if total >= nodes * (1 - SAME):
                return (slot - 1) * slot_us
            lasts = min(longest, slot) + 1
            gained = np.minimum(reached[slot - lasts + 1 : slot + 1][::-1], carried[:lasts])
            before = passed[max(0, slot - gap - lasts + 1) : max(0, slot - gap + 1)][::-1]
            gained[: len(before)] += before
            passed[slot] = max(passed[slot - 1], gained.max())
        return (_MOST_SLOTS - 1) * slot_us

    def least_us_of_all(self, nodes: int, messages: int, data_us: float) -> float:
        """Return the least time in µs in which all nodes' doors can pass some messages and data, as soon as they can.

        A node sends nothing of the rank's data before some of it has reached the node. The result is 0 without
        messages.

        Args:
            nodes: Number of nodes, which all may send.
            messages: Fewest messages.
            data_us: Time in µs in which one door passes all data.
        """
        if not messages:
            return 0.0
        self._count(nodes)
        since = np.repeat([time for time, _ in self._steps], np.diff([0, *(total for _, total in self._steps)]))[:nodes]
        busy_us = (data_us + messages * self._gap_us) / self._doors
        # The last gap of each door is over after the last message has arrived.
        ends = (busy_us + np.cumsum(since)) / np.arange(1, nodes + 1)
        return float(ends.min()) + self._alpha_us - self._gap_us

    def _count(self, nodes: int) -> None:
        """Set the steps (time in µs, nodes that are reached by then), until `nodes` are reached.

        Counting begins with one node: each node that is reached sends through all doors, again after each gap.
        """
        total, events = 1, [(self._alpha_us, self._doors)]
        self._steps = [(0.0, 1)]
        while total < nodes:
            time, reached = heappop(events)
            total += reached
            self._steps.append((time, total))
            heappush(events, (time + self._gap_us, reached))
            heappush(events, (time + self._alpha_us, reached * self._doors))

    def _from_node(self, time: float) -> int:
        """Return the number of nodes reached by a time in µs if all ranks of the first node have the data at 0.

        It is 0 before time 0.
        """
        return max((total for step, total in self._steps if step <= time), default=0)

    def _from_rank(self, time: float) -> int:
        """Return the number of nodes reached by a time in µs if one rank has the data at 0."""
        direct = self._own * self._starts * self._from_node(time - self._alpha_us)
        return min(self._from_node(time), self._from_node(time - self._inner_us) + direct)

    def _done(self, time: float, ranks: int) -> int:
        """Return the number of nodes of which all ranks are reached by a time in µs.

        A node that is reached less than an inner send before needs a message for each of its ranks.

        Args:
            time: The time.
            ranks: Number of ranks of a node to which the data must go.
        """
        if ranks < 2:
            return self._from_rank(time)
        late = self._from_rank(time - self._alpha_us) * self._doors * self._starts // ranks
        return min(self._from_rank(time), self._from_rank(time - self._inner_us) + late)
