"""Place the chunks of a plan in its file where they are not all as large.

A message of 2²⁰ bytes does not divide into equal shares of 56 ranks. So there are two kinds of chunks. Those of a plan
whose ranks are images of a few representatives are all alike. Those of its file are smaller and divide the message: one
chunk of the plan is `ExecutionPlan.widths[b]` chunks of the file, if it holds data of block b.

Each chunk of the plan is one run of chunks of the file. In a buffer with blocks, its place tells its block. In scratch,
the block whose data it holds is found by following the operations, and a chunk that would hold data of two blocks is
refused. Then every operation moves runs of one length from place to place, no two chunks share a place, and all that is
proved of the plan holds for the file. Packets in scratch are counted apart from plain chunks there, as the executor
does, and lie behind all plain chunks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from emit.images import BufferImages
from emit.mscclpp.memory import images_of_buffers
from emit.mscclpp.plan import ExecutionPlan, Op, PlanBlock, PlanGpu, PlanPart
from emit.mscclpp.structure import PAIRS, packet_parts
from synth.model.collective import Ints
from synth.model.deadline import checking_deadline
from topologies.arrays import pointers
from topologies.errors import InputError

_UNUSED = -1  # instead of the block of a chunk of scratch that nothing uses
_BLOCKLESS = "sp"  # Scratch, and packets in scratch.
# (rank, buffer, first chunk, number of chunks) of a span. The buffer is i, o, s, or p for packets in scratch.
_Located = tuple[int, str, int, int]
SpanPlacer = Callable[[int, str, int, int], tuple[Any, Any]]


class Places:
    """The places in the file of the chunks of all ranks.

    Attributes:
        buffers: Images of the buffers.
        widths: Chunks of the file for one chunk of each block; () for one everywhere.
        scratch: By (representative, "s" for its plain scratch or "p" for its packets), the block whose data each chunk
            there holds, int, shape (chunks,); `_UNUSED` if nothing uses it.
    """

    def __init__(self, buffers: BufferImages, widths: Sequence[int], scratch: Mapping[tuple[int, str], Ints]) -> None:
        """Place the chunks.

        Raises:
            InputError: A packet lies before a plain chunk of scratch.
        """
        for (rank, kind), blocks in scratch.items():
            packets = np.flatnonzero(scratch[rank, "p"] != _UNUSED)
            if kind == "s" and len(packets) and (blocks[2 * int(packets[0]) :] != _UNUSED).any():
                raise InputError("packets before plain chunks of scratch")
        self.buffers, self.widths, self.scratch = buffers, tuple(widths), scratch
        self._width = np.array([*widths, max(widths, default=1)], dtype=np.int64)  # The last is for `_UNUSED`.
        self._block = max(buffers.blocks.values(), default=0)
        self._ends = pointers(np.repeat(self._width[:-1], self._block))
        self._scratch_ends: dict[tuple[int, str], Ints] = {}

    def span(self, rank: int, owner: int, kind: str, first: int, size: int) -> tuple[int, int]:
        """Return (first chunk, number of chunks) in the file of a span that a rank accesses.

        Args:
            rank: The rank.
            owner: Rank whose buffer it is.
            kind: The buffer.
            first: First chunk, as the representative of `rank` has it.
            size: Number of chunks.
        """
        first = self.buffers.place(rank, kind, first)
        if not self.widths:
            return first, size
        ends = self._scratch_ends_of(owner, kind) if kind in _BLOCKLESS else self._ends
        return int(ends[first]), int(ends[first + size] - ends[first])

    def span_of_plan(self, owner: int, kind: str, first: int, size: int) -> tuple[int, int]:
        """Return (first chunk, number of chunks) in the plan of a span of the file; the inverse of `span`.

        The first chunk is as `owner` has it.

        Raises:
            InputError: It is no span of whole chunks of the plan.
        """
        ends = self._scratch_ends_of(owner, kind) if kind in _BLOCKLESS else self._ends
        begin, end = np.searchsorted(ends, (first, first + size)).tolist()
        if end >= len(ends) or ends[begin] != first or ends[end] != first + size:
            raise InputError(f"{kind}[{first}..] is no span of whole chunks")
        return begin, end - begin

    def _scratch_ends_of(self, owner: int, kind: str) -> Ints:
        """Return where each chunk of a rank's scratch begins in the file, and the end, int, shape (chunks + 1,)."""
        if (owner, kind) not in self._scratch_ends:
            images = self.buffers.images
            blocks = _moved(self.buffers, int(images.element[owner]))[
                self.scratch[int(images.representative[owner]), kind]
            ]
            self._scratch_ends[owner, kind] = pointers(self._width[blocks])
        return self._scratch_ends[owner, kind]


