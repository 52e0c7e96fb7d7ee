"""What all layouts of the same instructions share: their columns, and what must come before what."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from emit.columns import OP_CODE
from emit.compiler.ir import BUFFER, NONE, Instructions, predecessors, scratch_chunks
from emit.program import OPS, READS_DST, READS_SRC, WRITES_DST
from emit.targets import Limits
from synth.model.collective import Ints


class Prepared:
    """Instructions ready to be laid out.

    Attributes:
        ir: they; not to be changed any more.
        after: what `predecessors` says.
        rank, op (index in OPS), count, source, target: int64, shape (instructions,).
        into, out: the rank that each receives from and sends to, −1 for none.
        src, src_at, dst, dst_at: buffer code and offset; what an instruction does not use is written as readers expect
            it: the place that it does use.
        scratch: chunks of each rank.
        nodes: of a file at least: one, one a rank, and the instructions of the rank that has most.
        crowd: messages of a pair of ranks, of which there are most.
    """

    def __init__(self, ir: Instructions) -> None:
        self.ir, self.after = ir, predecessors(ir)
        self.rank, self.count = _column(ir.rank), _column(ir.count)
        self.source, self.target = _column(ir.source), _column(ir.target)
        self.op = _column([OP_CODE[name] for name in ir.op])
        self.into = np.where(self.source == NONE, NONE, self.rank[self.source])
        self.out = np.where(self.target == NONE, NONE, self.rank[self.target])
        src, dst = _column(ir.src), _column(ir.dst)
        src, dst = np.where(src == NONE, dst, src), np.where(dst == NONE, src, dst)
        self.src, self.src_at = src // BUFFER, src % BUFFER
        self.dst, self.dst_at = dst // BUFFER, dst % BUFFER
        self.scratch = scratch_chunks(ir)
        nranks = ir.header.nranks
        self.nodes = 1 + nranks + int(np.bincount(self.rank, minlength=1).max())
        came = self.source != NONE
        self.crowd = int(np.bincount((self.into * nranks + self.rank)[came], minlength=1).max())

    def __len__(self) -> int:
        return len(self.ir)

    def ends(self) -> Iterator[tuple[int, int]]:
        """Of every instruction what `peers` says."""
        return zip(self.into.tolist(), self.out.tolist(), strict=True)

    def surely_within(self, limits: Limits) -> bool:
        """Whether every instruction by itself is surely within a target's limits, however they are laid out.

        Sums that a kernel takes together are not looked at: where there are any it is not sure.
        """
        reads_src, uses_dst = (_among(names)[self.op] for names in (READS_SRC, READS_DST | WRITES_DST))
        far = (reads_src & (self.src_at > limits.offset)) | (uses_dst & (self.dst_at > limits.offset))
        fits = _among(limits.ops - {"re"})[self.op] & ~far & (self.count <= limits.count)
        return bool(fits.all())


def _column(values: list[int]) -> Ints:
    return np.array(values, dtype=np.int64)


def _among(names: frozenset[str]) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    return np.array([name in names for name in OPS])
