"""The steps of a program as NumPy columns, and the faults that can be seen without running it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emit.findings import Findings
from emit.images import images_of
from emit.program import BUFFERS, OPS, READS_DST, READS_SRC, RECEIVES, SENDS, WRITES_DST, Program
from topologies.arrays import pointers
from topologies.errors import InputError
from topologies.symmetry.translations import Translations

Column = NDArray[np.int64]
Fault = tuple[str, str, int]  # kind, message, step
MAX_NUMBER = 1 << 40  # Sums of two numbers stay inside int64.


@dataclass(slots=True)
class Columns:
    """The steps of all ranks of a program, in document order, as int64 arrays.

    A block is a threadblock; blocks are numbered through all ranks. A buffer code is an index into BUFFERS.

    Attributes:
        op: Per step, the index of its instruction in OPS.
        block: Per step, its block.
        src: Per step, the code of its source buffer.
        src_at: Per step, the offset in the source buffer, in chunks.
        dst: Per step, the code of its destination buffer.
        dst_at: Per step, the offset in the destination buffer, in chunks.
        count: Per step, the number of chunks.
        dep: Per step, the number of the step that it waits for; -1 if it waits for none.
        sends: Per step, the number of the connection that it sends on; -1 if it does not send.
        receives: Per step, the number of the connection that it receives from; -1 if it does not receive.
        rank: Per block, its rank.
        tb: Per block, its threadblock id within the rank.
        start: Per block, its first step; one more entry at the end holds the number of steps.
        connections: Per connection, (source rank, destination rank, channel).
        sender: Per connection, the block that sends; -1 if there is none.
        receiver: Per connection, the block that receives; -1 if there is none.
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
        """Return (rank, threadblock id, position in the threadblock) of a step, given its number through all ranks."""
        block = int(self.block[step])
        return int(self.rank[block]), int(self.tb[block]), step - int(self.start[block])

    def cell(self, step: int, chunk: int, is_dst: bool) -> tuple[str, int]:
        """Return (buffer, index) of chunk number `chunk` of a step's destination if `is_dst`, else of its source."""
        code, at = (self.dst, self.dst_at) if is_dst else (self.src, self.src_at)
        return BUFFERS[int(code[step])], int(at[step]) + chunk

    def messages(self) -> tuple[Column, Column]:
        """Return the numbers of the steps that send and of those that receive, sorted by connection, then by step.

        The k-th send of a connection meets its k-th receive. The arrays have equal length only if no message lacks an
        end.
        """
        out, into = (np.flatnonzero(column >= 0) for column in (self.sends, self.receives))
        return out[np.argsort(self.sends[out], kind="stable")], into[np.argsort(self.receives[into], kind="stable")]

    def is_op(self, names: frozenset[str]) -> NDArray[np.bool_]:
        """Return a mask, shape (steps,), of the steps whose instruction is in `names`."""
        table = np.array([name in names for name in OPS])
        return np.asarray(table[self.op], dtype=bool)

    def transmissions(self) -> Column:
        """Return how many transmissions each step makes, shape (steps,): `count` if it sends or receives, else 1."""
        transmits = (self.sends >= 0) | (self.receives >= 0)
        return np.where(transmits, self.count, 1)


def _integers(values: list[Any], field: str) -> Column:
    """Return values as int64, shape (values,); `field` names them in errors.

    Raises:
        InputError: If a value is no whole number, or is larger than MAX_NUMBER without its sign.
    """
    try:
        column = np.array(values)
        if len(values) and column.dtype.kind not in "iub":
            raise InputError(f"program {field}: not whole numbers; it must be int")
    except (OverflowError, ValueError, TypeError):
        raise InputError(f"program {field}: not whole numbers of a sensible size; it must be int") from None
    largest = max(int(column.max()), -int(column.min())) if len(column) else 0
    if largest > MAX_NUMBER:  # Numbers that only uint64 holds must not reach the conversion, where they wrap.
        raise InputError(f"program {field}: {largest}; it must be at most {MAX_NUMBER}")
    return column.astype(np.int64)


