"""The host executor: any Program on the CPU, by as many threads as there are cores.

A threadblock is not a thread here but a position in its steps; a thread takes one that can advance and advances it as
far as it can. Large chunks pass in windows, as on a GPU: all steps for the first elements of every chunk, then for the
next. What a waiting receiver gets is read straight from the sender's buffer, whose step ends only then; everything
else goes through the connection's FIFO slots.
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
from runtime.bench import EmulatedTime, Request, Session, in_process
from runtime.buffers import Layout, describe_wait, executable_columns, prepare_buffers, summed_cells
from runtime.dtypes import TYPES, Array, average, reducer
from topologies.errors import InputError

WINDOW_BYTES = 512 << 10  # of a chunk at a time: source and destination stay in a core's second-level cache


@dataclass(eq=False)
class _Block:
    """Where a threadblock is: window, step (a number in the columns), chunk of the step. Its steps: first..last-1."""

    first: int
    last: int
    window: int = 0
    step: int = 0
    chunk: int = 0

    @property
    def over(self) -> bool:
        return self.step == self.last


@dataclass(eq=False)
class _Message:
    """What is in a slot; `owner` waits until it was read, where it is the owner's own memory."""

    values: Array
    owner: _Block | None = None


class HostExecutor:
    """An `Executor` on this machine's CPU. Raises InputError for a program whose steps do not fit together."""

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
        """goal: what a custom collective must achieve. threads: None: as many as there are cores.

        record: whether each run leaves in `recorded` when its steps began and ended.
        """
        self._run: type[_Run] = _RecordedRun if record else _Run
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
        return nullcontext()

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum") -> None:
        """Execute once; see `Executor.run`."""
        layout, inputs, kind = prepare_buffers(self.program, self.goal, inputs, outputs, kind, op)
        run = self._run(self, layout, inputs, outputs, kind, op)
        run.go()
        self.recorded = run.recorded()
        if op != "avg":
            return
        cells = (column.tolist() for column in summed_cells(self.program, self.goal))
        for rank, buffer, index in zip(*cells, strict=True):
            average((inputs, outputs)[buffer][rank][layout.span(index)], kind, self.program.nranks)


def measuring(request: Request) -> Session:
    """Measures on this CPU; see `runtime.backends.Backend`."""
    return in_process(request, lambda algorithm: HostExecutor(algorithm.program, algorithm.goal, record=request.record))


