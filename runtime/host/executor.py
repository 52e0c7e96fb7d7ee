"""The host executor: any Program on the CPU, by as many threads as there are cores.

A threadblock is not a thread here but a place in its steps; a core takes one that can go on and takes it as far as it
goes. Large chunks pass in windows, as on a GPU: all steps for the first elements of every chunk, then for the next.
What a waiting receiver gets is read straight from the sender's buffer, whose step ends only then; everything else goes
through the connection's FIFO slots.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from emit.columns import columns_of
from emit.findings import Findings
from emit.goal import Goal
from emit.program import FIFO_DEPTH, OPS, READS_SRC, Program
from runtime.buffers import Layout, goal_of
from runtime.dtypes import TYPES, Array, averaged, reducer, type_named
from topologies.errors import InputError

WINDOW_BYTES = 512 << 10  # of a chunk at a time: source and destination stay in a core's cache
_HARMLESS = frozenset({"limit", "wrong result"})


@dataclass(eq=False)
class _Block:
    """A threadblock on its way: window, step (a number in the columns), chunk of the step."""

    number: int
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
    """A program ready to be run on this machine's CPU. Raises InputError for one whose steps do not fit together."""

    def __init__(self, program: Program, goal: Goal | None = None, threads: int | None = None) -> None:
        found = Findings()
        self.program, self.goal = program, goal
        self.columns = c = columns_of(program, found)
        for finding in found.reported:
            if finding.kind not in _HARMLESS:
                raise InputError(f"cannot be run: {finding.kind}: {finding.message}")
        self.threads = threads or os.cpu_count() or 1
        self.depth = FIFO_DEPTH[program.protocol]
        self.op = [OPS[code] for code in c.op.tolist()]
        self.rank = c.rank[c.block].tolist()
        self.src, self.src_at = c.src.tolist(), c.src_at.tolist()
        self.dst, self.dst_at = c.dst.tolist(), c.dst_at.tolist()
        self.count = [max(1, count) for count in c.count.tolist()]
        self.dep, self.sends, self.receives = c.dep.tolist(), c.sends.tolist(), c.receives.tolist()
        self.block_of, self.start = c.block.tolist(), c.start.tolist()

    def run(
        self, inputs: Sequence[Array], outputs: Sequence[Array], *, kind: str = "float", op: str = "sum"
    ) -> None:
        """Execute once. `inputs`, `outputs`: per rank, one-dimensional; the same arrays (or parts) in place.

        A program that works in place only first gets a copy of the inputs where they are apart from the outputs.

        Raises:
            InputError: buffers that do not fit the program, or a program that stops before its end.
        """
        kind = type_named(kind)
        layout = Layout.of(self.program, self._elements(inputs, outputs))
        inplace = self.program.inplace and not self.program.outofplace
        for rank, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
            self._fits(rank, given, made, layout, kind)
        if inplace:
            inputs = self._moved_in(layout, inputs, outputs)
        _Run(self, layout, inputs, outputs, kind, op).go()
        if op == "avg":
            goal = goal_of(self.program, self.goal, inplace)
            self._average(goal, layout, inputs, outputs, kind)

    def _elements(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> int:
        p = self.program
        if len(inputs) != p.nranks or len(outputs) != p.nranks:
            raise InputError(
                f"{len(inputs)} inputs and {len(outputs)} outputs: would be {p.nranks} each, one a rank"
            )
        one = Layout.of(p, 1)
        return next(
            (
                len(array) // size
                for rank in range(p.nranks)
                for array, size in zip((inputs[rank], outputs[rank]), one.sizes(rank), strict=True)
                if size
            ),
            0,
        )

    def _fits(self, rank: int, given: Array, made: Array, layout: Layout, kind: str) -> None:
        for name, array, size in zip(("input", "output"), (given, made), layout.sizes(rank), strict=True):
            if size and (array.shape != (size,) or array.dtype != TYPES[kind]):
                raise InputError(
                    f"rank {rank}: {name} of {array.shape} {array.dtype}: would be ({size},) {TYPES[kind]}"
                )

    def _share(self, given: Array, made: Array) -> bool:
        return np.shares_memory(given, made)

    def _moved_in(self, layout: Layout, inputs: Sequence[Array], outputs: Sequence[Array]) -> list[Array]:
        """The inputs as parts of the outputs (or the other way round), where the program looks for them."""
        p = self.program
        goal = goal_of(p, self.goal, True)
        found = []
        for rank, (given, made) in enumerate(zip(inputs, outputs, strict=True)):
            shift = goal.o_in_i[rank]
            if shift is None or self._share(given, made):
                found.append(given)
            elif shift <= 0 and len(given) <= len(made):  # the input lies in the output
                first = -shift // layout.chunks * layout.elements
                place = made[first : first + len(given)]
                np.copyto(place, given)
                found.append(place)
            else:
                raise InputError(
                    f"{p.name}: works in place only, and {p.collective} needs room for all of the input:"
                    " would be an output that is part of it"
                )
        return found

    def _average(
        self, goal: Goal, layout: Layout, inputs: Sequence[Array], outputs: Sequence[Array], kind: str
    ) -> None:
        rank, buffer, index, _ = (column.tolist() for column in goal.required)
        wanted = np.diff(goal.sets.start)[goal.required[3]].tolist()
        for r, side, at, parts in zip(rank, buffer, index, wanted, strict=True):
            if parts > 1:
                array = (inputs[r], outputs[r])[side]
                first, end = layout.spans(at + 1)[at : at + 2].tolist()
                averaged(array[first:end], kind, self.program.nranks)


class _Run:
    """One execution: who stands where, what is in the slots, who waits for what."""

    def __init__(
        self,
        of: HostExecutor,
        layout: Layout,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        kind: str,
        op: str,
    ) -> None:
        self.of, self.reduce = of, reducer(op, kind)
        p = of.program
        size = TYPES[kind].itemsize
        self.width = max(1, min(WINDOW_BYTES // size, max(1, layout.longest)))
        self.windows = max(1, -(-layout.longest // self.width))
        self.memory: list[tuple[Array, Array, Array]] = []
        self.spans: list[tuple[list[int], list[int]]] = []
        self.held: list[dict[tuple[int, int], int]] = [
            {} for _ in p.gpus
        ]  # scratch: (cell, window) → elements
        self.longest = layout.longest
        for rank, gpu in enumerate(p.gpus):
            scratch = np.empty(gpu.s_chunks * layout.longest, dtype=TYPES[kind])
            self.memory.append((inputs[rank], outputs[rank], scratch))
            i_cells, o_cells = layout.cells(rank)
            self.spans.append(
                (
                    layout.spans(max(i_cells, gpu.i_chunks)).tolist(),
                    layout.spans(max(o_cells, gpu.o_chunks)).tolist(),
                )
            )
        self.blocks = [
            _Block(b, of.start[b], of.start[b + 1], step=of.start[b]) for b in range(len(of.start) - 1)
        ]
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
                        raise InputError(f"the program stops before its end: {self._stuck()}")
                    block = self.ready.popleft()
                    self.running += 1
                self._advance(block)
        except BaseException as error:
            with self.change:
                self.fault = self.fault or error
                self.change.notify_all()

    def _advance(self, block: _Block) -> None:
        """Take a block as far as it goes."""
        of = self.of
        while True:
            with self.change:
                if self.fault is not None or block.over or self._waits(block):
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
                    self._read(message, into)
                if out >= 0:
                    self.in_flight[out] += 1
                    self.slots[out].append(_Message(values, block if lend else None))  # type: ignore[arg-type]
                    self._wake(self.waits_data, out)
                if out >= 0 and lend:
                    self.running -= 1  # goes on when it was read
                    return
                self._passed(block)

    def _waits(self, block: _Block) -> bool:
        """Whether the block cannot go on; it is then noted where somebody will find it."""
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

    def _read(self, message: _Message, connection: int) -> None:
        self.in_flight[connection] -= 1
        self._wake(self.waits_slot, connection)
        if message.owner is not None:
            self._passed(message.owner)
            if message.owner.over:
                self.left -= 1
                if not self.left:
                    self.change.notify_all()
            else:
                self._resume(message.owner)

    def _passed(self, block: _Block) -> None:
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
            self.reduce(own, came, made)
            return made
        target = self._cell(rank, of.dst[step], of.dst_at[step] + chunk, window, len(came))
        if op in ("r", "rcs", "cpy"):
            np.copyto(target, came)
        elif op == "re":
            self.reduce(target, came, target)
        else:
            assert own is not None
            self.reduce(own, came, target)
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

    def _stuck(self) -> str:
        c = self.of.columns
        for block in self.blocks:
            if block.over:
                continue
            step = block.step
            rank, tb, position = c.place(step)
            need, into, out = self.of.dep[step], self.of.receives[step], self.of.sends[step]
            why = (
                f"for room to rank {c.connections[out][1]} on channel {c.connections[out][2]}"
                if out >= 0
                else ""
            )
            if into >= 0 and not self.slots[into]:
                why = f"for data of rank {c.connections[into][0]} on channel {c.connections[into][2]}"
            if need >= 0 and self.done[need] <= block.window:
                why = "for tb {} step {}".format(*c.place(need)[1:])
            return f"rank {rank} tb {tb} step {position} ({self.of.op[step]}) waits {why}"
        return "nobody waits"


def _unequal(rank: int, buffer: str, cell: int, has: int, comes: int) -> InputError:
    return InputError(
        f"rank {rank} {buffer}[{cell}] has {has} elements, {comes} come to it: chunks of unequal length trade places;"
        " would be a count that the chunks divide"
    )