def columns_of(program: Program, findings: Findings) -> Columns:
    """Build the columns of a program, and add to `findings` the faults that are seen without running it.

    They are wrong counts, offsets beyond a buffer, dependencies on missing steps, misplaced nops, and connections whose
    ends, messages or counts do not match. If a finding was added, the columns may name steps, cells or connections that
    do not exist.

    Raises:
        InputError: If an instruction, a buffer or a number is one that no program can hold.
    """
    blocks = [(r, t, tb) for r, gpu in enumerate(program.gpus) for t, tb in enumerate(gpu.threadblocks)]
    steps = list(chain.from_iterable(tb.steps for _, _, tb in blocks))
    lengths = _integers([len(tb.steps) for _, _, tb in blocks], "threadblocks")
    try:
        op = np.array([OP_CODE[x] for x in [s.op for s in steps]], dtype=np.int64)
        src = np.array([_BUFFER_CODE[x] for x in [s.src_buf for s in steps]], dtype=np.int64)
        dst = np.array([_BUFFER_CODE[x] for x in [s.dst_buf for s in steps]], dtype=np.int64)
    except (KeyError, TypeError) as error:
        raise InputError(
            f"program step with {error}; it must be an op of {', '.join(OPS)} and a buffer of i, o, s"
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
        start=pointers(lengths),
        connections=[],
        sender=[],
        receiver=[],
    )
    # A nop never reports that it completed.
    flags = np.array([bool(s.has_dep) for s in steps], dtype=bool) & (op != OP_CODE["nop"])
    dep_tb, dep_step = (_integers([getattr(s, name) for s in steps], name) for name in ("dep_tb", "dep_step"))
    _check_buffers(c, program, findings)
    for kind, message, step in chain(
        _nop_faults(c, dep_tb, dep_step), _link_dependencies(c, program, dep_tb, dep_step, flags)
    ):
        findings.add(kind, message, *c.place(step))
    ends = [(r, t, tb.send, tb.recv, tb.channel) for r, t, tb in blocks]
    link_connections(c, program.nranks, ends, findings, program.translations)
    _check_pairs(c, findings)
    return c


OP_CODE = {name: code for code, name in enumerate(OPS)}
_SIDES = ("send", "recv")
_BUFFER_CODE = {name: code for code, name in enumerate(BUFFERS)}


def _check_buffers(c: Columns, program: Program, findings: Findings) -> None:
    """Add a finding for each wrong count, negative buffer size and step that reaches beyond its buffer.

    A nop must have count 0, every other step 1 or more. Only buffers that the instruction reads or writes are checked.

    Raises:
        InputError: If a buffer's size is no whole number, or is too large.
    """
    nop = c.op == OP_CODE["nop"]
    for step in np.flatnonzero(np.where(nop, c.count != 0, c.count < 1)).tolist():
        requirement = "; it must be 0" if nop[step] else " moves nothing; it must be 1 or more"
        findings.add("inconsistent", f"{OPS[c.op[step]]} with count {c.count[step]}{requirement}", *c.place(step))
    sizes = np.stack(
        [_integers([getattr(g, f"{b}_chunks") for g in program.gpus], f"{b}_chunks") for b in BUFFERS], axis=1
    )
    for rank, buffer in np.argwhere(sizes < 0).tolist():
        findings.add("inconsistent", f"{BUFFERS[buffer]}_chunks {sizes[rank, buffer]}; it must be 0 or more", rank)
    rank_of = c.rank[c.block]
    for names, column, at, role in (
        (READS_SRC, c.src, c.src_at, "source"),
        (WRITES_DST | READS_DST, c.dst, c.dst_at, "destination"),
    ):
        size = sizes[rank_of, column]
        for step in np.flatnonzero(c.is_op(names) & ((at < 0) | (at + c.count > size))).tolist():
            name, low, high = BUFFERS[column[step]], int(at[step]), int(at[step] + c.count[step])
            message = f"{OPS[c.op[step]]} {role} {name}[{low}..{high - 1}]; {name} has {size[step]} chunks"
            findings.add("overrun", message, *c.place(step), cell=(name, high - 1 if low >= 0 else low))


