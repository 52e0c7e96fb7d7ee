"""Witnesses by messages: with a gap after each message, few nodes can know of each other by any time (`Spread`).

At one message size the data of messages count too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from synth.bounds.witness import MOST_BYTES, NOTHING, Limit, Witness
from synth.bounds.witnesses.spread import SAME, Spread
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import sum_by
from topologies.arrays import pointers, row_entries, segment_sums
from topologies.network import Network

_MOST_GAPS = 1000  # in a latency; more steps would take long to count


@dataclass(frozen=True, kw_only=True)
class MessageGaps(Witness):
    """Nodes, and a rank that needs data of many nodes, or whose data many nodes need.

    Attributes:
        ranks: The rank.
        parts: The local ranks of each node.
        at_bytes: Message size in bytes at which the data count too; 0: messages count, whatever their size.
    """

    kind: ClassVar[str] = "messages"
    of_quotients: ClassVar[bool] = False
    ranks: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    at_bytes: float = 0.0

    def limit(self, problem: Problem) -> Limit:
        """Return the least time for messages among nodes: (µs, 0, inf), or (0, µs / `at_bytes`, µs) with a size.

        Without a size, messages count, whatever their size. With `at_bytes` their data count too. Then larger messages
        need that time too, and smaller ones their part of it (see `synth.bounds.witness`).

        It is (0, 0, inf) where a message between nodes has no gap or one below a thousandth of its latency, where a
        switch multicasts or reduces between nodes, or where no link joins nodes.

        Raises:
            BadWitness: The nodes are no partition of the local ranks, not one rank of the group is named, or the size
                is neither 0 nor a number of bytes from 1 to 10¹⁸.
        """
        net, node_of = problem.network, self._node_of(problem)
        if self.at_bytes and not 1 <= self.at_bytes <= MOST_BYTES:
            raise self.refusal(f"the size is {self.at_bytes:g} bytes; it must be 0 or 1 to {MOST_BYTES:g}")
        rank = self.one_member(problem, self.ranks)
        between = node_of[net.src] != node_of[net.dst]
        if not between.any() or not len(net.gap_us) or crosses(net, node_of):
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
            ends = net.dst if incoming else net.src
            doors, own_doors = most_doors(net, self.parts, incoming), doors_at(net, between & (ends == rank))
            spread = Spread(doors, own_doors, alpha_us, gap_us, inner_us)
            if self.at_bytes:
                whole_us = self.at_bytes * 1e-3 / float(net.bandwidth_gbs[between].max())
                least_us = self._least_us_with_data(problem, spread, node_of, incoming, whole_us)
            else:
                counts = np.delete(_partner_counts(problem, rank, node_of, incoming), node_of[rank])
                counts = counts[counts > 0]
                least_us = spread.least_us(1 + len(counts), int(counts.min())) if len(counts) else 0.0
            best_us = max(best_us, least_us)
        return (0.0, best_us / self.at_bytes, best_us) if self.at_bytes else (best_us, 0.0, np.inf)

    def _least_us_with_data(
        self, problem: Problem, spread: Spread, node_of: Ints, incoming: bool, whole_us: float
    ) -> float:
        """Return the least time in µs where data count, by nodes with data of their own and by all data.

        Args:
            problem: The problem.
            spread: What doors and latencies allow.
            node_of: Node of each local rank.
            incoming: Whether the rank needs data, else others need its data.
            whole_us: Least time in µs in which a door passes the whole message.
        """
        (rank,) = self.ranks
        of_node = _needs(problem, node_of == node_of[rank], node_of, incoming)
        of_rank = _needs(problem, np.arange(problem.nranks) == rank, node_of, incoming)
        all_us = whole_us * float(of_node.share.sum())
        least_us = spread.least_us_of_all(len(self.parts), len(np.unique(of_node.node)), all_us)
        nodes, share = of_node.own_data()
        if nodes:
            of_all_us = spread.least_us_with_data(1 + nodes, whole_us * share, (nodes, share) == of_rank.own_data())
            least_us = max(least_us, of_all_us)
        return least_us

    def _node_of(self, problem: Problem) -> Ints:
        """Return the node of each local rank, shape (local ranks,).

        Raises:
            BadWitness: The nodes are no partition of the local ranks.
        """
        listed = [rank for part in self.parts for rank in part]
        if sorted(listed) != list(range(problem.nranks)):
            raise self.refusal("its nodes must hold each local rank once")
        return numbered(self.parts)


def numbered(parts: tuple[tuple[int, ...], ...]) -> Ints:
    """Return the number of each rank's part, shape (ranks,), where the parts have each rank once."""
    node_of = np.empty(sum(map(len, parts)), dtype=np.int64)
    for node, ranks in enumerate(parts):
        node_of[[*ranks]] = node
    return node_of


def crosses(net: Network, node_of: Ints) -> bool:
    """Return whether a multicast or a reduction by a switch joins ranks of different nodes."""
    h = net.hyperlinks
    return h is not None and bool((node_of[h.src] != node_of[h.dst]).any())


