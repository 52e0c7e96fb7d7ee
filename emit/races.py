"""Accesses of one cell by two threadblocks of a rank that nothing orders.

Happens-before is program order, dependencies, and sent before received; not the FIFO's slots, whose number
is the executor's affair. Vector clocks: entry b of a transmission's clock counts the transmissions of block b
that are known to have completed before it.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from emit.cells import Cells
from emit.columns import Columns
from emit.findings import Findings
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST

CLOCK_ENTRIES = 1 << 25  # int32 entries held at a time

# (transmission, its step, chunk in it, 1 if its destination is meant;
#  block that must come before, its count of transmissions then, its step)
Query = tuple[int, int, int, int, int, int, int]


def find_races(c: Columns, order: list[int], cells: Cells, found: Findings, prefix: str = "") -> None:
    """Add every pair of conflicting accesses that is unordered. `order` must be complete and topological."""
    queries, columns = _queries(c, order, cells)
    if not queries:
        return
    dependants = np.unique(c.dep[c.dep >= 0]).tolist()
    rows = len(c.start) + len(dependants) + _most_in_flight(c, order)
    width = max(1, CLOCK_ENTRIES // rows)
    bad: list[Query] = []
    for low in range(0, len(columns), width):
        chosen = {block: x for x, block in enumerate(columns[low : low + width])}
        bad += _unordered(c, order, [q for q in queries if q[4] in chosen], chosen, set(dependants))
    told: set[tuple[int, int]] = set()
    for query in sorted(bad):
        pair = (query[1], query[6])
        if pair not in told:
            told.add(pair)
            _tell(c, query, found, prefix)


def _queries(c: Columns, order: list[int], cells: Cells) -> tuple[list[Query], list[int]]:
    """What must be ordered: each access against the last write and the reads since, of other blocks."""
    # A copy onto itself, which in-place use makes of some copies, changes nothing that another could see.
    still = (c.op == OPS.index("cpy")) & (np.array(cells.src) == np.array(cells.dst))
    reads, writes = c.is_op(READS_SRC).tolist(), (c.is_op(WRITES_DST) & ~still).tolist()
    both = c.is_op(READS_DST).tolist()
    block, count = c.block.tolist(), c.count.tolist()
    moves = ((c.sends >= 0) | (c.receives >= 0)).tolist()
    passed = [0] * len(c.start)
    chunk_of = [0] * len(count)
    written: dict[int, tuple[int, int, int]] = {}
    read: dict[int, dict[int, tuple[int, int]]] = {}
    queries: list[Query] = []
    used: set[int] = set()
    for node, step in enumerate(order):
        b = block[step]
        passed[b] += 1
        now = passed[b]
        if moves[step]:
            low = chunk_of[step]
            chunk_of[step] = low + 1
            chunks = range(low, low + 1)
        else:
            chunks = range(count[step])
        for chunk in chunks:
            touched = []
            if reads[step]:
                touched.append((cells.src[step] + chunk, 0))
            if both[step]:
                touched.append((cells.dst[step] + chunk, 1))
            for cell, is_dst in touched:
                last = written.get(cell)
                if last is not None and last[0] != b:
                    queries.append((node, step, chunk, is_dst, *last))
                    used.add(last[0])
                read.setdefault(cell, {})[b] = (now, step)
            if writes[step]:
                cell = cells.dst[step] + chunk
                last = written.get(cell)
                if last is not None and last[0] != b:
                    queries.append((node, step, chunk, 1, *last))
                    used.add(last[0])
                for reader, (when, other) in read.pop(cell, {}).items():
                    if reader != b:
                        queries.append((node, step, chunk, 1, reader, when, other))
                        used.add(reader)
                written[cell] = (b, now, step)
    return queries, sorted(used)


def _most_in_flight(c: Columns, order: list[int]) -> int:
    sends, receives = c.sends[order] >= 0, c.receives[order] >= 0
    return int(np.cumsum(sends.astype(np.int64) - receives).max(initial=0)) + 1


def _unordered(
    c: Columns, order: list[int], queries: list[Query], chosen: dict[int, int], dependants: set[int]
) -> list[Query]:
    """The queries whose answer is no, by clocks over the blocks `chosen` (block → column)."""
    asked: dict[int, list[Query]] = {}
    for q in queries:
        asked.setdefault(q[0], []).append(q)
    left = c.transmissions().tolist()
    clocks = np.zeros((len(c.start), len(chosen)), dtype=np.int32)
    rows = list(clocks)
    kept: dict[int, NDArray[np.int32]] = {}
    flying: list[deque[NDArray[np.int32]]] = [deque() for _ in c.connections]
    dep, sends, receives, block = c.dep.tolist(), c.sends.tolist(), c.receives.tolist(), c.block.tolist()
    column = [chosen.get(b, -1) for b in range(len(c.start))]
    started = bytearray(len(dep))
    bad: list[Query] = []
    for node, step in enumerate(order):
        b = block[step]
        row = rows[b]
        if dep[step] >= 0 and not started[step]:
            np.maximum(row, kept[dep[step]], out=row)
        started[step] = 1
        if receives[step] >= 0:
            np.maximum(row, flying[receives[step]].popleft(), out=row)
        if node in asked:
            bad += [q for q in asked[node] if row[chosen[q[4]]] < q[5]]
        if column[b] >= 0:
            row[column[b]] += 1
        if sends[step] >= 0:
            flying[sends[step]].append(row.copy())
        left[step] -= 1
        if not left[step] and step in dependants:
            kept[step] = row.copy()
    return bad


def _tell(c: Columns, query: Query, found: Findings, prefix: str) -> None:
    _, step, chunk, is_dst, _, _, other = query
    code, at = (c.dst[step], c.dst_at[step]) if is_dst else (c.src[step], c.src_at[step])
    name, index = BUFFERS[int(code)], int(at) + chunk
    _, tb, position = c.place(other)
    found.add(
        "race",
        f"{prefix}{OPS[c.op[step]]} and the {OPS[c.op[other]]} of tb {tb} step {position} use "
        f"{name}[{index}] in no fixed order; one would wait for the other",
        *c.place(step),
        cell=(name, index),
    )
