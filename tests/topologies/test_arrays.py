"""Tests of CSR tables and reachability against plain loops."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.arrays import (
    components,
    grouped,
    pointers,
    positions,
    ranges,
    reachable,
    row_entries,
    row_of_entry,
    segment_sums,
    strongly_connected,
)

COUNTS = st.lists(st.integers(0, 4), max_size=6)


@settings(max_examples=60, derandomize=True)
@given(COUNTS, st.data())
def test_rows_of_different_length(counts: list[int], data: st.DataObject) -> None:
    count = np.array(counts, dtype=np.int64)
    ptr = pointers(count)
    assert ptr.tolist() == [sum(counts[:i]) for i in range(len(counts) + 1)]
    assert positions(count).tolist() == [i for c in counts for i in range(c)]
    assert row_of_entry(ptr).tolist() == [row for row, c in enumerate(counts) for _ in range(c)]
    start = np.array([data.draw(st.integers(0, 9)) for _ in counts], dtype=np.int64)
    expected = [s + i for s, c in zip(start.tolist(), counts, strict=True) for i in range(c)]
    assert ranges(start, count).tolist() == expected
    rows = np.array(data.draw(st.lists(st.sampled_from(range(len(counts))))) if counts else [], dtype=np.int64)
    assert row_entries(ptr, rows).tolist() == [e for r in rows.tolist() for e in range(ptr[r], ptr[r + 1])]
    values = np.arange(1, len(expected) + 1, dtype=np.uint64) << np.uint64(60)  # The sums overflow.
    sums = [sum(values[a:b].tolist()) % 2**64 for a, b in pairwise(ptr.tolist())]
    assert segment_sums(values, ptr).tolist() == sums


def test_grouped_keeps_the_order_of_places() -> None:
    ptr, places = grouped(np.array([2, 0, 2, 3, 0]), 5)
    assert ptr.tolist() == [0, 2, 2, 4, 5, 5]
    assert places.tolist() == [1, 4, 0, 2, 3]


def closure(edges: list[tuple[int, int]], start: int) -> set[int]:
    reachable = {start}
    while True:
        extended = reachable | {b for a, b in edges if a in reachable}
        if extended == reachable:
            return reachable
        reachable = extended


@settings(max_examples=60, derandomize=True)
@given(st.integers(1, 7), st.data())
def test_reachability(count: int, data: st.DataObject) -> None:
    vertex = st.integers(0, count - 1)
    edges = data.draw(st.lists(st.tuples(vertex, vertex), max_size=12))
    src, dst = (np.array([edge[i] for edge in edges], dtype=np.int64) for i in (0, 1))
    closures = [closure(edges, start) for start in range(count)]
    for most_edges in (0, 10**6):  # With SciPy, with NumPy.
        for start in range(count):
            is_reached = reachable(count, src, dst, start, most_edges)
            assert set(np.flatnonzero(is_reached).tolist()) == closures[start]
        is_reached = reachable(count, src, dst, np.array([0, count - 1]), most_edges)
        assert set(np.flatnonzero(is_reached).tolist()) == closures[0] | closures[-1]
    assert strongly_connected(count, src, dst) == all(len(reachable) == count for reachable in closures)
    parts = components(count, src, dst)
    joined = edges + [(b, a) for a, b in edges]
    for a in range(count):
        same = np.flatnonzero(parts == parts[a])
        assert set(same.tolist()) == closure(joined, a)