class _Run:
    """One execution: where each threadblock is, what is in the slots, who waits for what."""

    def __init__(
        self, of: HostExecutor, layout: Layout, inputs: Sequence[Array], outputs: Sequence[Array], kind: str, op: str
    ) -> None:
        self.of, self.reduce = of, reducer(op, kind)
        p = of.program
        size = TYPES[kind].itemsize
        self.width = max(1, min(of.window_bytes // size, max(1, layout.longest)))
        self.windows = max(1, -(-layout.longest // self.width))
        self.memory: list[tuple[Array, Array, Array]] = []
        self.spans: list[tuple[list[int], list[int]]] = []
        # of each rank's scratch: (cell, window) → elements
        self.held: list[dict[tuple[int, int], int]] = [{} for _ in p.gpus]
        self.longest = layout.longest
        for rank, gpu in enumerate(p.gpus):
            scratch = np.empty(gpu.s_chunks * layout.longest, dtype=TYPES[kind])
            self.memory.append((inputs[rank], outputs[rank], scratch))
            cells = zip(layout.cells(rank), (gpu.i_chunks, gpu.o_chunks), strict=True)
            given, made = (layout.spans(max(pair)).tolist() for pair in cells)
            self.spans.append((given, made))
        self.blocks = [_Block(first, last, step=first) for first, last in pairwise(of.start)]
        self.slots: list[deque[_Message]] = [deque() for _ in of.columns.connections]
        self.in_flight = [0] * len(self.slots)
        self.done = [0] * len(of.op)  # windows through which a step has gone
        self.waits_dep: dict[int, list[_Block]] = {}
        self.waits_data: list[_Block | None] = [None] * len(self.slots)
        self.waits_slot: list[_Block | None] = [None] * len(self.slots)
        self.ready = deque(block for block in self.blocks if not block.over)
        self.left = len(self.ready)
        self.running = 0
        self.fault: BaseException | None = None
        self.change = threading.Condition(threading.Lock())

    def go(self) -> None:
        others = [threading.Thread(target=self._work, daemon=True) for _ in range(self.of.threads - 1)]
        for thread in others:
            thread.start()
        self._work()
        for thread in others:
            thread.join()
        if self.fault is not None:
            raise self.fault

    def recorded(self) -> Recorded | None:
        """When each step began and ended, where that is recorded."""
        return None

    def _work(self) -> None:
        try:
            while True:
                with self.change:
                    while not self.ready and self.left and self.running and self.fault is None:
                        self.change.wait()
                    if self.fault is not None or not self.left:
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

    def _advance(self, block: _Block) -> None:
        """Advance a block until it waits or ends."""
        of = self.of
        while True:
            with self.change:
                if self.fault is not None or block.over or self._must_wait(block):
                    self.running -= 1
                    if block.over:
                        self.left -= 1
                    if not self.left or not self.running:
                        self.change.notify_all()
                    return
                step = block.step
                into, out = of.receives[step], of.sends[step]
                message = self.slots[into].popleft() if into >= 0 else None
                receiver = self.waits_data[out] if out >= 0 else None
                lend = receiver is not None and self._has_room(receiver)
            values = self._execute(block, message, out >= 0, lend)
            with self.change:
                if message is not None:
                    self._free_slot(message, into)
                if out >= 0:
                    self.in_flight[out] += 1
                    self.slots[out].append(_Message(values, block if lend else None))  # type: ignore[arg-type]
                    self._wake(self.waits_data, out)
                if out >= 0 and lend:
                    self.running -= 1  # goes on when it was read
                    return
                self._finish_chunk(block)

    def _must_wait(self, block: _Block) -> bool:
        """Whether the block cannot advance; it is then put where who ends the wait finds it."""
        of, step = self.of, block.step
        need, into, out = of.dep[step], of.receives[step], of.sends[step]
        if need >= 0 and self.done[need] <= block.window:
            self.waits_dep.setdefault(need, []).append(block)
        elif into >= 0 and not self.slots[into]:
            self.waits_data[into] = block
        elif out >= 0 and self.in_flight[out] >= of.depth:
            self.waits_slot[out] = block
        else:
            return False
        return True

    def _has_room(self, block: _Block) -> bool:
        out = self.of.sends[block.step]
        return bool(out < 0 or self.in_flight[out] < self.of.depth)

    def _wake(self, waiting: list[_Block | None], connection: int) -> None:
        block = waiting[connection]
        if block is not None:
            waiting[connection] = None
            self._resume(block)

    def _resume(self, block: _Block) -> None:
        # what was just written is still in the cache: its reader comes first
        self.ready.appendleft(block)
        self.change.notify()

    def _free_slot(self, message: _Message, connection: int) -> None:
        self.in_flight[connection] -= 1
        self._wake(self.waits_slot, connection)
        if message.owner is not None:
            self._finish_chunk(message.owner)
            if message.owner.over:
                self.left -= 1
                if not self.left:
                    self.change.notify_all()
            else:
                self._resume(message.owner)

    def _finish_chunk(self, block: _Block) -> None:
        """One chunk of one step is over."""
        step = block.step
        block.chunk += 1
        if block.chunk < self.of.count[step]:
            return
        block.chunk = 0
        self.done[step] = block.window + 1
        for other in self.waits_dep.pop(step, ()):
            self._resume(other)
        block.step += 1
        if block.step == block.last and block.window + 1 < self.windows:
            block.window += 1
            block.step = block.first

    def _execute(self, block: _Block, message: _Message | None, sends: bool, lend: bool) -> Array | None:
        """Do what the step does to one chunk, in one window; what is sent on, if anything."""
        of, step = self.of, block.step
        op = of.op[step]
        if op == "nop":
            return None
        rank, chunk, window = of.rank[step], block.chunk, block.window
        own: Array | None = None
        if op in READS_SRC:
            own = self._cell(rank, of.src[step], of.src_at[step] + chunk, window, None)
        if op == "s":
            assert own is not None
            return own if lend else own.copy()
        came = message.values if message is not None else own
        assert came is not None
        if own is not None and len(own) != len(came):
            raise _unequal(rank, "ios"[of.src[step]], of.src_at[step] + chunk, len(own), len(came))
        if op == "rrs":
            assert own is not None
            made = np.empty_like(came)
            self.reduce(own, came, out=made)
            return made
        target = self._cell(rank, of.dst[step], of.dst_at[step] + chunk, window, len(came))
        if op in ("r", "rcs", "cpy"):
            np.copyto(target, came)
        elif op == "re":
            self.reduce(target, came, out=target)
        else:
            assert own is not None
            self.reduce(own, came, out=target)
        if not sends:
            return None
        return target if lend else target.copy()

    def _cell(self, rank: int, buffer: int, cell: int, window: int, put: int | None) -> Array:
        """A chunk's elements in a window; `put`: so many are written there."""
        begin = window * self.width
        array = self.memory[rank][buffer]
        if buffer == 2:
            first = cell * self.longest
            if put is not None:
                self.held[rank][cell, window] = put
            size = self.held[rank].get((cell, window), 0)
            return array[first + begin : first + begin + size]
        spans = self.spans[rank][buffer]
        first, end = spans[cell], spans[cell + 1]
        view = array[min(first + begin, end) : min(first + begin + self.width, end)]
        if put is not None and put != len(view):
            raise _unequal(rank, "io"[buffer], cell, len(view), put)
        return view

    def _describe_deadlock(self) -> str:
        of = self.of
        block = next(block for block in self.blocks if not block.over)
        need, into = of.dep[block.step], of.receives[block.step]
        reason = "data" if into >= 0 and not self.slots[into] else "room"
        if need >= 0 and self.done[need] <= block.window:
            reason = "dependency"
        return describe_wait(of.columns, block.step, reason)


class _RecordedRun(_Run):
    """The same, and when each step began and ended in each window."""

    def go(self) -> None:
        self.begun = [0.0] * len(self.of.op)
        self.slices: list[tuple[float, int, int, float]] = []  # start, step, window, end in s
        self.zero = time.perf_counter()
        super().go()

    def recorded(self) -> Recorded:
        start, step, window, end = np.array(sorted(self.slices), dtype=np.float64).reshape(-1, 4).T
        since = ((column - self.zero) * 1e6 for column in (start, end))
        return Recorded(step.astype(np.int64), window.astype(np.int64), *since)

    def _execute(self, block: _Block, message: _Message | None, sends: bool, lend: bool) -> Array | None:
        if block.chunk == 0:
            self.begun[block.step] = time.perf_counter()
        return super()._execute(block, message, sends, lend)

    def _finish_chunk(self, block: _Block) -> None:
        if block.chunk + 1 == self.of.count[block.step]:  # before those that wait for it can begin
            self.slices.append((self.begun[block.step], block.step, block.window, time.perf_counter()))
        super()._finish_chunk(block)


def _unequal(rank: int, buffer: str, cell: int, has: int, comes: int) -> InputError:
    return InputError(
        f"rank {rank} {buffer}[{cell}] has {has} elements, {comes} come to it: chunks of unequal length trade places;"
        " the count must be one that the chunks divide"
    )
