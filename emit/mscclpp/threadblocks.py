"""Steps with their places → the operations of threadblocks: waits, moves and signals, cut into threadblocks that fit.

Operations name channels, remote buffers and semaphores by what they are for; the numbers come last, when it is known
which threadblock holds which step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from emit.columns import Columns
from emit.mscclpp.plan import MAX_OP_BUFFERS, MAX_OP_CHANNELS, MAX_OP_SEMAPHORES, PACKETS
from emit.mscclpp.spans import Placement, Span, Step, StepPlacement, split_spans
from emit.program import OPS, SENDS


class RemoteSpan(NamedTuple):
    """A span of another rank's memory."""

    rank: int
    span: Span


@dataclass(slots=True)
class SymbolicOp:
    """An operation before its numbers.

    sends: the messages on whose channels it is. steps: those that it waits for, or that others wait for. back: the
    signal goes from the receiver to the sender.
    """

    name: str
    src: tuple[Span | RemoteSpan, ...] = ()
    dst: tuple[Span | RemoteSpan, ...] = ()
    sends: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    kind: str = ""
    back: bool = False


# By cell whether packets are spread over the threads, and the element: which thread's it is. None: several threads'.
_Touched = dict[int, tuple[bool, int] | None]


@dataclass(slots=True)
class SymbolicBlock:
    """A threadblock of a plan: steps of one threadblock of the program, in order."""

    rank: int
    steps: list[Step] = field(default_factory=list)
    ops: list[SymbolicOp] = field(default_factory=list)


class _BlockBuilder:
    """Adds operations to a threadblock, with a nop wherever its threads must catch up with each other."""

    def __init__(self, rank: int, keys: Callable[[int, Span], Iterable[int]], connection: list[int]) -> None:
        self.block, self.keys, self.connection = SymbolicBlock(rank), keys, connection
        self.users: dict[tuple[str, int], int] = {}  # (signal or wait, connection) → thread
        self.read: _Touched = {}
        self.written: _Touched = {}
        self.apart = False  # a thread knows what the others do not, or is done when they are not
        self.heard = False  # one has waited

    def nop(self) -> None:
        if self.apart:
            self.block.ops.append(SymbolicOp("nop"))
            for known in (self.read, self.written, self.users):
                known.clear()
            self.apart = self.heard = False

    def await_steps(self, steps: list[Step]) -> None:
        """Wait for other threadblocks of the rank."""
        if steps:
            self._merge(SymbolicOp("sem_acquire", steps=steps), MAX_OP_SEMAPHORES)
            self.heard = self.apart = True

    def wait(self, send: Step, kind: str, back: bool = False) -> None:
        """Wait for a message, or (back) for the receiver's word."""
        self._merge(SymbolicOp("wait", sends=[send], kind=kind, back=back), MAX_OP_CHANNELS)
        self.heard = self.apart = True

    def signal(self, send: Step, kind: str, back: bool = False) -> None:
        self.nop()
        self._merge(SymbolicOp("signal", sends=[send], kind=kind, back=back), MAX_OP_CHANNELS)

    def release(self, step: Step) -> None:
        self.nop()
        self._merge(SymbolicOp("sem_release", steps=[step]), MAX_OP_SEMAPHORES)

    def _merge(self, op: SymbolicOp, most: int) -> None:
        """Add to the operation before, where that is of one kind; the n-th channel is the n-th thread's affair."""
        last = self.block.ops[-1] if self.block.ops else None
        same = last is not None and (last.name, last.kind, last.back) == (op.name, op.kind, op.back)
        if last is None or not same or len(last.sends) + len(last.steps) + 1 > most:
            last = None
        if op.sends:  # a channel counts its signals and its waits: until the next nop only one thread may
            use = (op.name, self.connection[op.sends[0]])
            if last is not None and self.users.get(use, len(last.sends)) != len(last.sends):
                last = None
            if last is None and self.users.get(use, 0) != 0:
                self.apart = True
                self.nop()
            self.users[use] = len(last.sends) if last is not None else 0
        if last is None:
            self.block.ops.append(op)
        else:
            last.sends += op.sends
            last.steps += op.steps

    def move(
        self,
        name: str,
        src: Iterable[Span | RemoteSpan],
        dst: Iterable[Span | RemoteSpan],
        kind: str = "",
        send: Step = -1,
    ) -> None:
        """A data operation, of a message on channels of `kind` if any; packets carry their own order."""
        op = SymbolicOp(name, tuple(src), tuple(dst), [send] if kind == "port" else [], kind=kind)
        if name in ("re", "repkt") and self._added(op):
            return
        reads, writes = self._touched(op.src, name), self._touched(op.dst, name)
        met = _conflict(self.written, reads) or _conflict(self.written, writes) or _conflict(self.read, writes)
        if self.heard or met or (kind == "port" and self.apart):
            self.nop()
        self.block.ops.append(op)
        self._note_read(reads)
        self.written |= writes
        self.apart = True

    def move_each(self, name: str, reads: int, *lists: list[Span]) -> None:
        """A data operation for each contiguous piece of the lists, the first `reads` of which it reads."""
        for piece in split_spans(*lists):
            self.move(name, piece[:reads], piece[reads:])

    def _added(self, op: SymbolicOp) -> bool:
        """Whether the reduction could be made part of the one before it, which leaves its sum in the same place."""
        if not self.block.ops:
            return False
        last = self.block.ops[-1]
        if last.name != op.name or last.dst != op.dst or op.src[0] != op.dst[0]:
            return False
        reads, sum_ = self._touched(op.src[1:], op.name), self._touched(op.dst, op.name)
        if len(last.src) + len(op.src) - 1 > MAX_OP_BUFFERS or reads.keys() & (self.written.keys() | sum_.keys()):
            return False
        last.src += op.src[1:]
        self._note_read(reads)
        return True

    def _note_read(self, reads: _Touched) -> None:
        for cell, thread in reads.items():
            self.read[cell] = thread if self.read.get(cell, thread) == thread else None

    def _touched(self, spans: Iterable[Span | RemoteSpan], name: str) -> _Touched:
        """By cell which thread's it is: operations on packets spread their elements differently."""
        touched: _Touched = {}
        for place in spans:
            rank, span = (place.rank, place.span) if isinstance(place, RemoteSpan) else (self.block.rank, place)
            if span.kind != "p":
                for n, cell in enumerate(self.keys(rank, span)):
                    touched[cell] = (name in PACKETS, n)
        return touched


