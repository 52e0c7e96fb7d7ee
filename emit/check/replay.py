"""A program executed on contents: what every cell holds at the end."""

from __future__ import annotations

from collections import deque

import numpy as np

from emit.check.cells import Cells
from emit.check.contents import GARBAGE, NOTHING, Contents
from emit.check.executor import Place
from emit.columns import Columns
from emit.findings import Findings
from emit.goal import Goal
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST


def replay(c: Columns, order: list[int], cells: Cells, goal: Goal, found: Findings, prefix: str = "") -> None:
    """Execute in `order` (complete and topological) and compare with the goal; findings' messages get `prefix`.

    Raises InputError for a program with more different partial sums than can be held.
    """
    contents = Contents(goal)
    memory = dict(zip(cells.of(*goal.initial[:3]), contents.initial(), strict=True))
    _execute(c, order, cells, memory, contents, found, prefix)
    contents.report_wrong(
        memory, cells.of(*goal.required[:3]), 1, lambda wanted: _last_writers(c, order, cells, wanted), found, prefix
    )


def _execute(
    c: Columns, order: list[int], cells: Cells, memory: dict[int, int], contents: Contents, found: Findings, prefix: str
) -> None:
    reads, writes, both = c.is_op(READS_SRC), c.is_op(WRITES_DST), c.is_op(READS_DST)
    kind = list(zip(reads.tolist(), writes.tolist(), both.tolist(), strict=True))
    sends, receives, count = c.sends.tolist(), c.receives.tolist(), c.count.tolist()
    in_flight: list[deque[int]] = [deque() for _ in c.connections]
    chunk_of = [0] * len(count)
    src, dst, add = cells.src, cells.dst, contents.add

    def uninitialised(step: int, chunk: int, is_dst: bool) -> int:
        """Reported here only, not where the garbage that comes of it is passed on."""
        if found.full("read before write"):
            found.add("read before write", "")
            return GARBAGE
        code, at = (c.dst[step], c.dst_at[step]) if is_dst else (c.src[step], c.src_at[step])
        name, where = BUFFERS[int(code)], int(at) + chunk
        found.add(
            "read before write",
            f"{prefix}{OPS[c.op[step]]} reads {name}[{where}], which nothing has written",
            *c.place(step),
            cell=(name, where),
        )
        return GARBAGE

    for step in order:
        out, into = sends[step], receives[step]
        reads_src, writes_dst, reads_dst = kind[step]
        if out < 0 and into < 0:
            for chunk in range(count[step]):
                value = memory.get(src[step] + chunk) or uninitialised(step, chunk, False)
                if reads_dst:
                    value = add(memory.get(dst[step] + chunk) or uninitialised(step, chunk, True), value)
                memory[dst[step] + chunk] = value
            continue
        chunk = chunk_of[step]
        chunk_of[step] = chunk + 1
        value = NOTHING
        if reads_src:
            value = memory.get(src[step] + chunk) or uninitialised(step, chunk, False)
        if into >= 0:
            came = in_flight[into].popleft()
            value = add(came, value) if reads_src else came
        if out >= 0:
            in_flight[out].append(value)
        if writes_dst:
            memory[dst[step] + chunk] = value


def _last_writers(c: Columns, order: list[int], cells: Cells, wanted: set[int]) -> dict[int, Place]:
    """The step that wrote each of these cells last; none for those that nothing wrote."""
    count = c.count.tolist()
    moves = ((c.sends >= 0) | (c.receives >= 0)).tolist()
    still = (c.op == OPS.index("cpy")) & (np.array(cells.src) == np.array(cells.dst))
    writes = (c.is_op(WRITES_DST) & ~still).tolist()
    chunk_of = [0] * len(count)
    last: dict[int, int] = {}
    for step in order:
        low, high = (chunk_of[step], chunk_of[step] + 1) if moves[step] else (0, count[step])
        chunk_of[step] = high
        if writes[step]:
            for chunk in range(low, high):
                if cells.dst[step] + chunk in wanted:
                    last[cells.dst[step] + chunk] = step
    return {cell: c.place(step) for cell, step in last.items()}
