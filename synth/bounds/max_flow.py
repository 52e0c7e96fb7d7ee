"""Maximum flows in whole numbers (Dinic, 1970): no floating point, so that a saturated flow refutes every worse cut."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synth.model.collective import Bools, Ints
from synth.model.compiled import Runner
from topologies.arrays import grouped

MOST = 1 << 62  # what all capacities out of a vertex may be together


class Residual(NamedTuple):
    """A directed graph with an arc back for every arc: arc i is 2i, its way back 2i + 1.

    Attributes:
        head: int, shape (2 · arcs,). ptr, arc: CSR by vertex: arcs that leave it.
        left: int, shape (2 · arcs,): capacity that is left.
    """

    head: Any
    ptr: Any
    arc: Any
    left: Any


def residual(run: Runner, nvertices: int, src: Ints, dst: Ints) -> Residual:
    """The graph of arcs src→dst, without capacity."""
    tail, head = np.column_stack([src, dst]).ravel(), np.column_stack([dst, src]).ravel()
    ptr, arc = grouped(tail.astype(np.int64), nvertices)
    return run.table(Residual(head.astype(np.int64), ptr, arc, np.zeros(len(head), dtype=np.int64)))


def max_flow(run: Runner, graph: Residual, capacity: Ints, source: int, target: int, enough: int) -> tuple[int, Bools]:
    """The flow from source to target, or `enough` as soon as it is that much; and what the source then still reaches.

    Of a flow less than `enough` that is the source's side of a least cut. O(vertices² · arcs) at worst.

    Args:
        capacity: ≥ 0 of every arc, in whole numbers.
    """
    left = np.zeros(2 * len(capacity), dtype=np.int64)
    left[::2] = capacity
    graph = graph._replace(left=run.columns(left)[0])
    n = len(graph.ptr) - 1
    level, at, path = run.columns(*(np.zeros(n + 1, dtype=np.int64) for _ in range(3)))
    flow = int(run(_dinic, *graph, source, target, enough, level, at, path))
    return flow, np.asarray(level)[:n] >= 0


def _dinic(  # over 60 lines of one loop would be no clearer in parts: levels, then paths along them
    head: Any, ptr: Any, arc: Any, left: Any, source: int, target: int, enough: int, level: Any, at: Any, path: Any
) -> int:
    n, flow = len(ptr) - 1, 0
    while True:
        for v in range(n):
            level[v] = -1
            at[v] = ptr[v]
        level[source] = 0
        path[0] = source  # a queue here
        begin, end = 0, 1
        while begin < end:
            v = path[begin]
            begin += 1
            for j in range(ptr[v], ptr[v + 1]):
                a = arc[j]
                w = head[a]
                if left[a] > 0 and level[w] < 0:
                    level[w] = level[v] + 1
                    path[end] = w
                    end += 1
        if level[target] < 0 or flow >= enough:
            return flow
        depth, v = 0, source
        while True:
            if v == target:
                amount = enough - flow
                for i in range(depth):
                    amount = min(amount, left[path[i]])
                cut = -1
                for i in range(depth):
                    a = path[i]
                    left[a] -= amount
                    left[a ^ 1] += amount
                    if cut < 0 and left[a] == 0:
                        cut = i
                flow += amount
                if flow >= enough or cut < 0:
                    return flow
                depth = cut
                v = head[path[cut] ^ 1]
                continue
            found = False
            while at[v] < ptr[v + 1]:
                a = arc[at[v]]
                w = head[a]
                if left[a] > 0 and level[w] == level[v] + 1:
                    path[depth] = a
                    depth += 1
                    v = w
                    found = True
                    break
                at[v] += 1
            if found:
                continue
            if depth == 0:
                break
            level[v] = -1
            depth -= 1
            v = head[path[depth] ^ 1]