def _nop_faults(c: Columns, dep_tb: Column, dep_step: Column) -> Iterator[Fault]:
    """Yield a fault for each half-named dependency and for each nop that readers cannot attach to a next step.

    A nop must wait for a step and must not be the last of its threadblock. A step after a nop must have a dependency.

    Args:
        c: Columns of the program.
        dep_tb: Per step, `Step.dep_tb`.
        dep_step: Per step, `Step.dep_step`.
    """
    for step in np.flatnonzero((dep_tb < 0) != (dep_step < 0)).tolist():
        dependency = f"waits for tb {dep_tb[step]} step {dep_step[step]}"
        yield "dangling dependency", f"{dependency}; it must be both -1 or both 0 or more", step
    nop = c.op == OP_CODE["nop"]
    last, follows_nop = np.zeros((2, len(nop)), dtype=bool)
    last[c.start[1:][np.diff(c.start) > 0] - 1] = True
    follows_nop[1:] = nop[:-1] & (c.block[1:] == c.block[:-1])
    unattached = "follows a nop and has no dependency; readers give the nop's to a step that has one"
    for steps, message in (
        (nop & (dep_tb < 0), "nop without a dependency; it must wait for a step"),
        (nop & last, "nop at the end of its tb; it must stand before a step"),
        (follows_nop & ~nop & (dep_tb < 0), unattached),
    ):
        yield from (("inconsistent", message, step) for step in np.flatnonzero(steps).tolist())


def _link_dependencies(
    c: Columns, program: Program, dep_tb: Column, dep_step: Column, has_dep: NDArray[np.bool_]
) -> Iterator[Fault]:
    """Set the column `dep`; yield a fault for each dependency on a step that is missing or never reports its end.

    The column is set when the first fault is requested. It is not set for a dependency on a missing step.

    Args:
        c: Columns to complete.
        program: The program.
        dep_tb: Per step, `Step.dep_tb`.
        dep_step: Per step, `Step.dep_step`.
        has_dep: Per step, True if it reports its end.
    """
    ntbs = [len(g.threadblocks) for g in program.gpus]
    first_block = pointers(np.array(ntbs, dtype=np.int64))
    lengths = np.diff(c.start)
    waiting = np.flatnonzero((dep_tb >= 0) & (dep_step >= 0))
    ranks = c.rank[c.block[waiting]]
    is_block = dep_tb[waiting] < np.diff(first_block)[ranks]
    blocks = first_block[ranks] + np.where(is_block, dep_tb[waiting], 0)
    # A threadblock that does not exist has no steps.
    is_step = is_block & (dep_step[waiting] < np.append(lengths, 0)[blocks])
    c.dep[waiting[is_step]] = targets = c.start[blocks[is_step]] + dep_step[waiting[is_step]]
    bad = ~is_step
    bad[is_step] = ~has_dep[targets]
    for i in np.flatnonzero(bad).tolist():
        step, rank = int(waiting[i]), int(ranks[i])
        t, s = int(dep_tb[step]), int(dep_step[step])
        if not is_block[i]:
            yield "dangling dependency", f"waits for tb {t}; rank {rank} has {ntbs[rank]} tbs", step
        elif not is_step[i]:
            yield "dangling dependency", f"waits for tb {t} step {s}; tb {t} has {lengths[blocks[i]]} steps", step
        else:
            never = "which never says that it completed; it must be hasdep 1"
            yield "dangling dependency", f"waits for tb {t} step {s}, {never}", step


