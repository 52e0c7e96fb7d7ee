"""The host executor: it runs any Program on the CPU with as many threads as there are cores.

A threadblock is not a thread here but a position in its steps. A thread takes a threadblock that can advance, and
advances it as far as possible. Large chunks pass in windows, as on a GPU: all steps for the first elements of every
chunk, then for the next ones. A receiver that waits reads straight from the sender's buffer, and the sender's step ends
only then; all other data goes through the connection's FIFO slots.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from emit.goal import Goal
from emit.program import FIFO_DEPTH, OPS, READS_SRC, Program
from emit.timing.trace import Recorded
from runtime.bench import BenchRequest, EmulatedTime, Session, in_process
from runtime.buffers import Layout, describe_wait, executable_columns, prepare_buffers, summed_cells
from runtime.dtypes import TYPES, Array, average, reducer
from topologies.errors import InputError

WINDOW_BYTES = 512 << 10  # Of a chunk at a time: source and destination fit in a core's L2 cache.


@dataclass(eq=False)
class _HostBlock:
    """The position of a threadblock in its steps.

    Attributes:
        first: First of its steps, which are numbered as in the columns.
        last: End of its steps (the last one + 1).
        window: Current window.
        step: Current step.
        chunk: Current chunk of the step.
    """

    first: int
    last: int
    window: int = 0
    step: int = 0
    chunk: int = 0

    @property
    def over(self) -> bool:
        """Return True if all steps of the last window are over."""
        return self.step == self.last


@dataclass(eq=False)
class _HostMessage:
    """The content of a FIFO slot.

    Attributes:
        values: The elements.
        owner: Sender that waits until the message is read, because the values are its own memory; else None.
    """

    values: Array
    owner: _HostBlock | None = None


class HostExecutor:
    """A `BenchExecutor` on this machine's CPU.

    Raises:
        InputError: Steps of the program do not fit together.
    """

    arrays = np
    kernel_us: float | None = None
    emulated: EmulatedTime | None = None

    def __init__(
        self,
        program: Program,
        goal: Goal | None = None,
        threads: int | None = None,
        window_bytes: int = WINDOW_BYTES,
        record: bool = False,
    ) -> None:
        """Read a program's columns.

        Args:
            program: The program.
            goal: Goal of a custom collective; None for the one that the collective's name implies.
            threads: Number of threads, the caller's included; None: as many as there are cores.
            window_bytes: Most bytes of a chunk that pass at a time.
            record: True to record in `recorded` when the steps of each run begin and end.
        """
        self._run: type[_HostRun] = _RecordedRun if record else _HostRun
        self.recorded: Recorded | None = None
        self.program, self.goal, self.window_bytes = program, goal, window_bytes
        self.columns = c = executable_columns(program)
        self.threads = threads or os.cpu_count() or 1
        self.depth = FIFO_DEPTH[program.protocol]
        self.op = [OPS[code] for code in c.op.tolist()]
        self.rank = c.rank[c.block].tolist()
        self.src, self.src_at = c.src.tolist(), c.src_at.tolist()
        self.dst, self.dst_at = c.dst.tolist(), c.dst_at.tolist()
        self.count = [max(1, count) for count in c.count.tolist()]
        self.dep, self.sends, self.receives = c.dep.tolist(), c.sends.tolist(), c.receives.tolist()
        self.start = c.start.tolist()

    def at(self, rank: int) -> AbstractContextManager[None]:  # noqa: ARG002 - all ranks have the same memory
        """Return an empty context, because all ranks share one memory."""
        return nullcontext()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Run the program once on NumPy arrays; see `BenchExecutor.run`, whose errors it raises."""
        layout, inputs, kind = prepare_buffers(self.program, self.goal, inputs, outputs, kind, op)
        run = self._run(self, layout, inputs, outputs, kind, op)
        run.run_to_end()
        self.recorded = run.recorded()
        if op != "avg":
            return
        cells = (column.tolist() for column in summed_cells(self.program, self.goal))
        for rank, buffer, index in zip(*cells, strict=True):
            average((inputs, outputs)[buffer][rank][layout.span(index)], kind, self.program.nranks)


