"""The cells into which a program's chunks are cut: how many, and whether they may be unlike in the file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from emit.check.capacity import CAPACITY
from emit.compiler.cuts import FINER_GAIN, most_images
from emit.compiler.lower import keeping_cells, program_collective, translations_of
from emit.formats import PROGRAM_FORMATS
from emit.goal import most_chunks
from emit.images import block_of_chunks, images_of, odd_part, unlike_widths
from emit.library.lowered import ELEMENT_BYTES, blocks_of
from emit.program import Program
from emit.targets import Target
from synth.model.common_chunk import CommonChunk
from synth.model.problem import LARGEST, SMALLEST
from synth.model.registry import find_kind
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.symmetry.translations import Translations

_WIDEST = 64  # cells of a chunk; an instruction holds 71
_DOUBLINGS = 8  # Numbers of unlike parts that are tried: the finest differ by less than a hundredth.
_CELLS_OF_CHUNK = 16  # Cells of all buffers of a rank for each chunk, in plans of packets.
_CHECKABLE = 1.03  # gain in time that chunks must bring that are so fine that a plan cannot be checked with all ranks


@dataclass(frozen=True)
class CellNumbers:
    """The cells of programs for one target.

    Attributes:
        target: The target.
        size: The only message size of interest in bytes; None for all sizes.
    """

    target: Target
    size: int | None

    def possible(self, algorithm: Algorithm, low: int, high: int) -> list[int]:
        """Return the candidate numbers of cells of a block, ascending, none less than its chunks.

        If one size is of interest (`low` equals `high`, or `size` is set), they are all that divide a block of that
        size; none if the size is not whole elements a block. Else they are powers of two that divide messages of `low`
        bytes and all larger powers of two, at least one unless the goal would be too large. Their number is limited so
        that a program can be checked.

        Args:
            algorithm: The algorithm.
            low: Smallest message in bytes.
            high: Largest message in bytes.
        """
        problem, unit = algorithm.problem, self.target.cell_bytes
        blocks, chunks = blocks_of(problem), problem.collective.chunks
        # With more cells the program would exceed the check's capacity: each cell of a send leaves and arrives.
        checkable = CAPACITY.moves // (2 * max(1, len(algorithm.schedule))) - 1
        cells_of_goal = most_chunks(program_collective(problem), problem.nranks) // blocks
        widest = max(chunks, min(min(_WIDEST, checkable) * chunks, cells_of_goal))
        size = low if low == high else self.size
        if size is None:
            least = 1 << (chunks - 1).bit_length()
            most = min(low // (blocks * (unit or ELEMENT_BYTES[0])), widest)
            powers = [least << doublings for doublings in range(max(1, (most // least).bit_length()))]
            return [cells for cells in powers if cells <= cells_of_goal]
        for element_bytes in (unit,) if unit else ELEMENT_BYTES:
            elements, remainder = divmod(size, blocks * element_bytes)
            if remainder == 0:
                return [n for n in range(chunks, min(elements, widest) + 1) if elements % n == 0]
        return []

    def may_be_unlike(self, algorithm: Algorithm, cells: Sequence[int]) -> bool:
        """Return whether chunks of an algorithm may be unlike in a file, so that its ranks remain images of a few.

        That is so if the file has a form of its own, ranks have images, and the chunks do not divide what is sent.
        `cells` is what `possible` returns.
        """
        collective = algorithm.problem.collective
        return (
            not PROGRAM_FORMATS[self.target.format].holds_program
            and collective.kind.in_shares
            and bool(cells)
            and collective.chunks not in cells
            and _order(translations_of(algorithm)) > 1
        )

    def widths(self, program: Program) -> tuple[int, ...]:
        """Return, for each block of a program, of how many chunks of the file its chunks consist; () if always of one.

        Raises:
            InputError: The chunks do not divide what is sent, and no such number of chunks of the file does.
        """
        chunks, unit, size = program.nchunks_per_loop, self.target.cell_bytes, self.size
        if not (program.translations and find_kind(program.collective).in_shares):
            return ()
        if _is_power_of_two(chunks) if size is None else size % (unit * chunks) == 0:
            return ()
        nblocks = program.nranks // images_of(program.translations, program.nranks).unit
        runs, block = odd_part(nblocks), block_of_chunks(program.translations, program.nranks, chunks)
        least = (runs - 1).bit_length()
        if not block or runs == 1:
            raise InputError(f"{program.name}: {chunks} chunks that are alike; they must divide what is sent")

        def in_file(total: int) -> int:
            """Return the chunks of a file of which a block of each run has `total`."""
            return block * nblocks // runs * total

        def divides(total: int) -> bool:
            """Return whether so fine chunks divide the messages."""
            if size is not None:
                return size % (unit * in_file(total)) == 0
            is_too_fine = total > 1 << least and unit * in_file(total) > program.min_bytes
            return _is_power_of_two(in_file(total)) and not is_too_fine

        def cost(total: int) -> float:
            """Return what so fine chunks cost: time, sizes that they do not divide, and a check of all ranks."""
            widest_over_equal = -(-total // runs) / (total / runs)
            is_too_large = program.nranks * in_file(total) * _CELLS_OF_CHUNK > CAPACITY.plan_cells
            return widest_over_equal * FINER_GAIN ** total.bit_length() * (_CHECKABLE if is_too_large else 1)

        totals = [total for total in (1 << least + doublings for doublings in range(_DOUBLINGS)) if divides(total)]
        if not totals:
            raise InputError(f"{program.name}: no unlike parts of {chunks} chunks divide what is sent")
        return unlike_widths(nblocks, min(totals, key=cost))

    def images(self, algorithm: Algorithm) -> int:
        """Return how many ranks do the same as each other in programs of an algorithm, as far as that is known."""
        order = _order(translations_of(algorithm))
        cells = self.possible(algorithm, self.size or SMALLEST, self.size or LARGEST) if order > 1 else []
        if not cells or algorithm.problem.collective.chunks in cells or self.may_be_unlike(algorithm, cells):
            return order
        # Unlike blocks may leave fewer translations.
        return most_images(algorithm, cells[0], images_under(algorithm, in_equal_groups=True))


def images_under(algorithm: Algorithm, *, in_equal_groups: bool) -> Callable[[CommonChunk], int]:
    """Return a function from cells of an algorithm's chunks to the number of images of a rank (`keeping_cells`)."""
    translations = translations_of(algorithm)
    return lambda common: _order(
        keeping_cells(algorithm.problem, translations, common, in_equal_groups=in_equal_groups)
    )


def _order(translations: Translations) -> int:
    """Return the number of images of a rank under translations, with itself."""
    return math.prod(extent for _, extent in translations)


def _is_power_of_two(number: int) -> bool:
    """Return whether a positive number is a power of two."""
    return number & (number - 1) == 0
