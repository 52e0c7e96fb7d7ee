"""Write out the ranks of a plan with translations: the images of its representatives (see `emit.images`).

A rank has as many channels to a peer as the peer has to it, and the k-th of the one is connected to the k-th of the
other. If an element of the group exchanges two ranks, each channel from the one to the other has an image in the other
direction. The representative lists the two ends one after the other, its own sending end first. Of two such ranks, the
one with the greater number lists them in reverse, so that each sending end meets a receiving one. A single channel
between two such ranks has one end in each list, and either is the image of the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from emit.images import Images
from emit.mscclpp.plan import ExecutionPlan, PlanBlock, PlanGpu, gpu_text, plan_text
from emit.mscclpp.widths import Places, places_of, with_spans
from synth.model.deadline import checking_deadline
from topologies.errors import InputError

_MOST_TEXT = 1 << 29  # characters of a plan, which are in memory a few times


def whole_plan(plan: ExecutionPlan) -> ExecutionPlan:
    """Return a plan with the threadblocks of all ranks and the chunks of its file.

    It is the same object if it has no translations.
    """
    if not plan.translations:
        return plan
    return replace(plan, gpus=list(image_gpus(plan)), translations=(), widths=())


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
        InputError: The text of all images would be too large, or the plan's chunks have no places in the file.
    """
    places = places_of(plan)
    images = places.buffers.images
    templates = {rank: _Template(plan, rank) for rank in images.representatives.tolist()}
    representative = images.representative.tolist()
    size = images.order * sum(len(template.form) for template in templates.values())
    if size > _MOST_TEXT:
        raise InputError(
            f"{plan.name}: its file would have {size >> 20} MiB; it must be at most {_MOST_TEXT >> 20} MiB"
        )
    for rank in checking_deadline(range(len(plan.gpus))):
        yield templates[representative[rank]].text(places, rank)


class _Template:
    """The text of a representative, in which the numbers that differ between its images are to be filled in.

    Attributes:
        gpu: The representative.
        rank: Its number.
        form: The text, with %d for each of these numbers.
        numbers: What each of them is: (kind, number), where the kind is `rank`, `peer`, `memory` or `port` for the
            place of a channel in its list, or `first` or `size` of the span with this number.
        spans: (rank, buffer, first chunk, number of chunks) of each span that differs between images.
    """

    def __init__(self, plan: ExecutionPlan, rank: int) -> None:
        self.gpu, self.rank = plan.gpus[rank], rank
        number_of: dict[tuple[int, str, int, int], int] = {}

        def marked_span(owner: int, kind: str, first: int, size: int) -> tuple[Any, Any]:
            """Return marks for a span; its size keeps its number if all chunks are alike."""
            key = (owner, kind, first, size) if plan.widths else (0, kind, first, 0)
            number = number_of.setdefault(key, len(number_of))
            return _mark("first", number), _mark("size", number) if plan.widths else size

        text = gpu_text(_mark("rank", 0), _marked(_in_file(plan, with_spans(self.gpu, rank, marked_span))))
        pieces = _MARK.split(text.replace("%", "%%"))
        self.form = "%d".join(pieces[::3])
        self.numbers = list(zip(pieces[1::3], map(int, pieces[2::3]), strict=True))
        self.spans = list(number_of)

    def text(self, places: Places, rank: int) -> str:
        """Return the text of a rank that is an image of the representative."""
        images = places.buffers.images
        moved = images.moved(int(images.element[rank])).tolist()
        filled = {("rank", 0): rank}
        filled.update(((kind, peer), moved[peer]) for kind, peer in self.numbers if kind == "peer")
        for kind, order in _orders_of_channels(self.gpu, images, self.rank, rank).items():
            filled.update(((kind, number), end) for number, end in enumerate(order))
        for number, (owner, kind, first, size) in enumerate(self.spans):
            filled["first", number], filled["size", number] = places.span(rank, moved[owner], kind, first, size)
        return self.form % tuple(map(filled.__getitem__, self.numbers))


_MARK = re.compile(r'"@(\w+) (\d+)"')


def _mark(kind: str, number: int) -> Any:
    """Return the text "@kind number", which stands for a number that differs between images."""
    return f"@{kind} {number}"


def _marked(gpu: PlanGpu) -> PlanGpu:
    """Return a copy of a representative with marks for its peers and the numbers of its channels."""
    blocks = [
        PlanBlock(
            block.ops,
            {
                kind: [_mark(kind, end) for end in ends] if kind in gpu.peers else ends
                for kind, ends in block.channels.items()
            },
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


def _in_file(plan: ExecutionPlan, gpu: PlanGpu) -> PlanGpu:
    """Return a rank with the sizes of its buffers in chunks of the file.

    All ranks have scratch for the widest chunks, because double scratch must be equal on all.
    """
    inputs, outputs = plan.in_file(gpu.input_chunks), plan.in_file(gpu.output_chunks)
    return replace(gpu, input_chunks=inputs, output_chunks=outputs, scratch_chunks=gpu.scratch_chunks * plan.widest)


def image_gpus(plan: ExecutionPlan) -> Iterator[PlanGpu]:
    """Yield every rank of a plan with translations, in order, with its own peers and its places in the file."""
    places = places_of(plan)
    representative = places.buffers.images.representative.tolist()
    for rank in checking_deadline(range(len(plan.gpus))):
        yield _in_file(plan, _image(plan.gpus[representative[rank]], places, representative[rank], rank))


def _image(gpu: PlanGpu, places: Places, representative: int, rank: int) -> PlanGpu:
    """Return the rank `rank` as the image of `gpu`, which is the part of the rank `representative`."""
    images = places.buffers.images
    moved = images.moved(int(images.element[rank])).tolist()
    order = _orders_of_channels(gpu, images, representative, rank)
    gpu = with_spans(
        gpu, representative, lambda owner, kind, first, size: places.span(rank, moved[owner], kind, first, size)
    )
    blocks = [
        PlanBlock(
            block.ops,
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


def _orders_of_channels(gpu: PlanGpu, images: Images, representative: int, rank: int) -> dict[str, list[int]]:
    """Return, by type, the place of each channel of a representative in the list of its image `rank`."""
    moved = images.moved(int(images.element[rank])).tolist()
    all_peers = {peer for peers in gpu.peers.values() for peer in peers}
    exchanged = {peer for peer in all_peers if images.reverse(representative, peer) == (representative, peer)}
    return {
        kind: _order_of_channels(peers, [peer in exchanged for peer in peers], moved, rank)
        for kind, peers in gpu.peers.items()
    }


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
