"""Prepare the facts that all layouts of the same instructions share: their columns and their order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from emit.columns import OP_CODE
from emit.compiler.ir import BUFFER, NONE, Instructions, predecessors, scratch_chunks
from emit.images import images_of
from emit.program import OPS, READS_DST, READS_SRC, WRITES_DST
from emit.targets import Limits
from synth.model.collective import Ints
from synth.model.deadline import check_deadline

# What messages share that go from a rank to others, as any number, by (rank, other rank).
Lanes = Mapping[tuple[int, int], int]


class Prepared:
    """Instructions that are ready to be laid out.

    Attributes:
        ir: The instructions, which must not be changed any more.
        lanes: A number for each (rank, other rank) whose messages keep a NIC busy; those of one NIC have one number.
        after: Earlier instructions that each must follow, as in `predecessors`.
        rank: Rank, int64, shape (instructions,), like all following columns.
        op: Operation, as an index in OPS.
        count: Number of chunks.
        source: Instruction whose message it receives, −1 for none.
        target: Instruction that receives its message, −1 for none.
        into: Rank that it receives from, −1 for none.
        out: Rank that it sends to, −1 for none.
        src: Buffer code of the source. If an instruction uses only one of source and destination, the two are equal, as
            readers expect.
        src_at: Offset of the source.
        dst: Buffer code of the destination.
        dst_at: Offset of the destination.
        scratch: Scratch chunks of each rank.
        nodes: Least number of nodes of a file: one, one for each rank, and the instructions of the rank that has most.
        crowd: Largest number of messages between two ranks, in one direction.
    """

    def __init__(self, ir: Instructions, lanes: Lanes | None = None) -> None:
        check_deadline()
        self.ir, self.lanes, self.after = ir, lanes or {}, predecessors(ir)
        check_deadline()
        self.rank, self.count = _column(ir.rank), _column(ir.count)
        self.source, self.target = _column(ir.source), _column(ir.target)
        self.op = _column([OP_CODE[name] for name in ir.op])
        self.into, self.out = _peers(ir, self.rank, self.source, self.target)
        src, dst = _column(ir.src), _column(ir.dst)
        src, dst = np.where(src == NONE, dst, src), np.where(dst == NONE, src, dst)
        self.src, self.src_at = src // BUFFER, src % BUFFER
        self.dst, self.dst_at = dst // BUFFER, dst % BUFFER
        self.scratch = scratch_chunks(ir)
        nranks = ir.header.nranks
        self.nodes = 1 + nranks + int(np.bincount(self.rank, minlength=1).max())
        received = self.source != NONE
        sent = self.source[received]
        self.crowd = int(np.bincount(self.rank[sent] * nranks + self.out[sent], minlength=1).max())

    def __len__(self) -> int:
        return len(self.ir)

    @property
    def shares_lanes(self) -> bool:
        """Return True if messages from a rank to two or more other ranks share a lane."""
        ends = {end for end in zip(self.rank.tolist(), self.out.tolist(), strict=True) if end in self.lanes}
        return len(ends) > len({(rank, self.lanes[rank, out]) for rank, out in ends})

    def surely_within(self, limits: Limits) -> bool:
        """Return True if every instruction on its own is surely within a target's limits, in any layout.

        Return False if there are any local reductions (re), because a kernel may merge them.
        """
        reads_src, uses_dst = (_among(names)[self.op] for names in (READS_SRC, READS_DST | WRITES_DST))
        exceeds_offset = (reads_src & (self.src_at > limits.offset)) | (uses_dst & (self.dst_at > limits.offset))
        fits = _among(limits.ops - {"re"})[self.op] & ~exceeds_offset & (self.count <= limits.count)
        return bool(fits.all())


def _peers(ir: Instructions, rank: Ints, source: Ints, target: Ints) -> tuple[Ints, Ints]:
    """Return the rank that each instruction receives from, and the rank that it sends to; −1 for none."""
    if not ir.header.translations:
        return np.where(source == NONE, NONE, rank[source]), np.where(target == NONE, NONE, rank[target])
    images = images_of(ir.header.translations, ir.header.nranks)
    out = np.where(target == NONE, NONE, _column(ir.out))
    into = np.full(len(rank), NONE, dtype=np.int64)
    receives = np.flatnonzero(source != NONE)
    into[receives] = images.seen_by(rank[source[receives]], out[source[receives]])
    return into, out


def _column(values: list[int]) -> Ints:
    """Return the values as an int64 array."""
    return np.array(values, dtype=np.int64)


def _among(names: frozenset[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Return a mask over `OPS` that is True for the operations in `names`."""
    return np.array([name in names for name in OPS])
