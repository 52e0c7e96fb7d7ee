"""Find accesses of one cell that nothing orders: by two threadblocks of a rank, or by one step that overlaps itself.

Happens-before is program order, dependencies, and sent before received. FIFO slots do not count, because their number
depends on the executor. An event of a threadblock is a transmission of one of its steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.cells import Cells
from emit.check.clocks import Row, VectorClocks, image_of_row
from emit.columns import Columns
from emit.findings import MAX_OF_A_KIND, Findings
from emit.images import Images
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST
from synth.model.deadline import checking_deadline
from topologies.errors import InputError


class Query(NamedTuple):
    """A question whether an access surely follows an earlier access of the same cell.

    Attributes:
        node: Position of the later access's transmission in the order of execution.
        step: Step of the later access.
        chunk: Chunk of that step that is accessed.
        is_dst: 1 if the later access is to the step's destination, 0 if it is to its source.
        block: Threadblock of the earlier access.
        passed: Transmissions that this threadblock had executed, the earlier access included.
        earlier_step: Step of the earlier access.
    """

    node: int
    step: int
    chunk: int
    is_dst: int
    block: int
    passed: int
    earlier_step: int


def find_races(
    c: Columns, order: list[int], cells: Cells, findings: Findings, prefix: str = "", images: Images | None = None
) -> None:
    """Add a finding for each pair of steps with unordered accesses of one cell, one of which writes.

    A step that overlaps itself is a finding too. Beyond MAX_OF_A_KIND the number of findings may be incomplete.

    Args:
        c: Steps of the program.
        order: Step of each transmission; the order must be complete and topological.
        cells: Memory cells of the steps.
        findings: Where the races are added.
        prefix: Prefix of the messages.
        images: Images of the ranks, if the steps are those of representatives.

    Raises:
        InputError: The check would take too long because the program has too many threadblocks.
    """
    _check_overlaps(c, cells, findings, prefix)
    queries = _queries(c, order, cells)
    if not queries:
        return
    clocks = _HappensBefore(c, images)
    # Waits within a rank order nearly all accesses; only the remaining queries need the messages between ranks.
    queries = clocks.not_within_ranks(order, queries)
    columns = sorted({query.block for query in queries})
    in_flight = np.cumsum((c.sends[order] >= 0).astype(np.int64) - (c.receives[order] >= 0))
    rows = len(c.start) + len(clocks.dependants) + int(in_flight.max(initial=0)) + 1
    width = max(1, CAPACITY.clock_entries // (rows * clocks.order))
    passes = -(-len(columns) // width)
    if passes * len(order) > CAPACITY.clock_visits:
        raise InputError(
            f"program of {len(c.rank)} threadblocks that share their cells; it must be fewer to be checked for races"
        )
    queries_of_pass: list[list[Query]] = [[] for _ in range(passes)]
    column_of = {block: x for x, block in enumerate(columns)}
    for query in queries:
        queries_of_pass[column_of[query.block] // width].append(query)
    unordered: list[Query] = []
    for pass_queries in queries_of_pass:
        unordered += clocks.unanswered(enumerate(order), pass_queries, messages=True)
        if len({(query.step, query.earlier_step) for query in unordered}) > MAX_OF_A_KIND:
            break  # further races would only be counted
    first_queries = {(query.step, query.earlier_step): query for query in sorted(unordered, reverse=True)}
    for query in sorted(first_queries.values()):
        _report(c, query, findings, prefix)


def _check_overlaps(c: Columns, cells: Cells, findings: Findings, prefix: str) -> None:
    """Add a finding of kind "race" for each step that writes chunks which it also reads as other chunks.

    A kernel moves the chunks of a step in no fixed order.
    """
    src, dst = np.array(cells.src, dtype=np.int64), np.array(cells.dst, dtype=np.int64)
    distance = np.abs(src - dst)
    for step in np.flatnonzero(c.is_op(READS_SRC & WRITES_DST) & (distance > 0) & (distance < c.count)).tolist():
        into = BUFFERS[c.dst[step]]
        ends = f"from {BUFFERS[c.src[step]]}[{c.src_at[step]}] to {into}[{c.dst_at[step]}]"
        subject = f"{prefix}{OPS[c.op[step]]} of {c.count[step]} chunks {ends} overlaps itself"
        cell = (into, int(c.dst_at[step] + max(0, src[step] - dst[step])))
        findings.add("race", f"{subject}; it must be disjoint or the same chunks", *c.place(step), cell=cell)


def _queries(c: Columns, order: list[int], cells: Cells) -> list[Query]:
    """Return the pairs of accesses that must be ordered, in the order of execution of the later access.

    Each access is paired with the last write of the cell by another threadblock, and each write also with the reads
    since, of which each threadblock's last one counts. `order` is the step of each transmission.
    """
    # In place, some copies copy a cell onto itself, which no other threadblock can observe.
    copies_onto_itself = (c.op == OPS.index("cpy")) & (np.array(cells.src) == np.array(cells.dst))
    reads, writes = c.is_op(READS_SRC).tolist(), (c.is_op(WRITES_DST) & ~copies_onto_itself).tolist()
    reads_dst = c.is_op(READS_DST).tolist()
    block, count = c.block.tolist(), c.count.tolist()
    moves = ((c.sends >= 0) | (c.receives >= 0)).tolist()
    passed = [0] * len(c.start)
    chunk_of = [0] * len(count)
    written: dict[int, tuple[int, int, int]] = {}
    read: dict[int, dict[int, tuple[int, int]]] = {}
    queries: list[Query] = []
    for node, step in checking_deadline(enumerate(order), every=1024):
        b = block[step]
        passed[b] += 1
        now = passed[b]
        low, high = (chunk_of[step], chunk_of[step] + 1) if moves[step] else (0, count[step])
        chunk_of[step] = high
        for chunk in range(low, high):
            touched = [(cells.src[step] + chunk, 0)] if reads[step] else []
            if reads_dst[step]:
                touched.append((cells.dst[step] + chunk, 1))
            for cell, is_dst in touched:
                last_write = written.get(cell)
                if last_write is not None and last_write[0] != b:
                    queries.append(Query(node, step, chunk, is_dst, *last_write))
                read.setdefault(cell, {})[b] = (now, step)
            if writes[step]:
                cell = cells.dst[step] + chunk
                last_write = written.get(cell)
                if last_write is not None and last_write[0] != b:
                    queries.append(Query(node, step, chunk, 1, *last_write))
                for reader, (time_of_read, earlier_step) in read.pop(cell, {}).items():
                    if reader != b:
                        queries.append(Query(node, step, chunk, 1, reader, time_of_read, earlier_step))
                written[cell] = (b, now, step)
    return queries


class _HappensBefore:
    """Vector clocks of a program's threadblocks, which tell the queries that no wait and no message orders.

    With images, a row has an entry for each threadblock of a representative and each of its images: what a message
    tells of a threadblock holds for the image that its receiver sees.
    """

    def __init__(self, c: Columns, images: Images | None = None) -> None:
        self.order = 1 if images is None else images.order
        self.seen = [
            None if images is None else images.composed(images.inverse(int(images.element[target])))
            for _, target, _ in c.connections
        ]
        self.dependants = set(np.unique(c.dep[c.dep >= 0]).tolist())
        self.dep, self.block, self.rank = c.dep.tolist(), c.block.tolist(), c.rank.tolist()
        self.sends, self.receives = c.sends.tolist(), c.receives.tolist()
        self.times = c.transmissions().tolist()
        self.nconnections = len(c.connections)

    def not_within_ranks(self, order: list[int], queries: list[Query]) -> list[Query]:
        """Return the queries that waits between threadblocks of one rank do not order.

        Queries of a rank that would need too much memory are all returned. `order` is the step of each transmission.
        """
        queries_of_rank: dict[int, list[Query]] = {}
        for query in queries:
            queries_of_rank.setdefault(self.rank[query.block], []).append(query)
        nodes: dict[int, list[tuple[int, int]]] = {rank: [] for rank in queries_of_rank}
        for node, step in checking_deadline(enumerate(order), every=1024):
            rank = self.rank[self.block[step]]
            if rank in nodes:
                nodes[rank].append((node, step))
        unordered: list[Query] = []
        for rank, rank_queries in checking_deadline(queries_of_rank.items()):
            rows = len({self.block[step] for _, step in nodes[rank]} | {step for _, step in nodes[rank]})
            if rows * len({query.block for query in rank_queries}) > CAPACITY.clock_entries:
                unordered += rank_queries
            else:
                unordered += self.unanswered(nodes[rank], rank_queries, messages=False)
        return unordered

    def unanswered(self, nodes: Iterable[tuple[int, int]], queries: list[Query], *, messages: bool) -> list[Query]:
        """Return the queries that the waits of transmissions do not order.

        Args:
            nodes: Transmissions (position in the order of execution, step), in that order.
            queries: Queries about these transmissions.
            messages: Whether messages between ranks order accesses too; then `nodes` must be all transmissions.
        """
        order = self.order if messages else 1  # Entry 0 of a threadblock's images is the threadblock itself.
        column = {block: x * order for x, block in enumerate(sorted({query.block for query in queries}))}
        queries_at: dict[int, list[Query]] = {}
        for query in queries:
            queries_at.setdefault(query.node, []).append(query)
        clocks = VectorClocks(len(column) * order)
        row_after: dict[int, Row] = {}
        in_flight: list[deque[Row]] = [deque() for _ in range(self.nconnections if messages else 0)]
        passed_of: dict[int, int] = {}
        unordered: list[Query] = []
        for node, step in checking_deadline(nodes, every=256):
            b = self.block[step]
            row = clocks.row(b)
            passed = passed_of.get(step, 0)
            if not passed and self.dep[step] >= 0:
                clocks.learn(b, row_after[self.dep[step]])
            if messages and self.receives[step] >= 0:
                clocks.learn(b, in_flight[self.receives[step]].popleft())
            if node in queries_at:
                unordered += [query for query in queries_at[node] if row[column[query.block]] < query.passed]
            if b in column:
                row[column[b]] += 1
            if messages and self.sends[step] >= 0:
                in_flight[self.sends[step]].append(image_of_row(row, self.seen[self.sends[step]]))
            if passed + 1 < self.times[step]:
                passed_of[step] = passed + 1
                continue
            passed_of.pop(step, None)
            if step in self.dependants:
                row_after[step] = row.copy()
        return unordered


def _report(c: Columns, query: Query, findings: Findings, prefix: str) -> None:
    """Add a finding of kind "race" for a query whose accesses nothing orders, at the later access."""
    step, earlier_step = query.step, query.earlier_step
    name, index = c.cell(step, query.chunk, bool(query.is_dst))
    _, tb, position = c.place(earlier_step)
    access, before = f"{prefix}{OPS[c.op[step]]}", f"the {OPS[c.op[earlier_step]]} of tb {tb} step {position}"
    remedy = "one must wait for the other"
    findings.add_race(access, before, f"{name}[{index}]", remedy, c.place(step), (name, index))
