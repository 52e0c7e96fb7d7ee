"""Programs of one representative of each orbit of ranks, whose images under translations are the other ranks.

Translations of the network (`topologies.symmetry.translations`) form a group in which only the identity leaves a rank
in its place. A program with translations holds the threadblocks of the representatives only. Its peers are ranks as the
representative sees them. Every other rank executes the same steps, with each peer replaced by its image. So are blocks
of chunks, in buffers with chunks of all ranks. Ranks that stay neighbours in all images have one block together, in
which their numbers of chunks may differ. `whole_program` writes these images out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from emit.program import READS_DST, READS_SRC, WRITES_DST, Gpu, Program, Step, ThreadBlock
from synth.model.collective import Ints
from synth.model.deadline import checking_deadline
from synth.model.registry import EVERY, PAIR, find_kind
from topologies.errors import InputError
from topologies.symmetry.translations import Translations, digits, element_of_rank, representatives, translate


class Images:
    """The ranks as images of representatives; a group element is the number of a product of translations.

    Attributes:
        translations: The translations.
        nranks: Number of ranks.
        representatives: The representative of every orbit, ascending, int, shape (orbits,).
        element: Element that maps its representative to each rank, int, shape (nranks,).
        representative: Representative of each rank, int, shape (nranks,).
        order: Number of elements.
        unit: Number of neighbouring ranks, beginning at a multiple of it, that stay neighbours in all images.
    """

    def __init__(self, translations: Translations, nranks: int) -> None:
        """Tabulate the orbits of `nranks` ranks."""
        self.translations, self.nranks = translations, nranks
        ranks = np.arange(nranks)
        self.representatives: Ints = representatives(translations, nranks)
        self.element: Ints = element_of_rank(translations, ranks)
        self.representative: Ints = translate(translations, ranks, [-digit for digit in digits(translations, ranks)])
        self.order = nranks // len(self.representatives)
        self.unit = min((stride for stride, _ in translations), default=nranks)
        self._moved: dict[int, Ints] = {}

    def counts(self, element: int) -> list[int]:
        """Return how often an element applies each translation: one number, below its extent, per translation."""
        counts = []
        for _, extent in self.translations:
            element, count = divmod(element, extent)
            counts.append(count)
        return counts

    def moved(self, element: int) -> Ints:
        """Return the image of every rank under an element, int, shape (nranks,); it is kept and must not be changed."""
        if element not in self._moved:
            self._moved[element] = translate(self.translations, np.arange(self.nranks), self.counts(element))
        return self._moved[element]

    def inverse(self, element: int) -> int:
        """Return the number of the inverse of an element."""
        return self._inverses[element]

    @cached_property
    def _inverses(self) -> list[int]:
        """Return the number of the inverse of each element."""
        higher_digits, inverse, weight = np.arange(self.order), np.zeros(self.order, dtype=np.int64), 1
        for _, extent in self.translations:
            inverse += -higher_digits % extent * weight
            higher_digits, weight = higher_digits // extent, weight * extent
        inverses: list[int] = inverse.tolist()
        return inverses

    def composed(self, element: int) -> Ints:
        """Return the numbers of the products of an element with each of the elements 0, 1, …, int, shape (order,)."""
        origin = int(self.representatives[0])
        ranks = np.flatnonzero(self.representative == origin)
        by_element = ranks[np.argsort(self.element[ranks])]
        return np.asarray(self.element[self.moved(element)[by_element]])

    def seen_by(self, ranks: Ints, observers: Ints) -> Ints:
        """Return ranks as the representatives of `observers` see them, when `observers` see `ranks`.

        Each rank is moved by the inverse of the element that maps the representative to the observer. The result has
        the shape of `ranks`.
        """
        back = [-digit for digit in digits(self.translations, observers)]
        return translate(self.translations, ranks, back)

    def connection(self, source: int, target: int) -> tuple[int, int]:
        """Return the connection (source, target) from a representative of which a given connection is an image.

        The new source is the representative of `source`, and the new target is `target` as that representative sees it.
        """
        back = self.inverse(int(self.element[source]))
        return int(self.representative[source]), int(self.moved(back)[target])

    def reverse(self, source: int, target: int) -> tuple[int, int]:
        """Return the connection from `target` to `source` as the target's representative sees it: (target, source)."""
        return self.connection(target, source)


images_of = lru_cache(maxsize=8)(Images)


