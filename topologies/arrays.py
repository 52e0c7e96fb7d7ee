"""NumPy helpers for tables of rows of different length (CSR) and for reachability in graphs.

A CSR table is (ptr, idx): row i holds idx[ptr[i]:ptr[i+1]]. A graph is two columns, the source and the destination of
each edge.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]

# Work in NumPy, in edges, that takes as long as the import of SciPy (some 60 ms); each pass costs _PASS edges more.
_MOST_EDGES, _PASS = 10_000_000, 2_000
_C1, _C2, _GOLD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)


def pointers(counts: Ints) -> Ints:
    """Return where rows of these lengths begin, and where the last row ends: int64 (rows + 1,)."""
    ptr = np.zeros(len(counts) + 1, dtype=np.int64)
    np.cumsum(counts, out=ptr[1:])
    return ptr


def flags_of(count: int, places: Any) -> Bools:
    """Return for each of 0..count-1 whether it is among `places` (numbers, a slice, or flags): bool (count,)."""
    flags = np.zeros(count, dtype=bool)
    flags[places] = True
    return flags


def index_among(count: int, chosen: Any) -> Ints:
    """Return the index of each of 0..count-1 in `chosen`, which holds each once, -1 where it is absent: int64 (count,).

    `chosen` may be a column or a sequence of numbers below `count`.
    """
    index = np.full(count, -1, dtype=np.int64)
    index[chosen] = np.arange(len(chosen))
    return index


def positions(counts: Ints) -> Ints:
    """Return 0, 1, …, counts[i] - 1 for every row i, row after row: int64 (sum of counts,)."""
    return np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)


def ranges(start: Ints, count: Ints) -> Ints:
    """Return start[i], start[i] + 1, …, start[i] + count[i] - 1 for every i, row after row: int64 (sum of count,)."""
    return np.repeat(start - (np.cumsum(count) - count), count) + np.arange(int(count.sum()))


def row_of_entry(ptr: Ints) -> Ints:
    """Return the row that each entry of a CSR table belongs to: int64 (entries,)."""
    return np.repeat(np.arange(len(ptr) - 1), np.diff(ptr))


def row_entries(ptr: Ints, rows: Ints) -> Ints:
    """Return the indices of the entries of some rows in a CSR table, row after row: int64 (entries of the rows,)."""
    return ranges(ptr[rows], ptr[rows + 1] - ptr[rows])


def grouped(keys: Ints, count: int) -> tuple[Ints, Ints]:
    """Return a CSR table (ptr, idx) of the places where each key 0..count-1 stands, ascending, in O(n log n)."""
    return pointers(np.bincount(keys, minlength=count)), np.argsort(keys, kind="stable").astype(np.int64)


def sorted_rows(keys: Ints) -> Ints:
    """Return the numbers of the rows sorted by key (0 or more); rows of equal keys keep their order: int64 (rows,).

    It takes O(n) where the keys are below 2¹⁶ or sorted already.
    """
    if (keys[1:] >= keys[:-1]).all():
        return np.arange(len(keys))
    # NumPy sorts 16-bit keys by radix.
    return np.argsort(keys.astype(np.uint16) if keys.max() < 1 << 16 else keys, kind="stable")


def segment_sums(values: NDArray[Any], ptr: Ints) -> NDArray[Any]:
    """Return the sum of each segment ptr[i]:ptr[i+1] of whole numbers or flags, 0 for an empty one.

    The sums are int64 (segments,); for uint64 values they are uint64, modulo 2⁶⁴.
    """
    running = np.zeros(len(values) + 1, dtype=np.uint64 if values.dtype == np.uint64 else np.int64)
    np.cumsum(values, out=running[1:])
    return running[ptr[1:]] - running[ptr[:-1]]


def hashed(values: Hashes) -> Hashes:
    """Return hashes of the values by splitmix64, which gives the same result on every machine."""
    x = values + _GOLD
    x = (x ^ (x >> _S30)) * _C1
    x = (x ^ (x >> _S27)) * _C2
    return x ^ (x >> _S31)


def reachable(count: int, src: Ints, dst: Ints, starts: Ints | int, most_edges: int = _MOST_EDGES) -> Bools:
    """Return which of the vertices 0..count-1 can be reached along edges from `starts`, these included: bool (count,).

    `most_edges` decides only how long the search takes, not its result.
    It passes over all edges in NumPy, O(depth · edges), until it has touched about `most_edges`; then it searches
    breadth first in SciPy.
    """
    is_reached = flags_of(count, starts)
    count_before = 0
    for _ in range(most_edges // (_PASS + len(src))):
        count_now = int(is_reached.sum())
        if count_now in (count_before, count):
            return is_reached
        count_before = count_now
        is_reached[dst[is_reached[src]]] = True
    # The search starts at one more vertex, with an edge to each vertex that is reached already.
    reached_vertices = np.flatnonzero(is_reached)
    graph, csgraph = _sparse(
        count + 1, np.append(src, np.full(len(reached_vertices), count)), np.append(dst, reached_vertices)
    )
    order = csgraph.breadth_first_order(graph, count, return_predecessors=False)
    is_reached[order[order < count]] = True
    return is_reached


def strongly_connected(count: int, src: Ints, dst: Ints) -> bool:
    """Return whether each of the vertices 0..count-1 reaches every other."""
    return bool(reachable(count, src, dst, 0).all() and reachable(count, dst, src, 0).all())


def components(count: int, src: Ints, dst: Ints, *, strong: bool = False) -> Ints:
    """Return the number of the component that each vertex is in: int64 (count,).

    Args:
        count: Number of vertices, which are 0..count-1.
        src: Source of each edge.
        dst: Destination of each edge.
        strong: Whether components are strongly connected. If not, edges go both ways, and components are numbered by
            their first vertices; strongly connected components have any order.
    """
    if strong:
        graph, csgraph = _sparse(count, src, dst)
        return np.asarray(csgraph.connected_components(graph, connection="strong")[1], dtype=np.int64)
    # `least` holds the smallest vertex that each vertex is so far known to be connected with.
    least, before = np.arange(count, dtype=np.int64), None
    while before is None or not np.array_equal(least, before):
        before, ends = least.copy(), (least[src], least[dst])
        for end in ends:
            np.minimum.at(least, end, np.minimum(*ends))
        while not np.array_equal(least, least[least]):
            least = least[least]
    return np.asarray(np.unique(least, return_inverse=True)[1], dtype=np.int64)


def _sparse(count: int, src: Ints, dst: Ints) -> tuple[Any, Any]:
    """Return the graph as a SciPy array (count, count), and the module `scipy.sparse.csgraph`.

    The array has a 1 at (source, destination) for each edge.
    """
    # SciPy is slow to import, and most commands do without it.
    from scipy.sparse import csgraph, csr_array

    return csr_array((np.ones(len(src), dtype=np.int8), (src, dst)), shape=(count, count)), csgraph