def _partner_counts(problem: Problem, rank: int, node_of: Ints, incoming: bool) -> Ints:
    """Return for each node how many of its ranks must send to a rank, or must get something from it; shape (nodes,).

    The rank itself counts at its node if it holds what it wants.

    Args:
        problem: The problem.
        rank: The rank.
        node_of: Node of each local rank, shape (local ranks,).
        incoming: Whether ranks send to the rank, else they get something from it.
    """
    collective, count = problem.collective, int(node_of.max()) + 1
    only = np.diff(collective.holders[0]) == 1
    counts = np.zeros(count, dtype=np.int64)
    table, other_table = (collective.post, collective.pre) if incoming else (collective.pre, collective.post)
    chunks = np.zeros(collective.nchunks, dtype=bool)
    chunks[table[table[:, 0] == rank, 1]] = True
    # A sum needs each contribution; a plain value needs its holder only where there is no other.
    chunks &= collective.reduces | only
    partners = np.unique(other_table[chunks[other_table[:, 1]], 0])
    np.add.at(counts, node_of[partners], 1)
    return counts


class _NodeNeeds(NamedTuple):
    """What some ranks of a node must get from other nodes, or send to them.

    Attributes:
        chunk: A chunk that the ranks need, or that only they have, or a sum to which they contribute; shape (n,).
        node: Another node from which it must come, or to which it must go; each with the chunk once, shape (n,).
        share: Share of the message of each such chunk, shape (n,).
        nnodes: Number of all nodes.
    """

    chunk: Ints
    node: Ints
    share: Floats
    nnodes: int

    def own_data(self) -> tuple[int, float]:
        """Return how many nodes have chunks with no other node, and the least share of the message that one has.

        It is (0, inf) if no node has.
        """
        _, place, counts = np.unique(self.chunk, return_inverse=True, return_counts=True)
        is_only = counts[place] == 1
        shares = sum_by(self.node[is_only], self.share[is_only], self.nnodes)
        shares = shares[shares > 0]
        return len(shares), float(shares.min(initial=np.inf))


def _needs(problem: Problem, near_ranks: Bools, node_of: Ints, incoming: bool) -> _NodeNeeds:
    """Return what ranks of one node must get from other nodes, or else what they must send to them.

    Args:
        problem: The problem.
        near_ranks: Flags of the ranks, shape (local ranks,).
        node_of: Node of each local rank.
        incoming: Whether chunks come to the ranks, else they go from them.
    """
    collective, own, nnodes = problem.collective, int(node_of[np.argmax(near_ranks)]), int(node_of.max()) + 1
    (near_ptr, near), (far_ptr, far) = collective.holders, collective.goals
    if incoming:
        (near_ptr, near), (far_ptr, far) = (far_ptr, far), (near_ptr, near)
    counted = segment_sums(near_ranks[near], near_ptr)
    # Another holder of a plain value may send it too; a sum needs the contribution.
    needed = (counted > 0) if incoming else np.where(collective.reduces, counted > 0, counted == np.diff(near_ptr))
    chosen = np.flatnonzero(needed & (np.diff(near_ptr) > 0))
    rows = np.repeat(chosen, np.diff(far_ptr)[chosen])
    chunk, node = np.divmod(np.unique(rows * nnodes + node_of[far[row_entries(far_ptr, chosen)]]), nnodes)
    if incoming:
        # Of several nodes that have a plain value, one is enough.
        is_needed = collective.reduces[chunk] | (np.bincount(chunk, minlength=collective.nchunks)[chunk] == 1)
        chunk, node = chunk[is_needed], node[is_needed]
    chunk, node = chunk[node != own], node[node != own]
    return _NodeNeeds(chunk, node, collective.fraction[chunk], nnodes)


@lru_cache(maxsize=8)
def most_doors(net: Network, parts: tuple[tuple[int, ...], ...], incoming: bool) -> int:
    """Return how many messages at most can enter a node at once from other nodes, or leave it, over all nodes.

    The last eight results are cached.

    Args:
        net: The network.
        parts: Local ranks of each node.
        incoming: Whether messages enter, else they leave.
    """
    node_of = numbered(parts)
    near, far = (node_of[net.dst], node_of[net.src]) if incoming else (node_of[net.src], node_of[net.dst])
    return max(doors_at(net, (near == node) & (far != node)) for node in range(len(parts)))


def doors_at(net: Network, links: Bools) -> int:
    """Return how many messages at most can be on these links at once.

    Each link counts at the resource that most of these links use. A resource takes as many messages as its capacity
    holds of the slowest of its links. The result is at most the number of links.

    Args:
        net: The network.
        links: Flags of the links, shape (nlinks,).
    """
    chosen = np.flatnonzero(links)
    counts = np.diff(net.uses_ptr)[chosen]
    uses = net.uses_idx[row_entries(net.uses_ptr, chosen)]
    users = np.bincount(uses, minlength=net.nresources)
    order = np.lexsort((-users[uses], np.repeat(np.arange(len(chosen)), counts)))
    resource = uses[order[pointers(counts)[:-1]]]  # The most used resource of each link comes first.
    slowest = np.full(net.nresources, np.inf)
    np.minimum.at(slowest, resource, net.bandwidth_gbs[chosen])
    at_once = np.floor(net.capacity_gbs / slowest * (1 + SAME))
    return int(min(at_once.sum(), len(chosen)))
