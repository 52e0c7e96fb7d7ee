"""Trees: all-reduce over two binary trees of the nodes, each with half of the data (Sanders, Speck, Träff 2009).

As in NCCL, a chain leads through each node's members; the nodes are in two trees in which, if possible, no node has
children in both; and pieces follow each other up and down again.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from synth.baselines.algorithms.spreading import added, first_copies
from synth.baselines.fifo import Unordered, stepped
from synth.baselines.routes import Routes
from synth.baselines.tuning import TUNING
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.phases.split import join
from topologies.network import Network

NAME = "tree"
_TREES = 2


def tree_baselines(
    problem: Problem, most: int = TUNING.most_sends, numbers_of_pieces: Sequence[int] = TUNING.pieces
) -> list[Unordered]:
    """Build double binary trees, one plan for each number of pieces; empty for other collectives than all-reduce.

    Args:
        problem: The problem with one chunk a block.
        most: Most sends of one piece in a tree.
        numbers_of_pieces: Numbers of pieces of a tree's data, one for each plan.

    Raises:
        NoRoute: A member has no route from its parent, or to it.
        TooManySends: One piece has more than `most` sends in a tree.
    """
    if problem.collective.name != "allreduce":
        return []
    nodes = _nodes(problem)
    parents = [_parents(nodes, tree) for tree in range(_TREES)]
    plans = []
    for pieces in numbers_of_pieces:
        cut = problem.with_chunks(_TREES * pieces)
        at = np.array([int(np.flatnonzero(parent < 0)[0]) for parent in parents])
        root = np.tile(at, pieces)
        out = first_copies(cut, cut.network, _pipelines(cut.network, parents, pieces, most), root)
        summed = added(cut, _pipelines(cut.network.reversed(), parents, pieces, most), root)
        plans.append(stepped(cut, join(summed, out), NAME))
    return plans


def _nodes(problem: Problem) -> list[Ints]:
    """Return the positions of each node's members, ascending, with the nodes in the order of their first member."""
    node = problem.topology.nodes[np.array(problem.group)]
    _, first = np.unique(node, return_index=True)
    return [np.flatnonzero(node == node[at]) for at in np.sort(first)]


def _parents(nodes: list[Ints], tree: int) -> Ints:
    """Return the member from which each member gets its data, shape (members,), -1 for the root.

    A node's first member gets it from the first member of the node above (see `_binary`), each other from the member
    before it. The second tree is the first with the nodes in the reverse order (shifted by one if their number is odd),
    and the members of every node in the reverse order.

    Args:
        nodes: Positions of each node's members.
        tree: 0 for the first tree, 1 for the second.
    """
    count = len(nodes)
    parent = np.full(sum(map(len, nodes)), -1, dtype=np.int64)
    label = np.arange(count)
    if tree:
        label = (count - 1 - label) if count % 2 == 0 else (label - 1) % count
        nodes = [members[::-1] for members in nodes]
    at = np.argsort(label)  # node with each label
    for number, above in enumerate(_binary(count)):
        members = nodes[at[number]]
        parent[members[1:]] = members[:-1]
        if above >= 0:
            parent[members[0]] = nodes[at[above]][0]
    return parent


def _binary(count: int) -> list[int]:
    """Return the parents of 0..count-1 in a binary tree whose leaves are the odd numbers; -1 for the root 0.

    The root has one child. A number's lowest set bit gives its height. Its parent has the next higher bit in place of
    that one, or, where there is no such number, is the number without that bit.
    """
    above = [-1] * count
    for number in range(1, count):
        bit = number & -number
        up = (number ^ bit) | bit << 1
        above[number] = up if up < count else number ^ bit
    return above


def _pipelines(net: Network, parents: list[Ints], pieces: int, most: int) -> Schedule:
    """Build pieces that follow each other from the roots down; chunk p · trees + t is piece p of tree t.

    The schedule is untimed, by step.

    Args:
        net: The network.
        parents: For each tree the member from which each member gets its data; -1 for the root.
        pieces: Number of pieces of a tree's data.
        most: Most sends of one piece in a tree.

    Raises:
        NoRoute: A member has no route from its parent.
        TooManySends: One piece has more than `most` sends in a tree.
    """
    columns = []
    for tree, parent in enumerate(parents):
        depth = _depths(parent)
        goal = np.flatnonzero(parent >= 0)
        message, link, hop = Routes(net, goal, most).expand(parent[goal], goal)
        wide = int(hop.max(initial=0)) + 1
        piece = np.arange(pieces)[:, None]
        step = piece + (depth[goal[message]] - 1) * wide + hop
        chunk = np.broadcast_to(piece * len(parents) + tree, step.shape)
        columns.append((chunk.ravel(), np.broadcast_to(link, step.shape).ravel(), step.ravel()))
    chunk, link, step = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.lexsort((chunk, step))
    return untimed(chunk[order], link[order], step[order])


def _depths(parent: Ints) -> Ints:
    """Return how many members are above each member, from the members' parents; shape (members,), 0 for the root."""
    depth = np.zeros(len(parent), dtype=np.int64)
    at = parent.copy()
    while (at >= 0).any():
        depth[at >= 0] += 1
        at[at >= 0] = parent[at[at >= 0]]
    return depth
