"""Chunks cut into cells of one size, which is all that executors' formats can say: since their sizes differ, or so
that a block has as many cells as divide what is sent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from math import lcm

import numpy as np

from synth.model.collective import Collective, Floats, Ints
from topologies.arrays import positions

MOST_CELLS = 1024  # of a rank's fullest buffer: 71 go into an instruction, so that a block takes a few of these
_LEAST_CELLS = 64  # with fewer a block in twenty would be padding
_EQUAL = 1e-9  # sizes that differ by less are one


@dataclass(frozen=True, eq=False)
class CommonChunk:
    """A collective in cells of one size.

    Attributes:
        cells: the same collective with a cell in the place of a chunk; chunk c is its cells first[c] to
            first[c] + count[c] − 1, which lie side by side.
        first, count: int, shape (chunks of the collective,).
        padding: of the fullest buffer the part that holds nothing, 0 where every chunk is whole cells.
    """

    cells: Collective
    first: Ints
    count: Ints
    padding: float = 0.0


def common_chunk(whole: Collective, most_cells: int = MOST_CELLS) -> CommonChunk:
    """Cut a collective's chunks into cells of one size: their greatest common divisor, if that is coarse enough.

    Where a rank's buffer would have more than `most_cells` of it, chunks are padded to whole cells, of the size that
    pads the fullest buffer the least.
    """
    weight = whole.fraction / float(whole.fraction.min())
    if float(weight.max()) <= 1 + _EQUAL:
        return CommonChunk(whole, np.arange(whole.nchunks), np.ones(whole.nchunks, dtype=np.int64))
    weight = _in_divisors(weight, most_cells)
    fullest = _fullest(whole, weight)
    nearest, padding = np.rint(weight), 0.0
    if float(np.abs(weight - nearest).max()) <= _EQUAL * float(weight.max()) and fullest <= most_cells * (1 + _EQUAL):
        count = nearest.astype(np.int64)
    else:
        tried = [_padded(whole, weight, fullest / cells) for cells in range(min(_LEAST_CELLS, most_cells), most_cells)]
        padding, count = min(tried, key=lambda one: (round(one[0], 6), int(one[1].sum())))
    return CommonChunk(_in_cells(whole, count), np.cumsum(count) - count, count, padding)


def cut_blocks(whole: Collective, widths: Sequence[int]) -> CommonChunk:
    """Cut every block of a collective with chunks of one size into sum(widths) cells, its p-th chunk taking widths[p].

    Chunks so become a little longer or shorter; a block stays as long as it is.
    """
    count = np.tile(np.asarray(widths, dtype=np.int64), whole.nchunks // whole.chunks)
    many = int(count.sum())
    cells = replace(_in_cells(whole, count), chunks=sum(widths), fraction=np.full(many, whole.fraction.sum() / many))
    return CommonChunk(cells, np.cumsum(count) - count, count)


def _cell_share(share: Floats, count: Ints) -> float:
    """How large a cell is: as the largest part of a chunk that one has to hold."""
    return float((share / count).max())


def _in_divisors(weight: Floats, most: int) -> Floats:
    """Weights in units of their common divisor, or near to it."""
    parts = [Fraction(one).limit_denominator(most) for one in np.unique(weight).tolist()]
    unit = reduce(lcm, (part.denominator for part in parts))
    return weight * unit


def _fullest(whole: Collective, weight: Floats) -> float:
    """What the fullest buffer of any rank holds."""
    sides = (np.bincount(rows[:, 0], weight[rows[:, 1]]) for rows in (whole.pre, whole.post))
    return max(float(side.max()) for side in sides)


def _padded(whole: Collective, weight: Floats, unit: float) -> tuple[float, Ints]:
    """The part of the fullest buffer that is empty with cells of so much weight, and the cells of each chunk."""
    count = np.maximum(1, np.ceil(weight / unit * (1 - _EQUAL))).astype(np.int64)
    made = _fullest(whole, count.astype(np.float64)) * _cell_share(weight, count)
    return 1 - _fullest(whole, weight) / made, count


def _in_cells(whole: Collective, count: Ints) -> Collective:
    first, nchunks = np.cumsum(count) - count, int(count.sum())

    def cut(rows: Ints, index: Ints) -> tuple[Ints, Ints]:
        many = count[rows[:, 1]]
        # chunks of the same data have one place
        key, place = np.unique(np.column_stack([rows[:, 0], index]), axis=0, return_inverse=True)
        place = place.reshape(-1)
        width = np.zeros(len(key), dtype=np.int64)
        np.maximum.at(width, place, many)
        before = np.cumsum(width) - width
        heads = np.flatnonzero(np.diff(key[:, 0], prepend=-1))
        start = before - np.repeat(before[heads], np.diff(np.append(heads, len(key))))
        within = positions(many)
        cells = np.column_stack([np.repeat(rows[:, 0], many), np.repeat(first[rows[:, 1]], many) + within])
        return cells, np.repeat(start[place], many) + within

    pre, in_index = cut(whole.pre, whole.in_index)
    post, out_index = cut(whole.post, whole.out_index)
    share = _cell_share(whole.fraction, count)
    return replace(
        whole, nchunks=nchunks, reduces=np.repeat(whole.reduces, count), fraction=np.full(nchunks, share),
        pre=pre, post=post, in_index=in_index, out_index=out_index,
    )  # fmt: skip
