"""Maximum flows in whole numbers (Dinic, 1970): without rounding, a saturated flow refutes every worse cut."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synth.model.collective import Bools, Ints
from synth.model.compiled import Runner
from topologies.arrays import grouped

MOST = 1 << 62  # largest sum of the capacities out of a vertex


class Residual(NamedTuple):
    """A directed graph with a reverse arc for every arc: arc i is 2i, its reverse is 2i + 1.

    Attributes:
        head: End vertex of each arc, int, shape (2 · arcs,).
        ptr: Start of each vertex's arcs in `arc`, int, shape (vertices + 1,).
        arc: Arcs that leave each vertex.
        remaining: Remaining capacity, int, shape (2 · arcs,).
    """

    head: Any
    ptr: Any
    arc: Any
    remaining: Any


def residual(run: Runner, nvertices: int, src: Ints, dst: Ints) -> Residual:
    """Return the graph of arcs src→dst over vertices 0..nvertices-1, without capacity, for loops that `run` runs."""
    tail, head = np.column_stack([src, dst]).ravel(), np.column_stack([dst, src]).ravel()
    ptr, arc = grouped(tail.astype(np.int64), nvertices)
    return run.table(Residual(head.astype(np.int64), ptr, arc, np.zeros(len(head), dtype=np.int64)))


def max_flow(run: Runner, graph: Residual, capacity: Ints, source: int, target: int, enough: int) -> tuple[int, Bools]:
    """Return the flow from source to target, at most `enough`, and what the source then still reaches.

    Where the flow is less than `enough`, that set (flags, shape (vertices,)) is the source's side of a least cut; else
    it means nothing. It takes O(vertices² · arcs) at worst.

    Args:
        run: Runner of the compiled or interpreted loop, the one that the graph was made for.
        graph: The graph; its capacities do not matter and are not changed.
        capacity: Capacity ≥ 0 of every arc, in whole numbers; those out of a vertex add up to `MOST` at most.
        source: Source vertex.
        target: Target vertex.
        enough: Flow at which the search stops.
    """
    capacities = np.zeros(2 * len(capacity), dtype=np.int64)
    capacities[::2] = capacity
    graph = graph._replace(remaining=run.columns(capacities)[0])
    n = len(graph.ptr) - 1
    level, at, path = run.columns(*(np.zeros(n + 1, dtype=np.int64) for _ in range(3)))
    flow = int(run(_dinic, *graph, source, target, enough, level, at, path))
    return flow, np.asarray(level)[:n] >= 0


def _dinic(  # One compiled loop (levels, then paths along them) would be no clearer in parts.
    head: Any,
    ptr: Any,
    arc: Any,
    remaining: Any,
    source: int,
    target: int,
    enough: int,
    level: Any,
    next_arc: Any,
    path: Any,
) -> int:
    """Return the flow from source to target, at most `enough`.

    If the flow is less than `enough`, `level` is at least 0 at every vertex that the source still reaches.

    Args:
        head: End vertex of each arc; arcs 2i and 2i + 1 are reverse to each other.
        ptr: Start of each vertex's arcs in `arc`.
        arc: Arcs that leave each vertex.
        remaining: Capacity of each arc; at the end what remains of it.
        source: Source vertex.
        target: Target vertex.
        enough: Flow at which the search stops.
        level: Room for a number for each vertex; it is overwritten.
        next_arc: Room for a number for each vertex; it is overwritten.
        path: Room for a number for each vertex; it is overwritten.
    """
    n, flow = len(ptr) - 1, 0
    while True:
        for v in range(n):
            level[v] = -1
            next_arc[v] = ptr[v]
        level[source] = 0
        path[0] = source  # `path` serves as the queue of the search by levels
        begin, end = 0, 1
        while begin < end:
            v = path[begin]
            begin += 1
            for j in range(ptr[v], ptr[v + 1]):
                a = arc[j]
                w = head[a]
                if remaining[a] > 0 and level[w] < 0:
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
                    amount = min(amount, remaining[path[i]])
                cut = -1
                for i in range(depth):
                    a = path[i]
                    remaining[a] -= amount
                    remaining[a ^ 1] += amount
                    if cut < 0 and remaining[a] == 0:
                        cut = i
                flow += amount
                if flow >= enough or cut < 0:
                    return flow
                depth = cut
                v = head[path[cut] ^ 1]
                continue
            advanced = False
            while next_arc[v] < ptr[v + 1]:
                a = arc[next_arc[v]]
                w = head[a]
                if remaining[a] > 0 and level[w] == level[v] + 1:
                    path[depth] = a
                    depth += 1
                    v = w
                    advanced = True
                    break
                next_arc[v] += 1
            if advanced:
                continue
            if depth == 0:
                break
            level[v] = -1
            depth -= 1
            v = head[path[depth] ^ 1]
