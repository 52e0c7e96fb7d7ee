"""Packing of spanning out-trees that attains the cut bound, in whole numbers.

Edmonds (1973): from root sets R_i, m_i trees each, spanning trees can be packed into capacities c exactly if into every
set X of vertices at least as much leads as trees have no root in X. Trees grow edge by edge while that stays true. How
many trees of a batch may take an arc x→y at once is one maximum flow from x to y: where every other batch i adds a
vertex that x leads to with m_i, and that leads to all of R_i, the flow beyond Σ m_i is the number (Bérczi and Frank;
ForestColl, arXiv 2402.06787, theorem 13). Trees of one batch that take an arc part from those that do not, so that the
work does not grow with the number of trees.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.max_flow import max_flow, residual
from synth.model.collective import Bools, Ints
from synth.model.compiled import Runner
from synth.model.deadline import now


@dataclass(frozen=True, eq=False)
class Tree:
    """Trees that are the same.

    Attributes:
        root: a vertex.
        weight: how many they are.
        arcs: in an order in which each comes after the one that leads to its tail.
    """

    root: int
    weight: int
    arcs: tuple[int, ...]


def depths(tree: Tree, src: Ints, dst: Ints) -> dict[int, int]:
    """How many arcs src→dst lead from the root to each vertex."""
    depth = {tree.root: 0}
    for tail, head in zip(src[list(tree.arcs)].tolist(), dst[list(tree.arcs)].tolist(), strict=True):
        depth[head] = depth[tail] + 1
    return depth


@dataclass(eq=False)
class _Batch:
    """Trees that are the same so far: the vertices that they span, and how deep each lies (-1: outside)."""

    root: int
    weight: int
    arcs: tuple[int, ...]
    depth: Ints

    @property
    def inside(self) -> Bools:
        return self.depth >= 0


class TooLate(Exception):
    """The deadline has passed amid the packing."""


def pack(
    run: Runner, nvertices: int, src: Ints, dst: Ints, capacity: Ints, roots: dict[int, int], deadline: float
) -> list[Tree]:
    """Spanning out-trees, roots[v] of them from each root v, that use arc a at most capacity[a] times together.

    Shallow trees first: an arc nearest to the root is taken before others.

    Raises:
        ValueError: there are none; some cut is too narrow.
        TooLate: of `now`.
    """
    left = np.array(capacity, dtype=np.int64)
    waiting: list[_Batch] = []
    for root, weight in roots.items():
        depth = np.full(nvertices, -1, dtype=np.int64)
        depth[root] = 0
        waiting.append(_Batch(root, weight, (), depth))
    done: list[Tree] = []
    leaving = [np.flatnonzero(src == v).tolist() for v in range(nvertices)]
    while waiting:
        waiting.sort(key=lambda one: len(one.arcs))  # those that span least: all grow alike, and none is deep
        batch = waiting[0]
        if batch.inside.all():
            done.append(Tree(batch.root, batch.weight, batch.arcs))
            waiting.pop(0)
            continue
        if now() >= deadline:
            raise TooLate
        arc, many = _next_arc(run, batch, waiting, leaving, src, dst, left)
        left[arc] -= many
        if many < batch.weight:  # those that do not take it go on as they are
            waiting.insert(1, _Batch(batch.root, batch.weight - many, batch.arcs, batch.depth.copy()))
        batch.weight = many
        batch.arcs += (arc,)
        batch.depth[dst[arc]] = batch.depth[src[arc]] + 1
    return done


def _next_arc(
    run: Runner, batch: _Batch, waiting: list[_Batch], leaving: list[list[int]], src: Ints, dst: Ints, left: Ints
) -> tuple[int, int]:
    """An arc that the batch's trees may take, and how many of them at once: that nearest to the root which most may."""
    others = waiting[1:]
    flow = _Flow(run, len(leaving), src, dst, left, others)
    best = (-1, 0)
    order = np.argsort(np.where(batch.inside, batch.depth, len(leaving)), kind="stable")[: int(batch.inside.sum())]
    level = -1
    for x in order.tolist():
        if batch.depth[x] > level and best[1]:
            break  # a deeper one would do no better
        level = int(batch.depth[x])
        for arc in leaving[x]:
            if left[arc] <= 0 or batch.depth[dst[arc]] >= 0:
                continue
            most = min(int(left[arc]), batch.weight)
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
    """Flows through the arcs that are left and a vertex for each of the other batches."""

    def __init__(self, run: Runner, nvertices: int, src: Ints, dst: Ints, left: Ints, others: list[_Batch]) -> None:
        self.run, self.n, self.others = run, nvertices, others
        self.total = sum(one.weight for one in others)
        members = [np.flatnonzero(one.inside) for one in others]
        batch = np.arange(nvertices, nvertices + len(others))
        tails, heads = (
            [src, np.full(len(others), nvertices + len(others)), np.repeat(batch, [len(m) for m in members])],
            [dst, batch, *members],
        )
        into = np.full(nvertices, nvertices + len(others))  # from one more vertex, which stands for x
        self.ends = np.concatenate([*tails, into]), np.concatenate([*heads, np.arange(nvertices)])
        self.endless = self.total + int(left.sum()) + 1
        inner = sum(len(m) for m in members)
        weights = np.array([one.weight for one in others], dtype=np.int64)
        self.capacity = np.concatenate(
            [left, weights, np.full(inner, self.endless), np.zeros(nvertices, dtype=np.int64)]
        )
        self.graph = residual(run, nvertices + len(others) + 1, *self.ends)

    def spare(self, x: int, y: int, most: int) -> int:
        """How many of the batch's trees, `most` at most, may take an arc x→y."""
        capacity = self.capacity.copy()
        capacity[len(capacity) - self.n + x] = self.endless
        flow, _ = max_flow(self.run, self.graph, capacity, self.n + len(self.others), y, self.total + most)
        return flow - self.total