def link_connections(
    c: Columns,
    nranks: int,
    blocks: list[tuple[int, int, int, int, int]],
    findings: Findings,
    translations: Translations = (),
) -> None:
    """Set the connections, their blocks, and the columns `sends` and `receives`; add a finding for each wrong one.

    A finding is added for a negative channel, a peer that is no other rank, a second block at one end of a connection,
    a connection with one end only, and a step that sends or receives in a block without such a peer. With translations,
    a connection stands for all its images: its source is a representative, which sees its target.

    Args:
        c: Columns to complete; `connections`, `sender` and `receiver` are empty before.
        nranks: Number of ranks.
        blocks: Per block (rank, tb, rank it sends to, rank it receives from, channel); -1 for no peer.
        findings: Where the faults are added.
        translations: Translations of the program.

    Raises:
        InputError: If a rank or a channel is no whole number, or is too large.
    """
    images = images_of(translations, nranks) if translations else None
    number_of: dict[tuple[int, int, int], int] = {}
    ends: tuple[list[int], list[int]] = (c.sender, c.receiver)
    _integers([x for b in blocks for x in b[2:]], "send, recv, channel")
    of_block: tuple[list[int], list[int]] = ([], [])
    for block, (rank, tb, send, recv, channel) in enumerate(blocks):
        if channel < 0:
            findings.add("inconsistent", f"channel {channel}; it must be 0 or more", rank, tb)
        for side, peer in enumerate((send, recv)):
            side_name = _SIDES[side]
            if peer != -1 and (peer == rank or not 0 <= peer < nranks):
                requirement = f"-1 or another rank in 0..{nranks - 1}"
                findings.add("unpaired", f"{side_name} {peer}; it must be {requirement}", rank, tb)
            if peer == -1 or peer == rank:
                of_block[side].append(-1)
                continue
            key = (peer, rank, channel) if side else (rank, peer, channel)
            if images is not None and 0 <= peer < nranks:
                key = (*images.connection(*key[:2]), channel)
            number = number_of.setdefault(key, len(number_of))
            if number == len(c.connections):
                c.connections.append(key)
                c.sender.append(-1)
                c.receiver.append(-1)
            of_block[side].append(number)
            if ends[side][number] < 0:
                ends[side][number] = block
                continue
            duplicate = f"{side_name} {peer} on channel {channel} is also tb {int(c.tb[ends[side][number]])}'s"
            requirement = "one tb for a (peer, channel, direction)"
            findings.add("duplicate connection", f"{duplicate}; it must be {requirement}", rank, tb)
    for number, (source, target, channel) in enumerate(c.connections):
        # Readers connect what a tb declares, used or not, and wait for the other side to do the same.
        for side, rank, other_rank in ((0, source, target), (1, target, source)):
            if ends[side][number] >= 0 and ends[1 - side][number] < 0:
                missing_side = f"rank {other_rank} has no tb with {_SIDES[1 - side]} {rank} on it; it must have one"
                message = f"{_SIDES[side]} {other_rank} on channel {channel}, but {missing_side}"
                findings.add("unpaired", message, rank, int(c.tb[ends[side][number]]))
    for side, (names, column) in enumerate(((SENDS, c.sends), (RECEIVES, c.receives))):
        uses = c.is_op(names)
        peers = np.array(of_block[side], dtype=np.int64)[c.block] if len(c.block) else c.block
        for step in np.flatnonzero(uses & (peers < 0)).tolist():
            message = f"{OPS[c.op[step]]} in a tb with no {_SIDES[side]} peer; it must have one"
            findings.add("unpaired", message, *c.place(step))
        column[:] = np.where(uses, peers, -1)


def _check_pairs(c: Columns, findings: Findings) -> None:
    """Add a finding for each k-th send and k-th receive of a connection that differ in count.

    Of the sends or receives that have no counterpart, only the first of each connection is reported.
    """
    out, into = c.messages()
    if np.array_equal(c.sends[out], c.receives[into]) and np.array_equal(c.count[out], c.count[into]):
        return
    first = [
        np.searchsorted(column, np.arange(len(c.connections) + 1)).tolist()
        for column in (c.sends[out], c.receives[into])
    ]
    for number, (source, target, channel) in enumerate(c.connections):
        sent, received = (
            steps[at[number] : at[number + 1]].tolist() for steps, at in zip((out, into), first, strict=True)
        )
        for send, receive in zip(sent, received, strict=False):
            if c.count[send] != c.count[receive]:
                rank, tb, position = c.place(receive)
                receipt = f"received by rank {rank} tb {tb} step {position} as {c.count[receive]}"
                findings.add(
                    "unequal counts",
                    f"sends {c.count[send]} chunks, {receipt}; the counts must be equal",
                    *c.place(send),
                )
        if len(sent) != len(received):
            matched_count = min(len(sent), len(received))
            unmatched_step = (sent if len(sent) > matched_count else received)[matched_count]
            surplus_verb, missing_verb = ("sends", "receives") if len(sent) > matched_count else ("receives", "sends")
            counts = f"on channel {channel} has {len(sent)} sends and {len(received)} receives"
            message = (
                f"{surplus_verb} what the other side never {missing_verb}: rank {source} to rank {target} {counts}"
            )
            findings.add("unpaired", message, *c.place(unmatched_step))
