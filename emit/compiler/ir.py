"""Define the instruction IR: instructions of all ranks in one right order, before threadblocks and channels.

Everything that becomes a Program is Instructions first: a schedule, an algorithm written by hand, a program read from a
file. Passes take Instructions and return better ones; `assembly` makes the Program.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from emit.check.order import run
from emit.columns import Columns, columns_of
from emit.findings import Findings
from emit.goal import Goal, goals_of
from emit.images import block_of_buffer, images_of, moves_together
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST, Program
from synth.model.collective import Ints
from synth.model.deadline import checking_deadline
from topologies.arrays import Bools, pointers, ranges
from topologies.errors import InputError

BUFFER = 1 << 40  # A cell is buffer code × BUFFER + offset, so that consecutive chunks have consecutive cells.
SCRATCH = 2 * BUFFER
NONE = -1


def cell(buffer: str, offset: int) -> int:
    """Return the number of the cell at an offset in chunks in a rank's buffer, which is "i", "o" or "s"."""
    return BUFFERS.index(buffer) * BUFFER + offset


@dataclass(eq=False)
class Instructions:
    """Instructions as columns, in an order in which executing them one after another is right.

    Of two instructions that touch a cell, one of them writing, the first in this order comes first in every program
    made of them; all other instructions may run simultaneously. Messages between two ranks on one channel keep this
    order too: the k-th message sent is the k-th message received.

    Attributes:
        header: Purpose of the program (name, collective, protocol, sizes …); its gpus give i_chunks and o_chunks.
        goal: The goal, if the collective's name does not define it.
        rank: Rank of each instruction.
        op: Operation of each instruction.
        src: Source of each instruction, as a cell (see `cell`), −1 for none.
        dst: Destination of each instruction, as a cell, −1 for none.
        count: Chunks of each instruction.
        source: Instruction whose message each receives, −1 for none.
        target: Instruction that receives the message of each, −1 for none.
        channel: Requested channel of each message (the same at both ends), −1 for none.
        threadblock: Requested threadblock of each instruction, by its number in the rank, −1 for none.
        out: If the header has translations, the rank that each instruction sends to as its own rank sees it, −1 for
            none; else −1.
        instances: Number of instances of the program to make from the instructions.
        interleaved: Whether the instances share every chunk interleaved or blocked (`emit.compiler.instances`); None
            for the cheaper form.
    """

    header: Program
    goal: Goal | None = None
    rank: list[int] = field(default_factory=list)
    op: list[str] = field(default_factory=list)
    src: list[int] = field(default_factory=list)
    dst: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    target: list[int] = field(default_factory=list)
    channel: list[int] = field(default_factory=list)
    threadblock: list[int] = field(default_factory=list)
    out: list[int] = field(default_factory=list)
    instances: int = 1
    interleaved: bool | None = None

    def __len__(self) -> int:
        return len(self.op)

    def add(
        self,
        rank: int,
        op: str,
        src: int,
        dst: int,
        count: int,
        source: int = NONE,
        channel: int = NONE,
        threadblock: int = NONE,
        out: int = NONE,
    ) -> int:
        """Add an instruction at the end, and return its number; with `source`, also set the target of that instruction.

        Args:
            rank: Rank that executes it.
            op: Operation.
            src: Source cell, −1 for none.
            dst: Destination cell, −1 for none.
            count: Chunks.
            source: Instruction whose message it receives, −1 for none.
            channel: Requested channel, −1 for none.
            threadblock: Requested threadblock, −1 for none.
            out: Rank that it sends to, if the header has translations; else −1.
        """
        number = len(self.op)
        self.op.append(op)
        self.rank.append(rank)
        self.src.append(src)
        self.dst.append(dst)
        self.count.append(count)
        self.source.append(source)
        self.target.append(NONE)
        self.channel.append(channel)
        self.threadblock.append(threadblock)
        self.out.append(out)
        if source != NONE:
            self.target[source] = number
        return number

    def copy(self) -> Instructions:
        """Return a copy that can be changed independently; its `instances` is 1, and its `interleaved` None."""
        return self.select(range(len(self)))

    def select(self, numbers: Sequence[int]) -> Instructions:
        """Return the instructions with these numbers, in this order.

        If one end of a message is left out, the other end has no message any more. The result shares no column with the
        instructions; its `instances` is 1, and its `interleaved` None.
        """
        new = [NONE] * (len(self) + 1)
        for number, old in enumerate(numbers):
            new[old] = number
        selected = Instructions(self.header, self.goal)
        for name in ("rank", "op", "src", "dst", "count", "channel", "threadblock", "out"):
            column = getattr(self, name)
            setattr(selected, name, [column[old] for old in numbers])
        selected.source = [new[self.source[old]] for old in numbers]
        selected.target = [new[self.target[old]] for old in numbers]
        return selected

    def receiver(self, n: int) -> int:
        """Return the rank that instruction `n`, which sends, sends to, as its own rank sees it."""
        return self.out[n] if self.header.translations else self.rank[self.target[n]]

    def sender(self, n: int) -> int:
        """Return the rank that instruction `n`, which receives, receives from, as its own rank sees it."""
        source, header = self.source[n], self.header
        if not header.translations:
            return self.rank[source]
        return images_of(header.translations, header.nranks).reverse(self.rank[source], self.out[source])[1]

    def joins(self, n: int, count: int) -> bool:
        """Return True if instruction `n` can have `count` chunks, as far as its images on other ranks are concerned.

        The chunks begin where those of `n` do.
        """
        return not self.header.translations or all(
            self.stays_joined(first, count) for first in (self.src[n], self.dst[n]) if first != NONE
        )

    def stays_joined(self, first: int, count: int) -> bool:
        """Return True if the `count` cells from cell `first` on are adjacent in the images on all other ranks too."""
        header = self.header
        gpu = header.gpus[0]
        size = (gpu.i_chunks, gpu.o_chunks, 0)[first // BUFFER]
        return moves_together(block_of_buffer(header, size), first % BUFFER, count)

    def calls(self) -> list[tuple[Goal | None, tuple[int | None, ...]]]:
        """Return, for each form of call that the program serves, its goal and where o[0] lies in each rank's i.

        The goal is None if the collective's name does not define it. A place is in chunks, or None if the
        rank's buffers are separate.
        """
        goals = goals_of(self.header) if self.goal is None else [(False, self.goal)]
        n = self.header.nranks
        return [(goal, goal.o_in_i if goal else (0 if inplace else None,) * n) for inplace, goal in goals]

    def reads(self, n: int) -> Iterable[int]:
        """Yield the first cell of each span that instruction `n` reads."""
        if self.op[n] in READS_SRC:
            yield self.src[n]
        if self.op[n] in READS_DST:
            yield self.dst[n]

    def writes(self, n: int) -> int:
        """Return the first cell of the span that instruction `n` writes, −1 for none."""
        return self.dst[n] if self.op[n] in WRITES_DST else NONE


def predecessors(ir: Instructions) -> list[list[int]]:
    """Return for every instruction the earlier instructions of its rank that it must follow, because they share a cell.

    The numbers ascend. For each cell these are the last write before the instruction and, if it writes, the reads of
    the cell since that write.
    """
    after, before = predecessor_pairs(ir)
    ptr, earlier = pointers(np.bincount(after, minlength=len(ir))).tolist(), before.tolist()
    return [earlier[low:high] for low, high in pairwise(ptr)]


def predecessor_pairs(ir: Instructions) -> tuple[Ints, Ints]:
    """Return the pairs of `predecessors` as two columns (instruction, earlier instruction), sorted, each pair once."""
    pairs = []
    for call in ir.calls():
        rank, place, n, is_write = accesses(ir, call)
        begins = np.flatnonzero(np.diff(place, prepend=-1) | np.diff(rank, prepend=-1))
        begin = np.repeat(begins, np.diff(begins, append=len(n)))
        at = np.arange(len(n))
        # Find the last write before each access, and the next write after each read.
        last_write = np.maximum.accumulate(np.where(is_write, at, -1))
        last_write = np.concatenate([[-1], last_write[:-1]])
        follows_write = last_write >= begin
        pairs.append((n[follows_write], n[last_write[follows_write]]))
        next_write = np.minimum.accumulate(np.where(is_write, at, len(n))[::-1])[::-1]
        is_overwritten = ~is_write & (next_write < len(n))
        is_overwritten[is_overwritten] = begin[next_write[is_overwritten]] == begin[is_overwritten]
        pairs.append((n[next_write[is_overwritten]], n[is_overwritten]))
    after, before = (np.concatenate(column) for column in zip(*pairs, strict=True))
    size = len(ir)
    key = np.unique(after[after != before] * size + before[after != before])
    later, earlier = np.divmod(key, max(size, 1))
    return later, earlier


def accesses(ir: Instructions, call: tuple[Goal | None, tuple[int | None, ...]]) -> tuple[Ints, Ints, Ints, Bools]:
    """Return every access of a cell by an instruction in one form of call, an element of `Instructions.calls`.

    The columns are rank, cell (cells of o as cells of i if they share memory), instruction, and whether it writes. They
    are sorted in this order, so that the accesses of a cell are adjacent, and an instruction's reads come before its
    writes.
    """
    alias = call[1]
    shift = np.array([0 if offset is None else offset - BUFFER for offset in alias], dtype=np.int64)
    shares = np.array([offset is not None for offset in alias], dtype=bool)
    rank, count = np.array(ir.rank, dtype=np.int64), np.array(ir.count, dtype=np.int64)
    parts = []
    for names, column, writes in ((READS_SRC, ir.src, False), (READS_DST, ir.dst, False), (WRITES_DST, ir.dst, True)):
        numbers = np.flatnonzero([op in names for op in ir.op])
        first = np.array(column, dtype=np.int64)[numbers]
        is_shared = shares[rank[numbers]] & (first >= BUFFER) & (first < SCRATCH)
        first = first + np.where(is_shared, shift[rank[numbers]], 0)
        n = np.repeat(numbers, count[numbers])
        parts.append((ranges(first, count[numbers]), n, np.full(len(n), writes)))
    place, n, is_write = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((is_write, n, place, rank[n]))
    return rank[n[order]], place[order], n[order], is_write[order]


def memory_span(first: int, count: int, o_in_i: int | None) -> range:
    """Return the cells of a span of `count` cells from cell `first` on, those of o as cells of i if they share memory.

    `o_in_i` is the position of o[0] in the rank's i in chunks, or None if the buffers are separate.
    """
    if o_in_i is not None and BUFFER <= first < SCRATCH:
        first += o_in_i - BUFFER
    return range(first, first + count)


def instructions_of(program: Program, goal: Goal | None = None, keep_threadblocks: bool = False) -> Instructions:
    """Return the instructions of a program that passes its check, with its channels but without its dependencies.

    Args:
        program: The program.
        goal: Its goal, if the collective's name does not define it.
        keep_threadblocks: Whether the instructions request the program's threadblocks; if not, they request none.

    Raises:
        InputError: The program has a fault that can be seen without running it, or cannot be executed in any order.
    """
    findings = Findings()
    c = columns_of(program, findings)
    if findings.reported:
        raise InputError(f"program cannot be read: {findings.reported[0].kind}: {findings.reported[0].message}")
    executed = run(c, None, split=False)
    if not executed.complete:
        raise InputError("program cannot be executed: its waits form a cycle")
    ir = Instructions(program, goal)
    rank, threadblock = c.rank[c.block].tolist(), c.tb[c.block].tolist()
    op, count = c.op.tolist(), c.count.tolist()
    src, dst = (c.src * BUFFER + c.src_at).tolist(), (c.dst * BUFFER + c.dst_at).tolist()
    sends, receives = c.sends.tolist(), c.receives.tolist()
    in_flight: list[deque[int]] = [deque() for _ in c.connections]
    for step in checking_deadline(_by_level(c, executed.order), every=1024):
        name = OPS[op[step]]
        if name == "nop":
            continue
        into, out = receives[step], sends[step]
        source = in_flight[into].popleft() if into >= 0 else NONE
        channel = c.connections[max(into, out) if into < 0 else into][2] if max(into, out) >= 0 else NONE
        requested_block = threadblock[step] if keep_threadblocks else NONE
        peer = c.connections[out][1] if out >= 0 and program.translations else NONE
        n = ir.add(rank[step], name, src[step], dst[step], count[step], source, channel, requested_block, peer)
        if out >= 0:
            in_flight[out].append(n)
    return ir


def _by_level(c: Columns, order: list[int]) -> list[int]:
    """Return steps sorted by the length of the longest chain of steps that must be over before them.

    This order is more like the order in time than one threadblock after another. Steps with equal chains keep their
    order.

    Args:
        c: Columns of the program.
        order: All steps, in an order in which they can be executed.
    """
    level = [0] * len(order)
    block_level: dict[int, int] = {}  # level of the latest step of each threadblock
    message_levels: list[deque[int]] = [deque() for _ in c.connections]
    block, dep = c.block.tolist(), c.dep.tolist()
    sends, receives = c.sends.tolist(), c.receives.tolist()
    for step in checking_deadline(order, every=1024):
        step_level = block_level.get(block[step], 0)
        if dep[step] >= 0:
            step_level = max(step_level, level[dep[step]])
        if receives[step] >= 0:
            step_level = max(step_level, message_levels[receives[step]].popleft())
        level[step] = block_level[block[step]] = step_level + 1
        if sends[step] >= 0:
            message_levels[sends[step]].append(step_level + 1)
    return sorted(order, key=level.__getitem__)


def peers(ir: Instructions, n: int) -> tuple[int, int]:
    """Return (rank that instruction `n` receives from, rank that it sends to), −1 for none."""
    source, target = ir.source[n], ir.target[n]
    return (ir.sender(n) if source != NONE else NONE, ir.receiver(n) if target != NONE else NONE)


def scratch_chunks(ir: Instructions) -> list[int]:
    """Return the size in chunks of the scratch that each rank's instructions need, unused chunks in between counted."""
    sizes = [0] * ir.header.nranks
    for rank, op, src, dst, count in zip(ir.rank, ir.op, ir.src, ir.dst, ir.count, strict=True):
        if src >= SCRATCH and op in READS_SRC:
            sizes[rank] = max(sizes[rank], src - SCRATCH + count)
        if dst >= SCRATCH and (op in WRITES_DST or op in READS_DST):
            sizes[rank] = max(sizes[rank], dst - SCRATCH + count)
    return sizes