def _conflict(before: _Touched, now: _Touched) -> bool:
    """Whether some cell is not one thread's in both."""
    return any(before[cell] != now[cell] for cell in before.keys() & now.keys())


def make_threadblocks(c: Columns, places: Placement, nodes: list[int], packets: bool, room: int) -> list[SymbolicBlock]:
    """All threadblocks, with at most about `room` operations each.

    Where one of the program is cut, the next part begins when the one before has done its last step.
    """
    translator = _Translator(c, places, nodes, packets)
    sends = c.sends.tolist()
    waited = {step for placed in places.steps for step in placed.deps}
    copies: dict[int, list[SymbolicOp]] = defaultdict(list)
    for rank, source, target in places.copies:
        copies[rank].append(SymbolicOp("copy", (source,), (target,)))
    blocks = [
        SymbolicBlock(rank, ops=ops[low : low + room])
        for rank, ops in copies.items()
        for low in range(0, len(ops), room)
    ]
    for number, rank in enumerate(c.rank.tolist()):
        builder = _BlockBuilder(rank, places.keys, sends)
        for step in range(int(c.start[number]), int(c.start[number + 1])):
            block = builder.block
            if len(block.ops) + _most(places.steps[step]) > room and block.steps:
                last = block.steps[-1]
                if last not in waited:
                    builder.release(last)
                blocks.append(block)
                builder = _BlockBuilder(rank, places.keys, sends)
                builder.await_steps([last])
            builder.await_steps(places.steps[step].deps)
            builder.block.steps.append(step)
            translator.step(builder, step)
            if step in waited:
                builder.release(step)
        if builder.block.ops or builder.block.steps:
            blocks.append(builder.block)
    return blocks


def _most(placed: StepPlacement) -> int:
    """Operations of a step at most."""
    return 17 + 3 * (len(placed.src) + len(placed.old) + len(placed.dst)) + len(placed.deps)


