"""Packing of undirected spanning trees, for all-reduce: sums go up a tree over the links that values come down by.

Nash-Williams and Tutte (1961): k spanning trees can be packed exactly if between the parts of every partition there is
room for k times as many edges as there are parts but one; which is what the bound by parts says of an all-reduce on
a network whose links run both ways. Trees are drawn shallow and even first; what then does not fit is exchanged along
shortest augmenting paths between them (matroid union: Roskind and Tarjan, 1985): an edge enters a tree, one of the
circuit that it closes leaves it and enters another, until one joins what was apart.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.engines.trees.packing import Tree
from synth.model.collective import Ints
from synth.model.compiled import Runner
from topologies.arrays import grouped

_NONE = -1


def pack_spanning(
    run: Runner, nvertices: int, ends: tuple[Ints, Ints], capacity: Ints, k: int, first: int
) -> list[Ints] | None:
    """The edges of k spanning trees, of which edge e is in capacity[e] at most; None where there are none.

    Args:
        ends: both ends of every edge, each pair once.
    """
    u, v = (np.asarray(end, dtype=np.int64) for end in ends)
    ptr, half = grouped(np.concatenate([u, v]), nvertices)
    m = len(u)
    columns = run.columns(
        u, v, np.asarray(capacity, dtype=np.int64).copy(), ptr, half % m, np.zeros(k * m, dtype=np.int64),
        *(np.zeros(k * nvertices, dtype=np.int64) for _ in range(3)), *(np.zeros(m, dtype=np.int64) for _ in range(3)),
        np.zeros(nvertices, dtype=np.int64),
    )  # fmt: skip
    packed = run(_pack, nvertices, k, first, *columns)
    member = np.asarray(columns[5]).reshape(k, m)
    return [np.flatnonzero(row) for row in member] if packed else None


def _pack(  # over 60 lines: growing and exchanging share all of their state
    n: int, k: int, first: int, u: Any, v: Any, left: Any, ptr: Any, edge: Any, member: Any, parent: Any, by: Any,
    root: Any, came: Any, place: Any, queue: Any, stack: Any,
) -> bool:  # fmt: skip
    m = len(u)
    for at in range(k * n):
        parent[at] = _NONE
        by[at] = n  # the depth that it would have
    for i in range(k):
        by[i * n + first] = 0
        root[i * n + first] = 1  # it is in the tree
        for j in range(ptr[first], ptr[first + 1]):
            parent[i * n + u[edge[j]] + v[edge[j]] - first] = edge[j]
            by[i * n + u[edge[j]] + v[edge[j]] - first] = 1
    growing = True
    while growing:  # every tree in turn takes what is nearest to its root, over the edge that is used least
        growing = False
        for turn in range(k):
            i, best = turn, _NONE
            for x in range(n):
                at = i * n + x
                if root[at] or by[at] == n:
                    continue
                if left[parent[at]] <= 0:  # taken by others since: another edge, if there is one
                    by[at], parent[at] = n, _NONE
                    for j in range(ptr[x], ptr[x + 1]):
                        y = u[edge[j]] + v[edge[j]] - x
                        if left[edge[j]] > 0 and root[i * n + y] and by[i * n + y] + 1 < by[at]:
                            by[at], parent[at] = by[i * n + y] + 1, edge[j]
                    if by[at] == n:
                        continue
                if (
                    best == _NONE
                    or by[at] < by[i * n + best]
                    or (by[at] == by[i * n + best] and left[parent[at]] > left[parent[i * n + best]])
                ):
                    best = x
            if best == _NONE:
                continue
            growing = True
            at = i * n + best
            root[at] = 1
            member[i * m + parent[at]] = 1
            left[parent[at]] -= 1
            for j in range(ptr[best], ptr[best + 1]):
                y = i * n + u[edge[j]] + v[edge[j]] - best
                if not root[y] and left[edge[j]] > 0 and by[at] + 1 < by[y]:
                    by[y], parent[y] = by[at] + 1, edge[j]
    for i in range(k):
        _root(i, n, m, u, v, ptr, edge, member, parent, by, root, stack)
    while True:
        # the next edge to add, and whether trees still lack one
        lacking = False
        for i in range(k):
            for x in range(n):
                lacking = lacking or root[i * n + x] != root[i * n]
        if not lacking:
            return True
        if not _exchange(n, k, m, u, v, left, ptr, edge, member, parent, by, root, came, place, queue, stack):
            return False


def _root(
    i: int, n: int, m: int, u: Any, v: Any, ptr: Any, edge: Any, member: Any, parent: Any, by: Any, root: Any,
    stack: Any,
) -> None:  # fmt: skip
    """Parents, the edges to them and the roots of forest i."""
    for x in range(n):
        root[i * n + x] = _NONE
    for first in range(n):
        if root[i * n + first] != _NONE:
            continue
        root[i * n + first] = first
        parent[i * n + first] = _NONE
        by[i * n + first] = 0  # the depth
        stack[0] = first
        size = 1
        while size > 0:
            size -= 1
            x = stack[size]
            for j in range(ptr[x], ptr[x + 1]):
                e = edge[j]
                y = u[e] + v[e] - x
                if member[i * m + e] and root[i * n + y] == _NONE:
                    root[i * n + y] = first
                    parent[i * n + y] = e
                    by[i * n + y] = by[i * n + x] + 1
                    stack[size] = y
                    size += 1


def _exchange(
    n: int, k: int, m: int, u: Any, v: Any, left: Any, ptr: Any, edge: Any, member: Any, parent: Any, by: Any,
    root: Any, came: Any, place: Any, queue: Any, stack: Any,
) -> bool:  # fmt: skip
    """One edge more in all forests together, by a shortest path of exchanges; whether there is one.

    came[e]: for which edge e leaves a forest, place[e]: which forest that is.
    """
    size, at = 0, 0
    for e in range(m):
        came[e] = -2
        if left[e] > 0:
            came[e] = _NONE
            place[e] = _NONE
            queue[size] = e
            size += 1
    while at < size:
        e = queue[at]
        at += 1
        for i in range(k):
            if member[i * m + e]:
                continue
            x, y = u[e], v[e]
            if root[i * n + x] != root[i * n + y]:
                into = i
                while True:
                    member[into * m + e] = 1
                    out, origin = came[e], place[e]
                    if origin == _NONE:
                        left[e] -= 1
                        _root(into, n, m, u, v, ptr, edge, member, parent, by, root, stack)
                        return True
                    member[origin * m + e] = 0
                    _root(into, n, m, u, v, ptr, edge, member, parent, by, root, stack)
                    e, into = out, origin
            while x != y:
                if by[i * n + x] < by[i * n + y]:
                    x, y = y, x
                f = parent[i * n + x]
                if came[f] == -2:
                    came[f] = e
                    place[f] = i
                    queue[size] = f
                    size += 1
                x = u[f] + v[f] - x
    return False


def rooted(nvertices: int, ends: tuple[Ints, Ints], edges: Ints, links: tuple[Ints, Ints]) -> Tree:
    """The tree of these edges from its middle, over links: links[0] runs from the first end to the second."""
    u, v = ends
    beside: list[list[int]] = [[] for _ in range(nvertices)]
    for e in edges.tolist():
        beside[u[e]].append(e)
        beside[v[e]].append(e)

    def walk(start: int) -> tuple[list[int], list[int], list[int]]:
        order, by, seen = [start], [-1] * nvertices, {start}
        arcs: list[int] = []
        for x in order:
            for e in beside[x]:
                y = int(u[e] + v[e] - x)
                if y not in seen:
                    seen.add(y)
                    by[y] = e
                    order.append(y)
                    arcs.append(int(links[0][e] if u[e] == x else links[1][e]))
        return order, by, arcs

    far = walk(walk(0)[0][-1])  # from one end of a longest path
    path = [far[0][-1]]
    while far[1][path[-1]] >= 0:
        e = far[1][path[-1]]
        path.append(int(u[e] + v[e] - path[-1]))
    middle = path[len(path) // 2]
    return Tree(middle, 1, tuple(walk(middle)[2]))