def places_of(plan: ExecutionPlan) -> Places:
    """Return the places of a plan with translations in its file.

    Raises:
        InputError: The plan has widths, and a buffer has no blocks, some chunk of scratch holds data of several blocks,
            or an operation is none of those that programs are lowered to.
    """
    buffers = images_of_buffers(plan)
    assert buffers is not None  # The plan has translations.
    if not plan.widths:
        return Places(buffers, (), {})
    spans = [spans_of_data for _, spans_of_data in _same_data(plan)]
    sizes = _scratch_sizes(plan, buffers.images.representatives.tolist(), 1)
    block_of_chunk = np.repeat(np.arange(len(plan.widths)), _chunks_of_block(plan, buffers))
    return Places(buffers, plan.widths, _blocks_of_scratch(spans, sizes, buffers, block_of_chunk))


def in_chunks_of_plan(plan: ExecutionPlan) -> ExecutionPlan:
    """Return a plan that was read with its file's chunks, with the chunks that its `widths` tell.

    The representatives are to be read whole, of the other ranks only the sizes count.

    Raises:
        InputError: The widths are not those of the plan.
    """
    plan = replace(plan, gpus=_with_plan_sizes(plan))
    buffers = images_of_buffers(plan)
    assert buffers is not None  # The plan has translations.
    width = np.array(plan.widths)
    # The block of each of the file's chunks of a whole buffer.
    block_of_chunk = np.repeat(np.arange(len(width)), width * _chunks_of_block(plan, buffers))
    # The operations of each representative tell what is in its own scratch.
    own_spans = [[span for span in spans_of_data if span[0] == rank] for rank, spans_of_data in _same_data(plan)]
    ranks: list[int] = buffers.images.representatives.tolist()
    in_file = _blocks_of_scratch(own_spans, _scratch_sizes(plan, ranks, plan.widest), buffers, block_of_chunk)
    sizes = _scratch_sizes(plan, ranks, 1)
    scratch = {place: _by_chunk_of_plan(in_file[place], width, chunks) for place, chunks in sizes.items()}
    places = Places(buffers, plan.widths, scratch)

    def gpu_of(rank: int, gpu: PlanGpu) -> PlanGpu:
        """Return a rank with its spans in chunks of the plan."""
        return with_spans(gpu, rank, lambda owner, kind, first, size: places.span_of_plan(owner, kind, first, size))

    return replace(plan, gpus=[gpu_of(rank, gpu) if gpu.blocks else gpu for rank, gpu in enumerate(plan.gpus)])


def with_spans(gpu: PlanGpu, rank: int, place: SpanPlacer) -> PlanGpu:
    """Return a rank of a plan with other spans in its operations, also where a pipeline repeats them.

    Args:
        gpu: The rank.
        rank: Its number, as its operations see it.
        place: Returns (first chunk, number of chunks) of what replaces a span, from (rank, buffer, first chunk, number
            of chunks).
    """

    def op_of(block: PlanBlock, op: Op) -> Op:
        """Return an operation with its other spans."""
        if op.ops:
            return op._replace(ops=[op_of(block, inner) for inner in op.ops])
        if not op.src:
            return op
        src, dst = (
            [part._replace(first=first, size=size) for part, (first, size) in zip(parts, places, strict=True)]
            for parts, places in zip(
                (op.src, op.dst),
                ([place(*span) for span in spans] for spans in _located(gpu, rank, block, op)),
                strict=True,
            )
        )
        return op._replace(src=src, dst=dst)

    blocks = [PlanBlock([op_of(block, op) for op in block.ops], block.channels, block.buffers) for block in gpu.blocks]
    return replace(gpu, blocks=blocks)


