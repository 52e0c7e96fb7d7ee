"""Decide where a plan keeps the data of a program: which messages go straight to their destination, which into scratch.

A program's message waits in a FIFO until it is received, whereas a plan's put writes into the receiver's memory at
once. So a message goes straight to its destination only if the program's own order says that the receiver no longer
needs the content there before the sender sends; if not, it goes into its own scratch, and is copied from there. No wait
is added, so a program without deadlock becomes a plan without deadlock.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence, Set
from math import isqrt
from typing import NamedTuple

import numpy as np

from emit.check.capacity import CAPACITY
from emit.check.cells import Cells
from emit.check.clocks import Row, VectorClocks, image_of_row
from emit.columns import Columns
from emit.goal import Goal, sizes_of
from emit.images import block_of_buffer, images_of
from emit.mscclpp.building.spans import (
    Origin,
    Span,
    SpanPlacement,
    Step,
    StepPlacement,
    add_span,
    follows,
    packet_readers,
    plain_scratch_ranks,
)  # fmt: skip
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST, Program
from synth.model.deadline import check_deadline, checking_deadline
from topologies.errors import InputError

_REACH = 1 << 40  # more than any buffer has chunks
_STORED_ROWS = 4096  # rows that are stored before unnecessary ones are removed
_SCAN = 16  # slots that are examined for a free one


class _PlacedMessage(NamedTuple):
    """The knowledge that a message gives its receiver.

    Attributes:
        send: Step that sends it.
        known_over: Positions in threadblocks up to which steps are over.
    """

    send: Step
    known_over: Row


class Placer:
    """The placement of every step's data, built by following one order of execution."""

    def __init__(  # Longer than 60 lines because every step of the placement shares this state.
        self,
        program: Program,
        c: Columns,
        order: list[Step],
        cells: Cells,
        nodes: list[int],
        *,
        packets: bool,
        separate: Goal | None = None,
    ) -> None:
        """Set up the placement for one order of execution.

        Args:
            program: A program that passed its check.
            c: Its columns.
            order: An order of execution that takes each step once.
            cells: Its cells.
            nodes: Node of each rank.
            packets: Whether messages are packets.
            separate: The program's own (in-place) goal if the plan is to be out of place: then it reads input where it
                lies, and writes results to the output. None for a plan of the same form as the program.

        Raises:
            InputError: The program has more threadblocks than can be followed.
        """
        check_deadline()
        self.program, self.c, self.order, self.cells = program, c, order, cells
        self.packets, self.separate = packets, separate
        self.rank_of = c.rank.tolist()
        self.block_of, self.count = c.block.tolist(), c.count.tolist()
        self.position = (np.arange(len(c.block)) - c.start[c.block]).tolist()
        self.steps = [StepPlacement() for _ in self.count]
        self.match = dict(zip(*(steps.tolist() for steps in c.messages()), strict=True))
        nblocks = len(self.rank_of)
        # With translations, a row has entries for all images of each threadblock, as its rank sees them.
        images = images_of(program.translations, program.nranks) if program.translations else None
        # Copies cross no multiple of it, unless it is 0.
        self.group = block_of_buffer(program, program.nchunks_per_loop)
        self.images, self.order_of_group = images, 1 if images is None else images.order
        elements = [0 if images is None else int(images.element[target]) for _, target, _ in c.connections]
        self.seen = [
            None if images is None else images.composed(images.inverse(element)) for element in elements
        ]  # images as the receiver on each connection sees them
        self.sender_entry = [0 if images is None else images.inverse(element) for element in elements]
        self.receiver_entry = elements
        max_blocks = isqrt(CAPACITY.clock_entries // self.order_of_group)
        if nblocks > max_blocks:
            raise InputError(
                f"program of {nblocks} threadblocks; it must be at most {max_blocks} to be followed as a plan"
            )
        width = nblocks * self.order_of_group
        self.clocks = VectorClocks(width)  # positions in threadblocks that are over, counted from 1
        self.local = VectorClocks(width) if packets else self.clocks  # the same without the knowledge from packets
        self.packet_slots = [0] * program.nranks
        self.slots: list[list[tuple[Span, Step, int]]] = [[] for _ in range(program.nranks)]  # with the data's block
        self.written: dict[int, Step] = {}
        self.readers: dict[int, dict[int, Step]] = {}
        self.flights: dict[int, list[Step]] = {}  # sends on port channels that read a cell
        self.touched: set[int] = set()  # program cells that were written
        self.home: dict[int, Span] = {}  # where an out-of-place plan keeps a cell of an in-place program
        self.base = cells.base.tolist()
        self.sends: list[int] = c.sends.tolist()
        crossing = [nodes[u] != nodes[v] for u, v, _ in c.connections]
        self.crosses = [connection >= 0 and crossing[connection] for connection in self.sends]  # sends to another node
        # A port channel reads the data of such a step asynchronously.
        self.by_port = [crosses and not packets for crosses in self.crosses]
        self.names = [OPS[op] for op in c.op.tolist()]
        self.source_buffer, self.target_buffer = ([BUFFERS[code] for code in x.tolist()] for x in (c.src, c.dst))
        self.source_at, self.target_at = c.src_at.tolist(), c.dst_at.tolist()
        self.from_packets = packet_readers(c, order, cells) if packets else {}
        self.stays = {receive for origins in self.from_packets.values() for receive, _ in origins}
        plain_ranks = plain_scratch_ranks(c, self.from_packets)
        self.scratch = [gpu.s_chunks if rank in plain_ranks else 0 for rank, gpu in enumerate(program.gpus)]
        self.in_packets: dict[Step, _PlacedMessage] = {}  # messages that stay in packets, by their receive
        # The knowledge at the end of awaited steps, as long as a step may wait for them: a row has all threadblocks.
        self.knowledge_after: dict[Step, tuple[Row, Row]] = {}
        self._max_stored = _STORED_ROWS
        self._moved_ranks: dict[tuple[int, int], int] = {}

    def placement(self) -> SpanPlacement:
        """Return the placement, by following the program's order of execution to its end; it is to be called once."""
        c = self.c
        dep, sends, receives = c.dep.tolist(), self.sends, c.receives.tolist()
        awaited = Counter(d for d in dep if d >= 0)
        unread = Counter(receive for origins in self.from_packets.values() for receive in dict(origins))
        in_flight: list[deque[_PlacedMessage]] = [deque() for _ in c.connections]
        for step in checking_deadline(self.order, every=256):
            block = self.block_of[step]
            row, local = self.clocks.row(block), self.local.row(block)
            if dep[step] >= 0 and not self.packets:
                self._add_wait(step, dep[step])
                awaited[dep[step]] -= 1
                if not awaited[dep[step]]:
                    del self.knowledge_after[dep[step]]
            message: _PlacedMessage | None = None
            if receives[step] >= 0:
                message = in_flight[receives[step]].popleft()
                entry = self.block_of[message.send] * self.order_of_group + self.sender_entry[receives[step]]
                message.known_over[entry] = self.position[message.send] + 1
                if step in self.stays:
                    self.in_packets[step] = message
                else:
                    self._hear(block, message)
            for receive in dict.fromkeys(receive for receive, _ in self.from_packets.get(step, ())):
                self._hear(block, self.in_packets[receive])
                unread[receive] -= 1
                if not unread[receive]:
                    del self.in_packets[receive]
            if self.names[step] != "nop":
                self._place(step, message)
            if sends[step] >= 0:
                in_flight[sends[step]].append(_PlacedMessage(step, image_of_row(row, self.seen[sends[step]])))
            row[block * self.order_of_group] = local[block * self.order_of_group] = self.position[step] + 1
            if step in awaited:
                known_row = row.copy()
                self.knowledge_after[step] = known_row, local.copy() if local is not row else known_row
                if self.packets and len(self.knowledge_after) > self._max_stored:
                    self._forget()
        return self._finished()

    def _seen_ranks(self, ranks: int, connection: int) -> int:
        """Return a set of ranks, as bits, as the receiver on a connection sees them; without images, the set itself."""
        if self.images is None:
            return ranks
        key = ranks, self.sender_entry[connection]
        if key not in self._moved_ranks:
            moved = self.images.moved(key[1]).tolist()
            self._moved_ranks[key] = sum(1 << moved[rank] for rank in range(len(moved)) if ranks >> rank & 1)
        return self._moved_ranks[key]

    def _forget(self) -> None:
        """Keep the knowledge at the end of only those steps that a later step may still have to wait for."""
        needed_steps = {*self.written.values(), *(step for steps in self.readers.values() for step in steps.values())}
        self.knowledge_after = {
            step: knowledge for step, knowledge in self.knowledge_after.items() if step in needed_steps
        }
        self._max_stored = max(_STORED_ROWS, 2 * len(self.knowledge_after))

    def _hear(self, block: int, message: _PlacedMessage) -> None:
        """Add a message's knowledge to that of a threadblock."""
        self.clocks.learn(block, message.known_over)

    def _place(self, step: Step, message: _PlacedMessage | None) -> None:
        """Decide where a step reads and writes, and which waits and copies that needs, in the step's placement.

        A step that moves nothing is marked as idle; if it receives, its message still gets a place. An earlier send
        through a port channel whose source this step overwrites may get a copy.

        Args:
            step: The step, no nop.
            message: The message that it receives; None if it does not receive.
        """
        placed, name = self.steps[step], self.names[step]
        reads = name in READS_SRC
        rank = self.rank_of[self.block_of[step]]
        source = range(self.cells.src[step], self.cells.src[step] + self.count[step])
        target = range(self.cells.dst[step], self.cells.dst[step] + self.count[step])
        if step in self.stays:
            assert message is not None  # The step receives.
            self._arrive(step, rank, reads, message, [])
        placed.idle = step in self.stays or (name == "cpy" and source == target)
        if placed.idle:
            return
        if step in self.from_packets:
            placed.src = self._packed(self.from_packets[step])
        elif reads:
            placed.src = self._spans(rank, self.source_buffer[step], self.source_at[step], source, False)
        if name in READS_DST:
            placed.old = self._spans(rank, self.target_buffer[step], self.target_at[step], target, False)
        if name in WRITES_DST:
            placed.dst = self._spans(rank, self.target_buffer[step], self.target_at[step], target, True)
        read = [span for span in (*placed.src, *placed.old) if span.kind != "p"]
        read_keys = [key for span in read for key in self.keys(rank, span)]
        write_keys = [key for span in placed.dst for key in self.keys(rank, span)]
        if message is not None:
            self._arrive(step, rank, reads, message, write_keys)
        self._access(step, read_keys, write_keys)
        if self.packets:
            self._add_packet_scratch(step, rank)

    def _access(self, step: Step, read_keys: Sequence[int], write_keys: Sequence[int]) -> None:
        """Record what a step reads and writes, and add the waits and copies that earlier accesses of the cells need.

        Args:
            step: The step.
            read_keys: Keys of the cells that it reads (see `keys`).
            write_keys: Keys of the cells that it writes.
        """
        for key in read_keys:
            if self.packets and key in self.written:
                self._order(step, self.written[key], self.local)
            self.readers.setdefault(key, {})[self.block_of[step]] = step
            if self.names[step] == "s" and self.by_port[step]:
                self.flights.setdefault(key, []).append(step)
        for key in write_keys:
            if self.packets:
                if key in self.written:
                    self._order(step, self.written[key], self.local)
                for reader in self.readers.get(key, {}).values():
                    self._order(step, reader, self.clocks)
            for flight in self.flights.pop(key, ()) if self.flights else ():
                if not self._arrived(self.clocks.row(self.block_of[step]), flight) and flight != step:
                    self._mark_copied(flight)
            self.readers.pop(key, None)
            self.written[key] = step
            if self.by_port[step]:  # A fused step sends the data that it has just written.
                self.flights.setdefault(key, []).append(step)

    def _add_packet_scratch(self, step: Step, rank: int) -> None:
        """Give a step new scratch that packet operations need: every sum is stored, and ports send from packets."""
        name, count, placed = self.names[step], self.count[step], self.steps[step]
        if name == "rrs":
            placed.temp = self._scratch("s", rank, count)
        if name in ("s", "rrs", "rrcs") and self.crosses[step] and step not in self.from_packets:
            placed.copy = self._scratch("p", rank, count)

    def _mark_copied(self, send: Step) -> None:
        """Mark that a send copies its source first, because the source may change while a port channel reads it.

        The copy gets new scratch, unless the send has it already.
        """
        if self.steps[send].copy is None:
            self.steps[send].copy = self._scratch("s", self.rank_of[self.block_of[send]], self.count[send])

    def _scratch(self, kind: str, rank: int, count: int) -> Span:
        """Return `count` chunks of new scratch of a rank: plain (kind "s") or for packets (kind "p")."""
        used = self.packet_slots if kind == "p" else self.scratch
        used[rank] += count
        return Span(0, kind, used[rank] - count, count)

    def _passed(self, row: Row, step: Step) -> bool:
        """Return True if a step is over according to the knowledge `row`."""
        return bool(row[self.block_of[step] * self.order_of_group] > self.position[step])

    def _arrived(self, row: Row, send: Step) -> bool:
        """Return True if the receive of a send is over according to the knowledge `row` of the sender's rank."""
        receive = self.match[send]
        entry = self.block_of[receive] * self.order_of_group + self.receiver_entry[self.sends[send]]
        return bool(row[entry] > self.position[receive])

    def _order(self, step: Step, earlier: Step, clocks: VectorClocks) -> None:
        """Add a wait for an earlier step of the rank, unless that is known to be over.

        It is known if the same threadblock has both steps, or if `clocks` say so. Messages do not order these steps:
        flags of packets tell nothing about other writes.
        """
        block = self.block_of[step]
        if self.block_of[earlier] != block and not self._passed(clocks.row(block), earlier):
            self._add_wait(step, earlier)

    def _add_wait(self, step: Step, earlier: Step) -> None:
        """Add a wait of a step for an earlier step of its rank, and the knowledge that it brings."""
        block, entry = self.block_of[step], self.block_of[earlier] * self.order_of_group
        self.steps[step].deps.append(earlier)
        known_row, local_row = self.knowledge_after.get(earlier, (None, None))
        for clocks, learned in ((self.clocks, known_row), (self.local, local_row)):
            row = clocks.row(block)
            row[entry] = max(row[entry], self.position[earlier] + 1)
            if learned is not None:
                clocks.learn(block, learned)
            if self.local is self.clocks:
                break

    def _packed(self, origins: list[Origin]) -> list[Span]:
        """Return the packets that hold the chunks of these origins, in order, neighbours merged."""
        spans: list[Span] = []
        for offset, (receive, n) in enumerate(origins):
            slot = self.steps[receive].slot
            assert slot is not None  # The receive stays in packets.
            add_span(spans, Span(offset, "p", slot.first + n, 1))
        return spans

    def _arrive(self, step: Step, rank: int, reduces: bool, message: _PlacedMessage, keys: list[int]) -> None:
        """Decide where the data that this step receives is put.

        With packets it is new scratch; without, it is the destination, if that is free, or else free or new scratch. In
        scratch, the step's placement has it as `slot`.

        Args:
            step: The step that receives.
            rank: Its rank.
            reduces: Whether it reads a source too, so that the data cannot go to the destination.
            message: The message, whose sender must know that the place is free.
            keys: Cells of the destination.
        """
        row = message.known_over
        count, placed = self.count[step], self.steps[step]
        if self.packets:
            placed.slot = self._scratch("p", rank, count)
            return
        if not reduces and all(self._free(row, key) for key in keys):
            return
        slots, block = self.slots[rank], self._block_of_data(step)
        for n, (slot, user, last_block) in enumerate(slots[:_SCAN]):
            is_used_up = self._arrived(row, user) if self.by_port[user] else True
            if slot.size == count and last_block == block and is_used_up and self._passed(row, user):
                slots.pop(n)
                break
        else:
            slot = self._scratch("s", rank, count)
        slots.append((slot, step, block))
        placed.slot = slot

    def _block_of_data(self, step: Step) -> int:
        """Return the block of chunks that a step writes if chunks of blocks are unlike in the file, else −1.

        It is −1 too if the step writes to the program's scratch.
        """
        if not self.program.widths or self.target_buffer[step] == "s":
            return -1
        return int(self.target_at[step]) // self.group

    def _free(self, row: Row, key: int) -> bool:
        """Return True if all uses of a cell are over according to the knowledge `row`."""
        last = self.written.get(key)
        return (
            (last is None or self._passed(row, last))
            and all(self._passed(row, reader) for reader in self.readers.get(key, {}).values())
            and all(self._arrived(row, flight) for flight in self.flights.get(key, ()))
        )

    def keys(self, rank: int, span: Span) -> Iterable[int]:
        """Return the numbers of the cells of a rank's span of the plan (not of packets); equal numbers are one cell."""
        if self.separate is None:
            first = self.base[rank][BUFFERS.index(span.kind)] + span.first
        else:
            first = (rank * 3 + BUFFERS.index(span.kind)) * _REACH + span.first
        return range(first, first + span.size)

    def _spans(self, rank: int, kind: str, at: int, cells: range, writes: bool) -> list[Span]:
        """Return the spans in which the plan keeps these cells of the program.

        If an in-place program becomes an out-of-place plan, each written cell counts as touched from now on, and a
        place of its own is chosen for each cell.

        Args:
            rank: Rank of the cells.
            kind: Buffer of the program: i, o or s.
            at: First chunk in that buffer.
            cells: The cells.
            writes: Whether the step writes them.
        """
        if self.separate is None or kind == "s":
            return [Span(0, kind, at, len(cells))]
        spans: list[Span] = []
        for offset, cell in enumerate(cells):
            if writes:
                self.touched.add(cell)
            kind, index = self._where(rank, cell, writes or cell in self.touched)
            add_span(spans, Span(offset, kind, index, 1))
        return spans

    def _where(self, rank: int, cell: int, written: bool) -> tuple[str, int]:
        """Return the buffer (i, o or s) and the chunk where an out-of-place plan keeps an in-place cell.

        It is in the input until it is written, then in the output, or in scratch of its own, which is taken at the
        first need, if the output does not have it. `written` is whether the cell has been written.
        """
        assert self.separate is not None
        base, sizes = self.base[rank], sizes_of(self.program, rank)
        index = cell - base[0]
        if not written and 0 <= index < sizes[0]:
            return "i", index
        index = cell - base[1]
        if 0 <= index < sizes[1]:
            return "o", index
        if cell not in self.home:
            self.home[cell] = self._scratch("s", rank, 1)
        return "s", self.home[cell].first

    def _copies(self) -> list[tuple[int, Span, Span]]:
        """Return the initial copies (rank, from, to) of an out-of-place plan of an in-place program.

        Other plans have none. The copies move the results that the program never writes. Neighbouring chunks are one
        copy, unless an image would part them.
        """
        if self.separate is None:
            return []
        copies: list[tuple[int, Span, Span]] = []
        for rank, code, at in zip(*(column.tolist() for column in self.separate.required[:3]), strict=True):
            cell = self.base[rank][code] + at
            if cell in self.touched:
                continue
            source, target = (Span(0, *self._where(rank, cell, writes), 1) for writes in (False, True))
            last = copies[-1] if copies else None
            if (
                last is not None
                and last[0] == rank
                and follows(last[1], source)
                and follows(last[2], target)
                and not (self.group and at % self.group == 0)
            ):
                n = last[1].size + 1
                copies[-1] = (rank, last[1]._replace(size=n), last[2]._replace(size=n))
            else:
                copies.append((rank, source, target))
        return copies

    def _starts(self, early: Set[Step]) -> tuple[set[Step], bool]:
        """Follow the order of execution once more, for what threadblocks know of the start of other ranks' calls.

        Args:
            early: Sends that do not wait until the receiver's call has started; for packets none does.

        Returns:
            The sends that wait for a signal of that, and whether some rank ends without having heard that all others
            have started.
        """
        c, nranks = self.c, self.program.nranks
        receives, sent_by = c.receives.tolist(), {receive: send for send, receive in self.match.items()}
        awaited = set(c.dep.tolist())
        known = [1 << rank for rank in self.rank_of]  # Ranks that each threadblock knows to have started, as bits.
        known_after: dict[Step, int] = {}
        told_by: dict[Step, int] = {}  # What the message of each send tells its receiver.
        waiting: set[Step] = set()
        for step in checking_deadline(self.order, every=256):
            block = self.block_of[step]
            heard = [receive for receive, _ in self.from_packets.get(step, ())]
            if receives[step] >= 0 and step not in self.stays:
                heard.append(step)
            for ranks in (
                *(known_after.get(earlier, 0) for earlier in self.steps[step].deps),
                *(told_by[sent_by[receive]] for receive in heard),
            ):
                known[block] |= ranks
            if (connection := self.sends[step]) >= 0:
                target = 1 << c.connections[connection][1]
                if not (self.packets or known[block] & target or step in early):
                    waiting.add(step)
                    known[block] |= target
                told_by[step] = self._seen_ranks(known[block], connection)
            if step in awaited:
                known_after[step] = known[block]
        known_at_end: dict[int, int] = defaultdict(int)
        for block, rank in enumerate(self.rank_of):
            known_at_end[rank] |= known[block]
        everybody = (1 << nranks) - 1
        return waiting, any(known_at_end[rank] != everybody for rank in set(self._owners()))

    def _waits_for_starts(self, ends: VectorClocks) -> tuple[set[Step], bool]:
        """Return what `_starts` does, with as few sends that wait as possible; `ends` is the result of `_ends`.

        A send into scratch does not wait if its rank knows at the end of every call that the receiver's scratch is used
        up. It may then be written before the receiver's next call begins, whatever the sizes of the two calls.
        """
        waiting, is_unaware = self._starts(set())
        early = waiting and self._early_sends(ends)
        if not early:
            return waiting, is_unaware
        waiting_without_early, is_then_unaware = self._starts(early)
        # What the signals tell may be what makes all ranks hear of each other.
        return (waiting, is_unaware) if is_then_unaware and not is_unaware else (waiting_without_early, is_then_unaware)

    def _owners(self) -> list[int]:
        """Return the rank of whose steps those of each rank are images."""
        nranks = self.program.nranks
        return list(range(nranks)) if self.images is None else self.images.representative.tolist()

    def _early_sends(self, ends: VectorClocks) -> set[Step]:
        """Return the sends into scratch whose ranks know, when a call ends, that the receiver's scratch is used up.

        `ends` is the result of `_ends`.
        """
        last_uses = self._last_scratch_uses()
        is_used_up: dict[int, bool] = {}  # by connection
        early: set[Step] = set()
        for send, receive in self.match.items():
            connection, placed = self.sends[send], self.steps[receive]
            if any(span.kind != "s" for span in ([placed.slot] if placed.slot is not None else placed.dst)):
                continue
            if connection not in is_used_up:
                row, element = ends.row(self.c.connections[connection][0]), self.receiver_entry[connection]
                uses = last_uses[self.rank_of[self.block_of[receive]]]
                is_used_up[connection] = all(
                    row[block * self.order_of_group + self._product(element, image)] > position
                    for (block, image), position in uses.items()
                )
            if is_used_up[connection]:
                early.add(send)
        return early

    def _last_scratch_uses(self) -> list[dict[tuple[int, int], int]]:
        """Return for each rank the last steps that use its scratch, or that tell that a port channel no longer does.

        A port channel has read what it sends once that is received. The result has a position for each (threadblock,
        image), as `receiver_entry` counts images.
        """
        uses: list[dict[tuple[int, int], int]] = [{} for _ in range(self.program.nranks)]
        for step, placed in checking_deadline(enumerate(self.steps), every=256):
            block = self.block_of[step]
            slot = [placed.slot] if placed.slot is not None else []
            if not _touch_scratch(placed.src, placed.old, placed.dst, slot, placed.copy):
                continue
            steps = [(step, 0)]
            if self.by_port[step]:
                steps.append((self.match[step], self.receiver_entry[self.sends[step]]))
            positions = uses[self.rank_of[block]]
            for user, image in steps:
                key = self.block_of[user], image
                positions[key] = max(positions.get(key, 0), self.position[user])
        return uses

    def _product(self, element: int, image: int) -> int:
        """Return the number of the image of an image, both as numbers of `receiver_entry`."""
        if not (element and image):  # The identity is 0; without images there is no other.
            return element or image
        assert self.images is not None
        return int(self.images.composed(element)[image])

    def _ends(self) -> VectorClocks:
        """Return what each rank knows when its call ends, as rows of steps that are over."""
        ends = VectorClocks(self.clocks.width)
        for block, rank in checking_deadline(enumerate(self.rank_of), every=16):
            ends.learn(rank, self.clocks.row(block))
        return ends

    def _finished(self) -> SpanPlacement:
        """Return the placement after the last step."""
        ends, owners = self._ends(), self._owners()
        waiting, some_rank_is_unaware = self._waits_for_starts(ends)
        for send in waiting:
            self.steps[send].awaits_start = True
        unconfirmed: set[Step] = set()
        for step, connection in enumerate(self.sends):
            if self.by_port[step] and not self._arrived(ends.row(self.c.connections[connection][0]), step):
                unconfirmed.add(step)
        return SpanPlacement(
            self.steps,
            self.match,
            self._copies(),
            some_rank_is_unaware,
            unconfirmed,
            [self.scratch[rank] for rank in owners],
            [self.packet_slots[rank] for rank in owners],
            self.keys,
        )


def _touch_scratch(*spans: list[Span] | Span | None) -> bool:
    """Return whether any of some spans, or of some lists of spans, is in plain scratch."""
    lists = ([part] if isinstance(part, Span) else part or [] for part in spans)
    return any(span.kind == "s" for list_of_spans in lists for span in list_of_spans)
