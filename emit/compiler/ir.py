"""The instruction IR: instructions of all ranks in one right order, before threadblocks and channels.

Whatever becomes a Program is Instructions first: a schedule, an algorithm written by hand, somebody's file. Passes take
Instructions and return better ones; `assembly` makes the Program.
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
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, WRITES_DST, Program
from synth.model.collective import Ints
from topologies.arrays import Bools, pointers, ranges
from topologies.errors import InputError

BUFFER = 1 << 40  # a cell is buffer code × BUFFER + offset, so that the next chunk's cell is the next
SCRATCH = 2 * BUFFER
NONE = -1


def cell(buffer: str, offset: int) -> int:
    """The number of a cell of one rank."""
    return BUFFERS.index(buffer) * BUFFER + offset


@dataclass(eq=False)
class Instructions:
    """Instructions as columns, in an order in which executing them one after another is right.

    Of two instructions that touch a cell, one of them writing, the first in this order comes first in every program
    made of them; everything else may run at once. Messages between two ranks on one channel keep this order too:
    the k-th one sent is the k-th one received.

    Attributes:
        header: says what the program is for (name, collective, protocol, sizes …); its gpus give i_chunks and o_chunks.
        goal: what must be achieved where the collective's name does not say it.
        rank, op, src, dst, count: per instruction; src and dst are cells (`cell`), −1 where there is none.
        source: the instruction whose message this one receives, or −1; target: that which receives what it sends.
        channel: the one asked for (of a message: the same at both ends), or −1.
        threadblock: the number of the one asked for, among those of its rank, or −1.
        instances: so many programs side by side are to be made of them; interleaved: how each has its share of every
            chunk (`emit.compiler.instances`), None: as costs least.
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
    ) -> int:
        """Append an instruction; its number. `source`: the instruction whose message it receives."""
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
        if source != NONE:
            self.target[source] = number
        return number

    def copy(self) -> Instructions:
        """Instructions that can be changed without changing these."""
        messages = (self.source, self.target, self.channel)
        columns = (self.rank, self.op, self.src, self.dst, self.count, *messages, self.threadblock)
        return Instructions(self.header, self.goal, *(list(column) for column in columns))  # type: ignore[arg-type]

    def select(self, numbers: Sequence[int]) -> Instructions:
        """The instructions with these numbers, in this order; a message with one end left out has none at the other."""
        new = [NONE] * (len(self) + 1)
        for number, old in enumerate(numbers):
            new[old] = number
        made = Instructions(self.header, self.goal)
        for name in ("rank", "op", "src", "dst", "count", "channel", "threadblock"):
            column = getattr(self, name)
            setattr(made, name, [column[old] for old in numbers])
        made.source = [new[self.source[old]] for old in numbers]
        made.target = [new[self.target[old]] for old in numbers]
        return made

    def calls(self) -> list[tuple[Goal | None, tuple[int | None, ...]]]:
        """For each kind of call that the program serves its goal, and where o[0] lies in each rank's i.

        No goal: the collective's name says too little. None: the rank's buffers are apart.
        """
        goals = goals_of(self.header) if self.goal is None else [(False, self.goal)]
        n = self.header.nranks
        return [(goal, goal.o_in_i if goal else (0 if inplace else None,) * n) for inplace, goal in goals]

    def reads(self, n: int) -> Iterable[int]:
        """First cells of the spans that instruction `n` reads."""
        if self.op[n] in READS_SRC:
            yield self.src[n]
        if self.op[n] in READS_DST:
            yield self.dst[n]

    def writes(self, n: int) -> int:
        """First cell of the span that it writes, or −1."""
        return self.dst[n] if self.op[n] in WRITES_DST else NONE


def predecessors(ir: Instructions) -> list[list[int]]:
    """For every instruction those earlier ones of its rank that it must come after: they share a cell.

    Of those that write a cell the last before it; if it writes, also those that have read the cell since then.
    """
    after, before = predecessor_pairs(ir)
    ptr, others = pointers(np.bincount(after, minlength=len(ir))).tolist(), before.tolist()
    return [others[low:high] for low, high in pairwise(ptr)]


def predecessor_pairs(ir: Instructions) -> tuple[Ints, Ints]:
    """The same as pairs, each instruction and one that it must come after, in rising order of these."""
    pairs = []
    for call in ir.calls():
        rank, place, n, is_write = accesses(ir, call)
        begins = np.flatnonzero(np.diff(place, prepend=-1) | np.diff(rank, prepend=-1))
        begin = np.repeat(begins, np.diff(begins, append=len(n)))
        at = np.arange(len(n))
        # the last write before each access, and the next one after each read
        last = np.maximum.accumulate(np.where(is_write, at, -1))
        last = np.concatenate([[-1], last[:-1]])
        fed = last >= begin
        pairs.append((n[fed], n[last[fed]]))
        follows = np.minimum.accumulate(np.where(is_write, at, len(n))[::-1])[::-1]
        over = ~is_write & (follows < len(n))
        over[over] = begin[follows[over]] == begin[over]
        pairs.append((n[follows[over]], n[over]))
    after, before = (np.concatenate(column) for column in zip(*pairs, strict=True))
    size = len(ir)
    key = np.unique(after[after != before] * size + before[after != before])
    later, earlier = np.divmod(key, max(size, 1))
    return later, earlier


