"""A program as the flat tables that `interpreter.cu` reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emit.check.cells import cells_of
from emit.check.order import run
from emit.check.races import find_races
from emit.columns import Columns
from emit.findings import Findings
from emit.goal import Goal
from emit.program import FIFO_DEPTH, OPS, READS_DST, READS_SRC, RECEIVES, SENDS, WRITES_DST, Program
from runtime.buffers import Layout, describe_wait, executable_columns, goal_of, summed_cells
from runtime.dtypes import TYPES
from runtime.gpu.pace import SHEET, Pace
from topologies.errors import InputError

SOURCE = Path(__file__).with_name("interpreter.cu")
INCLUDED = ("device.h", "elements.h", "pace.h")
# as the kernel calls them
TYPE_NAMES = {"float": "float", "half": "Half", "bfloat16": "Bfloat", "double": "double", "int32": "int",
              "int64": "long long"}  # fmt: skip
REDUCTION_NAMES = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "avg": "Sum"}
SLOT_BYTES = {"Simple": 128 << 10, "LL": 32 << 10, "LL128": 32 << 10}
# what the kernel's Job begins with, in its order; `Sizes` is the rest
ADDRESSES = ("blocks", "steps", "spans", "memory", "cells", "held", "ends", "progress", "state", "report", "averages",
             "pace", "others")  # fmt: skip
_WHY = ("", "dependency", "data", "room", "lengths", "start")  # the kernel's reasons to give up
REPORT = 6  # numbers that the kernel leaves about who gave up

Table = NDArray[np.int32]
_BITS = ((READS_SRC, 1), (RECEIVES, 2), (WRITES_DST, 4), (SENDS, 8), (READS_DST, 16))


def gpu_source() -> str:
    """The kernel as one text for NVRTC, which then needs no path."""
    text = SOURCE.read_text(encoding="utf-8")
    for name in INCLUDED:
        included = SOURCE.with_name(name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        text = text.replace(f'#include "{name}"\n', included)
    return text


@dataclass(frozen=True)
class Sizes:
    """The numbers at the end of the kernel's Job, in its order; see there."""

    width: int
    windows: int
    longest: int
    depth: int
    slot_bytes: int
    limit_ns: int
    ll: int
    ranks: int
    naverages: int
    first_block: int = 0
    nothers: int = 0

    def numbers(self) -> NDArray[np.int64]:
        return np.array(list(vars(self).values()), dtype=np.int64)


