"""Witnesses by messages: with a gap after each message, few nodes can know of each other by any time.

Let P(t) be the most nodes whose data can be in one node by t. A message takes at least α between nodes, and each door
of a node (a place where one message at a time can enter) lets messages start at least a gap apart. So P(t) is at most
1, plus, for each door and k = 0, 1, …, P(t - α - k·gap). Reversed in time, the same counts the nodes that one node's
data can reach. This is the argument in the LogP model (Karp, Sahay, Santos, Schauser, SPAA 1993), for nodes with
several doors.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from math import ceil, floor
from typing import ClassVar

import numpy as np

from synth.bounds.witness import NOTHING, Limit, Witness
from synth.model.collective import Bools, Ints
from synth.model.problem import Problem
from topologies.network import Network

_MOST_GAPS = 1000  # in a latency; more steps would take long to count
_SAME = 1e-9  # times that differ by this part, by rounding, count as equal


@dataclass(frozen=True, kw_only=True)
class Messages(Witness):
    """Nodes, and a rank that needs data of many nodes, or whose data many nodes need.

    Attributes:
        ranks: The rank.
        parts: The local ranks of each node.
    """

    kind: ClassVar[str] = "messages"
    of_quotients: ClassVar[bool] = False
    ranks: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()

    def limit(self, problem: Problem) -> Limit:
        """Return the least time in which so many nodes can exchange messages, whatever their size.

        It is NOTHING where a message between nodes has no gap, or where nothing must go between them.

        Raises:
            BadWitness: The nodes are no partition of the local ranks, or not one rank of the group is named.
        """
        net, node_of = problem.network, self._node_of(problem)
        if len(self.ranks) != 1 or not 0 <= self.ranks[0] < problem.collective.nranks:
            raise self.refusal("it must name one rank of the group")
        (rank,) = self.ranks
        between = node_of[net.src] != node_of[net.dst]
        if not between.any() or not len(net.gap_us) or _crosses(net, node_of):
            return NOTHING
        gap_us, alpha_us = float(net.gap_us[between].min()), float(net.alpha_us[between].min())
        if gap_us <= 0 or alpha_us / gap_us > _MOST_GAPS:
            return NOTHING
        inner_us = float(net.alpha_us[~between].min()) if (~between).any() else np.inf
        if net.hyperlinks is not None:
            inner_us = min(inner_us, float(net.hyperlinks.alpha_us.min()))
        inner_us = min(inner_us, alpha_us)
        best_us = 0.0
        for incoming in (True, False):
            counts = np.delete(_partners(problem, rank, node_of, incoming), node_of[rank])
            counts = counts[counts > 0]
            if not len(counts):
                continue
            ends = net.dst if incoming else net.src
            doors = max(_doors(net, between & (node_of[ends] == node)) for node in range(len(self.parts)))
            own_doors = _doors(net, between & (ends == rank))
            spread = _Spread(doors, own_doors, int(counts.min()), alpha_us, gap_us, inner_us)
            best_us = max(best_us, spread.least_us(1 + len(counts)))
        return best_us, 0.0, np.inf

    def _node_of(self, problem: Problem) -> Ints:
        """Return the node of each local rank, shape (local ranks,).

        Raises:
            BadWitness: The nodes are no partition of the local ranks.
        """
        listed = [rank for part in self.parts for rank in part]
        if sorted(listed) != list(range(problem.nranks)):
            raise self.refusal("its nodes must hold each local rank once")
        node_of = np.empty(problem.nranks, dtype=np.int64)
        node_of[listed] = np.repeat(np.arange(len(self.parts)), [len(part) for part in self.parts])
        return node_of


def _crosses(net: Network, node_of: Ints) -> bool:
    """Return whether a switch multicasts or reduces between ranks of different nodes."""
    h = net.hyperlinks
    return h is not None and bool((node_of[h.src] != node_of[h.dst]).any())


def _partners(problem: Problem, rank: int, node_of: Ints, incoming: bool) -> Ints:
    """Return for each node how many of its ranks must send to a rank, or must get something from it; shape (nodes,)."""
    collective, count = problem.collective, int(node_of.max()) + 1
    only = np.diff(collective.holders[0]) == 1
    counts = np.zeros(count, dtype=np.int64)
    table, other = (collective.post, collective.pre) if incoming else (collective.pre, collective.post)
    chunks = np.zeros(collective.nchunks, dtype=bool)
    chunks[table[table[:, 0] == rank, 1]] = True
    # A sum needs each contribution; a plain value needs its holder only where there is no other.
    chunks &= collective.reduces | only
    partners = np.unique(other[chunks[other[:, 1]], 0])
    np.add.at(counts, node_of[partners], 1)
    return counts


def _doors(net: Network, links: Bools) -> int:
    """Return how many messages at most can be on these links at once.

    Each link counts at the resource that most of these links use.
    """
    chosen = np.flatnonzero(links)
    users = np.zeros(net.nresources, dtype=np.int64)
    for link in chosen.tolist():
        users[net.uses(link)] += 1
    slowest: dict[int, float] = {}
    for link in chosen.tolist():
        uses = net.uses(link)
        resource = int(uses[np.argmax(users[uses])])
        slowest[resource] = min(slowest.get(resource, np.inf), float(net.bandwidth_gbs[link]))
    at_once = [floor(net.capacity_gbs[resource] / gbs * (1 + _SAME)) for resource, gbs in slowest.items()]
    return int(min(sum(at_once), len(chosen)))


class _Spread:
    """How many nodes one node's data can reach by a time, or in reverse, how many nodes' data can reach one node."""

    def __init__(self, doors: int, own_doors: int, ranks: int, alpha_us: float, gap_us: float, inner_us: float) -> None:
        """Begin with one node at time 0.

        Args:
            doors: Most messages at once at a node.
            own_doors: Most messages at once at the rank.
            ranks: Fewest ranks of another node to which the data must go.
            alpha_us: Least latency between nodes in µs.
            gap_us: Least gap in µs.
            inner_us: Least latency inside nodes in µs.
        """
        self._doors, self._own, self._ranks = doors, own_doors, ranks
        self._alpha_us, self._inner_us = alpha_us, inner_us
        self._starts = ceil(inner_us / gap_us * (1 - _SAME))  # of messages at a door in the time of an inner send
        self._gap_us = gap_us
        self._steps: list[tuple[float, int]] = [(0.0, 1)]

    def least_us(self, nodes: int) -> float:
        """Return the least time in µs in which so many nodes, the rank's own among them, can be reached."""
        self._count(nodes)
        shifts = (0.0, self._inner_us, 2 * self._inner_us, self._alpha_us, self._alpha_us + self._inner_us)
        times = sorted(
            {time + shift + more for time, _ in self._steps for shift in shifts for more in (0.0, self._alpha_us)}
        )
        return next(time for time in times if self._done(time * (1 + _SAME) + _SAME) >= nodes)

    def _count(self, nodes: int) -> None:
        """Count nodes from one node on: each node that is reached sends through all doors, again after each gap."""
        total, events = 1, [(self._alpha_us, self._doors)]
        while total < nodes:
            time, reached = heappop(events)
            total += reached
            self._steps.append((time, total))
            heappush(events, (time + self._gap_us, reached))
            heappush(events, (time + self._alpha_us, reached * self._doors))

    def _from_node(self, time: float) -> int:
        """Return the nodes that are reached by a time if all ranks of the first node have the data at 0."""
        return max((total for step, total in self._steps if step <= time), default=0)

    def _from_rank(self, time: float) -> int:
        """Return the nodes that are reached by a time if one rank has the data at 0."""
        direct = self._own * self._starts * self._from_node(time - self._alpha_us)
        return min(self._from_node(time), self._from_node(time - self._inner_us) + direct)

    def _done(self, time: float) -> int:
        """Return the nodes of which all ranks are reached by a time.

        A node that is reached less than an inner send before needs a message for each of its ranks.
        """
        if self._ranks < 2:
            return self._from_rank(time)
        late = self._from_rank(time - self._alpha_us) * self._doors * self._starts // self._ranks
        return min(self._from_rank(time), self._from_rank(time - self._inner_us) + late)
