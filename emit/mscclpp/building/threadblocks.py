"""Translate placed steps to the operations of threadblocks (waits, moves, signals), split into threadblocks that fit.

Operations name channels, remote buffers and semaphores by their purpose; numbers are assigned later, when it is known
which threadblock has which step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from emit.columns import Columns
from emit.images import BufferImages
from emit.mscclpp.building.spans import Span, SpanPlacement, Step, StepPlacement, split_spans
from emit.mscclpp.plan import MAX_OP_BUFFERS, MAX_OP_CHANNELS, MAX_OP_SEMAPHORES, PACKETS
from emit.program import OPS, SENDS
from synth.model.deadline import checking_deadline
from topologies.errors import InputError


@dataclass(slots=True)
class SymbolicOp:
    """An operation without numbers.

    Attributes:
        name: Name of the operation.
        src: Spans that it reads.
        dst: Spans that it writes.
        sends: Sends on whose channels it operates.
        steps: Steps that it waits for, or that others wait for.
        kind: Type of its channels.
        back: Whether the signal goes from the receiver to the sender.
        body: Operations that a pipeline repeats.
        chunks: Chunks that all iterations of a pipeline move.
    """

    name: str
    src: tuple[Span, ...] = ()
    dst: tuple[Span, ...] = ()
    sends: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    kind: str = ""
    back: bool = False
    body: list[SymbolicOp] = field(default_factory=list)
    chunks: int = 0


# The thread that accesses each cell, as (whether the operation is on packets, element); None for several threads.
_Threads = dict[int, tuple[bool, int] | None]


@dataclass(slots=True)
class SymbolicBlock:
    """A threadblock of a plan: steps of one threadblock of the program, in order.

    Attributes:
        rank: Its rank.
        steps: The steps.
        ops: Its operations.
        number: Number of that threadblock of the program; −1 for one that only copies before all steps.
    """

    rank: int
    steps: list[Step] = field(default_factory=list)
    ops: list[SymbolicOp] = field(default_factory=list)
    number: int = -1

    def all_ops(self) -> Iterator[SymbolicOp]:
        """Yield all operations; those that a pipeline repeats follow the pipeline, once."""
        for op in self.ops:
            yield op
            yield from op.body


class _BlockBuilder:
    """A builder of one threadblock, which adds a nop wherever its threads must synchronize.

    Attributes:
        block: The threadblock.
        keys: Returns the numbers of the cells of a span, as in `SpanPlacement`.
        connection: Connection of each step that sends.
        users: Thread that last used each (signal or wait, connection) since the last nop.
        read: Cells read since the last nop, with their threads.
        written: Cells written since the last nop, with their threads.
        diverged: Whether the threads differ in knowledge or progress since the last nop.
        has_waited: Whether a thread has waited since the last nop.
    """

    def __init__(
        self, rank: int, number: int, keys: Callable[[int, Span], Iterable[int]], connection: list[int]
    ) -> None:
        self.block, self.keys, self.connection = SymbolicBlock(rank, number=number), keys, connection
        self.users: dict[tuple[str, int], int] = {}
        self.read: _Threads = {}
        self.written: _Threads = {}
        self.diverged = False
        self.has_waited = False

    def nop(self) -> None:
        """Add a nop if threads have diverged since the last one; then what they did before it no longer matters."""
        if self.diverged:
            self.block.ops.append(SymbolicOp("nop"))
            for since_last_nop in (self.read, self.written, self.users):
                since_last_nop.clear()
            self.diverged = self.has_waited = False

    @contextmanager
    def pipeline(self, chunks: int) -> Iterator[None]:
        """Repeat what is added inside as a pipeline that moves `chunks` chunks.

        Raises:
            InputError: An operation that is added inside moves another number of chunks.
        """
        self.nop()
        before, self.block.ops = self.block.ops, []
        yield
        self.nop()  # The next iteration begins when all threads have ended this one.
        body, self.block.ops = self.block.ops, before
        if any(span.size != chunks for op in body for span in (*op.src, *op.dst)):
            raise InputError(
                "a step whose data lies in several places cannot be divided among iterations of a pipeline"
            )
        self.block.ops.append(SymbolicOp("pipeline", body=body, chunks=chunks))

    def await_steps(self, steps: list[Step]) -> None:
        """Add a wait for steps of other threadblocks of the rank; do nothing for an empty list."""
        if steps:
            self._merge(SymbolicOp("sem_acquire", steps=steps), MAX_OP_SEMAPHORES)
            self.has_waited = self.diverged = True

    def wait(self, send: Step, kind: str, back: bool = False) -> None:
        """Add a wait on a channel of type `kind` for a send's message, or (back) for its receiver's signal."""
        self._merge(SymbolicOp("wait", sends=[send], kind=kind, back=back), MAX_OP_CHANNELS)
        self.has_waited = self.diverged = True

    def signal(self, send: Step, kind: str) -> None:
        """Add a signal on a channel of type `kind` to the receiver of a message.

        If threads have diverged, a nop comes first.
        """
        self.nop()
        self._merge(SymbolicOp("signal", sends=[send], kind=kind), MAX_OP_CHANNELS)

    def release(self, step: Step) -> None:
        """Add a release of the semaphores of the threadblocks that wait for a step.

        If threads have diverged, a nop comes first.
        """
        self.nop()
        self._merge(SymbolicOp("sem_release", steps=[step]), MAX_OP_SEMAPHORES)

    def release_at_end(self, step: Step, *, is_released: bool) -> None:
        """Release the last step once all threads have ended everything before it, so that the next part may continue.

        `is_released` is whether the last operation is the release of the step already.
        """
        if is_released:
            self.block.ops.insert(-1, SymbolicOp("nop"))
        else:
            self.diverged = True
            self.release(step)

    def _merge(self, op: SymbolicOp, most: int) -> None:
        """Add an operation on one channel or semaphore, merged into the last operation if that is of its kind.

        The n-th thread handles the n-th channel. A channel is used by one thread between two nops; where that would
        fail, a nop is added or the operation is not merged. An operation has at most `most` channels or semaphores.
        """
        last = self.block.ops[-1] if self.block.ops else None
        same = last is not None and (last.name, last.kind, last.back) == (op.name, op.kind, op.back)
        if last is None or not same or len(last.sends) + len(last.steps) + 1 > most:
            last = None
        if op.sends:  # A channel counts its signals and waits, so only one thread may use it until the next nop.
            use = (op.name, self.connection[op.sends[0]])
            if last is not None and self.users.get(use, len(last.sends)) != len(last.sends):
                last = None
            if last is None and self.users.get(use, 0) != 0:
                self.diverged = True
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
        src: Iterable[Span],
        dst: Iterable[Span],
        kind: str = "",
        send: Step = -1,
    ) -> None:
        """Add a data operation, after a nop if its threads need what other threads of the threadblock did.

        A sum (re, repkt) that continues the last sum in the same place is merged into it. Packets carry their own
        order.

        Args:
            name: Name of the operation.
            src: Spans that it reads.
            dst: Spans that it writes.
            kind: Type of the message's channel; empty if the data stays on its rank.
            send: Step that sends the message; −1 if there is none.
        """
        op = SymbolicOp(name, tuple(src), tuple(dst), [send] if kind == "port" else [], kind=kind)
        if name in ("re", "repkt") and self._merge_reduction(op):
            return
        reads, writes = self._touched(op.src, name), self._touched(op.dst, name)
        conflicts = _conflict(self.written, reads) or _conflict(self.written, writes) or _conflict(self.read, writes)
        if self.has_waited or conflicts or (kind == "port" and self.diverged):
            self.nop()
        self.block.ops.append(op)
        self._note_read(reads)
        self.written |= writes
        self.diverged = True

    def move_each(self, name: str, reads: int, *lists: list[Span]) -> None:
        """Add a data operation for each contiguous piece of the lists, which all cover the same chunks of a step.

        It reads the pieces of the first `reads` lists, and writes those of the others.
        """
        for piece in split_spans(*lists):
            self.move(name, piece[:reads], piece[reads:])

    def _merge_reduction(self, op: SymbolicOp) -> bool:
        """Merge a reduction into the last operation if that leaves its sum in the same place.

        Return True if it was merged, False if nothing was changed.
        """
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

    def _note_read(self, reads: _Threads) -> None:
        """Record reads of cells by threads, as None for a cell that different threads have read since the last nop."""
        for cell, thread in reads.items():
            self.read[cell] = thread if self.read.get(cell, thread) == thread else None

    def _touched(self, spans: Iterable[Span], name: str) -> _Threads:
        """Return the thread that accesses each cell of spans, as (whether the operation is on packets, element).

        Packet operations distribute elements differently. Spans of packets are left out.
        """
        touched: _Threads = {}
        by_packets = name in PACKETS
        for span in spans:
            if span.kind != "p":
                for n, cell in enumerate(self.keys(span.rank if span.rank >= 0 else self.block.rank, span)):
                    touched[cell] = (by_packets, n)
        return touched


def _conflict(before: _Threads, now: _Threads) -> bool:
    """Return True if different threads access some cell before and now."""
    return not before.keys().isdisjoint(now) and any(before[cell] != now[cell] for cell in before.keys() & now.keys())


def make_threadblocks(
    c: Columns,
    places: SpanPlacement,
    nodes: list[int],
    packets: bool,
    room: int,
    images: BufferImages | None = None,
    in_units: bool = False,
) -> list[SymbolicBlock]:
    """Build all threadblocks, with at most about `room` operations each.

    A step whose own operations are more makes a larger one. If a threadblock of the program is split, each part begins
    after the last step of the part before it.

    Args:
        c: Columns of the program.
        places: Places of the program's data.
        nodes: Node of each rank.
        packets: Whether messages are packets.
        room: Number of operations, without those that `Numbering` adds for other threadblocks.
        images: Images of the ranks' buffers, if the program has translations.
        in_units: Whether each step is a pipeline, which moves its data unit by unit.

    Raises:
        InputError: A step cannot be a pipeline (see `_Translator.step_in_units`).
    """
    translator = _Translator(c, places, nodes, packets, images)
    sends = c.sends.tolist()
    awaited = {step for placed in places.steps for step in placed.deps}
    copies: dict[int, list[SymbolicOp]] = defaultdict(list)
    for rank, source, target in places.copies:
        copies[rank].append(SymbolicOp("copy", (source,), (target,)))
    blocks = [
        SymbolicBlock(rank, ops=ops[low : low + room])
        for rank, ops in copies.items()
        for low in range(0, len(ops), room)
    ]
    for number, rank in checking_deadline(enumerate(c.rank.tolist())):
        builder = _BlockBuilder(rank, number, places.keys, sends)
        for step in range(int(c.start[number]), int(c.start[number + 1])):
            block = builder.block
            if in_units:
                translator.step_in_units(builder, step, is_awaited=step in awaited)
                continue
            if len(block.ops) + _most(translator.names[step], places.steps[step]) > room and block.steps:
                last = block.steps[-1]
                builder.release_at_end(last, is_released=last in awaited)
                blocks.append(block)
                builder = _BlockBuilder(rank, number, places.keys, sends)
                builder.await_steps([last])
                builder.nop()  # Any thread may use the channels next that a thread of the part before used last.
            builder.await_steps(places.steps[step].deps)
            builder.block.steps.append(step)
            translator.step(builder, step)
            if step in awaited:
                builder.release(step)
        if builder.block.ops or builder.block.steps:
            blocks.append(builder.block)
    return blocks


def _most(name: str, placed: StepPlacement) -> int:
    """Return an upper limit of the number of operations of a step, with those that end a part of a threadblock.

    They are waits for steps, its message and its receiver, moves of each piece of the data, a signal, a release, and
    the release at the end of the part. A nop may come before each, and data that is copied first moves twice.
    """
    spans = (placed.src, placed.old, placed.dst)
    pieces = 1 + sum(len(each) - 1 for each in spans if each)
    moves = pieces * (1 + (placed.copy is not None) + (name in ("rcs", "rrs", "rrcs")))
    return len(placed.deps) + 2 * (2 + (name != "s") + (name in SENDS) + placed.awaits_start + moves)


class _Translator:
    """A translator of a program's steps to operations, for the messages of one of the two protocols."""

    def __init__(
        self, c: Columns, places: SpanPlacement, nodes: list[int], packets: bool, images: BufferImages | None
    ) -> None:
        self.c, self.places, self.images = c, places, images
        self.message = self.by_packets if packets else self.by_put
        self.names = [OPS[op] for op in c.op.tolist()]
        self.sent_by = {receive: send for send, receive in places.match.items()}
        self.kinds = ["memory" if nodes[u] == nodes[v] else "port" for u, v, _ in c.connections]
        self.to = [v for _, v, _ in c.connections]

    def step(self, builder: _BlockBuilder, step: Step, *, has_started: bool = False) -> None:
        """Add the operations of a step to its threadblock; none for a nop or a step that moves nothing.

        If `has_started`, the receiver of a message is known to have started.
        """
        name, placed = self.names[step], self.places.steps[step]
        if name == "nop" or placed.idle:
            return
        if name in ("cpy", "re"):
            packed = placed.src[0].kind == "p"
            move = ("repkt" if packed else "re") if name == "re" else "upkt" if packed else "copy"
            sources = [placed.old, placed.src] if name == "re" else [placed.src]
            builder.move_each(move, len(sources), *sources, placed.dst)
        else:
            self.message(builder, step, name, replace(placed, awaits_start=placed.awaits_start and not has_started))

    def step_in_units(self, builder: _BlockBuilder, step: Step, *, is_awaited: bool) -> None:
        """Add a step as a pipeline: in each iteration it waits for as many iterations of the steps that it needs.

        Args:
            builder: Builder of the threadblock.
            step: The step.
            is_awaited: Whether other threadblocks wait for it.

        Raises:
            InputError: It needs steps that move another number of chunks, or its data lies in several places.
        """
        placed, count = self.places.steps[step], int(self.c.count[step])
        builder.block.steps.append(step)
        if self.names[step] in ("nop", "cpy") and not placed.deps and not is_awaited:
            self.step(builder, step)
            return
        if count < 1 or any(int(self.c.count[dep]) != count for dep in placed.deps):
            raise InputError(
                "a step that needs steps of other lengths cannot be divided among iterations of a pipeline"
            )
        if self.names[step] in SENDS and placed.awaits_start:
            builder.wait(step, self.kind(step), back=True)
        with builder.pipeline(count):
            builder.await_steps(placed.deps)
            self.step(builder, step, has_started=True)
            if is_awaited:
                builder.release(step)

    def arrival(self, send: Step) -> list[Span]:
        """Return the spans where a message is put in the receiver's memory; their rank is −1."""
        placed = self.places.steps[self.places.match[send]]
        return [placed.slot] if placed.slot is not None else placed.dst

    def move_there(self, builder: _BlockBuilder, name: str, send: Step, *lists: list[Span], last: str = "") -> None:
        """Add a data operation for each contiguous piece of the lists and of the message's place at the receiver.

        The operation reads the first two lists, or the only one. It writes the message's place, and a third list if
        there is one.

        Args:
            builder: Builder of the threadblock.
            name: Name of the operation.
            send: Step that sends the message.
            *lists: Spans that are read, and spans that are written.
            last: Name of the last operation, if it differs.
        """
        rank, pieces = self.to[int(self.c.sends[send])], split_spans(*lists, self.arrival(send))
        for n, piece in enumerate(pieces, 1):
            remote = piece[-1]._replace(rank=rank)
            if self.images is not None:
                remote = remote._replace(first=self.images.place(rank, remote.kind, remote.first))
            dst = [*piece[2:-1], remote]
            builder.move(last if last and n == len(pieces) else name, piece[:-1][:2], dst, self.kind(send), send)

    def kind(self, send: Step) -> str:
        """Return the type of the channel of a send, memory or port."""
        return self.kinds[int(self.c.sends[send])]

    def by_put(self, builder: _BlockBuilder, step: Step, name: str, placed: StepPlacement) -> None:
        """Add the operations of a step whose message is put, then signalled; the receiver waits, then uses it.

        Args:
            builder: Builder of the threadblock.
            step: The step, which sends or receives.
            name: Its instruction.
            placed: Its placement.
        """
        sends = name in SENDS
        slot = [placed.slot] if placed.slot is not None else []
        if name != "s":
            send = self.sent_by[step]
            builder.wait(send, self.kind(send))
        if sends and placed.awaits_start:
            builder.wait(step, self.kind(step), back=True)
        if name in ("r", "rcs"):
            # The copy comes before the send, because the message tells its receiver that this step is over.
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
        """Add a put of the data in `source` for a step that sends, and its signal.

        The data is copied first if it may change before a port channel has read it.
        """
        if placed.copy is not None and source != [placed.slot]:
            builder.move_each("copy", 1, source, [placed.copy])
            source = [placed.copy]
        kind = self.kind(step)
        self.move_there(builder, "put", step, source, last="pws" if kind == "port" else "")
        if kind == "memory":
            builder.signal(step, kind)

    def by_packets(self, builder: _BlockBuilder, step: Step, name: str, placed: StepPlacement) -> None:
        """Add the operations of a step whose message is packets (data and flags), which always arrive in scratch.

        Readers wait for the flags.

        Args:
            builder: Builder of the threadblock.
            step: The step, which sends or receives.
            name: Its instruction.
            placed: Its placement.
        """
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
