"""Trees over which the parts of a root's buffer go from node to node: rarest first, or each door with one peer.

Rarest first, each part goes over a tree of its own. As in the swarms that share files (Cohen, "Incentives build
robustness in BitTorrent", 2003), a node that is free sends the part that fewest nodes have, so that the root sends each
part once before it sends any twice, and late parts have many senders. For equal parts and a latency this comes near to
the least time of k-item broadcast in the postal model (Bar-Noy and Kipnis, 1994).

A NIC with messages to two nodes at a time sends both at half its rate, so that both come late. With one peer for each
door there are as many trees as doors, and no two of them share a door of any node, neither out nor in (Edmonds,
"Edge-disjoint branchings", 1973). Each tree carries the same share of the buffer, in waves.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from synth.model.collective import Ints


class Hand(NamedTuple):
    """A part that one node sends to another.

    Attributes:
        start: When it leaves, in slots.
        source: The node that sends.
        goal: The node that gets it.
        part: The part.
        depth: Number of nodes that had it on the way before, the root not counted.
        door: Number of the door over which it goes; -1 for any.
    """

    start: float
    source: int
    goal: int
    part: int
    depth: int
    door: int = -1


@lru_cache(maxsize=64)
def rarest_first(count: int, parts: int, lag: float) -> tuple[float, tuple[Hand, ...]]:
    """Return when all nodes have all parts, in slots, and every part sent, in order of time.

    A node sends and receives at most one part in a slot, which is the time that a message keeps a link busy.

    Args:
        count: Number of nodes; the root is node 0.
        parts: Number of equal parts.
        lag: Slots from the start of a message until the part has come.
    """
    comes = np.full((count, parts), np.inf)  # when each node has each part
    comes[0] = 0.0
    depth = np.zeros((count, parts), dtype=np.int64)
    sends_from, gets_from = np.zeros(count), np.zeros(count)  # when each node can send, and get, the next part
    hands: list[Hand] = []
    now = end = 0.0
    while len(hands) < (count - 1) * parts:
        has = (comes <= now) & (sends_from <= now)[:, None]
        lacks = np.isinf(comes) & (gets_from <= now)[:, None]
        parts_to_send = np.flatnonzero(has.any(axis=0) & lacks.any(axis=0))
        if not len(parts_to_send):
            times = np.concatenate([sends_from, gets_from, comes[np.isfinite(comes)]])
            now = float(times[times > now].min())
            continue
        had = np.isfinite(comes)
        part = int(parts_to_send[had[:, parts_to_send].sum(axis=0).argmin()])
        # The node that has least gets it, from the node that has it and is first.
        goal = int(np.where(lacks[:, part], had.sum(axis=1), parts + 1).argmin())
        source = int(has[:, part].argmax())
        depth[goal, part] = depth[source, part] + 1
        hands.append(Hand(now, source, goal, part, int(depth[source, part])))
        sends_from[source] = gets_from[goal] = now + 1.0
        comes[goal, part] = now + lag
        end = max(end, now + lag)
    return end, tuple(hands)


@lru_cache(maxsize=64)
def one_peer_a_door(count: int, doors: int, waves: int, lag: float) -> tuple[float, tuple[Hand, ...]]:
    """Return when all nodes have all parts, in slots, and every part sent, in order of time; part wave · doors + tree.

    Each door sends the parts of one tree to one node.

    Args:
        count: Number of nodes; the root is node 0.
        doors: Number of doors of each node, each linked to the same door of all other nodes.
        waves: Number of parts of each tree.
        lag: Slots from the start of a message until the part has come.
    """
    hands = [
        Hand(wave + edge.depth * lag, edge.source, edge.goal, wave * doors + edge.tree, edge.depth, edge.door)
        for edge in _disjoint_trees(count, doors)
        for wave in range(waves)
    ]
    return max(hand.start for hand in hands) + lag, tuple(sorted(hands))


class _Edge(NamedTuple):
    """An edge of a tree: the tree, its ends, the door that it takes at both, and how deep its source lies."""

    tree: int
    source: int
    goal: int
    door: int
    depth: int


@lru_cache(maxsize=64)
def _disjoint_trees(count: int, doors: int) -> tuple[_Edge, ...]:
    """Return the edges of as many trees from node 0 to all nodes as there are doors, the nearer ones first.

    No two edges leave a node by one door, or enter one by one door, unless no such edge is left. The trees are grown
    together, level by level, and a node that has more doors left is reached first, since it can pass on more.
    """
    leaves, enters = np.zeros((2, count, doors), dtype=np.int64)
    depth = np.full((doors, count), -1)
    depth[:, 0] = 0
    edges: list[_Edge] = []

    def add(tree: int, source: int, goal: int, door: int) -> None:
        """Add an edge."""
        leaves[source, door] += 1
        enters[goal, door] += 1
        edges.append(_Edge(tree, source, goal, door, int(depth[tree, source])))
        depth[tree, goal] = depth[tree, source] + 1

    for tree in range(doors):
        add(tree, 0, 1 + tree % (count - 1), tree)
    for level in range(2, count + 1):
        while candidates := list(_next_edges(depth, leaves, enters, level)):
            add(*min(candidates)[1])
    for tree, goal in np.argwhere(depth < 0).tolist():  # No door is left for these.
        loads = [
            (max(leaves[source, door], enters[goal, door]), depth[tree, source], source, door)
            for source in np.flatnonzero(depth[tree] > 0).tolist()
            for door in range(doors)
        ]
        _, _, source, door = min(loads)
        add(tree, source, goal, door)
    return tuple(edges)


def _next_edges(
    depth: Ints, leaves: Ints, enters: Ints, level: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, int, int, int]]]:
    """Yield for each node that a tree may reach next the best edge to it, as (rank, (tree, source, goal, door)).

    Less is better.

    Args:
        depth: Depth of each node in each tree, -1 where it is not reached yet, shape (trees, nodes).
        leaves: Edges that leave each node by each door, shape (nodes, doors).
        enters: Edges that enter it likewise.
        level: Edges go to nodes of this depth or less.
    """
    doors = leaves.shape[1]
    use_of_door = (leaves + enters).sum(axis=0)
    free_of_node = (leaves == 0).sum(axis=1)
    for tree, goal in np.argwhere(depth < 0).tolist():
        sources = np.flatnonzero((depth[tree] > 0) & (depth[tree] < level))
        source_place, door = np.nonzero((leaves[sources] == 0) & (enters[goal] == 0))
        if not len(door):
            continue
        source = sources[source_place]
        best = np.lexsort(((door - tree) % doors, use_of_door[door], -free_of_node[source], depth[tree, source]))[0]
        yield (-int(free_of_node[goal]), len(door), tree, goal), (tree, int(source[best]), goal, int(door[best]))