def block_of_buffer(program: Program, size: int) -> int:
    """Return the chunks of a block of an input or output buffer of `size` chunks; 0 if translations keep its order.

    A buffer of as many chunks as a loop has one block for each `Images.unit` ranks, which translations map like them.
    """
    return block_of_chunks(program.translations, program.nranks, size) if size == program.nchunks_per_loop else 0


def block_of_chunks(translations: Translations, nranks: int, chunks: int) -> int:
    """Return how many of the chunks of all ranks belong to the ranks that stay neighbours.

    It is 0, for chunks that keep their order in all images, without translations and if it would be no whole number.
    """
    block, remainder = divmod(chunks * images_of(translations, nranks).unit, nranks) if translations else (0, 0)
    return 0 if remainder else block


def odd_part(number: int) -> int:
    """Return the largest odd divisor of a number."""
    return number // (number & -number)


def unlike_widths(nblocks: int, total: int) -> tuple[int, ...]:
    """Return a width for each block of chunks, so that the widths differ by at most one.

    The blocks form as many runs of neighbours as the largest odd divisor of their number. Blocks of one run have one
    width: 6 blocks are 3 runs of 2, and have the widths 1, 1, 1, 1, 2, 2 if `total` is 4. If that is a power of two,
    the sum of all widths is one too.

    Args:
        nblocks: Number of blocks.
        total: Sum of the widths of the runs, one block of each; no less than the number of runs.
    """
    runs = odd_part(nblocks)
    return tuple(
        (run + 1) * total // runs - run * total // runs for run in (np.arange(nblocks) * runs // nblocks).tolist()
    )


def block_of_input(collective: str, translations: Translations, nranks: int, chunks: int) -> int:
    """Return the chunks of a block of the input of a call out of place, whose chunks name contributions.

    It is 0 if the input has no chunks for each rank, so that translations keep its order.

    Args:
        collective: Name of the collective.
        translations: The translations.
        nranks: Number of ranks.
        chunks: Chunks of all ranks, as `Program.nchunks_per_loop`.
    """
    kind = find_kind(collective)
    return block_of_chunks(translations, nranks, chunks) if kind.before == EVERY or kind.unit == PAIR else 0


def buffer_images(translations: Translations, nranks: int, chunks: int, sizes: tuple[int, int]) -> BufferImages:
    """Return the images of the input and the output of ranks.

    Args:
        translations: The translations.
        nranks: Number of ranks.
        chunks: Chunks of all ranks, as `Program.nchunks_per_loop`; a buffer of as many has a block for each group.
        sizes: Chunks of the input and of the output.
    """
    block = block_of_chunks(translations, nranks, chunks)
    blocks = {buffer: block if size == chunks else 0 for buffer, size in zip("io", sizes, strict=True)}
    return BufferImages(images_of(translations, nranks), blocks)


