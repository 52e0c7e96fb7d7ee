"""Choose the number of cells in a block of a program: it should divide common message sizes, and cost little time.

An executor takes only messages that divide into as many cells as its program has. A block of 5 chunks divides few of
the usual sizes; a block of 64 cells, with 12 or 13 cells a chunk, divides most of them with the same number of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.common_chunk import CommonChunk, common_chunk, cut_blocks
from synth.model.deadline import checking_deadline
from synth.model.problem import LARGEST
from synth.verify.algorithm import Algorithm

_MOST_TIMED = 100_000  # sends that are timed to choose among numbers of cells; so many take a tenth of a second
FINER_GAIN = 1.005  # gain in time that twice as many cells must bring, because they divide fewer message sizes
_FEWER_IMAGES = 1.02  # gain in time that a division must bring under which fewer ranks do the same as each other


def best_cuts(
    algorithm: Algorithm,
    cells: Sequence[int],
    size_bytes: float = LARGEST,
    images: Callable[[CommonChunk], int] = lambda _: 1,
    *,
    only_even: bool = False,
) -> list[CommonChunk]:
    """Return divisions of an algorithm's blocks into cells, the best one first.

    The best division has the least time at a message size, where each doubling of cells must gain 0.5 %. A division
    with fewer images must gain 2 %: sends of one size that begin at the same time end at the same time, so that no port
    waits for another one. Of a schedule of many sends only the smallest numbers of cells are compared, because each
    takes time. That of `common_chunk` is the only one, without a search, if the number of chunks of a block is among
    `cells`, or the chunks differ in size.

    Args:
        algorithm: The algorithm.
        cells: Allowed numbers of cells of a block, ascending, all at least the number of its chunks; if empty, the
            division is that of `common_chunk` too.
        size_bytes: The largest message size in bytes that is of interest.
        images: Returns how many ranks do the same as each other under a division.
        only_even: Whether larger and smaller chunks must alternate evenly.
    """
    collective = algorithm.problem.collective
    equal_chunks = np.ptp(collective.fraction) == 0 and collective.nchunks % collective.chunks == 0
    if not cells or collective.chunks in cells or not equal_chunks:
        return [common_chunk(collective)]
    cells = cells[: max(1, _MOST_TIMED // max(1, len(algorithm.schedule)))]
    widths = [_even_widths(collective.chunks, number) for number in cells]
    if not only_even:
        first_us = _first_us(algorithm)
        widths += [_larger_first(number, np.arange(collective.chunks)) for number in cells]
        widths += [_larger_first(number, np.argsort(first_us, kind="stable")) for number in cells]
    candidates = [cut_blocks(collective, widths_of_chunks) for widths_of_chunks in widths]
    doublings = np.log2([common.cells.chunks / cells[0] for common in candidates])
    times_us = [cut_time_us(algorithm, common, size_bytes) for common in checking_deadline(candidates)]
    image_counts = np.array([images(common) for common in candidates])
    weighted_us = times_us * FINER_GAIN**doublings * np.where(image_counts < image_counts.max(), _FEWER_IMAGES, 1.0)
    return [candidates[place] for place in np.argsort(weighted_us, kind="stable").tolist()]


def most_images(algorithm: Algorithm, cells: int, images: Callable[[CommonChunk], int]) -> int:
    """Return the most images under a division into so many cells, of those that do not depend on the schedule.

    The last argument is that of `best_cuts`.
    """
    collective = algorithm.problem.collective
    widths = _even_widths(collective.chunks, cells), _larger_first(cells, np.arange(collective.chunks))
    return max(images(cut_blocks(collective, widths_of_chunks)) for widths_of_chunks in widths)


def wide_cut(algorithm: Algorithm, cells: Sequence[int], width: int) -> CommonChunk:
    """Return a division of an algorithm's blocks into so many cells a chunk, or as many as are allowed.

    Args:
        algorithm: The algorithm, with chunks of one size.
        cells: Allowed numbers of cells of a block, ascending, at least one of them.
        width: Number of cells of each chunk.
    """
    chunks = algorithm.problem.collective.chunks
    number = next((number for number in cells if number >= width * chunks), cells[-1])
    return cut_blocks(algorithm.problem.collective, _even_widths(chunks, number))


def _even_widths(chunks: int, cells: int) -> list[int]:
    """Return the number of cells of each chunk, which sum to `cells`; larger and smaller chunks alternate evenly."""
    widths: list[int] = np.diff(np.arange(chunks + 1) * cells // chunks).tolist()
    return widths


def _larger_first(cells: int, order: Ints) -> list[int]:
    """Return the number of cells of each chunk, which sum to `cells`; the chunks that come first in an order get more.

    `order` has the chunks of a block, shape (chunks,).
    """
    widths = np.full(len(order), cells // len(order))
    widths[order[: cells % len(order)]] += 1
    larger_first: list[int] = widths.tolist()
    return larger_first


def _first_us(algorithm: Algorithm) -> Floats:
    """Return when each chunk of a block is sent first, in µs, shape (chunks,); inf where it is not sent."""
    chunks, schedule = algorithm.problem.collective.chunks, algorithm.schedule
    first_us = np.full(chunks, np.inf)
    np.minimum.at(first_us, schedule.chunk % chunks, schedule.start_us)
    return first_us


def cut_time_us(algorithm: Algorithm, common: CommonChunk | None, size_bytes: float) -> float:
    """Return the schedule's time, in µs, for a message of `size_bytes`, with chunks as long as their cells.

    If `common` is None or gives all chunks as many cells, chunks are as long as the algorithm has them.
    """
    if common is None or np.ptp(common.count) == 0:
        return algorithm.time_us(size_bytes)
    return algorithm.time_in_parts_us(common.count * common.cells.fraction[0], size_bytes)
