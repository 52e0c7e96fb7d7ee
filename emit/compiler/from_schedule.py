"""Turn the sends of a schedule into instructions: the memory cells of each rank, and the messages between ranks.

Sends that leave in one message are one instruction at each end. Their chunks lie next to each other: they are put so
where they arrive, or are copied before they leave.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from emit.compiler.ir import BUFFER, NONE, SCRATCH, Instructions
from emit.images import images_of
from synth.model.collective import Floats, Ints
from synth.model.common_chunk import CommonChunk
from synth.model.deadline import checking_deadline
from synth.model.problem import Problem
from synth.model.registry import BUFFER as BUFFER_UNIT
from synth.model.registry import PAIR
from synth.model.schedule import Schedule
from synth.symmetry.invariance import image_of_chunks
from topologies.symmetry.translations import Translations, digits, translate_links


class RankCells:
    """The memory cells of one rank's chunks during the lowering.

    Attributes:
        rank: The rank.
        count: Number of cells of each chunk.
        home: First cell of each chunk's present content, by chunk.
        goal: First cell of each chunk's result, by chunk.
        sizes: Cells of the input and the output buffer.
        works_in_input: Whether chunks that are relayed or summed stay in the in-place buffer.
        goal_is_input: Whether results replace the input in place while sums of other ranks still need the input.
        scratch: First scratch cell of each chunk that the rank only relays, by chunk.
    """

    def __init__(self, common: CommonChunk, rank: int, inplace: bool) -> None:
        self.rank, self.count, collective = rank, common.count, common.cells
        first = common.first.tolist()
        pre = collective.pre[:, 0] == rank
        post = collective.post[:, 0] == rank
        cells = dict(zip(collective.pre[pre, 1].tolist(), collective.in_index[pre].tolist(), strict=True))
        input_of_chunk = {c: cells[cell] for c, cell in enumerate(first) if cell in cells}
        input_cells = max(cells.values(), default=-1) + 1
        cells = dict(zip(collective.post[post, 1].tolist(), collective.out_index[post].tolist(), strict=True))
        output_of_chunk = {c: cells[cell] for c, cell in enumerate(first) if cell in cells}
        output_cells = max(cells.values(), default=-1) + 1
        self.home: dict[int, int] = {}
        self.goal: dict[int, int] = {}
        if inplace:
            # In place, a chunk has one cell only, in the buffer that holds all blocks.
            side = BUFFER if collective.kind.whole == "o" else 0
            shared = collective.is_one_shot  # All sums begin with the content of the same cell.
            self.home = dict(input_of_chunk) if shared else {c: side + first[c] for c in input_of_chunk}
            self.goal = dict(output_of_chunk) if shared else {c: side + first[c] for c in output_of_chunk}
            count = collective.chunks if shared else collective.nchunks
            self.sizes = (0, count) if side else (count, 0)
        else:
            self.home = dict(input_of_chunk)
            self.goal = {c: BUFFER + at for c, at in output_of_chunk.items()}
            self.sizes = (input_cells, output_cells)
            kind = collective.kind
            if kind.unit in (BUFFER_UNIT, PAIR) and not kind.in_shares:
                # Readers give every rank both buffers for these collectives.
                full_size = collective.nchunks if kind.rooted else max(self.sizes)
                self.sizes = (full_size, full_size)
        # In a rooted collective, a rank other than the root has no output, and keeps its input.
        self.works_in_input = inplace and not collective.kind.rooted and not collective.is_one_shot
        self.goal_is_input = inplace and collective.is_one_shot
        self.scratch: dict[int, int] = {}
        self._adjacent: dict[tuple[tuple[int, ...], int], list[int]] = {}
        self._next_scratch = SCRATCH

    def place(self, leaves: Mapping[int, int], messages: Sequence[tuple[int, ...]]) -> None:
        """Assign scratch cells (in `scratch`) to every chunk of `leaves` that the rank only relays.

        Chunks that leave in one message are adjacent, in its order. Of the others, those that go to the same rank are
        adjacent, in the order of chunks, so that they can go as one message. A chunk that has scratch cells keeps them.

        Args:
            leaves: The rank to which each chunk is first sent on, by chunk.
            messages: Chunks of each message of two or more chunks that the rank sends.
        """
        relayed = {
            c
            for c in leaves
            if (self.goal_is_input or c not in self.goal) and not (self.works_in_input and c in self.home)
        }
        for chunks in messages:
            if any(c in relayed and c not in self.scratch for c in chunks):
                for c, at in zip(chunks, self.side_by_side(chunks), strict=True):
                    if c in relayed:
                        self.scratch.setdefault(c, at)
        for c in sorted(relayed - self.scratch.keys(), key=lambda c: (leaves[c], c)):
            self.scratch[c] = self._reserve(int(self.count[c]))

    def side_by_side(self, chunks: tuple[int, ...], message: int = NONE) -> list[int]:
        """Return the first scratch cell of each of these chunks in a place where they are adjacent, in this order.

        The place is reserved at the first call. It is always the same place for the same chunks, and a place of its own
        for a message that is given.
        """
        if (chunks, message) not in self._adjacent:
            sizes = [int(self.count[c]) for c in chunks]
            first = self._reserve(sum(sizes))
            self._adjacent[chunks, message] = [first + before for before in accumulate(sizes[:-1], initial=0)]
        return self._adjacent[chunks, message]

    def _reserve(self, cells: int) -> int:
        """Reserve so many scratch cells after all earlier ones, and return the first of them."""
        self._next_scratch += cells
        return self._next_scratch - cells

    def target(self, chunk: int) -> int:
        """Return the first cell in which an arriving chunk is put: its final cell, its in-place cell, or scratch.

        Its scratch cells must have been assigned by `place`.
        """
        if chunk in self.goal and not self.goal_is_input:
            return self.goal[chunk]
        home = self.home.get(chunk)
        if home is not None and (self.works_in_input or home >= SCRATCH):
            return home
        return self.scratch[chunk]


class RankSends:
    """The sends of a schedule that leave or reach the ranks for which instructions are built.

    All columns have one entry for each send. Without translations these are all sends and all ranks.

    Attributes:
        translations: Translations that keep the schedule.
        ranks: The ranks for which instructions are built.
        representative: The rank of `ranks` whose image each rank is, int, shape (nranks,).
        schedule: The sends.
        src: Rank that each send leaves.
        dst: Rank that each send reaches.
        leaves: Whether each send leaves one of `ranks`.
        arrives: Whether each send reaches one of `ranks`.
        message: The send that leaves one of `ranks` and whose image each send is.
        arrival_us: Time at which the chunk can be used at the other end, in µs.
        rows_of_message: All sends of the message of each send, in one order at both ends.
    """

    def __init__(self, problem: Problem, schedule: Schedule, translations: Translations) -> None:
        """Choose the sends; without translations all of them."""
        net = problem.network
        self.translations = translations
        every = np.arange(net.nranks)
        images = images_of(translations, net.nranks) if translations else None
        self.representative: Ints = every if images is None else images.representative
        self.ranks: list[int] = np.unique(self.representative).tolist()
        is_own = self.representative == every
        rows = np.flatnonzero(is_own[net.src[schedule.link]] | is_own[net.dst[schedule.link]])
        self.schedule = schedule = schedule.take(rows)
        self.src, self.dst = net.src[schedule.link], net.dst[schedule.link]
        self.leaves, self.arrives = is_own[self.src], is_own[self.dst]
        self.message: Ints = np.arange(len(schedule))
        if images is not None:
            back = [-digit for digit in digits(translations, self.src)]
            chunk = image_of_chunks(problem, translations, schedule.chunk, back)
            link = translate_links(net, translations, schedule.link, back)
            own = np.flatnonzero(self.leaves)
            at = schedule.step * problem.collective.nchunks  # A chunk may cross a link again in a later step.
            key = (at[own] + schedule.chunk[own]) * net.nlinks + schedule.link[own]
            order = np.argsort(key, kind="stable")
            self.message = own[order[np.searchsorted(key[order], (at + chunk) * net.nlinks + link)]]
        # An image has the times of its representative, apart from rounding.
        self.arrival_us: Floats = (schedule.end_us + net.alpha_us[schedule.link])[self.message]
        self.rows_of_message: list[list[int]] = [[row] for row in range(len(schedule))]
        if len(schedule.joined):
            order = np.lexsort((schedule.chunk[self.message], schedule.message))
            for message in np.split(order, np.flatnonzero(np.diff(schedule.message[order])) + 1):
                rows = message.tolist()
                for row in rows:
                    self.rows_of_message[row] = rows


def add_sends(
    ir: Instructions, sends: RankSends, ranks: Mapping[int, RankCells], count: list[int]
) -> tuple[list[float], list[int]]:
    """Add the instructions of a schedule step by step, and then the copies of results to their final cells.

    Args:
        ir: Instructions, to which the new ones are added.
        sends: The sends of the schedule.
        ranks: Memory cells of each rank for which instructions are built; their `home` and `scratch` are updated.
        count: Number of cells of each chunk.

    Returns:
        For each instruction the time when it is due, in µs (infinite for copies at the end), and its row of the
        schedule (−1 for a local one).
    """
    schedule, ends = sends.schedule, _Ends(ir, sends, ranks, count)
    ends.place_relayed()
    # The sends of a step come before its arrivals; sums that may arrive in any order come when they are due.
    nrows = len(schedule)
    step_of_event = np.concatenate([schedule.step, _last_steps(schedule, ends.src, ends.dst)])
    of_events = np.concatenate([np.zeros(nrows), sends.arrival_us]), np.arange(2 * nrows) >= nrows, step_of_event
    events = np.lexsort((np.tile(sends.message, 2), *of_events))
    is_built = np.concatenate([sends.leaves, sends.arrives])
    is_done = [False] * (2 * nrows)
    for event in checking_deadline(events[is_built[events]].tolist(), every=1024):
        if is_done[event]:  # A message of sums arrives when the first of them is due.
            continue
        rows = sends.rows_of_message[event % nrows]
        if len(rows) > 1:
            for row in rows:
                is_done[event - event % nrows + row] = True
        if event < nrows:
            ends.leave(rows)
        else:
            ends.arrive(rows)
    ends.finish()
    return ends.due_us, ends.rows


class _Ends:
    """The instructions of both ends of messages, as they are added.

    Attributes:
        src: Rank that each send leaves.
        dst: Rank that each send reaches.
        due_us: Time when each instruction is due, in µs.
        rows: Row of the schedule of each instruction; −1 for a local one.
    """

    def __init__(self, ir: Instructions, sends: RankSends, ranks: Mapping[int, RankCells], count: list[int]) -> None:
        schedule = sends.schedule
        self.due_us: list[float] = []
        self.rows: list[int] = []
        self.src, self.dst = sends.src.tolist(), sends.dst.tolist()
        self._ir, self._sends, self._ranks, self._count = ir, sends, ranks, count
        self._chunk, self._reduces = schedule.chunk.tolist(), schedule.reduces.tolist()
        self._message, self._arrival_us = sends.message.tolist(), sends.arrival_us.tolist()
        self._start_us = schedule.start_us[sends.message].tolist()
        self._sent = [NONE] * len(schedule)

    def place_relayed(self) -> None:
        """Assign scratch cells to the chunks that ranks only relay, where they leave next to each other if possible."""
        sends, chunk = self._sends, self._chunk
        leaves: dict[int, dict[int, int]] = {rank: {} for rank in self._ranks}
        for row in np.flatnonzero(sends.arrives).tolist():  # Chunks that are not sent on come last.
            leaves[self.dst[row]].setdefault(chunk[row], len(sends.representative))
        messages: dict[int, dict[tuple[int, ...], None]] = {rank: {} for rank in self._ranks}
        leaving = np.flatnonzero(sends.leaves).tolist()
        for row in leaving:
            if len(sends.rows_of_message[row]) > 1:
                messages[self.src[row]][self._chunks(sends.rows_of_message[row])] = None
        for row in sorted(leaving, key=self._start_us.__getitem__, reverse=True):
            if chunk[row] in leaves[self.src[row]]:
                leaves[self.src[row]][chunk[row]] = self.dst[row]
        for number, rank in self._ranks.items():
            rank.place(leaves[number], tuple(messages[number]))

    def leave(self, rows: list[int]) -> None:
        """Add the send of a message; before it, copy the chunks to adjacent cells if they are not adjacent.

        Args:
            rows: Rows of the message, in its order.
        """
        row = rows[0]
        rank, chunks = self._ranks[self.src[row]], self._chunks(rows)
        cells, out = [rank.home[c] for c in chunks], self.dst[row] if self._sends.translations else NONE
        adjacent = cells if self._are_adjacent(chunks, cells) else rank.side_by_side(chunks)
        if adjacent != cells:
            for c, cell, at in zip(chunks, cells, adjacent, strict=True):
                if cell != at:
                    self._add(rank, "cpy", cell, at, (c,), self._start_us[row])
        instruction = self._add(rank, "s", adjacent[0], NONE, chunks, self._start_us[row], row, out=out)
        for sent_row in rows:
            self._sent[sent_row] = instruction

    def arrive(self, rows: list[int]) -> None:
        """Add the receive of a message into adjacent cells, and record where its chunks are now.

        Chunks of a reduction are added to what the rank has as they arrive, if all their cells are adjacent; else they
        are received into scratch and added from there. A chunk of which the rank has nothing stays where it arrived.

        Args:
            rows: Rows of the message, in its order, whose send was added before.
        """
        row = rows[0]
        rank, chunks = self._ranks[self.dst[row]], self._chunks(rows)
        due_us, sent = self._arrival_us[row], self._sent[self._message[row]]
        cells, homes = [rank.target(c) for c in chunks], [rank.home.get(c, NONE) for c in chunks]
        stays = self._are_adjacent(chunks, cells)
        if not self._reduces[row] or max(homes) == NONE:
            cells = cells if stays else rank.side_by_side(chunks)
            self._add(rank, "r", NONE, cells[0], chunks, due_us, row, sent)
        elif min(homes) != NONE and stays and self._are_adjacent(chunks, homes):
            self._add(rank, "rrc", homes[0], cells[0], chunks, due_us, row, sent)
        else:
            arrived = rank.side_by_side(chunks, row)
            self._add(rank, "r", NONE, arrived[0], chunks, due_us, row, sent)
            for n, c in enumerate(chunks):
                if homes[n] == NONE:
                    cells[n] = arrived[n]
                    continue
                if homes[n] != cells[n]:
                    self._add(rank, "cpy", homes[n], cells[n], (c,), due_us)
                self._add(rank, "re", arrived[n], cells[n], (c,), due_us)
        for c, cell in zip(chunks, cells, strict=True):
            rank.home[c] = cell

    def finish(self) -> None:
        """Add copies, due at an infinite time, of the results that are not in their final cells."""
        for rank in checking_deadline(self._ranks.values()):
            for c, cell in rank.goal.items():
                home = rank.home.get(c)
                if home is not None and home != cell:
                    self._add(rank, "cpy", home, cell, (c,), np.inf)

    def _chunks(self, rows: list[int]) -> tuple[int, ...]:
        """Return the chunks of a message's rows, in the same order."""
        return tuple(map(self._chunk.__getitem__, rows))

    def _are_adjacent(self, chunks: tuple[int, ...], cells: list[int]) -> bool:
        """Return True if the chunks follow each other at these first cells, and so do their images on other ranks."""
        if len(chunks) == 1:
            return True
        sizes = [self._count[c] for c in chunks]
        if any(at + size != after for at, size, after in zip(cells, sizes, cells[1:], strict=False)):
            return False
        return not self._sends.translations or self._ir.stays_joined(cells[0], sum(sizes))

    def _add(
        self, rank: RankCells, op: str, src: int, dst: int, chunks: tuple[int, ...], due_us: float, row: int = NONE,
        source: int = NONE, out: int = NONE,
    ) -> int:  # fmt: skip
        """Add an instruction for adjacent chunks, an end of the message of `row`, or local; return its number.

        Its due time and the row of the representative message are added to `due_us` and `rows`.
        """
        self.due_us.append(due_us)
        self.rows.append(NONE if row == NONE else self._message[row])
        size = sum(map(self._count.__getitem__, chunks))
        return self._ir.add(rank.rank, op, src, dst, size, source, out=out)


def _last_steps(schedule: Schedule, src: list[int], dst: list[int]) -> Ints:
    """Return for every row of the schedule the last step in which it may arrive.

    It is the row's own step; for a sum it is the step before the chunk next leaves the rank or is replaced there, or
    `schedule.nsteps` if that never happens.
    """
    last = schedule.step.copy()
    chunk, step, adds = schedule.chunk.tolist(), schedule.step.tolist(), schedule.reduces.tolist()
    deadlines: dict[tuple[int, int], list[int]] = defaultdict(list)  # by rank and chunk
    for row in np.argsort(schedule.step, kind="stable").tolist():
        deadlines[src[row], chunk[row]].append(step[row] - 1)
        if not adds[row]:
            deadlines[dst[row], chunk[row]].append(step[row] - 1)
    for row in np.flatnonzero(schedule.reduces).tolist():
        last_before = deadlines.get((dst[row], chunk[row]), [])
        at = bisect_left(last_before, step[row])
        last[row] = last_before[at] if at < len(last_before) else schedule.nsteps
    return last
