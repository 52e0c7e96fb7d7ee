"""Packing of spanning out-trees that attains the cut bound, in whole numbers.

Edmonds (1973): for root sets R_i with m_i trees each, spanning trees can be packed into capacities c exactly if into
every set X of vertices leads at least as much as trees have no root in X. Trees grow edge by edge while that stays
true. One maximum flow from x to y tells how many trees of a batch may take an arc x→y at once: every other batch i adds
a vertex that x leads to with m_i, and that leads to all of R_i; the flow beyond Σ m_i is the number (Bérczi and Frank;
ForestColl, arXiv 2402.06787, theorem 13). Trees of one batch that take an arc split from those that do not, so that the
work does not grow with the number of trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.cuts.max_flow import max_flow, residual
from synth.model.collective import Bools, Ints
from synth.model.compiled import Runner
from synth.model.deadline import now


@dataclass(frozen=True, eq=False)
class Tree:
    """A number of equal trees.

    Attributes:
        root: Root vertex.
        weight: Number of equal trees.
        arcs: The arcs, in an order in which each comes after the arc that leads to its tail.
    """

    root: int
    weight: int
    arcs: tuple[int, ...]


def depths(tree: Tree, src: Ints, dst: Ints) -> dict[int, int]:
    """Return by vertex the number of arcs from the root to it, 0 for the root.

    Args:
        tree: The tree.
        src: Tail of each arc.
        dst: Head of each arc.
    """
    depth = {tree.root: 0}
    for tail, head in zip(src[list(tree.arcs)].tolist(), dst[list(tree.arcs)].tolist(), strict=True):
        depth[head] = depth[tail] + 1
    return depth


@dataclass(eq=False)
class _Batch:
    """A number of trees that are equal so far.

    Attributes:
        root: Root vertex.
        weight: Number of equal trees.
        arcs: The arcs so far.
        depth: Depth of each vertex in the trees, -1 outside, int, shape (vertices,).
    """

    root: int
    weight: int
    arcs: tuple[int, ...]
    depth: Ints

    @property
    def inside(self) -> Bools:
        """Return for each vertex whether the trees span it."""
        return self.depth >= 0


class TooLate(Exception):
    """The error that the deadline has passed during the packing."""


def pack(
    run: Runner, nvertices: int, src: Ints, dst: Ints, capacity: Ints, roots: dict[int, int], deadline: float
) -> list[Tree]:
    """Return spanning out-trees, roots[v] of them from each root v, that use arc a at most capacity[a] times in all.

    Trees are shallow, because an arc nearest to the root is taken before other arcs. Equal trees are one entry with a
    weight. `capacity` does not change.

    Raises:
        ValueError: If there are none, because some cut is too narrow.
        TooLate: If the clock `synth.model.deadline.now` passes the deadline.
    """
    remaining = np.array(capacity, dtype=np.int64)
    waiting: list[_Batch] = []
    for root, weight in roots.items():
        depth = np.full(nvertices, -1, dtype=np.int64)
        depth[root] = 0
        waiting.append(_Batch(root, weight, (), depth))
    trees: list[Tree] = []
    arcs_from = [np.flatnonzero(src == v).tolist() for v in range(nvertices)]
    while waiting:
        # The batch that spans least is next, so that all batches grow evenly and none gets deep.
        waiting.sort(key=lambda batch: len(batch.arcs))
        batch = waiting[0]
        if batch.inside.all():
            trees.append(Tree(batch.root, batch.weight, batch.arcs))
            waiting.pop(0)
            continue
        if now() >= deadline:
            raise TooLate
        arc, many = _next_arc(run, batch, waiting, arcs_from, src, dst, remaining)
        remaining[arc] -= many
        if many < batch.weight:  # The trees that do not take the arc stay as they are.
            waiting.insert(1, _Batch(batch.root, batch.weight - many, batch.arcs, batch.depth.copy()))
        batch.weight = many
        batch.arcs += (arc,)
        batch.depth[dst[arc]] = batch.depth[src[arc]] + 1
    return trees


def _next_arc(
    run: Runner, batch: _Batch, waiting: list[_Batch], arcs_from: list[list[int]], src: Ints, dst: Ints, remaining: Ints
) -> tuple[int, int]:
    """Return the arc nearest to the root that the most trees of the batch may take, and the number of these trees.

    Args:
        run: Runner of the compiled loops.
        batch: The batch.
        waiting: Batches that are not done, of which `batch` is the first.
        arcs_from: Arcs that leave each vertex.
        src: Tail of each arc.
        dst: Head of each arc.
        remaining: Unused capacity of each arc.

    Raises:
        ValueError: If there is none, because some cut is too narrow.
    """
    other_batches = waiting[1:]
    flow = _Flow(run, len(arcs_from), src, dst, remaining, other_batches)
    best = (-1, 0)
    order = np.argsort(np.where(batch.inside, batch.depth, len(arcs_from)), kind="stable")[: int(batch.inside.sum())]
    level = -1
    for x in order.tolist():
        if batch.depth[x] > level and best[1]:
            break  # An arc deeper in the tree is no better.
        level = int(batch.depth[x])
        for arc in arcs_from[x]:
            if remaining[arc] <= 0 or batch.depth[dst[arc]] >= 0:
                continue
            most = min(int(remaining[arc]), batch.weight)
            if most <= best[1]:
                continue
            many = flow.spare(x, int(dst[arc]), most)
            if many > best[1]:
                best = arc, many
            if many == batch.weight:
                return best
    if best[1] <= 0:
        raise ValueError("no arc can be taken: a cut is too narrow")
    return best


class _Flow:
    """Flows through the remaining arcs and one vertex for each other batch."""

    def __init__(
        self, run: Runner, nvertices: int, src: Ints, dst: Ints, remaining: Ints, other_batches: list[_Batch]
    ) -> None:
        self.run, self.n, self.other_batches = run, nvertices, other_batches
        self.total = sum(batch_of_trees.weight for batch_of_trees in other_batches)
        members = [np.flatnonzero(batch_of_trees.inside) for batch_of_trees in other_batches]
        batch = np.arange(nvertices, nvertices + len(other_batches))
        tails, heads = (
            [
                src,
                np.full(len(other_batches), nvertices + len(other_batches)),
                np.repeat(batch, [len(m) for m in members]),
            ],
            [dst, batch, *members],
        )
        # One more vertex stands for x, with an arc to every vertex.
        source_of_vertex = np.full(nvertices, nvertices + len(other_batches))
        self.ends = np.concatenate([*tails, source_of_vertex]), np.concatenate([*heads, np.arange(nvertices)])
        self.endless = self.total + int(remaining.sum()) + 1
        inner = sum(len(m) for m in members)
        weights = np.array([batch_of_trees.weight for batch_of_trees in other_batches], dtype=np.int64)
        self.capacity = np.concatenate(
            [remaining, weights, np.full(inner, self.endless), np.zeros(nvertices, dtype=np.int64)]
        )
        self.graph = residual(run, nvertices + len(other_batches) + 1, *self.ends)

    def spare(self, x: int, y: int, most: int) -> int:
        """Return how many of the batch's trees, up to `most`, may take an arc x→y."""
        capacity = self.capacity.copy()
        capacity[len(capacity) - self.n + x] = self.endless
        flow, _ = max_flow(self.run, self.graph, capacity, self.n + len(self.other_batches), y, self.total + most)
        return flow - self.total