class BufferImages:
    """The places of chunks in the buffers of ranks that are images of representatives.

    Attributes:
        images: Images of the ranks.
        blocks: Chunks of a block of each buffer by its name (`block_of_chunks`), 0 if translations keep its order.
    """

    def __init__(self, images: Images, blocks: Mapping[str, int]) -> None:
        self.images, self.blocks = images, dict(blocks)

    def place(self, rank: int, buffer: str, chunk: int) -> int:
        """Return the index in a buffer at which a rank has the chunk that its representative has at index `chunk`."""
        return self.moved(int(self.images.element[rank]), buffer, chunk)

    def place_of_representative(self, rank: int, buffer: str, chunk: int) -> int:
        """Return the index in a buffer at which a rank's representative has the chunk that the rank has at `chunk`."""
        return self.moved(self.images.inverse(int(self.images.element[rank])), buffer, chunk)

    def moved(self, element: int, buffer: str, chunk: int) -> int:
        """Return the index of a chunk in the image of a buffer under an element.

        It is `chunk` itself if the buffer keeps its order, or `chunk` is not in one of the ranks' blocks.
        """
        block, unit = self.blocks.get(buffer, 0), self.images.unit
        if not block or not element or not 0 <= chunk < block * (self.images.nranks // unit):
            return chunk
        return int(self.images.moved(element)[chunk // block * unit]) // unit * block + chunk % block

    def moves_together(self, buffer: str, chunk: int, count: int) -> bool:
        """Return True if neighbouring chunks of a buffer stay neighbours in all images."""
        return moves_together(self.blocks.get(buffer, 0), chunk, count)


def moves_together(block: int, first: int, count: int) -> bool:
    """Return True if neighbouring chunks of a buffer stay neighbours in all images: if they are in one block.

    Args:
        block: Chunks of a block of the buffer (`block_of_chunks`); 0 if translations keep its order.
        first: First chunk.
        count: Number of chunks.
    """
    return not block or first // block == (first + count - 1) // block


def image_of_chunk(images: Images, block: int, element: int, first: Ints) -> Ints:
    """Return the places of chunks of a buffer in the image under an element: int, shape as `first`.

    Args:
        images: Images of the ranks.
        block: Chunks of a block of the buffer (`block_of_chunks`); 0 if translations keep its order.
        element: The element.
        first: Places of the chunks in the representative's buffer.
    """
    if not block:
        return first
    return images.moved(element)[first // block * images.unit] // images.unit * block + first % block


def whole_program(program: Program) -> Program:
    """Return a program with the threadblocks of all ranks; itself if it has no translations.

    Raises:
        InputError: If neighbouring chunks of an instruction are no neighbours in some image.
        TimeUp: If the deadline of the work around this call has passed.
    """
    if not program.translations:
        return program
    return replace(program, gpus=list(image_gpus(program)), translations=())


def image_gpus(program: Program) -> Iterator[Gpu]:
    """Yield the part of every rank of a program, in order of the ranks; without translations, the parts that it holds.

    Raises:
        InputError: If neighbouring chunks of an instruction are no neighbours in some image.
        TimeUp: If the deadline of the work around this call has passed.
    """
    if not program.translations:
        yield from program.gpus
        return
    images = images_of(program.translations, program.nranks)
    check_images(program)
    for rank in checking_deadline(range(program.nranks)):
        gpu = program.gpus[int(images.representative[rank])]
        yield _image(program, images, gpu, int(images.element[rank]))


def check_images(program: Program) -> None:
    """Raise InputError if neighbouring chunks of an instruction are no neighbours in some image."""
    for _, gpu in zip(*_parts(program), strict=True):
        buffers = _buffers_of(program, gpu)
        for tb in gpu.threadblocks:
            for step in tb.steps:
                for names, buffer, first in (
                    (READS_SRC, step.src_buf, step.src_off),
                    (WRITES_DST | READS_DST, step.dst_buf, step.dst_off),
                ):
                    if step.op in names and not buffers.moves_together(buffer, first, step.count):
                        raise InputError(
                            f"{program.name}: {step.op} of {buffer}[{first}..] has no image on other ranks"
                        )


def _parts(program: Program) -> tuple[list[int], list[Gpu]]:
    """Return the representatives of a program, ascending, and the part of each in the same order."""
    ranks = images_of(program.translations, program.nranks).representatives.tolist()
    return ranks, [program.gpus[rank] for rank in ranks]


def _buffers_of(program: Program, gpu: Gpu) -> BufferImages:
    """Return the images of the buffers of a rank's part."""
    return buffer_images(program.translations, program.nranks, program.nchunks_per_loop, (gpu.i_chunks, gpu.o_chunks))


def _image(program: Program, images: Images, gpu: Gpu, element: int) -> Gpu:
    """Return the image of a representative's part under an element; the part itself under element 0."""
    if not element:
        return gpu
    moved = images.moved(element).tolist()
    buffers = _buffers_of(program, gpu)

    def step_of(step: Step) -> Step:
        """Return the image of a step; the step itself if its offsets stay."""
        source, target = (
            buffers.moved(element, buffer, first)
            for buffer, first in ((step.src_buf, step.src_off), (step.dst_buf, step.dst_off))
        )
        if source == step.src_off and target == step.dst_off:
            return step
        return Step(
            step.op, step.src_buf, source, step.dst_buf, target, step.count, step.dep_tb, step.dep_step, step.has_dep
        )

    threadblocks = [
        ThreadBlock(
            moved[tb.send] if tb.send >= 0 else -1, moved[tb.recv] if tb.recv >= 0 else -1, tb.channel,
            [step_of(step) for step in tb.steps],
        )
        for tb in gpu.threadblocks
    ]  # fmt: skip
    return Gpu(gpu.i_chunks, gpu.o_chunks, gpu.s_chunks, threadblocks)