def measuring(request: BenchRequest) -> Session:
    """Open a session that measures on this CPU; see `runtime.backends.Backend`."""
    return in_process(request, lambda algorithm: HostExecutor(algorithm.program, algorithm.goal, record=request.record))


class _HostRun:
    """The state of one execution: positions of the threadblocks, contents of the slots, and the blocks that wait."""

    def __init__(
        self,
        executor: HostExecutor,
        layout: Layout,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        kind: str,
        op: str,
    ) -> None:
        self.executor, self.reduce = executor, reducer(op, kind)
        p = executor.program
        size = TYPES[kind].itemsize
        self.width = max(1, min(executor.window_bytes // size, max(1, layout.longest)))
        self.windows = max(1, -(-layout.longest // self.width))
        self.memory: list[tuple[Array, Array, Array]] = []
        self.spans: list[tuple[list[int], list[int]]] = []
        # Number of elements in each rank's scratch, by (cell, window).
        self.scratch_elements: list[dict[tuple[int, int], int]] = [{} for _ in p.gpus]
        self.longest = layout.longest
        for rank, gpu in enumerate(p.gpus):
            scratch = np.empty(gpu.s_chunks * layout.longest, dtype=TYPES[kind])
            self.memory.append((inputs[rank], outputs[rank], scratch))
            cells = zip(layout.cells(rank), (gpu.i_chunks, gpu.o_chunks), strict=True)
            input_spans, output_spans = (layout.spans(max(pair)).tolist() for pair in cells)
            self.spans.append((input_spans, output_spans))
        self.blocks = [_HostBlock(first, last, step=first) for first, last in pairwise(executor.start)]
        self.slots: list[deque[_HostMessage]] = [deque() for _ in executor.columns.connections]
        self.in_flight = [0] * len(self.slots)
        self.done = [0] * len(executor.op)  # Number of windows that each step has finished.
        self.waits_dep: dict[int, list[_HostBlock]] = {}
        self.waits_data: list[_HostBlock | None] = [None] * len(self.slots)
        self.waits_slot: list[_HostBlock | None] = [None] * len(self.slots)
        self.ready = deque(block for block in self.blocks if not block.over)
        self.unfinished = len(self.ready)
        self.running = 0
        self.fault: BaseException | None = None
        self.change = threading.Condition(threading.Lock())

    def run_to_end(self) -> None:
        """Run all steps, with this thread and helper threads.

        Raises:
            InputError: The program stops before its end, or chunks differ in length.
        """
        helpers = [threading.Thread(target=self._work, daemon=True) for _ in range(self.executor.threads - 1)]
        for thread in helpers:
            thread.start()
        self._work()
        for thread in helpers:
            thread.join()
        if self.fault is not None:
            raise self.fault

    def recorded(self) -> Recorded | None:
        """Return when each step began and ended, or None if that is not recorded."""
        return None

    def _work(self) -> None:
        """Run ready blocks until all are over or a thread fails.

        An error is not raised: the first one of all threads is set as `fault`.
        """
        try:
            while True:
                with self.change:
                    while not self.ready and self.unfinished and self.running and self.fault is None:
                        self.change.wait()
                    if self.fault is not None or not self.unfinished:
                        self.change.notify_all()
                        return
                    if not self.ready:
                        raise InputError(f"the program stops before its end: {self._describe_deadlock()}")
                    block = self.ready.popleft()
                    self.running += 1
                self._advance(block)
        except BaseException as error:
            with self.change:
                self.fault = self.fault or error
                self.change.notify_all()

    def _advance(self, block: _HostBlock) -> None:
        """Run a ready block until it waits, ends, or lends its memory to a receiver, and count it as not running."""
        executor = self.executor
        while True:
            with self.change:
                if self.fault is not None or block.over or self._must_wait(block):
                    self.running -= 1
                    if block.over:
                        self.unfinished -= 1
                    if not self.unfinished or not self.running:
                        self.change.notify_all()
                    return
                step = block.step
                receives_on, sends_on = executor.receives[step], executor.sends[step]
                message = self.slots[receives_on].popleft() if receives_on >= 0 else None
                receiver = self.waits_data[sends_on] if sends_on >= 0 else None
                lend = receiver is not None and self._has_room(receiver)
            values = self._execute(block, message, sends_on >= 0, lend)
            with self.change:
                if message is not None:
                    self._free_slot(message, receives_on)
                if sends_on >= 0:
                    self.in_flight[sends_on] += 1
                    self.slots[sends_on].append(_HostMessage(values, block if lend else None))  # type: ignore[arg-type]
                    self._wake(self.waits_data, sends_on)
                if sends_on >= 0 and lend:
                    self.running -= 1  # The block continues after the receiver has read its memory.
                    return
                self._finish_chunk(block)

    def _must_wait(self, block: _HostBlock) -> bool:
        """Return True if the block must wait, and register it with the event that it waits for.

        The caller holds the lock of `change`.
        """
        executor, step = self.executor, block.step
        dependency, receives_on, sends_on = executor.dep[step], executor.receives[step], executor.sends[step]
        if dependency >= 0 and self.done[dependency] <= block.window:
            self.waits_dep.setdefault(dependency, []).append(block)
        elif receives_on >= 0 and not self.slots[receives_on]:
            self.waits_data[receives_on] = block
        elif sends_on >= 0 and self.in_flight[sends_on] >= executor.depth:
            self.waits_slot[sends_on] = block
        else:
            return False
        return True

    def _has_room(self, block: _HostBlock) -> bool:
        """Return True if the block's current step does not send, or if its connection has a free slot."""
        sends_on = self.executor.sends[block.step]
        return bool(sends_on < 0 or self.in_flight[sends_on] < self.executor.depth)

    def _wake(self, waiting: list[_HostBlock | None], connection: int) -> None:
        """Mark the block that waits for a connection, if any, as ready; `waiting` has it by connection."""
        block = waiting[connection]
        if block is not None:
            waiting[connection] = None
            self._resume(block)

    def _resume(self, block: _HostBlock) -> None:
        """Place a block at the front of the queue of ready blocks, and wake a thread for it."""
        # A reader runs first, because its data is still in the cache.
        self.ready.appendleft(block)
        self.change.notify()

    def _free_slot(self, message: _HostMessage, connection: int) -> None:
        """Mark the slot of a read message as free, and a sender that waits for a slot as ready.

        A sender that lent its memory for the message goes on too: its chunk counts as finished.
        """
        self.in_flight[connection] -= 1
        self._wake(self.waits_slot, connection)
        if message.owner is not None:
            self._finish_chunk(message.owner)
            if message.owner.over:
                self.unfinished -= 1
                if not self.unfinished:
                    self.change.notify_all()
            else:
                self._resume(message.owner)

    def _finish_chunk(self, block: _HostBlock) -> None:
        """Count a chunk of the block's step as finished, and move on.

        After the last chunk, the step is done in this window, the blocks that wait for it go on, and this block moves
        on to its next step or window.
        """
        step = block.step
        block.chunk += 1
        if block.chunk < self.executor.count[step]:
            return
        block.chunk = 0
        self.done[step] = block.window + 1
        for waiting_block in self.waits_dep.pop(step, ()):
            self._resume(waiting_block)
        block.step += 1
        if block.step == block.last and block.window + 1 < self.windows:
            block.window += 1
            block.step = block.first

    def _execute(self, block: _HostBlock, message: _HostMessage | None, sends: bool, lend: bool) -> Array | None:
        """Run the block's step on one chunk in one window; return the elements to send, or None.

        Args:
            block: The block.
            message: What the step receives, or None.
            sends: Whether the step sends.
            lend: Whether the receiver reads the sent elements from this rank's memory; otherwise they are a copy.

        Raises:
            InputError: Chunks that meet differ in length.
        """
        executor, step = self.executor, block.step
        op = executor.op[step]
        if op == "nop":
            return None
        rank, chunk, window = executor.rank[step], block.chunk, block.window
        source: Array | None = None
        if op in READS_SRC:
            source = self._cell(rank, executor.src[step], executor.src_at[step] + chunk, window, None)
        if op == "s":
            assert source is not None
            return source if lend else source.copy()
        operand = message.values if message is not None else source
        assert operand is not None
        if source is not None and len(source) != len(operand):
            raise _unequal(rank, "ios"[executor.src[step]], executor.src_at[step] + chunk, len(source), len(operand))
        if op == "rrs":
            assert source is not None
            reduced = np.empty_like(operand)
            self.reduce(source, operand, out=reduced)
            return reduced
        target = self._cell(rank, executor.dst[step], executor.dst_at[step] + chunk, window, len(operand))
        if op in ("r", "rcs", "cpy"):
            np.copyto(target, operand)
        elif op == "re":
            self.reduce(target, operand, out=target)
        else:
            assert source is not None
            self.reduce(source, operand, out=target)
        if not sends:
            return None
        return target if lend else target.copy()

    def _cell(self, rank: int, buffer: int, cell: int, window: int, put: int | None) -> Array:
        """Return a chunk's elements in a window, as a view of the rank's buffer.

        A chunk of scratch has as many elements as were last written to it in this window, 0 before that.

        Args:
            rank: The rank.
            buffer: 0: input, 1: output, 2: scratch.
            cell: Number of the chunk in the buffer.
            window: The window.
            put: Number of elements that will be written there; None for a read.

        Raises:
            InputError: Another number of elements is written than the chunk of an input or output has.
        """
        begin = window * self.width
        array = self.memory[rank][buffer]
        if buffer == 2:
            first = cell * self.longest
            if put is not None:
                self.scratch_elements[rank][cell, window] = put
            size = self.scratch_elements[rank].get((cell, window), 0)
            return array[first + begin : first + begin + size]
        spans = self.spans[rank][buffer]
        first, end = spans[cell], spans[cell + 1]
        view = array[min(first + begin, end) : min(first + begin + self.width, end)]
        if put is not None and put != len(view):
            raise _unequal(rank, "io"[buffer], cell, len(view), put)
        return view

    def _describe_deadlock(self) -> str:
        """Describe what the first unfinished block waits for, as words of an error message."""
        executor = self.executor
        block = next(block for block in self.blocks if not block.over)
        dependency, receives_on = executor.dep[block.step], executor.receives[block.step]
        reason = "data" if receives_on >= 0 and not self.slots[receives_on] else "room"
        if dependency >= 0 and self.done[dependency] <= block.window:
            reason = "dependency"
        return describe_wait(executor.columns, block.step, reason)


class _RecordedRun(_HostRun):
    """An execution that also records when each step begins and ends in each window."""

    def run_to_end(self) -> None:
        """Run all steps and record their times in s, by the clock time.perf_counter, in `zero`, `begin_s` and `slices`.

        Raises:
            InputError: As for `_HostRun.run_to_end`.
        """
        self.begin_s = [0.0] * len(self.executor.op)
        self.slices: list[tuple[float, int, int, float]] = []  # Start in s, step, window, end in s.
        self.zero = time.perf_counter()
        super().run_to_end()

    def recorded(self) -> Recorded:
        """Return the begin and end in µs since the start of the run, a row for each step and window.

        The rows are sorted by begin.
        """
        start, step, window, end = np.array(sorted(self.slices), dtype=np.float64).reshape(-1, 4).T
        since = ((column - self.zero) * 1e6 for column in (start, end))
        return Recorded(step.astype(np.int64), window.astype(np.int64), *since)

    def _execute(self, block: _HostBlock, message: _HostMessage | None, sends: bool, lend: bool) -> Array | None:
        """Run the step as `_HostRun` does, and note when its first chunk begins."""
        if block.chunk == 0:
            self.begin_s[block.step] = time.perf_counter()
        return super()._execute(block, message, sends, lend)

    def _finish_chunk(self, block: _HostBlock) -> None:
        """Count the chunk as `_HostRun` does, and note the times of a step whose last chunk it is."""
        if block.chunk + 1 == self.executor.count[block.step]:  # The time is taken before a waiting block can begin.
            self.slices.append((self.begin_s[block.step], block.step, block.window, time.perf_counter()))
        super()._finish_chunk(block)


def _unequal(rank: int, buffer: str, cell: int, has: int, comes: int) -> InputError:
    """Return the error for chunks of different length, which the caller raises.

    Args:
        rank: The rank.
        buffer: "i", "o" or "s".
        cell: Number of the chunk in the buffer.
        has: Number of elements of this chunk.
        comes: Number of elements that arrive.
    """
    return InputError(
        f"rank {rank} {buffer}[{cell}] has {has} elements, {comes} come to it: chunks of unequal length trade places;"
        " the count must be one that the chunks divide"
    )
