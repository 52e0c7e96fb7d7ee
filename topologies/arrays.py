"""Tables of rows of different length (CSR), and which vertices of a graph reach which, both over NumPy columns.

A CSR table is (ptr, idx): row i holds idx[ptr[i]:ptr[i+1]]. A graph is two columns, the source and the destination of
each edge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Edges whose look-up in NumPy takes as long as the import of SciPy (some 60 ms); a pass costs as much as _PASS more.
_MOST_EDGES, _PASS = 10_000_000, 2_000


def pointers(counts: Ints) -> Ints:
    """Where each of the rows of these lengths begins, and the end of the last: int64 (rows + 1,)."""
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def marked(count: int, places: Any) -> Bools:
    """Whether each of 0..count-1 is among some places (numbers, a slice, or flags): bool (count,)."""
    found = np.zeros(count, dtype=bool)
    found[places] = True
    return found


def index_among(count: int, chosen: Any) -> Ints:
    """Where each of 0..count-1 stands among the numbers `chosen`, -1 where it does not: int64 (count,)."""
    index = np.full(count, -1, dtype=np.int64)
    index[chosen] = np.arange(len(chosen))
    return index


def positions(counts: Ints) -> Ints:
    """0, 1, …, counts[i] - 1 for every row i, row after row: int64 (sum of counts,)."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def ranges(start: Ints, count: Ints) -> Ints:
    """start[0], start[0] + 1, … (count[0] of them), then those of the next; int64 (sum of count,)."""
    return np.repeat(start - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))


def row_of_entry(ptr: Ints) -> Ints:
    """The row that each entry of a CSR table belongs to: int64 (entries,)."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def row_entries(ptr: Ints, rows: Ints) -> Ints:
    """Where the entries of some rows stand in a CSR table, row after row: int64."""
    return ranges(ptr[rows], ptr[rows + 1] - ptr[rows])


def grouped(keys: Ints, count: int) -> tuple[Ints, Ints]:
    """CSR (ptr, idx) of the places where each key 0..count-1 stands, ascending. O(n log n)."""
    return pointers(np.bincount(keys, minlength=count)), np.argsort(keys, kind="stable").astype(np.int64)


def sorted_rows(keys: Ints) -> Ints:
    """Rows by key (0 or more), those of one key as they stand: int64 (rows,). O(n) where keys are few or sorted."""
    if (keys[1:] >= keys[:-1]).all():
        return np.arange(len(keys))
    # 16 bits are sorted by radix
    return np.argsort(keys.astype(np.uint16) if keys.max() < 1 << 16 else keys, kind="stable")


def segment_sums(values: NDArray[Any], ptr: Ints) -> NDArray[Any]:
    """Sum of each segment ptr[i]:ptr[i+1], 0 for an empty one: int64, for uint64 values uint64 (modulo 2⁶⁴)."""
    running = np.zeros(len(values) + 1, dtype=np.uint64 if values.dtype == np.uint64 else np.int64)
    np.cumsum(values, out=running[1:])
    return running[ptr[1:]] - running[ptr[:-1]]


def reached(count: int, src: Ints, dst: Ints, starts: Ints | int, most_edges: int = _MOST_EDGES) -> Bools:
    """Which of the vertices 0..count-1 the edges lead to from any of `starts`, these included: bool (count,).

    O(depth · edges) in NumPy up to `most_edges`, then breadth first in SciPy.
    """
    found = marked(count, starts)
    known = 0
    for _ in range(most_edges // (_PASS + len(src))):
        now = int(found.sum())
        if now in (known, count):
            return found
        known = now
        found[dst[found[src]]] = True
    # one more vertex, with an edge to each that is known
    ends = np.flatnonzero(found)
    graph, csgraph = _sparse(count + 1, np.append(src, np.full(len(ends), count)), np.append(dst, ends))
    order = csgraph.breadth_first_order(graph, count, return_predecessors=False)
    found[order[order < count]] = True
    return found


def strongly_connected(count: int, src: Ints, dst: Ints) -> bool:
    """Whether each of the vertices 0..count-1 reaches every other."""
    return bool(reached(count, src, dst, 0).all() and reached(count, dst, src, 0).all())


def components(count: int, src: Ints, dst: Ints, *, strong: bool = False) -> Ints:
    """Number of the part that each vertex is in, edges taken both ways: int64 (count,), 0.. in order of vertices.

    strong: edges taken one way; a part is of vertices that all reach each other, and parts have any order.
    """
    if strong:
        graph, csgraph = _sparse(count, src, dst)
        return np.asarray(csgraph.connected_components(graph, connection="strong")[1], dtype=np.int64)
    least, before = np.arange(count, dtype=np.int64), None  # the least vertex that each is known to be joined with
    while before is None or not np.array_equal(least, before):
        before, ends = least.copy(), (least[src], least[dst])
        for end in ends:
            np.minimum.at(least, end, np.minimum(*ends))
        while not np.array_equal(least, least[least]):
            least = least[least]
    return np.asarray(np.unique(least, return_inverse=True)[1], dtype=np.int64)


def _sparse(count: int, src: Ints, dst: Ints) -> tuple[Any, Any]:
    """The graph as SciPy takes it, and `scipy.sparse.csgraph`."""
    # starts slowly, and most commands do without
    from scipy.sparse import csgraph, csr_array

    return csr_array((np.ones(len(src), dtype=np.int8), (src, dst)), shape=(count, count)), csgraph
