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
# The kernel's names.
TYPE_NAMES = {"float": "float", "half": "Half", "bfloat16": "Bfloat", "double": "double", "int32": "int",
              "int64": "long long"}  # fmt: skip
REDUCTION_NAMES = {"sum": "Sum", "prod": "Prod", "max": "Max", "min": "Min", "avg": "Sum"}
SLOT_BYTES = {"Simple": 128 << 10, "LL": 32 << 10, "LL128": 32 << 10}
# The first fields of the kernel's Job, in its order; `Sizes` is the rest.
ADDRESSES = ("blocks", "steps", "spans", "memory", "cells", "held", "ends", "progress", "state", "report", "averages",
             "pace", "others")  # fmt: skip
_WHY = ("", "dependency", "data", "room", "lengths", "start")  # The kernel's reasons to give up.
REPORT = 6  # Numbers in the kernel's report about the block that gave up.

Table = NDArray[np.int32]
_BITS = ((READS_SRC, 1), (RECEIVES, 2), (WRITES_DST, 4), (SENDS, 8), (READS_DST, 16))


def gpu_source() -> str:
    """Return the kernel and the files that it includes as one text for NVRTC, which then needs no path."""
    text = SOURCE.read_text(encoding="utf-8")
    for name in INCLUDED:
        included = SOURCE.with_name(name).read_text(encoding="utf-8").replace("#pragma once\n", "")
        text = text.replace(f'#include "{name}"\n', included)
    return text


@dataclass(frozen=True)
class Sizes:
    """The numbers at the end of the kernel's Job, in its order; the Job in `interpreter.cu` explains them."""

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
        """Return the fields as one column, in their order."""
        return np.array(list(vars(self).values()), dtype=np.int64)