def accesses(ir: Instructions, call: tuple[Goal | None, tuple[int | None, ...]]) -> tuple[Ints, Ints, Ints, Bools]:
    """Every cell that an instruction reads or writes in a kind of call (see `Instructions.calls`).

    Rank, cell (those of o as cells of i where they share memory), instruction and whether it writes; sorted by these,
    so that those of a cell stand side by side, and what an instruction reads before what it writes.
    """
    alias = call[1]
    shift = np.array([0 if one is None else one - BUFFER for one in alias], dtype=np.int64)
    shares = np.array([one is not None for one in alias], dtype=bool)
    rank, count = np.array(ir.rank, dtype=np.int64), np.array(ir.count, dtype=np.int64)
    parts = []
    for names, column, writes in ((READS_SRC, ir.src, False), (READS_DST, ir.dst, False), (WRITES_DST, ir.dst, True)):
        who = np.flatnonzero([op in names for op in ir.op])
        first = np.array(column, dtype=np.int64)[who]
        moved = shares[rank[who]] & (first >= BUFFER) & (first < SCRATCH)
        first = first + np.where(moved, shift[rank[who]], 0)
        n = np.repeat(who, count[who])
        parts.append((ranges(first, count[who]), n, np.full(len(n), writes)))
    place, n, is_write = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.lexsort((is_write, n, place, rank[n]))
    return rank[n[order]], place[order], n[order], is_write[order]


def memory_span(first: int, count: int, o_in_i: int | None) -> range:
    """The cells of a span, those of o as cells of i where they share memory."""
    if o_in_i is not None and BUFFER <= first < SCRATCH:
        first += o_in_i - BUFFER
    return range(first, first + count)


def instructions_of(program: Program, goal: Goal | None = None, keep_threadblocks: bool = False) -> Instructions:
    """The instructions of a program that passes its check, with its channels; dependencies are gone.

    keep_threadblocks: its threadblocks are asked for.
    Raises InputError for a program that cannot be executed in any order.
    """
    found = Findings()
    c = columns_of(program, found)
    if found.reported:
        raise InputError(f"program cannot be read: {found.reported[0].kind}: {found.reported[0].message}")
    executed = run(c, None, split=False)
    if not executed.complete:
        raise InputError("program cannot be executed: its waits go round in a circle")
    ir = Instructions(program, goal)
    rank, threadblock = c.rank[c.block].tolist(), c.tb[c.block].tolist()
    op, count = c.op.tolist(), c.count.tolist()
    src, dst = (c.src * BUFFER + c.src_at).tolist(), (c.dst * BUFFER + c.dst_at).tolist()
    sends, receives = c.sends.tolist(), c.receives.tolist()
    in_flight: list[deque[int]] = [deque() for _ in c.connections]
    for step in _by_level(c, executed.order):
        name = OPS[op[step]]
        if name == "nop":
            continue
        into, out = receives[step], sends[step]
        source = in_flight[into].popleft() if into >= 0 else NONE
        channel = c.connections[max(into, out) if into < 0 else into][2] if max(into, out) >= 0 else NONE
        asked = threadblock[step] if keep_threadblocks else NONE
        n = ir.add(rank[step], name, src[step], dst[step], count[step], source, channel, asked)
        if out >= 0:
            in_flight[out].append(n)
    return ir


def _by_level(c: Columns, order: list[int]) -> list[int]:
    """Steps by how many others must be over before them: an order more like time than one block after another."""
    level = [0] * len(order)
    came: dict[int, int] = {}  # per block, the level of its latest step
    sent: list[deque[int]] = [deque() for _ in c.connections]
    block, dep = c.block.tolist(), c.dep.tolist()
    sends, receives = c.sends.tolist(), c.receives.tolist()
    for step in order:
        at = came.get(block[step], 0)
        if dep[step] >= 0:
            at = max(at, level[dep[step]])
        if receives[step] >= 0:
            at = max(at, sent[receives[step]].popleft())
        level[step] = came[block[step]] = at + 1
        if sends[step] >= 0:
            sent[sends[step]].append(at + 1)
    return sorted(order, key=level.__getitem__)


def peers(ir: Instructions, n: int) -> tuple[int, int]:
    """(rank that instruction `n` receives from, rank that it sends to), −1 for none."""
    source, target = ir.source[n], ir.target[n]
    return (ir.rank[source] if source != NONE else NONE, ir.rank[target] if target != NONE else NONE)


def scratch_chunks(ir: Instructions) -> list[int]:
    """Per rank the scratch chunks that the instructions reach."""
    need = [0] * ir.header.nranks
    for rank, op, src, dst, count in zip(ir.rank, ir.op, ir.src, ir.dst, ir.count, strict=True):
        if src >= SCRATCH and op in READS_SRC:
            need[rank] = max(need[rank], src - SCRATCH + count)
        if dst >= SCRATCH and (op in WRITES_DST or op in READS_DST):
            need[rank] = max(need[rank], dst - SCRATCH + count)
    return need
