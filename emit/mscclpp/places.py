"""Program → where a plan keeps everything: what is put straight to where it belongs, and what into scratch first.

A program's message waits in a FIFO until it is received. A plan's put writes into the receiver's memory at once. So a
message goes straight to its destination only where the program's own order says that the receiver is done with what
lies there before the sender sends; else it goes into scratch of its own, and is copied from there. No wait is added,
so what ended before still ends.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from emit.check.cells import Cells
from emit.columns import Columns
from emit.goal import Goal, buffer_sizes
from emit.mscclpp.spans import Placed, Places, Span, Step
from emit.mscclpp.unread import Origin, plain_scratch, unread
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST, Program
from topologies.errors import InputError

Row = NDArray[np.int32]
Message = tuple[Step, Row, int]  # the send, what it knows, and the ranks that it knows to have started
MAX_ENTRIES = 1 << 26  # int32 entries of clocks
_REACH = 1 << 40  # more than any buffer has chunks
_SCAN = 16  # slots looked at for one that is free again


def places_of(
    program: Program,
    c: Columns,
    order: list[Step],
    cells: Cells,
    nodes: list[int],
    *,
    packets: bool,
    apart: Goal | None = None,
) -> Places:
    """Decide for every step of a program that passed its check; `order` takes each step once.

    nodes: of each rank. apart: the program's own (in place) goal, where the plan is to be out of place: input is then
    read where it lies, and results are written to the output.

    Raises InputError for more threadblocks and messages than can be followed.
    """
    return _Placing(program, c, order, cells, nodes, packets, apart).placed()


class _Placing:
    def __init__(
        self,
        program: Program,
        c: Columns,
        order: list[Step],
        cells: Cells,
        nodes: list[int],
        packets: bool,
        apart: Goal | None,
    ) -> None:
        self.program, self.c, self.order, self.cells = program, c, order, cells
        self.nodes, self.packets, self.apart = nodes, packets, apart
        self.rank_of = c.rank.tolist()
        self.block_of, self.count = c.block.tolist(), c.count.tolist()
        self.position = (np.arange(len(c.block)) - c.start[c.block]).tolist()
        self.steps = [Placed() for _ in self.count]
        self.match = _matches(c)
        nblocks = len(self.rank_of)
        if nblocks * nblocks * 2 > MAX_ENTRIES:
            raise InputError(f"program of {nblocks} threadblocks: too large for an execution plan")
        self.rows = list(np.zeros((nblocks, nblocks), dtype=np.int32))
        self.local = list(np.zeros((nblocks, nblocks), dtype=np.int32)) if packets else self.rows
        self.known = [1 << rank for rank in self.rank_of]  # ranks that are known to have started
        self.packet_slots = [0] * program.nranks
        self.slots: list[list[tuple[Span, Step]]] = [[] for _ in range(program.nranks)]
        self.written: dict[int, Step] = {}
        self.readers: dict[int, dict[int, Step]] = {}
        self.flights: dict[int, list[Step]] = {}  # sends on port channels that read a cell
        self.touched: set[int] = set()  # program cells that were written
        self.home: dict[int, Span] = {}  # where an out-of-place plan keeps a cell of an in-place program
        self.base = cells.base.tolist()
        self.sends: list[int] = c.sends.tolist()
        self.crossing = [nodes[u] != nodes[v] for u, v, _ in c.connections]
        self.names = [OPS[op] for op in c.op.tolist()]
        self.from_packets = unread(c, order, cells) if packets else {}
        self.stays = {receive for found in self.from_packets.values() for receive, _ in found}
        plain = plain_scratch(c, self.from_packets)
        self.scratch = [gpu.s_chunks if rank in plain else 0 for rank, gpu in enumerate(program.gpus)]
        self.parcels: dict[Step, Message] = {}  # what is known of those that stay in packets
        self.kept: dict[Step, tuple[Row, Row, int]] = {}

    def placed(self) -> Places:
        c = self.c
        reads, writes, both = (c.is_op(x).tolist() for x in (READS_SRC, WRITES_DST, READS_DST))
        dep, sends, receives = c.dep.tolist(), self.sends, c.receives.tolist()
        awaited = {d for d in dep if d >= 0}
        flying: list[deque[Message]] = [deque() for _ in c.connections]
        for step in self.order:
            block = self.block_of[step]
            row, local = self.rows[block], self.local[block]
            placed = self.steps[step]
            if dep[step] >= 0 and not self.packets:
                self._after(step, dep[step])
            message: Message | None = None
            if receives[step] >= 0:
                message = flying[receives[step]].popleft()
                message[1][self.block_of[message[0]]] = self.position[message[0]] + 1
                if step in self.stays:
                    self.parcels[step] = message
                else:
                    self._hear(block, message)
            for receive in dict.fromkeys(receive for receive, _ in self.from_packets.get(step, ())):
                self._hear(block, self.parcels[receive])
            if self.names[step] != "nop":
                self._place(step, reads[step], writes[step], both[step], message)
            if sends[step] >= 0:
                target = c.connections[sends[step]][1]
                if not self.packets and not self.known[block] >> target & 1:
                    placed.ready = True
                    self.known[block] |= 1 << target
                flying[sends[step]].append((step, row.copy(), self.known[block]))
            row[block] = local[block] = self.position[step] + 1
            if step in awaited:
                self.kept[step] = (row.copy(), local.copy(), self.known[block])
        return self._finished()

    def _hear(self, block: int, message: Message) -> None:
        np.maximum(self.rows[block], message[1], out=self.rows[block])
        self.known[block] |= message[2]

    def _place(self, step: Step, reads: bool, writes: bool, both: bool, message: Message | None) -> None:
        c, placed = self.c, self.steps[step]
        rank = self.rank_of[self.block_of[step]]
        source = range(self.cells.src[step], self.cells.src[step] + self.count[step])
        target = range(self.cells.dst[step], self.cells.dst[step] + self.count[step])
        if self.names[step] == "cpy" and source == target:
            placed.still = True
            return
        if step in self.stays:
            assert message is not None  # it receives
            self._arrive(step, rank, reads, message, [])
            placed.still = True
            return
        if step in self.from_packets:
            placed.src = self._packed(self.from_packets[step])
        elif reads:
            placed.src = self._spans(rank, BUFFERS[c.src[step]], int(c.src_at[step]), source, False)
        if both:
            placed.old = self._spans(rank, BUFFERS[c.dst[step]], int(c.dst_at[step]), target, False)
        if writes:
            placed.dst = self._spans(rank, BUFFERS[c.dst[step]], int(c.dst_at[step]), target, True)
        read = [span for span in (*placed.src, *placed.old) if span.kind != "p"]
        read_keys = [key for span in read for key in self.keys(rank, span)]
        write_keys = [key for span in placed.dst for key in self.keys(rank, span)]
        if message is not None:
            self._arrive(step, rank, reads, message, write_keys)
        for key in read_keys:
            if self.packets and key in self.written:
                self._known(step, self.written[key], self.local)
            self.readers.setdefault(key, {})[self.block_of[step]] = step
            if self.names[step] == "s" and self._in_flight(step):
                self.flights.setdefault(key, []).append(step)
        for key in write_keys:
            if self.packets:
                if key in self.written:
                    self._known(step, self.written[key], self.local)
                for reader in self.readers.get(key, {}).values():
                    self._known(step, reader, self.rows)
            for flight in self.flights.pop(key, ()):
                if not self._passed(self.rows[self.block_of[step]], self.match[flight]) and flight != step:
                    self._copied(flight)
            self.readers.pop(key, None)
            self.written[key] = step
            if self._in_flight(step):  # a fused step sends what it has just written
                self.flights.setdefault(key, []).append(step)
        if self.packets:
            self._packets(step, rank)

    def _packets(self, step: Step, rank: int) -> None:
        """What the operations on packets need besides: every sum is stored, and ports send from packets."""
        name, count, placed = self.names[step], self.count[step], self.steps[step]
        if name == "rrs":
            placed.temp = Span(0, "s", self._plain(rank, count), count)
        if name in ("s", "rrs", "rrcs") and self._crosses(step) and step not in self.from_packets:
            self.packet_slots[rank] += count
            placed.copy = Span(0, "p", self.packet_slots[rank] - count, count)

    def _crosses(self, step: Step) -> bool:
        """Whether it sends to another node."""
        connection = self.sends[step]
        return connection >= 0 and self.crossing[connection]

    def _in_flight(self, step: Step) -> bool:
        """Whether a port channel reads, on its own time, what this step sends."""
        return not self.packets and self._crosses(step)

    def _copied(self, send: Step) -> None:
        """The send's source is copied before it is sent; what it reads may change under a port channel."""
        if self.steps[send].copy is None:
            rank, count = self.rank_of[self.block_of[send]], self.count[send]
            self.steps[send].copy = Span(0, "s", self._plain(rank, count), count)

    def _plain(self, rank: int, count: int) -> int:
        self.scratch[rank] += count
        return self.scratch[rank] - count

    def _passed(self, row: Row, step: Step) -> bool:
        return bool(row[self.block_of[step]] > self.position[step])

    def _known(self, step: Step, other: Step, rows: list[Row]) -> None:
        """A semaphore orders what messages do not: their flags say nothing of what else was written."""
        block = self.block_of[step]
        if self.block_of[other] != block and not self._passed(rows[block], other):
            self._after(step, other)

    def _after(self, step: Step, other: Step) -> None:
        """The step waits for another one of its rank."""
        block = self.block_of[step]
        self.steps[step].deps.append(other)
        for rows in (self.rows, self.local):
            rows[block][self.block_of[other]] = max(
                rows[block][self.block_of[other]], self.position[other] + 1
            )
        if other in self.kept:
            row, local, known = self.kept[other]
            np.maximum(self.rows[block], row, out=self.rows[block])
            np.maximum(self.local[block], local, out=self.local[block])
            self.known[block] |= known

    def _packed(self, origins: list[Origin]) -> list[Span]:
        """The packets in which these chunks lie."""
        spans: list[Span] = []
        for offset, (receive, n) in enumerate(origins):
            slot = self.steps[receive].slot
            assert slot is not None  # it came in packets
            last = spans[-1] if spans else None
            if last is not None and last.first + last.size == slot.first + n:
                spans[-1] = last._replace(size=last.size + 1)
            else:
                spans.append(Span(offset, "p", slot.first + n, 1))
        return spans

    def _arrive(self, step: Step, rank: int, reduces: bool, message: Message, keys: list[int]) -> None:
        """Where what this step receives is put."""
        row = message[1]
        count, placed = self.count[step], self.steps[step]
        if self.packets:
            self.packet_slots[rank] += count
            placed.slot = Span(0, "p", self.packet_slots[rank] - count, count)
            return
        if not reduces and all(self._free(row, key) for key in keys):
            return
        slots = self.slots[rank]
        for n, (slot, user) in enumerate(slots[:_SCAN]):
            done = self.match[user] if self._in_flight(user) else user
            if slot.size == count and self._passed(row, done) and self._passed(row, user):
                slots.pop(n)
                break
        else:
            slot = Span(0, "s", self._plain(rank, count), count)
        slots.append((slot, step))
        placed.slot = slot

    def _free(self, row: Row, key: int) -> bool:
        """Whether all that used the cell is over for one who knows `row`."""
        last = self.written.get(key)
        return (
            (last is None or self._passed(row, last))
            and all(self._passed(row, reader) for reader in self.readers.get(key, {}).values())
            and all(self._passed(row, self.match[flight]) for flight in self.flights.get(key, ()))
        )

    def keys(self, rank: int, span: Span) -> Iterable[int]:
        """Numbers of the cells of a span of the plan."""
        if self.apart is None:
            first = self.base[rank][BUFFERS.index(span.kind)] + span.first
        else:
            first = (rank * 3 + BUFFERS.index(span.kind)) * _REACH + span.first
        return range(first, first + span.size)

    def _spans(self, rank: int, kind: str, at: int, cells: range, writes: bool) -> list[Span]:
        """Where the plan keeps these cells of the program."""
        if self.apart is None or kind == "s":
            return [Span(0, kind, at, len(cells))]
        spans: list[Span] = []
        for offset, cell in enumerate(cells):
            if writes:
                self.touched.add(cell)
            kind, index = self._where(rank, cell, writes or cell in self.touched)
            last = spans[-1] if spans else None
            if last is not None and last.kind == kind and last.first + last.size == index:
                spans[-1] = Span(last.offset, kind, last.first, last.size + 1)
            else:
                spans.append(Span(offset, kind, index, 1))
        return spans

    def _where(self, rank: int, cell: int, written: bool) -> tuple[str, int]:
        """An in-place cell's own input, or once it is written its output, or scratch where it has none."""
        assert self.apart is not None
        base, p = self.base[rank], self.program
        sizes = buffer_sizes(p.collective, p.nranks, p.nchunks_per_loop, rank, p.root)
        at = cell - base[0]
        if not written and 0 <= at < sizes[0]:
            return "i", at
        at = cell - base[1]
        if 0 <= at < sizes[1]:
            return "o", at
        if cell not in self.home:
            self.home[cell] = Span(0, "s", self._plain(rank, 1), 1)
        return "s", self.home[cell].first

    def _finished(self) -> Places:
        copies: list[tuple[int, Span, Span]] = []
        if self.apart is not None:
            ranks, codes, index, _ = (column.tolist() for column in self.apart.required)
            for rank, code, at in zip(ranks, codes, index, strict=True):
                cell = self.base[rank][code] + at
                if cell not in self.touched:
                    (kind, source), (into, target) = (
                        self._where(rank, cell, False),
                        self._where(rank, cell, True),
                    )
                    last = copies[-1] if copies else None
                    if (
                        last is not None
                        and (last[0], last[1].kind, last[2].kind) == (rank, kind, into)
                        and (last[1].first + last[1].size, last[2].first + last[2].size) == (source, target)
                    ):
                        n = last[1].size + 1
                        copies[-1] = (rank, Span(0, kind, last[1].first, n), Span(0, into, last[2].first, n))
                    else:
                        copies.append((rank, Span(0, kind, source, 1), Span(0, into, target, 1)))
        ends: dict[int, Row] = {}
        known: dict[int, int] = defaultdict(int)
        for block, rank in enumerate(self.rank_of):
            ends[rank] = np.maximum(ends[rank], self.rows[block]) if rank in ends else self.rows[block].copy()
            known[rank] |= self.known[block]
        late: set[Step] = set()
        unanswered: set[Step] = set()
        asked: set[tuple[int, int]] = set()
        for step, connection in enumerate(self.sends):
            if connection < 0:
                continue
            u, v, _ = self.c.connections[connection]
            if self.packets and not known[u] >> v & 1 and (u, v) not in asked:
                asked.add((u, v))
                late.add(step)
            if self._in_flight(step) and not self._passed(ends[u], self.match[step]):
                unanswered.add(step)
        return Places(
            self.steps, self.match, copies, late, unanswered, self.scratch, self.packet_slots, self.keys
        )


def _matches(c: Columns) -> dict[Step, Step]:
    """Of every send the receive that takes it."""
    out, into = (np.flatnonzero(uses >= 0) for uses in (c.sends, c.receives))
    out = out[np.argsort(c.sends[out], kind="stable")]
    into = into[np.argsort(c.receives[into], kind="stable")]
    return dict(zip(out.tolist(), into.tolist(), strict=True))