def _chunks_of_block(plan: ExecutionPlan, buffers: BufferImages) -> int:
    """Return the chunks of a block of the input, and of the output.

    Raises:
        InputError: One of them has no blocks, or the two differ.
    """
    sizes = set(buffers.blocks.values())
    if len(sizes) != 1 or 0 in sizes:
        raise InputError(f"{plan.name}: buffers without blocks that are alike")
    return sizes.pop()


def _with_plan_sizes(plan: ExecutionPlan) -> list[PlanGpu]:
    """Return the ranks of a plan that was read with the sizes of their buffers in chunks of the plan.

    Raises:
        InputError: They are no whole numbers.
    """
    total, nblocks, widest = sum(plan.widths), len(plan.widths), plan.widest
    gpus = []
    for gpu in plan.gpus:
        inputs, rest_of_inputs = divmod(gpu.input_chunks * nblocks, total)
        outputs, rest_of_outputs = divmod(gpu.output_chunks * nblocks, total)
        scratch, rest_of_scratch = divmod(gpu.scratch_chunks, widest)
        if rest_of_inputs or rest_of_outputs or rest_of_scratch:
            raise InputError(f"{plan.name}: buffers of no whole chunks")
        gpus.append(replace(gpu, input_chunks=inputs, output_chunks=outputs, scratch_chunks=scratch))
    return gpus


def _scratch_sizes(plan: ExecutionPlan, ranks: Iterable[int], width: int) -> dict[tuple[int, str], int]:
    """Return the number of plain chunks (s) and of packets (p) in the scratch of ranks, if each chunk is `width`."""
    sizes = {rank: plan.gpus[rank].scratch_chunks * width for rank in ranks}
    plain = {(rank, "s"): size * (2 if plan.packets else 1) for rank, size in sizes.items()}
    return plain | {(rank, "p"): size if plan.packets else 0 for rank, size in sizes.items()}