class _Translator:
    """Steps of a program as operations, with the messages of one of the two protocols."""

    def __init__(self, c: Columns, places: Placement, nodes: list[int], packets: bool) -> None:
        self.c, self.places = c, places
        self.message = self.by_packets if packets else self.by_put
        self.names = [OPS[op] for op in c.op.tolist()]
        self.sent_by = {receive: send for send, receive in places.match.items()}
        self.kinds = ["memory" if nodes[u] == nodes[v] else "port" for u, v, _ in c.connections]
        self.to = [v for _, v, _ in c.connections]

    def step(self, builder: _BlockBuilder, step: Step) -> None:
        name, placed = self.names[step], self.places.steps[step]
        if name == "nop" or placed.idle:
            return
        if name in ("cpy", "re"):
            packed = placed.src[0].kind == "p"
            move = ("repkt" if packed else "re") if name == "re" else "upkt" if packed else "copy"
            sources = [placed.old, placed.src] if name == "re" else [placed.src]
            builder.move_each(move, len(sources), *sources, placed.dst)
        else:
            self.message(builder, step, name, placed)

    def arrival(self, send: Step) -> list[Span]:
        """Where a message is put, in the receiver's memory."""
        placed = self.places.steps[self.places.match[send]]
        return [placed.slot] if placed.slot is not None else placed.dst

    def move_there(self, builder: _BlockBuilder, name: str, send: Step, *lists: list[Span], last: str = "") -> None:
        """A data operation for each contiguous piece of the lists and of where the message arrives, which it writes.

        It reads the first two lists, or the only one, and writes a third too. last: the name of the last, if another.
        """
        rank, pieces = self.to[int(self.c.sends[send])], split_spans(*lists, self.arrival(send))
        for n, piece in enumerate(pieces, 1):
            dst: list[Span | RemoteSpan] = [*piece[2:-1], RemoteSpan(rank, piece[-1])]
            builder.move(last if last and n == len(pieces) else name, piece[:-1][:2], dst, self.kind(send), send)

    def kind(self, send: Step) -> str:
        return self.kinds[int(self.c.sends[send])]

    def by_put(self, builder: _BlockBuilder, step: Step, name: str, placed: StepPlacement) -> None:
        """Put, then signal; wait, then use."""
        sends = name in SENDS
        slot = [placed.slot] if placed.slot is not None else []
        if name != "s":
            send = self.sent_by[step]
            builder.wait(send, self.kind(send))
        if sends and placed.awaits_start:
            builder.wait(step, self.kind(step), back=True)
        if name in ("r", "rcs"):
            # first: whoever gets the message takes it that this step is done
            if slot:
                builder.move_each("copy", 1, slot, placed.dst)
            if name == "rcs":
                self.send(builder, step, slot or placed.dst, placed)
        elif name == "rrc":
            builder.move_each("re", 2, placed.src, slot, placed.dst)
        elif name == "s":
            self.send(builder, step, placed.src, placed)
        else:
            into = placed.dst if name == "rrcs" else slot
            if self.kind(step) == "memory" and placed.copy is None:
                self.move_there(builder, "res", step, placed.src, slot, into)
                builder.signal(step, "memory")
            else:
                builder.move_each("re", 2, placed.src, slot, into)
                self.send(builder, step, into, placed)

    def send(self, builder: _BlockBuilder, step: Step, source: list[Span], placed: StepPlacement) -> None:
        """Put what lies in `source`, and say so."""
        if placed.copy is not None and source != [placed.slot]:
            builder.move_each("copy", 1, source, [placed.copy])
            source = [placed.copy]
        kind = self.kind(step)
        self.move_there(builder, "put", step, source, last="pws" if kind == "port" else "")
        if kind == "memory":
            builder.signal(step, kind)

    def by_packets(self, builder: _BlockBuilder, step: Step, name: str, placed: StepPlacement) -> None:
        """Data and flags together, always into scratch: whoever reads them waits for the flags."""
        slot = [placed.slot] if placed.slot is not None else []
        sends = name in SENDS
        kind = self.kind(step) if sends else ""
        packets = [placed.copy] if placed.copy is not None else slot
        if name == "s" and placed.src[0].kind == "p":
            packets = placed.src
        elif name == "s" and kind == "memory":
            self.move_there(builder, "ppkt", step, placed.src)
            return
        elif name == "s":
            builder.move_each("cpkt", 1, placed.src, packets)
        elif name in ("rrs", "rrcs"):
            into = placed.dst if placed.temp is None else [placed.temp]
            if kind == "memory":
                self.move_there(builder, "respkt", step, placed.src, slot, into)
                return
            builder.move_each("recpkt", 2, placed.src, slot, into, packets)
        if sends:
            self.move_there(builder, "rppkt", step, packets)
        if name in ("r", "rcs"):
            builder.move_each("upkt", 1, slot, placed.dst)
        elif name == "rrc":
            builder.move_each("repkt", 2, placed.src, slot, placed.dst)
