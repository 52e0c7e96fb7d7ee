"""Write out the ranks of a plan with translations: the images of its representatives (see `emit.images`).

A rank has as many channels to a peer as the peer has to it, and the k-th of the one is connected to the k-th of the
other. If an element of the group exchanges two ranks, each channel from the one to the other has an image in the other
direction. The representative lists the two ends one after the other, its own sending end first. Of two such ranks, the
one with the greater number lists them in reverse, so that each sending end meets a receiving one. A single channel
between two such ranks has one end in each list, and either is the image of the other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from emit.images import BufferImages
from emit.mscclpp.memory import images_of_buffers
from emit.mscclpp.plan import ExecutionPlan, Op, PlanBlock, PlanGpu, PlanPart, gpu_text, plan_text
from synth.model.deadline import checking_deadline
from topologies.errors import InputError

_MOST_TEXT = 1 << 29  # characters of a plan, which are in memory a few times


def whole_plan(plan: ExecutionPlan) -> ExecutionPlan:
    """Return a plan with the threadblocks of all ranks and no translations; the same object if it has none."""
    if not plan.translations:
        return plan
    return replace(plan, gpus=list(image_gpus(plan)), translations=())


def text_of_images(plan: ExecutionPlan) -> str:
    """Return the text of `whole_plan`, which is written by filling the numbers of each image into one text.

    Raises:
        InputError: The text of all images would be too large.
    """
    return plan_text(plan, _texts_of_ranks(plan) if plan.translations else None)


def is_text_of_images(plan: ExecutionPlan, text: str) -> bool:
    """Return True if `text_of_images` of a plan with translations is the text; stop at the first rank that differs.

    Raises:
        InputError: The text of all images would be too large.
    """
    texts_of_ranks, at = list[str](), 0
    for text_of_rank in _texts_of_ranks(plan):
        at = text.find(text_of_rank, at)
        if at < 0:
            return False
        texts_of_ranks.append(text_of_rank)
        at += len(text_of_rank)
    return plan_text(plan, texts_of_ranks) == text


def _texts_of_ranks(plan: ExecutionPlan) -> Iterator[str]:
    """Yield the text of each rank of a plan with translations, as `gpu_text` writes it, in order.

    Raises:
        InputError: The text of all images would be too large.
    """
    buffers = images_of_buffers(plan)
    assert buffers is not None
    templates = {rank: _Template(plan.gpus[rank]) for rank in buffers.images.representatives.tolist()}
    representative = buffers.images.representative.tolist()
    size = buffers.images.order * sum(len(template.form) for template in templates.values())
    if size > _MOST_TEXT:
        raise InputError(
            f"{plan.name}: its file would have {size >> 20} MiB; it must be at most {_MOST_TEXT >> 20} MiB"
        )
    for rank in checking_deadline(range(len(plan.gpus))):
        yield templates[representative[rank]].text(buffers, representative[rank], rank)


class _Template:
    """The text of a representative, in which the numbers that differ between its images are to be filled in.

    Attributes:
        gpu: The representative.
        form: The text, with %d for each of these numbers.
        numbers: What each of them is: (kind, number), where the kind is `rank`, `peer`, `memory` or `port` for the
            place of a channel in its list, or a buffer for a chunk in it.
    """

    def __init__(self, gpu: PlanGpu) -> None:
        self.gpu = gpu
        text = gpu_text(_mark("rank", 0), _marked(gpu))
        pieces = _MARK.split(text.replace("%", "%%"))
        self.form = "%d".join(pieces[::3])
        self.numbers = list(zip(pieces[1::3], map(int, pieces[2::3]), strict=True))

    def text(self, buffers: BufferImages, representative: int, rank: int) -> str:
        """Return the text of a rank that is an image of the representative."""
        images = buffers.images
        moved = images.moved(int(images.element[rank])).tolist()
        exchanged = [images.reverse(representative, peer) == (representative, peer) for peer in range(len(moved))]
        order = {
            kind: _order_of_channels(peers, [exchanged[peer] for peer in peers], moved, rank)
            for kind, peers in self.gpu.peers.items()
        }
        filled = {("rank", 0): rank}
        for kind, number in set(self.numbers) - filled.keys():
            if kind == "peer":
                filled[kind, number] = moved[number]
            elif kind in order:
                filled[kind, number] = order[kind][number]
            else:
                filled[kind, number] = buffers.place(rank, kind, number)
        return self.form % tuple(map(filled.__getitem__, self.numbers))


_MARK = re.compile(r'"@(\w+) (\d+)"')


def _mark(kind: str, number: int) -> Any:
    """Return the text "@kind number", which stands for a number that differs between images."""
    return f"@{kind} {number}"


def _marked(gpu: PlanGpu) -> PlanGpu:
    """Return a copy of a representative with marks for the numbers that differ between its images, except for its own.

    These are chunks of spans, numbers of channels, and peers.
    """
    blocks = [
        PlanBlock(
            [_with_first_chunks(gpu, block, op, _mark) for op in block.ops],
            {kind: [_mark(kind, end) for end in ends] for kind, ends in block.channels.items()},
            block.buffers,
        )
        for block in gpu.blocks
    ]
    return replace(
        gpu,
        blocks=blocks,
        peers={kind: [_mark("peer", peer) for peer in peers] for kind, peers in gpu.peers.items()},
        buffers=[buffer._replace(rank=_mark("peer", buffer.rank)) for buffer in gpu.buffers],
    )


def image_gpus(plan: ExecutionPlan) -> Iterator[PlanGpu]:
    """Yield every rank of a plan with translations, in order, with its own peers and places."""
    buffers = images_of_buffers(plan)
    assert buffers is not None
    representative = buffers.images.representative.tolist()
    for rank in checking_deadline(range(len(plan.gpus))):
        yield _image(plan.gpus[representative[rank]], buffers, representative[rank], rank)


def _image(gpu: PlanGpu, buffers: BufferImages, representative: int, rank: int) -> PlanGpu:
    """Return the rank `rank` as the image of `gpu`, which is the part of the rank `representative`."""
    images = buffers.images
    element = int(images.element[rank])
    moved = images.moved(element).tolist()
    order = {
        kind: _order_of_channels(
            peers, [images.reverse(representative, p) == (representative, p) for p in peers], moved, rank
        )
        for kind, peers in gpu.peers.items()
    }
    blocks = [
        PlanBlock(
            [_with_first_chunks(gpu, block, op, partial(buffers.place, rank)) for op in block.ops],
            {
                kind: [order[kind][end] if kind in order else end for end in ends]
                for kind, ends in block.channels.items()
            },
            block.buffers,
        )
        for block in gpu.blocks
    ]
    return replace(
        gpu,
        blocks=blocks,
        peers={kind: [moved[peer] for peer in peers] for kind, peers in gpu.peers.items()},
        buffers=[buffer._replace(rank=moved[buffer.rank]) for buffer in gpu.buffers],
    )


def _with_first_chunks(gpu: PlanGpu, block: PlanBlock, op: Op, first_chunk: Callable[[str, int], Any]) -> Op:
    """Return an operation of a rank with other first chunks of its spans, also where a pipeline repeats them.

    Args:
        gpu: The rank.
        block: The threadblock of the operation.
        op: The operation.
        first_chunk: Returns what replaces the first chunk of a span in a buffer of a kind.
    """

    def part_of(part: PlanPart) -> PlanPart:
        """Return a span with its other first chunk."""
        if part.side == "L":
            kind = str(part.at)
        elif part.side == "W":
            kind = gpu.switches[block.channels["switch"][int(part.at)]][0]
        else:
            kind = gpu.buffers[block.buffers[op.channel_type][int(part.at)]].kind
        return part._replace(first=first_chunk(kind, part.first))

    if op.ops:
        return op._replace(ops=[_with_first_chunks(gpu, block, inner, first_chunk) for inner in op.ops])
    if not op.src:
        return op
    return op._replace(src=[part_of(part) for part in op.src], dst=[part_of(part) for part in op.dst])


def _order_of_channels(peers: list[int], exchanged: list[bool], moved: list[int], rank: int) -> list[int]:
    """Return the place of each channel of a representative in the list of its image.

    Two adjacent ends of one channel change places if the image of the peer has a smaller number than the image. The
    last of an odd number of ends to a peer is connected to its own image, and stays.

    Args:
        peers: Rank at the other end of each channel, as the representative sees it.
        exchanged: For each channel, whether an element exchanges the representative with the rank at its other end.
        moved: Image of every rank.
        rank: The image of the representative.
    """
    place, ends_to = list(range(len(peers))), dict[int, list[int]]()
    for number, peer in enumerate(peers):
        if exchanged[number] and moved[peer] < rank:
            ends_to.setdefault(peer, []).append(number)
    for ends in ends_to.values():
        for first_end, second_end in zip(ends[::2], ends[1::2], strict=False):
            place[first_end], place[second_end] = second_end, first_end
    return place