class Encoded:
    """The tables of a program that do not depend on the size of the buffers.

    LL128 is executed as LL: each word is complete on every link.

    Attributes:
        blocks: For each threadblock: rank, tb, first step, number of steps, connection that it sends on and connection
            that it receives on (−1: none).
        steps: For each step: its operation (bits), source buffer and cell, target buffer and cell, chunks, block and
            step that it waits for (−1: none), and 1 if other steps wait for it.
        cells: First scratch cell of each rank, and the number of all: (ranks + 1,).
        ll: 0: Simple; 1: LL; 2: LL whose words also carry the order of earlier writes (`_messages_carry_order`).
        depth: Slots of a connection.
        slot_bytes: Bytes of a slot, a multiple of 16.
        limit_s: Longest wait in seconds. A longer one ends the launch, and the error names the waiting threadblock.
        pace: The emulated network. With one, whole chunks pass through slots of their size, as with Simple.
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
        """Build the tables.

        Args:
            program: The program.
            goal: Goal of a custom collective; None for the one that the collective's name implies.
            depth: Slots of a connection; None: the protocol's own number.
            slot_bytes: Bytes of a slot; None: the protocol's own size.
            limit_s: Longest wait in seconds.
            pace: The emulated network; None: none.

        Raises:
            InputError: Steps do not fit together, or leave the buffers; the slots have a wrong size; or the program is
                too large for the kernel's numbers.
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
        operations = np.zeros(len(c.op), dtype=np.int64)
        for names, bit in _BITS:
            operations |= np.where(c.is_op(names), bit, 0)
        waits = c.dep >= 0
        block = np.where(waits, c.block[c.dep], -1) if len(c.op) else c.dep
        at = np.where(waits, c.dep - c.start[block], -1) if len(c.op) else c.dep
        awaited = np.zeros(len(c.op), dtype=np.int64)
        awaited[c.dep[waits]] = 1
        count = np.maximum(c.count, 1)
        self.steps = _narrow([operations, c.src, c.src_at, c.dst, c.dst_at, count, block, at, awaited])
        scratch = np.cumsum([0, *(gpu.s_chunks for gpu in program.gpus)])
        self.cells = _narrow([scratch]).ravel()

    def _check_cells(self) -> None:
        """Raise InputError if a step leaves the caller's buffers, since the kernel does not check this."""
        c, p = self.columns, self.program
        unit_layout = Layout.of(p, 1)
        room = np.array([[*unit_layout.cells(r), gpu.s_chunks] for r, gpu in enumerate(p.gpus)], dtype=np.int64)
        rank = c.rank[c.block]
        for names, buffer, at in ((READS_SRC, c.src, c.src_at), (WRITES_DST | READS_DST, c.dst, c.dst_at)):
            is_outside = c.is_op(names) & ((at < 0) | (at + c.count > room[rank, buffer]))
            for step in np.flatnonzero(is_outside).tolist():
                r, tb, position = c.place(step)
                raise InputError(
                    f"rank {r} tb {tb} step {position} ({OPS[c.op[step]]}): {'ios'[buffer[step]]}[{at[step]}"
                    f"..{at[step] + c.count[step] - 1}] leaves the buffer; it must be below {room[r, buffer[step]]}"
                )

    def spans(self, layout: Layout) -> NDArray[np.int64]:
        """Return the first element of each cell of the largest buffer, and the end of the last one."""
        return layout.spans(max(max(layout.cells(rank)) for rank in range(self.program.nranks)))

    def averages(self, op: str) -> Table:
        """Return the cells to divide after the last step, as rows (rank, buffer, cell); empty unless `op` is avg.

        Raises:
            InputError: As for `goal_of`.
        """
        if op != "avg":
            return np.zeros((0, 3), dtype=np.int32)
        return _narrow(summed_cells(self.program, self.goal))

    def sizes(self, layout: Layout, kind: str, naverages: int) -> Sizes:
        """Return the numbers at the end of the kernel's Job for one run: chunks pass in windows that fit a slot.

        With an emulated network there is one window, and a slot holds the longest chunk.

        Args:
            layout: Layout of the run's buffers.
            kind: Data type, a key of TYPES.
            naverages: Number of cells to divide after the last step.
        """
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
        """Return the first rank of each device, with ranks spread as evenly as possible, and at the end their number.

        The list has devices + 1 numbers; `devices` is the number of devices.

        Raises:
            InputError: There are more devices than ranks, or none.
        """
        ranks = self.program.nranks
        if not 1 <= devices <= ranks:
            raise InputError(f"{devices} devices for {ranks} ranks; it must be 1 to {ranks}")
        return [number * ranks // devices for number in range(devices + 1)]

    def first_blocks(self, devices: int) -> list[int]:
        """Return the first threadblock of each device, and at the end the number of threadblocks.

        Raises:
            InputError: As for `groups`.
        """
        return [int(first) for first in np.searchsorted(self.columns.rank, self.groups(devices))]

    def chunk_bytes(self, layout: Layout, kind: str) -> float:
        """Return the mean size of a chunk in bytes; the lengths of chunks differ by at most one element.

        `kind` is the data type, a key of TYPES.
        """
        return layout.elements * TYPES[kind].itemsize / layout.chunks

    def sheet(self, layout: Layout, kind: str) -> NDArray[np.int64]:
        """Return the tables of the emulated network for the kernel; zeros without one.

        Raises:
            InputError: As for `Pace.sheet`.
        """
        if self.pace is None:
            return np.zeros(len(SHEET), dtype=np.int64)
        return self.pace.sheet(self.columns, self.chunk_bytes(layout, kind))

    def explain(self, report: Sequence[int]) -> InputError | None:
        """Return the kernel's report, REPORT numbers, as an error, which is not raised; None if no block gave up."""
        if not report[0]:
            return None
        c = self.columns
        _, reason, block, position, chunk, window = (int(number) for number in report)
        step = int(c.start[block]) + position
        if _WHY[reason] == "lengths":
            rank, tb, _ = c.place(step)
            return InputError(
                f"rank {rank} tb {tb} step {position} ({OPS[c.op[step]]}): chunks of unequal length trade places; the"
                " count must be one that the chunks divide"
            )
        wait = describe_wait(c, step, _WHY[reason])
        return InputError(f"the program stops before its end: {wait} (chunk {chunk} of the step, window {window})")


def _narrow(columns: Sequence[Any]) -> Table:
    """Return a table whose columns are `columns`, as the kernel's int32: (rows, columns).

    Raises:
        InputError: A number is too large for int32.
    """
    table = np.stack(columns, axis=1) if len(columns) else np.zeros((0, 0), dtype=np.int64)
    if table.size and int(np.abs(table).max()) >= 1 << 31:
        raise InputError(
            f"program with the number {int(np.abs(table).max())}; it must be less than 2^31 to be executed"
        )
    return np.ascontiguousarray(table, dtype=np.int32)


def _messages_carry_order(program: Program, columns: Columns, goal: Goal | None) -> bool:
    """Return True if messages must carry the order of writes before them, or if that cannot be decided.

    They must if only messages by way of other ranks separate threadblocks of a rank; in nearly all programs waits
    within the ranks do. The cost is a replay and a search for races.
    """
    isolated = replace(columns, sends=np.full_like(columns.sends, -1), receives=np.full_like(columns.receives, -1))
    findings = Findings()
    try:
        replay = run(columns, None)
        order = list(dict.fromkeys(replay.order))  # Each step counts once.
        for inplace, serves in ((True, program.inplace), (False, program.outofplace)):
            if serves and replay.complete:
                cells = cells_of(program, columns, goal_of(program, goal, inplace), inplace)
                find_races(isolated, order, cells, findings)
    except InputError:
        return True
    return bool(findings.reported) or not replay.complete


def scratch_offsets(encoded: Encoded, layout: Layout, kind: str) -> list[int]:
    """Return the first byte of each rank's scratch in one block of memory, and the end of the last one.

    There are ranks + 1 numbers, each a multiple of 16. `kind` is the data type, a key of TYPES.
    """
    sizes = [_up(gpu.s_chunks * layout.longest * TYPES[kind].itemsize) for gpu in encoded.program.gpus]
    return [0, *accumulate(sizes)]


def _up(size: int) -> int:
    """Return a size rounded up to a multiple of 16."""
    return -(-size // 16) * 16
