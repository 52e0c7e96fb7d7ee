"""Packing of undirected spanning trees, for all-reduce: sums go up a tree over the links whose reverse brings results.

Nash-Williams and Tutte (1961): k spanning trees can be packed exactly if between the parts of every partition there is
room for k times as many edges as there are parts but one. That is what the bound by parts says of an all-reduce on a
network whose links run both ways. Trees grow shallow and balanced first. Edges that then do not fit are exchanged along
shortest augmenting paths between the trees (matroid union: Roskind and Tarjan, 1985): an edge enters a tree, one edge
of the circuit that it closes leaves the tree and enters another tree, until an edge connects what was separate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from synth.engines.trees.packing import Tree
from synth.model.collective import Ints
from synth.model.compiled import Runner
from topologies.arrays import grouped

_NONE = -1


class _Forests(NamedTuple):
    """Forests in a network of edges, and room for exchanges between them.

    Attributes:
        n: Number of vertices.
        k: Number of forests.
        m: Number of edges.
        u: First end of every edge.
        v: Second end of every edge.
        remaining: Unused capacity of every edge.
        ptr: CSR pointer from a vertex to its edges.
        edge: Edges of each vertex, in CSR order.
        member: Whether an edge is in a forest, shape (k · m,).
        parent: Edge to the parent of each vertex in each forest, shape (k · n,).
        depth: Depth of each vertex in each forest, shape (k · n,).
        root: Root of each vertex in each forest, shape (k · n,).
        replaced_by: Edge for which each edge leaves a forest, -2 if not reached.
        leaves_forest: Forest that each edge leaves.
        queue: Room for the edges to look at.
        stack: Room for the vertices of a forest.
    """

    n: int
    k: int
    m: int
    u: Any
    v: Any
    remaining: Any
    ptr: Any
    edge: Any
    member: Any
    parent: Any
    depth: Any
    root: Any
    replaced_by: Any
    leaves_forest: Any
    queue: Any
    stack: Any


def pack_spanning(
    run: Runner, nvertices: int, ends: tuple[Ints, Ints], capacity: Ints, k: int, first: int
) -> list[Ints] | None:
    """Return the edges of k spanning trees, in which edge e occurs at most capacity[e] times; None if there are none.

    The result has the numbers of each tree's edges, ascending. `capacity` does not change.

    Args:
        run: Runner of the compiled loops.
        nvertices: Number of vertices.
        ends: The two ends of every edge, each pair once.
        capacity: Number of trees that each edge may be in, int, shape (edges,).
        k: Number of trees.
        first: Vertex from which the trees grow.
    """
    u, v = (np.asarray(end, dtype=np.int64) for end in ends)
    ptr, half = grouped(np.concatenate([u, v]), nvertices)
    m = len(u)
    state = [np.zeros(size, dtype=np.int64) for size in (k * m, *(k * nvertices,) * 3, *(m,) * 3, nvertices)]
    edges_and_sizes = (nvertices, k, m, u, v, np.array(capacity, dtype=np.int64), ptr, half % m)
    forests = run.table(_Forests._make([*edges_and_sizes, *state]))
    packed = run(_pack, forests, first)
    member = np.asarray(forests.member).reshape(k, m)
    return [np.flatnonzero(row) for row in member] if packed else None


def _pack(forests: _Forests, first: int) -> bool:  # One function of over 60 lines, as all its parts share their state.
    """Return True if k spanning trees were packed; `member` then marks the edges of each tree."""
    n, k, m, u, v, remaining, ptr, edge, member, parent, depth, root, _, _, _, _ = forests
    for cell in range(k * n):
        parent[cell] = _NONE
        depth[cell] = n  # The depth that the vertex would have.
    for i in range(k):
        depth[i * n + first] = 0
        root[i * n + first] = 1  # The vertex is in the tree.
        for j in range(ptr[first], ptr[first + 1]):
            parent[i * n + u[edge[j]] + v[edge[j]] - first] = edge[j]
            depth[i * n + u[edge[j]] + v[edge[j]] - first] = 1
    growing = True
    # Every tree in turn takes the vertex nearest to its root, over the edge with the most unused capacity.
    while growing:
        growing = False
        for index in range(k):
            i, best = index, _NONE
            for x in range(n):
                cell = i * n + x
                if root[cell] or depth[cell] == n:
                    continue
                if remaining[parent[cell]] <= 0:  # Other trees took the edge, so look for another.
                    depth[cell], parent[cell] = n, _NONE
                    for j in range(ptr[x], ptr[x + 1]):
                        y = u[edge[j]] + v[edge[j]] - x
                        if remaining[edge[j]] > 0 and root[i * n + y] and depth[i * n + y] + 1 < depth[cell]:
                            depth[cell], parent[cell] = depth[i * n + y] + 1, edge[j]
                    if depth[cell] == n:
                        continue
                if (
                    best == _NONE
                    or depth[cell] < depth[i * n + best]
                    or (
                        depth[cell] == depth[i * n + best] and remaining[parent[cell]] > remaining[parent[i * n + best]]
                    )
                ):
                    best = x
            if best == _NONE:
                continue
            growing = True
            cell = i * n + best
            root[cell] = 1
            member[i * m + parent[cell]] = 1
            remaining[parent[cell]] -= 1
            for j in range(ptr[best], ptr[best + 1]):
                y = i * n + u[edge[j]] + v[edge[j]] - best
                if not root[y] and remaining[edge[j]] > 0 and depth[cell] + 1 < depth[y]:
                    depth[y], parent[y] = depth[cell] + 1, edge[j]
    for i in range(k):
        _root(forests, i)
    while True:
        # Edges are exchanged until no forest lacks one.
        lacking = False
        for i in range(k):
            for x in range(n):
                lacking = lacking or root[i * n + x] != root[i * n]
        if not lacking:
            return True
        if not _exchange(forests):
            return False


def _root(forests: _Forests, i: int) -> None:
    """Set the parents, the edges to them, the depths and the roots of forest i from its edges, in place."""
    n, _, m, u, v, _, ptr, edge, member, parent, depth, root, _, _, _, stack = forests
    for x in range(n):
        root[i * n + x] = _NONE
    for first in range(n):
        if root[i * n + first] != _NONE:
            continue
        root[i * n + first] = first
        parent[i * n + first] = _NONE
        depth[i * n + first] = 0
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
                    depth[i * n + y] = depth[i * n + x] + 1
                    stack[size] = y
                    size += 1


def _exchange(forests: _Forests) -> bool:
    """Add one edge to the forests, by a shortest path of exchanges; return True if there is such a path.

    It changes `member` and `remaining`, and roots the changed forests again.
    """
    n, k, m, u, v, remaining, _, _, member, parent, depth, root, replaced_by, leaves_forest, queue, _ = forests
    size, head = 0, 0
    for e in range(m):
        replaced_by[e] = -2
        if remaining[e] > 0:
            replaced_by[e] = _NONE
            leaves_forest[e] = _NONE
            queue[size] = e
            size += 1
    while head < size:
        e = queue[head]
        head += 1
        for i in range(k):
            if member[i * m + e]:
                continue
            x, y = u[e], v[e]
            if root[i * n + x] != root[i * n + y]:
                forest = i
                while True:
                    member[forest * m + e] = 1
                    out, origin = replaced_by[e], leaves_forest[e]
                    if origin == _NONE:
                        remaining[e] -= 1
                        _root(forests, forest)
                        return True
                    member[origin * m + e] = 0
                    _root(forests, forest)
                    e, forest = out, origin
            while x != y:
                if depth[i * n + x] < depth[i * n + y]:
                    x, y = y, x
                f = parent[i * n + x]
                if replaced_by[f] == -2:
                    replaced_by[f] = e
                    leaves_forest[f] = i
                    queue[size] = f
                    size += 1
                x = u[f] + v[f] - x
    return False


def rooted(nvertices: int, ends: tuple[Ints, Ints], edges: Ints, links: tuple[Ints, Ints]) -> Tree:
    """Return the tree of these edges, rooted at the middle of a longest path.

    Args:
        nvertices: Number of vertices.
        ends: The two ends of every edge of the network.
        edges: Numbers of the tree's edges.
        links: For every edge of the network the link from its first end to its second, and the link back; these become
            the tree's arcs.
    """
    u, v = ends
    edges_of: list[list[int]] = [[] for _ in range(nvertices)]
    for e in edges.tolist():
        edges_of[u[e]].append(e)
        edges_of[v[e]].append(e)

    def walk(start: int) -> tuple[list[int], list[int], list[int]]:
        """Return the vertices in the order of a breadth-first walk, the edge to each, and the links of the walk."""
        order, edge_to, visited = [start], [-1] * nvertices, {start}
        arcs: list[int] = []
        for x in order:
            for e in edges_of[x]:
                y = int(u[e] + v[e] - x)
                if y not in visited:
                    visited.add(y)
                    edge_to[y] = e
                    order.append(y)
                    arcs.append(int(links[0][e] if u[e] == x else links[1][e]))
        return order, edge_to, arcs

    walk_from_end = walk(walk(0)[0][-1])  # A walk from one end of a longest path.
    path = [walk_from_end[0][-1]]
    while walk_from_end[1][path[-1]] >= 0:
        e = walk_from_end[1][path[-1]]
        path.append(int(u[e] + v[e] - path[-1]))
    middle = path[len(path) // 2]
    return Tree(middle, 1, tuple(walk(middle)[2]))
