"""Accesses of one cell by two threadblocks of a rank that nothing orders.

Happens-before is program order, dependencies, and sent before received; not the FIFO's slots, whose number is the
executor's affair. An event of a block is a transmission of one of its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.cells import Cells
from emit.check.clocks import Row, VectorClocks
from emit.columns import Columns
from emit.findings import MAX_OF_A_KIND, Findings
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST
from topologies.errors import InputError


class Query(NamedTuple):
    """Whether an access surely follows another one of the same cell.

    node, step, chunk: transmission in the order, its step, and the chunk in that; is_dst: 1 if its destination is
    meant. block, passed, other: the block of the earlier access, its transmissions by then, and the step.
    """

    node: int
    step: int
    chunk: int
    is_dst: int
    block: int
    passed: int
    other: int


def find_races(c: Columns, order: list[int], cells: Cells, found: Findings, prefix: str = "") -> None:
    """Add every pair of conflicting accesses that is unordered. `order` must be complete and topological.

    Raises InputError for a program of so many threadblocks that it would take too long.
    """
    _overlaps(c, cells, found, prefix)
    queries = _queries(c, order, cells)
    if not queries:
        return
    clocks = _HappensBefore(c)
    # Waits of a rank's own threadblocks decide nearly all; only the rest is followed through the messages.
    queries = clocks.not_within_ranks(order, queries)
    columns = sorted({query.block for query in queries})
    in_flight = np.cumsum((c.sends[order] >= 0).astype(np.int64) - (c.receives[order] >= 0))
    rows = len(c.start) + len(clocks.dependants) + int(in_flight.max(initial=0)) + 1
    width = max(1, CAPACITY.clock_entries // rows)
    passes = -(-len(columns) // width)
    if passes * len(order) > CAPACITY.clock_visits:
        raise InputError(
            f"program of {len(c.rank)} threadblocks that share their cells; it must be fewer to be checked for races"
        )
    asked: list[list[Query]] = [[] for _ in range(passes)]
    place = {block: x for x, block in enumerate(columns)}
    for query in queries:
        asked[place[query.block] // width].append(query)
    bad: list[Query] = []
    for part in asked:
        bad += clocks.unanswered(enumerate(order), part, messages=True)
        if len({(query.step, query.other) for query in bad}) > MAX_OF_A_KIND:
            break  # the others would only be counted
    firsts = {(query.step, query.other): query for query in sorted(bad, reverse=True)}
    for query in sorted(firsts.values()):
        _report(c, query, found, prefix)


def _overlaps(c: Columns, cells: Cells, found: Findings, prefix: str) -> None:
    """Steps that read chunks which they write too, but for others: a kernel moves a step's chunks in no fixed order."""
    src, dst = np.array(cells.src, dtype=np.int64), np.array(cells.dst, dtype=np.int64)
    apart = np.abs(src - dst)
    for step in np.flatnonzero(c.is_op(READS_SRC & WRITES_DST) & (apart > 0) & (apart < c.count)).tolist():
        into = BUFFERS[c.dst[step]]
        ends = f"from {BUFFERS[c.src[step]]}[{c.src_at[step]}] to {into}[{c.dst_at[step]}]"
        what = f"{prefix}{OPS[c.op[step]]} of {c.count[step]} chunks {ends} overlaps itself"
        cell = (into, int(c.dst_at[step] + max(0, src[step] - dst[step])))
        found.add("race", f"{what}; it must be disjoint or the same chunks", *c.place(step), cell=cell)


