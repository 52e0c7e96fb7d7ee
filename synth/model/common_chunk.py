"""Cut chunks into cells of one size.

Executors' file formats describe only chunks of one size. Chunks whose sizes differ are cut into cells; chunks of
equal size are cut where the number of cells in a block must divide the number of elements that are sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from math import lcm

import numpy as np

from synth.model.collective import LEAST_CELLS, MOST_CELLS, Collective, Floats, Ints, subdivided
from topologies.arrays import positions

_EQUAL = 1e-9  # Sizes that differ by less count as equal.


@dataclass(frozen=True, eq=False)
class CommonChunk:
    """A collective whose chunks are cut into cells of one size.

    Attributes:
        cells: The collective with cells in place of its chunks. Chunk c is the cells first[c] to first[c] + count[c] −
            1, which lie side by side.
        first: First cell of each chunk; int, shape (chunks of the collective,).
        count: Number of cells of each chunk; int, shape (chunks of the collective,).
        padding: Share of the fullest buffer that holds nothing; 0 where every chunk is whole cells.
    """

    cells: Collective
    first: Ints
    count: Ints
    padding: float = 0.0

    def finer(self, parts: int) -> CommonChunk:
        """Return the same chunks in cells that are each cut into `parts` equal parts; the padding stays.

        Raises:
            InputError: A condition would have more than 40 million rows.
        """
        return CommonChunk(subdivided(self.cells, parts), self.first * parts, self.count * parts, self.padding)


def common_chunk(collective: Collective, most_cells: int = MOST_CELLS) -> CommonChunk:
    """Cut a collective's chunks into cells of one size.

    A cell is the greatest common divisor of the chunks' sizes, if that is coarse enough. Where a rank's buffer would
    have more than `most_cells` such cells, chunks are padded to whole cells. The size of a cell is then the one that
    pads the fullest buffer the least. Where all chunks have one size, each is one cell and `cells` is the collective
    itself.

    Args:
        collective: The collective.
        most_cells: Number of cells in a rank's fullest buffer above which chunks are padded, more than 64. Chunks of
            one size, and many chunks far smaller than the others, may exceed it, as each chunk has at least one cell.
    """
    weight = collective.fraction / float(collective.fraction.min())
    if float(weight.max()) <= 1 + _EQUAL:
        return CommonChunk(collective, np.arange(collective.nchunks), np.ones(collective.nchunks, dtype=np.int64))
    weight = _in_divisors(weight, most_cells)
    fullest = _fullest(collective, weight)
    nearest, padding = np.rint(weight), 0.0
    if float(np.abs(weight - nearest).max()) <= _EQUAL * float(weight.max()) and fullest <= most_cells * (1 + _EQUAL):
        count = nearest.astype(np.int64)
    else:
        cuts = [
            _padded(collective, weight, fullest, cells) for cells in range(min(LEAST_CELLS, most_cells), most_cells)
        ]
        padding, count = min(cuts, key=lambda cut: (round(cut[0], 6), int(cut[1].sum())))
    return CommonChunk(_in_cells(collective, count), np.cumsum(count) - count, count, padding)


def cut_blocks(collective: Collective, widths: Sequence[int]) -> CommonChunk:
    """Cut every block into sum(widths) cells of one size; its p-th chunk gets widths[p] cells, without padding.

    Chunks become a little longer or shorter; a block keeps its length.

    Args:
        collective: A collective with chunks of one size; this is not checked.
        widths: Number of cells of each chunk of a block, one for each of `collective.chunks`.
    """
    count = np.tile(np.asarray(widths, dtype=np.int64), collective.nchunks // collective.chunks)
    ncells = int(count.sum())
    cells = replace(
        _in_cells(collective, count), chunks=sum(widths), fraction=np.full(ncells, collective.fraction.sum() / ncells)
    )
    return CommonChunk(cells, np.cumsum(count) - count, count)


def _cell_share(share: Floats, count: Ints) -> float:
    """Return the share of the message in one cell that holds every chunk's part: the largest share[c] / count[c].

    Args:
        share: Share of the message of each chunk, shape (chunks,).
        count: Number of cells of each chunk, shape (chunks,).
    """
    return float((share / count).max())


def _in_divisors(weight: Floats, most: int) -> Floats:
    """Return the weights in units of a common divisor: whole numbers, or close to them.

    Each weight counts as the nearest fraction with a denominator up to `most`. All weights, unrounded, are multiplied
    by the least common multiple of these denominators.

    Args:
        weight: Weights ≥ 1, shape (chunks,).
        most: Largest denominator.
    """
    parts = [Fraction(ratio).limit_denominator(most) for ratio in np.unique(weight).tolist()]
    unit = reduce(lcm, (part.denominator for part in parts))
    return weight * unit


def _fullest(collective: Collective, weight: Floats) -> float:
    """Return the total weight in the fullest input or output buffer of any rank.

    Args:
        collective: The collective.
        weight: Weight of each chunk, shape (chunks,).
    """
    sides = (np.bincount(rows[:, 0], weight[rows[:, 1]]) for rows in (collective.pre, collective.post))
    return max(float(side.max()) for side in sides)


def _padded(collective: Collective, weight: Floats, fullest: float, cells: int) -> tuple[float, Ints]:
    """Return the share of the fullest buffer that is empty with cells of one size, and the cells of each chunk.

    A chunk has as many cells as its weight needs, rounded up, and at least one. Then cells shrink to what chunks need.

    Args:
        collective: The collective.
        weight: Weight of each chunk, shape (chunks,).
        fullest: Total weight in the fullest buffer (`_fullest`).
        cells: Number of cells of this weight.
    """
    count = np.maximum(1, np.ceil(weight / (fullest / cells) * (1 - _EQUAL))).astype(np.int64)
    padded_weight = _fullest(collective, count.astype(np.float64)) * _cell_share(weight, count)
    return 1 - fullest / padded_weight, count


def _in_cells(collective: Collective, count: Ints) -> Collective:
    """Return the collective whose chunk c is cut into count[c] cells of one size, numbered chunk by chunk.

    A cell is as large as the largest that any chunk needs. Places in the buffers are counted in cells; a place that
    chunks of a rank share is as wide as the widest of them. The number of chunks a block stays as it was.
    """
    first, nchunks = np.cumsum(count) - count, int(count.sum())

    def cut(rows: Ints, index: Ints) -> tuple[Ints, Ints]:
        """Return the rows (rank, cell) of rows (rank, chunk), and the place of each in its rank's buffer, in cells.

        Args:
            rows: Rows (rank, chunk), shape (n, 2).
            index: Place of each row in its rank's buffer, in chunks.
        """
        ncells = count[rows[:, 1]]
        # Chunks of the same data share one place.
        key, place = np.unique(np.column_stack([rows[:, 0], index]), axis=0, return_inverse=True)
        place = place.reshape(-1)
        width = np.zeros(len(key), dtype=np.int64)
        np.maximum.at(width, place, ncells)
        before = np.cumsum(width) - width
        first_of_rank = np.flatnonzero(np.diff(key[:, 0], prepend=-1))
        start = before - np.repeat(before[first_of_rank], np.diff(np.append(first_of_rank, len(key))))
        within = positions(ncells)
        cells = np.column_stack([np.repeat(rows[:, 0], ncells), np.repeat(first[rows[:, 1]], ncells) + within])
        return cells, np.repeat(start[place], ncells) + within

    pre, in_index = cut(collective.pre, collective.in_index)
    post, out_index = cut(collective.post, collective.out_index)
    share = _cell_share(collective.fraction, count)
    return replace(
        collective, nchunks=nchunks, reduces=np.repeat(collective.reduces, count), fraction=np.full(nchunks, share),
        pre=pre, post=post, in_index=in_index, out_index=out_index, block=None,
    )  # fmt: skip