def _moved(buffers: BufferImages, element: int) -> Ints:
    """Return the image of every block under an element, int, shape (blocks + 1,); `_UNUSED`, the last, stays."""
    images = buffers.images
    return np.append(images.moved(element)[:: images.unit] // images.unit, _UNUSED)


def _located(gpu: PlanGpu, rank: int, block: PlanBlock, op: Op) -> tuple[list[_Located], list[_Located]]:
    """Return (rank, buffer, first chunk, number of chunks) of every source and of every destination of an operation.

    The rank of a span of a switch channel is the operation's own, which is `rank`.
    """

    def located(part: PlanPart, is_packet: bool) -> _Located:
        """Return what stands for a span."""
        owner, kind = rank, str(part.at)
        if part.side == "W":
            kind = gpu.switches[block.channels["switch"][int(part.at)]][0]
        elif part.side == "R":
            owner, kind, _ = gpu.buffers[block.buffers[op.channel_type][int(part.at)]]
        return owner, "p" if is_packet else kind, part.first, part.size

    src, dst = (
        [located(part, is_packet) for part, is_packet in zip(parts, are_packets, strict=True)]
        for parts, are_packets in zip((op.src, op.dst), packet_parts(op), strict=True)
    )
    return src, dst


def _same_data(plan: ExecutionPlan) -> Iterator[tuple[int, list[_Located]]]:
    """Yield (rank of an operation, spans) for spans of the operation whose n-th chunks hold data of the same place.

    Raises:
        InputError: An operation is a pipeline, a part of what a group does, a get, goes through a switch, or has not as
            many destinations as sources where they are pairs.
    """
    for rank, gpu in enumerate(plan.gpus):
        for block in gpu.blocks:
            for op in checking_deadline(block.ops, every=256):
                if op.ops or op.group != (0, 1) or op.name == "get" or op.channel_type == "switch":
                    raise InputError(f"{plan.name}: {op.name} of unlike chunks")
                if op.name in PAIRS and len(op.src) != len(op.dst):
                    raise InputError(f"{plan.name}: {op.name} of {len(op.src)} sources to {len(op.dst)} destinations")
                if not op.src:  # It moves no data.
                    continue
                src, dst = _located(gpu, rank, block, op)
                of_pairs = map(list, zip(src, dst, strict=True)) if op.name in PAIRS else [[*src, *dst]]
                yield from ((rank, spans_of_data) for spans_of_data in of_pairs)


def _blocks_of_scratch(
    spans: Sequence[Sequence[_Located]], sizes: Mapping[tuple[int, str], int], buffers: BufferImages, blocks: Ints
) -> dict[tuple[int, str], Ints]:
    """Return the block whose data each chunk of the representatives' scratch holds, `_UNUSED` where none is known.

    Args:
        spans: Spans whose n-th chunks hold data of the same place.
        sizes: Plain chunks (s) and packets (p) of the scratch of each representative.
        buffers: Images of the buffers.
        blocks: Block of each chunk of a buffer with blocks, int, shape (chunks,).

    Raises:
        InputError: A chunk holds data of two blocks, or spans of the same data differ in size.
    """
    images = buffers.images
    scratch = {place: np.full(size, _UNUSED) for place, size in sizes.items()}
    image_of_block = cache(partial(_moved, buffers))
    element_of, representative_of = images.element.tolist(), images.representative.tolist()
    is_changed = True
    while is_changed:
        is_changed = False
        for spans_of_data in checking_deadline(spans, every=256):
            span_blocks = [
                image_of_block(element_of[owner])[scratch[representative_of[owner], kind][first : first + size]]
                if kind in _BLOCKLESS
                else blocks[first : first + size]
                for owner, kind, first, size in spans_of_data
            ]
            if any(len(present) != spans_of_data[0][3] for present in span_blocks):
                raise InputError("spans of the same data that differ in size")
            data_blocks = np.max(span_blocks, axis=0, initial=_UNUSED)
            for (owner, kind, first, size), present in zip(spans_of_data, span_blocks, strict=True):
                if np.array_equal(present, data_blocks):
                    continue
                if kind not in _BLOCKLESS or ((present != _UNUSED) & (present != data_blocks)).any():
                    raise InputError("a chunk of scratch with data of blocks that are unlike")
                is_changed = True
                block_of_image = image_of_block(images.inverse(element_of[owner]))
                scratch[representative_of[owner], kind][first : first + size] = block_of_image[data_blocks]
    return scratch


def _by_chunk_of_plan(blocks: Ints, widths: Ints, chunks: int) -> Ints:
    """Return the block of each of a scratch's chunks of the plan, int, shape (chunks,).

    A chunk that nothing uses is as wide as the widest.

    Args:
        blocks: Block of each chunk of the file, int, shape (chunks of the file,).
        widths: Chunks of the file for a chunk of each block.
        chunks: Number of chunks of the plan.

    Raises:
        InputError: They are no whole chunks of the plan.
    """
    width = np.append(widths, widths.max())  # The last is for `_UNUSED`.
    starts = np.flatnonzero(np.append(True, blocks[1:] != blocks[:-1])) if len(blocks) else np.zeros(0, dtype=np.int64)
    lengths = np.diff(np.append(starts, len(blocks)))
    held = blocks[starts]
    if len(held) and held[-1] == _UNUSED:
        held, lengths = held[:-1], lengths[:-1]
    number, rest = np.divmod(lengths, width[held])
    if rest.any() or number.sum() > chunks:
        raise InputError("scratch of no whole chunks")
    return np.append(np.repeat(held, number), np.full(chunks - int(number.sum()), _UNUSED))