def _queries(c: Columns, order: list[int], cells: Cells) -> list[Query]:
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
    for node, step in enumerate(order):
        b = block[step]
        passed[b] += 1
        now = passed[b]
        low, high = (chunk_of[step], chunk_of[step] + 1) if moves[step] else (0, count[step])
        chunk_of[step] = high
        for chunk in range(low, high):
            touched = [(cells.src[step] + chunk, 0)] if reads[step] else []
            if both[step]:
                touched.append((cells.dst[step] + chunk, 1))
            for cell, is_dst in touched:
                last = written.get(cell)
                if last is not None and last[0] != b:
                    queries.append(Query(node, step, chunk, is_dst, *last))
                read.setdefault(cell, {})[b] = (now, step)
            if writes[step]:
                cell = cells.dst[step] + chunk
                last = written.get(cell)
                if last is not None and last[0] != b:
                    queries.append(Query(node, step, chunk, 1, *last))
                for reader, (when, other) in read.pop(cell, {}).items():
                    if reader != b:
                        queries.append(Query(node, step, chunk, 1, reader, when, other))
                written[cell] = (b, now, step)
    return queries


class _HappensBefore:
    """Runs over a program's transmissions that find which queries nothing answers with yes."""

    def __init__(self, c: Columns) -> None:
        self.dependants = set(np.unique(c.dep[c.dep >= 0]).tolist())
        self.dep, self.block, self.rank = c.dep.tolist(), c.block.tolist(), c.rank.tolist()
        self.sends, self.receives = c.sends.tolist(), c.receives.tolist()
        self.times = c.transmissions().tolist()
        self.nconnections = len(c.connections)

    def not_within_ranks(self, order: list[int], queries: list[Query]) -> list[Query]:
        """The queries that no waits between threadblocks of one rank answer with yes."""
        asked: dict[int, list[Query]] = {}
        for query in queries:
            asked.setdefault(self.rank[query.block], []).append(query)
        nodes: dict[int, list[tuple[int, int]]] = {rank: [] for rank in asked}
        for node, step in enumerate(order):
            rank = self.rank[self.block[step]]
            if rank in nodes:
                nodes[rank].append((node, step))
        left: list[Query] = []
        for rank, mine in asked.items():
            rows = len({self.block[step] for _, step in nodes[rank]} | {step for _, step in nodes[rank]})
            if rows * len({query.block for query in mine}) > CAPACITY.clock_entries:
                left += mine
            else:
                left += self.unanswered(nodes[rank], mine, messages=False)
        return left

    def unanswered(self, nodes: Iterable[tuple[int, int]], queries: list[Query], *, messages: bool) -> list[Query]:
        """The queries that the waits of these (node, step), and their messages if asked, do not answer with yes."""
        column = {block: x for x, block in enumerate(sorted({query.block for query in queries}))}
        asked: dict[int, list[Query]] = {}
        for query in queries:
            asked.setdefault(query.node, []).append(query)
        clocks = VectorClocks(len(column))
        kept: dict[int, Row] = {}
        in_flight: list[deque[Row]] = [deque() for _ in range(self.nconnections if messages else 0)]
        done: dict[int, int] = {}
        bad: list[Query] = []
        for node, step in nodes:
            b = self.block[step]
            row = clocks.row(b)
            passed = done.get(step, 0)
            if not passed and self.dep[step] >= 0:
                clocks.learn(b, kept[self.dep[step]])
            if messages and self.receives[step] >= 0:
                clocks.learn(b, in_flight[self.receives[step]].popleft())
            if node in asked:
                bad += [query for query in asked[node] if row[column[query.block]] < query.passed]
            if b in column:
                row[column[b]] += 1
            if messages and self.sends[step] >= 0:
                in_flight[self.sends[step]].append(row.copy())
            if passed + 1 < self.times[step]:
                done[step] = passed + 1
                continue
            done.pop(step, None)
            if step in self.dependants:
                kept[step] = row.copy()
        return bad


def _report(c: Columns, query: Query, found: Findings, prefix: str) -> None:
    step, other = query.step, query.other
    name, index = c.cell(step, query.chunk, bool(query.is_dst))
    _, tb, position = c.place(other)
    access, before = f"{prefix}{OPS[c.op[step]]}", f"the {OPS[c.op[other]]} of tb {tb} step {position}"
    remedy = "one must wait for the other"
    found.add_race(access, before, f"{name}[{index}]", remedy, c.place(step), (name, index))