class Encoded:
    """The tables of a program that do not depend on the buffers' size.

    LL128 is executed as LL: the words are complete in themselves on every link.

    Attributes:
        blocks: rank, tb, first step, steps, connection sent on, received on (−1: none) of each threadblock.
        steps: what it does (bits), source buffer and cell, target buffer and cell, chunks, block and step waited for
            (−1: none), whether others wait for it.
        cells: of each rank where its scratch cells begin, and their number in all; (ranks + 1,).
        ll: 0 Simple, 1 LL, 2 LL whose words also carry the order of what was written before (`_messages_carry_order`).
        depth: slots of a connection. slot_bytes: of each, a multiple of 16.
        limit_s: a wait that takes longer ends the launch, and the error names who waited for what.
        pace: the network's time that it takes. Then chunks pass whole through slots of their size, as Simple's.
    """

    def __init__(
        self,
        program: Program,
        goal: Goal | None,
        depth: int | None = None,
        slot_bytes: int | None = None,
        limit_s: float = 20.0,
        pace: Pace | None = None,
    ) -> None:
        """depth, slot_bytes: where not the protocol's own.

        Raises InputError for steps that do not fit together or leave the buffers.
        """
        self.program, self.goal, self.pace, self.limit_s = program, goal, pace, limit_s
        self.columns = c = executable_columns(program)
        self.depth = depth or FIFO_DEPTH[program.protocol]
        self.slot_bytes = slot_bytes or SLOT_BYTES[program.protocol]
        if self.slot_bytes < 16 or self.slot_bytes % 16:
            raise InputError(f"slots of {self.slot_bytes} bytes; it must be a multiple of 16")
        self.ll = 0
        if program.protocol != "Simple" and pace is None:
            self.ll = 2 if _messages_carry_order(program, c, goal) else 1
        self._check_cells()
        out, into = (np.full(len(c.rank), -1, dtype=np.int64) for _ in range(2))
        for number, (sender, receiver) in enumerate(zip(c.sender, c.receiver, strict=True)):
            out[sender] = into[receiver] = number
        lengths = np.diff(c.start)
        self.blocks = _narrow([c.rank, c.tb, c.start[:-1], lengths, out, into])
        does = np.zeros(len(c.op), dtype=np.int64)
        for names, bit in _BITS:
            does |= np.where(c.is_op(names), bit, 0)
        waits = c.dep >= 0
        block = np.where(waits, c.block[c.dep], -1) if len(c.op) else c.dep
        at = np.where(waits, c.dep - c.start[block], -1) if len(c.op) else c.dep
        awaited = np.zeros(len(c.op), dtype=np.int64)
        awaited[c.dep[waits]] = 1
        count = np.maximum(c.count, 1)
        self.steps = _narrow([does, c.src, c.src_at, c.dst, c.dst_at, count, block, at, awaited])
        scratch = np.cumsum([0, *(gpu.s_chunks for gpu in program.gpus)])
        self.cells = _narrow([scratch]).ravel()

    def _check_cells(self) -> None:
        """No step leaves the caller's buffers: nothing else keeps the kernel from it."""
        c, p = self.columns, self.program
        of = Layout.of(p, 1)
        room = np.array([[*of.cells(r), gpu.s_chunks] for r, gpu in enumerate(p.gpus)], dtype=np.int64)
        rank = c.rank[c.block]
        for names, buffer, at in ((READS_SRC, c.src, c.src_at), (WRITES_DST | READS_DST, c.dst, c.dst_at)):
            bad = c.is_op(names) & ((at < 0) | (at + c.count > room[rank, buffer]))
            for step in np.flatnonzero(bad).tolist():
                r, tb, position = c.place(step)
                raise InputError(
                    f"rank {r} tb {tb} step {position} ({OPS[c.op[step]]}): {'ios'[buffer[step]]}[{at[step]}"
                    f"..{at[step] + c.count[step] - 1}] leaves the buffer; it must be below {room[r, buffer[step]]}"
                )

    def spans(self, layout: Layout) -> NDArray[np.int64]:
        """First element of each cell of the largest buffer, and the end."""
        return layout.spans(max(max(layout.cells(rank)) for rank in range(self.program.nranks)))

    def averages(self, op: str) -> Table:
        """Cells to be divided after the last step: rank, buffer, cell; none but for avg. InputError without a goal."""
        if op != "avg":
            return np.zeros((0, 3), dtype=np.int32)
        return _narrow(summed_cells(self.program, self.goal))

    def sizes(self, layout: Layout, kind: str, naverages: int) -> Sizes:
        """How the chunks pass through the slots: windows of as many elements as a slot holds."""
        size, limit_ns = TYPES[kind].itemsize, int(self.limit_s * 1e9)
        longest, ranks = layout.longest, self.program.nranks
        if self.pace is not None:
            limit_ns += self.pace.limit_ns(self.chunk_bytes(layout, kind))
            slot_bytes, depth = _up(max(1, longest * size)), self.pace.messages
            return Sizes(longest, 1, longest, depth, slot_bytes, limit_ns, 0, ranks, naverages)
        width = max(1, min(self.slot_bytes // (2 if self.ll else 1) // size, longest))
        windows = -(-longest // width)
        return Sizes(width, windows, longest, self.depth, self.slot_bytes, limit_ns, self.ll, ranks, naverages)

    def groups(self, devices: int) -> list[int]:
        """First rank of each device, and the number of ranks, as evenly as may be. InputError for too many devices."""
        ranks = self.program.nranks
        if not 1 <= devices <= ranks:
            raise InputError(f"{devices} devices for {ranks} ranks; it must be 1 to {ranks}")
        return [number * ranks // devices for number in range(devices + 1)]

    def first_blocks(self, devices: int) -> list[int]:
        """First block of each device, and the number of blocks."""
        return [int(first) for first in np.searchsorted(self.columns.rank, self.groups(devices))]

    def chunk_bytes(self, layout: Layout, kind: str) -> float:
        """On average: the lengths of chunks differ by one element."""
        return layout.elements * TYPES[kind].itemsize / layout.chunks

    def sheet(self, layout: Layout, kind: str) -> NDArray[np.int64]:
        """The network's time for the kernel; nothing where there is none."""
        if self.pace is None:
            return np.zeros(len(SHEET), dtype=np.int64)
        return self.pace.sheet(self.columns, self.chunk_bytes(layout, kind))

    def explain(self, report: Sequence[int]) -> InputError | None:
        """The kernel's report as an error, None where there is none."""
        if not report[0]:
            return None
        c = self.columns
        _, why, block, position, chunk, window = (int(number) for number in report)
        step = int(c.start[block]) + position
        if _WHY[why] == "lengths":
            rank, tb, _ = c.place(step)
            return InputError(
                f"rank {rank} tb {tb} step {position} ({OPS[c.op[step]]}): chunks of unequal length trade places; the"
                " count must be one that the chunks divide"
            )
        what = describe_wait(c, step, _WHY[why])
        return InputError(f"the program stops before its end: {what} (chunk {chunk} of the step, window {window})")


def _narrow(columns: Sequence[Any]) -> Table:
    """Columns side by side as the kernel's int32. Raises InputError for numbers that are too large for it."""
    table = np.stack(columns, axis=1) if len(columns) else np.zeros((0, 0), dtype=np.int64)
    if table.size and int(np.abs(table).max()) >= 1 << 31:
        raise InputError(
            f"program with the number {int(np.abs(table).max())}; it must be less than 2^31 to be executed"
        )
    return np.ascontiguousarray(table, dtype=np.int32)


def _messages_carry_order(program: Program, columns: Columns, goal: Goal | None) -> bool:
    """Whether messages must carry the order of what was written before them; where it cannot be found out, yes.

    They must where threadblocks of a rank are kept apart only by messages that went round by way of other ranks; in
    nearly all programs waits within the ranks do it. Cost: a replay and a search for races.
    """
    isolated = replace(columns, sends=np.full_like(columns.sends, -1), receives=np.full_like(columns.receives, -1))
    found = Findings()
    try:
        free = run(columns, None)
        order = list(dict.fromkeys(free.order))  # each step once
        for inplace, serves in ((True, program.inplace), (False, program.outofplace)):
            if serves and free.complete:
                cells = cells_of(program, columns, goal_of(program, goal, inplace), inplace)
                find_races(isolated, order, cells, found)
    except InputError:
        return True
    return bool(found.reported) or not free.complete


def scratch_offsets(encoded: Encoded, layout: Layout, kind: str) -> list[int]:
    """Where each rank's scratch begins in one block of memory, in bytes, and where the last ends."""
    sizes = [_up(gpu.s_chunks * layout.longest * TYPES[kind].itemsize) for gpu in encoded.program.gpus]
    return [0, *accumulate(sizes)]


def _up(size: int) -> int:
    return -(-size // 16) * 16
