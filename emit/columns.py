"""A program's steps as columns, and the faults that can be seen without running it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emit.findings import Findings
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, RECEIVES, SENDS, WRITES_DST, Program
from topologies.errors import InputError

Column = NDArray[np.int64]
MAX_NUMBER = 1 << 40  # sums and products of two stay inside int64


@dataclass(slots=True)
class Columns:
    """All steps of all ranks in document order; a block is a threadblock, numbered through all ranks.

    step columns: op (index in OPS), block, src, src_at, dst, dst_at (buffer code, offset in chunks), count,
    dep (number of the step waited for, −1), sends, receives (number of the connection, −1).
    block columns: rank, tb (its id there), start (first step; one entry more than blocks).
    connection: (source rank, destination rank, channel); sender, receiver: its blocks, −1 where none.
    """

    op: Column
    block: Column
    src: Column
    src_at: Column
    dst: Column
    dst_at: Column
    count: Column
    dep: Column
    sends: Column
    receives: Column
    rank: Column
    tb: Column
    start: Column
    connections: list[tuple[int, int, int]]
    sender: list[int]
    receiver: list[int]

    def place(self, step: int) -> tuple[int, int, int]:
        """(rank, tb, position) of a step."""
        block = int(self.block[step])
        return int(self.rank[block]), int(self.tb[block]), step - int(self.start[block])

    def messages(self) -> tuple[Column, Column]:
        """The steps that send, and in the same order those that receive: the k-th of a connection meets its k-th."""
        out, into = (np.flatnonzero(column >= 0) for column in (self.sends, self.receives))
        return (
            out[np.argsort(self.sends[out], kind="stable")],
            into[np.argsort(self.receives[into], kind="stable")],
        )

    def is_op(self, names: frozenset[str]) -> NDArray[np.bool_]:
        """Which steps have an op among `names`."""
        table = np.array([name in names for name in OPS])
        return np.asarray(table[self.op], dtype=bool)

    def transmissions(self) -> Column:
        """How often each step waits and proceeds: `count` where it sends or receives, else once."""
        moves = (self.sends >= 0) | (self.receives >= 0)
        return np.where(moves, self.count, 1)


def _integers(values: list[Any], what: str) -> Column:
    try:
        column = np.array(values)
        if len(values) and column.dtype.kind not in "iub":
            raise InputError(f"program {what}: not whole numbers; would be int")
        column = column.astype(np.int64)
    except (OverflowError, ValueError, TypeError):
        raise InputError(f"program {what}: not whole numbers of a sensible size; would be int") from None
    if len(column) and max(int(column.max()), -int(column.min())) > MAX_NUMBER:
        raise InputError(f"program {what}: {int(np.abs(column).max())}; would be at most {MAX_NUMBER}")
    return column


def columns_of(program: Program, found: Findings) -> Columns:
    """The columns, with what is wrong in them added to `found`.

    If anything was found, the columns may name steps, cells or connections that do not exist.
    Raises InputError for an op, a buffer or a number that no program can hold.
    """
    blocks = [(r, t, tb) for r, gpu in enumerate(program.gpus) for t, tb in enumerate(gpu.threadblocks)]
    steps = list(chain.from_iterable(tb.steps for _, _, tb in blocks))
    lengths = _integers([len(tb.steps) for _, _, tb in blocks], "threadblocks")
    start = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
    try:
        op = np.array([_OP_CODE[x] for x in [s.op for s in steps]], dtype=np.int64)
        src = np.array([_BUFFER_CODE[x] for x in [s.src_buf for s in steps]], dtype=np.int64)
        dst = np.array([_BUFFER_CODE[x] for x in [s.dst_buf for s in steps]], dtype=np.int64)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"program step with {error}: would be an op of {', '.join(OPS)} and a buffer of i, o, s"
        ) from None
    rank = _integers([r for r, _, _ in blocks], "ranks")
    c = Columns(
        op=op,
        block=np.repeat(np.arange(len(blocks), dtype=np.int64), lengths),
        src=src,
        src_at=_integers([s.src_off for s in steps], "src_off"),
        dst=dst,
        dst_at=_integers([s.dst_off for s in steps], "dst_off"),
        count=_integers([s.count for s in steps], "count"),
        dep=np.full(len(steps), -1, dtype=np.int64),
        sends=np.full(len(steps), -1, dtype=np.int64),
        receives=np.full(len(steps), -1, dtype=np.int64),
        rank=rank,
        tb=_integers([t for _, t, _ in blocks], "threadblocks"),
        start=start,
        connections=[],
        sender=[],
        receiver=[],
    )
    _counts(c, found)
    _buffers(c, program, found)
    dep_tb = _integers([s.dep_tb for s in steps], "dep_tb")
    dep_step = _integers([s.dep_step for s in steps], "dep_step")
    _dependencies(c, program, dep_tb, dep_step, [s.has_dep for s in steps], found)
    _connections(c, program, [(r, t, tb.send, tb.recv, tb.channel) for r, t, tb in blocks], found)
    _pairs(c, found)
    return c


_OP_CODE = {name: code for code, name in enumerate(OPS)}
_BUFFER_CODE = {name: code for code, name in enumerate(BUFFERS)}


def _counts(c: Columns, found: Findings) -> None:
    nop = c.op == _OP_CODE["nop"]
    for step in np.flatnonzero(np.where(nop, c.count != 0, c.count < 1)).tolist():
        if nop[step]:
            found.add("inconsistent", f"nop with count {c.count[step]}; would be 0", *c.place(step))
        else:
            found.add(
                "inconsistent",
                f"{OPS[c.op[step]]} with count {c.count[step]} moves nothing; would be 1 or more",
                *c.place(step),
            )


def _buffers(c: Columns, program: Program, found: Findings) -> None:
    sizes = np.stack(
        [_integers([getattr(g, f"{b}_chunks") for g in program.gpus], f"{b}_chunks") for b in BUFFERS], axis=1
    )
    for rank, buffer in np.argwhere(sizes < 0).tolist():
        found.add("inconsistent", f"{BUFFERS[buffer]}_chunks {sizes[rank, buffer]}; would be 0 or more", rank)
    rank_of = c.rank[c.block]
    for names, column, at, word in (
        (READS_SRC, c.src, c.src_at, "source"),
        (WRITES_DST | READS_DST, c.dst, c.dst_at, "destination"),
    ):
        size = sizes[rank_of, column]
        bad = c.is_op(names) & ((at < 0) | (at + c.count > size))
        for step in np.flatnonzero(bad).tolist():
            name, low, high = BUFFERS[column[step]], int(at[step]), int(at[step] + c.count[step])
            found.add(
                "overrun",
                f"{OPS[c.op[step]]} {word} {name}[{low}..{high - 1}]; {name} has {size[step]} chunks",
                *c.place(step),
                cell=(name, high - 1 if low >= 0 else low),
            )


def _dependencies(
    c: Columns, program: Program, dep_tb: Column, dep_step: Column, has_dep: list[bool], found: Findings
) -> None:
    ntbs = np.array([len(g.threadblocks) for g in program.gpus], dtype=np.int64)
    first_block = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(ntbs)])
    lengths = np.diff(c.start)
    flags = np.array([bool(h) for h in has_dep], dtype=bool)
    for step in np.flatnonzero((dep_tb < 0) != (dep_step < 0)).tolist():
        found.add(
            "dangling dependency",
            f"waits for tb {dep_tb[step]} step {dep_step[step]}; would be both -1 or both 0 or more",
            *c.place(step),
        )
    nop = c.op == _OP_CODE["nop"]
    for step in np.flatnonzero(nop & (dep_tb < 0)).tolist():
        found.add("inconsistent", "nop without a dependency; would wait for a step", *c.place(step))
    last = np.zeros(len(nop), dtype=bool)
    last[c.start[1:][np.diff(c.start) > 0] - 1] = True
    for step in np.flatnonzero(nop & last).tolist():
        found.add("inconsistent", "nop at the end of its tb; would stand before a step", *c.place(step))
    if len(nop):
        after = np.zeros(len(nop), dtype=bool)
        after[1:] = nop[:-1] & (c.block[1:] == c.block[:-1])
        for step in np.flatnonzero(after & ~nop & (dep_tb < 0)).tolist():
            found.add(
                "inconsistent",
                "follows a nop and has no dependency; readers give the nop's to a step that has one",
                *c.place(step),
            )
    for step in np.flatnonzero((dep_tb >= 0) & (dep_step >= 0)).tolist():
        rank, tb, position = c.place(step)
        t, s = int(dep_tb[step]), int(dep_step[step])
        if t >= ntbs[rank]:
            found.add(
                "dangling dependency",
                f"waits for tb {t}; rank {rank} has {ntbs[rank]} tbs",
                rank,
                tb,
                position,
            )
            continue
        block = int(first_block[rank]) + t
        if s >= lengths[block]:
            found.add(
                "dangling dependency",
                f"waits for tb {t} step {s}; tb {t} has {lengths[block]} steps",
                rank,
                tb,
                position,
            )
            continue
        target = int(c.start[block]) + s
        c.dep[step] = target
        if not flags[target]:
            found.add(
                "dangling dependency",
                f"waits for tb {t} step {s}, which never says that it completed; would be hasdep 1",
                rank,
                tb,
                position,
            )


def _connections(
    c: Columns, program: Program, blocks: list[tuple[int, int, int, int, int]], found: Findings
) -> None:
    known: dict[tuple[int, int, int], int] = {}
    ends: tuple[list[int], list[int]] = (c.sender, c.receiver)
    _integers([x for b in blocks for x in b[2:]], "send, recv, channel")
    of_block: tuple[list[int], list[int]] = ([], [])
    for block, (rank, tb, send, recv, channel) in enumerate(blocks):
        if channel < 0:
            found.add("inconsistent", f"channel {channel}; would be 0 or more", rank, tb)
        for side, peer in enumerate((send, recv)):
            word = ("send", "recv")[side]
            if peer != -1 and (peer == rank or not 0 <= peer < program.nranks):
                found.add(
                    "unpaired",
                    f"{word} {peer}; would be -1 or another rank in 0..{program.nranks - 1}",
                    rank,
                    tb,
                )
            if peer == -1 or peer == rank:
                of_block[side].append(-1)
                continue
            key = (peer, rank, channel) if side else (rank, peer, channel)
            number = known.setdefault(key, len(known))
            if number == len(c.connections):
                c.connections.append(key)
                c.sender.append(-1)
                c.receiver.append(-1)
            of_block[side].append(number)
            if ends[side][number] >= 0:
                found.add(
                    "duplicate connection",
                    f"{word} {peer} on channel {channel} is also tb {int(c.tb[ends[side][number]])}'s; "
                    "would be one tb for a (peer, channel, direction)",
                    rank,
                    tb,
                )
            else:
                ends[side][number] = block
    for number, (source, target, channel) in enumerate(c.connections):
        # Readers connect what a tb declares, used or not, and wait for the other side to do the same.
        for side, rank, other in ((0, source, target), (1, target, source)):
            if ends[side][number] >= 0 and ends[1 - side][number] < 0:
                found.add(
                    "unpaired",
                    f"{('send', 'recv')[side]} {other} on channel {channel}, but rank {other} has no tb with "
                    f"{('recv', 'send')[side]} {rank} on it; would have one",
                    rank,
                    int(c.tb[ends[side][number]]),
                )
    for side, (names, word) in enumerate(((SENDS, "send"), (RECEIVES, "recv"))):
        uses = c.is_op(names)
        peers = np.array(of_block[side], dtype=np.int64)[c.block] if len(c.block) else c.block
        for step in np.flatnonzero(uses & (peers < 0)).tolist():
            found.add(
                "unpaired", f"{OPS[c.op[step]]} in a tb with no {word} peer; would have one", *c.place(step)
            )
        (c.receives if side else c.sends)[:] = np.where(uses, peers, -1)


def _pairs(c: Columns, found: Findings) -> None:
    """The k-th send of a connection meets its k-th receive."""
    out, into = c.messages()
    sizes = [
        np.bincount(c.sends[out], minlength=len(c.connections)),
        np.bincount(c.receives[into], minlength=len(c.connections)),
    ]
    first = [np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(s)]) for s in sizes]
    same = np.array_equal(sizes[0], sizes[1])
    if same and np.array_equal(c.count[out], c.count[into]):
        return
    for number, (source, target, channel) in enumerate(c.connections):
        nsent, nreceived = int(sizes[0][number]), int(sizes[1][number])
        for k in range(min(nsent, nreceived)):
            a, b = int(out[first[0][number] + k]), int(into[first[1][number] + k])
            if c.count[a] != c.count[b]:
                rank, tb, position = c.place(b)
                found.add(
                    "unequal counts",
                    f"sends {c.count[a]} chunks, received by rank {rank} tb {tb} step {position} "
                    f"as {c.count[b]}; would be equal",
                    *c.place(a),
                )
        if nsent != nreceived:
            more = out[first[0][number] + nreceived] if nsent > nreceived else into[first[1][number] + nsent]
            words = ("sends", "receives") if nsent > nreceived else ("receives", "sends")
            found.add(
                "unpaired",
                f"{words[0]} what the other side never {words[1]}: rank {source} to rank {target} on channel "
                f"{channel} has {nsent} sends and {nreceived} receives",
                *c.place(int(more)),
            )
