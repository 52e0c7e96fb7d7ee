"""Files of an all-to-all for calls of other sizes than their own: each block of the file holds that of the call."""

from __future__ import annotations

from math import lcm
from typing import NamedTuple

import numpy as np

from emit.library.entry import IndexEntry
from synth.model.collective import Ints, fullest
from topologies.errors import InputError


class PaddedChoice(NamedTuple):
    """A file that serves a call with padding.

    Attributes:
        entry: The file's entry.
        size_bytes: Bytes of the fullest buffer of a rank, of all that it sends or receives, with which the file runs.
        blocks: Bytes of the file's block from position to position then, int64, shape (k, k). The blocks of a rank's
            send buffer lie one after another by receiver, those of its receive buffer by sender; the data of a call
            stand at the beginning of each block.
        time_us: Predicted time in µs; inf where the entry states no time.
    """

    entry: IndexEntry
    size_bytes: int
    blocks: Ints
    time_us: float

    def __repr__(self) -> str:
        """Return the file, size and time; the entry's goal and the blocks would fill pages."""
        return f"PaddedChoice(file={self.entry.file!r}, size_bytes={self.size_bytes}, time_us={self.time_us:.6g})"


class PaddedFile:
    """A file with a size for every pair of ranks, prepared for calls of other sizes.

    Attributes:
        entry: The file's entry.
        cells: Cells of the block from position to position, int64, shape (k, k).
    """

    def __init__(self, entry: IndexEntry) -> None:
        """Count the cells of the file's blocks.

        Raises:
            InputError: The entry's goal is malformed, or it has not one size for each pair of ranks.
        """
        k, goal = entry.nranks, entry.goal()
        if len(entry.sizes) != k * k:
            raise InputError(
                f"{entry.file}: sizes has {len(entry.sizes)} numbers; it must have {k * k}, one for each pair of ranks"
            )
        self.entry, self.cells = entry, np.zeros((k, k), dtype=np.int64)
        if goal is not None:
            rank, _, _, set_of_cell = goal.required
            source = goal.sets.source[goal.sets.start[set_of_cell]]
            is_block = (rank < k) & (source < k)
            np.add.at(self.cells, (source[is_block], rank[is_block]), 1)
        self._fullest = max(1, int(fullest(self.cells)))
        points = entry.curve or [(float(entry.shown_bytes or 1), float(entry.time_us or np.inf), 0.0)]
        self._sizes, self._times_us = ([point[column] for point in points] for column in (0, 1))

    def choice(self, blocks: Ints, element_bytes: int) -> PaddedChoice | None:
        """Return the choice of this file for a call; None if some block does not fit at any size that the file serves.

        Args:
            blocks: Bytes from position to position, shape (k, k), each 0 or more.
            element_bytes: Bytes of an element of the call's type.
        """
        if (blocks[self.cells == 0] > 0).any():
            return None
        cell_bytes = int((-(-blocks // np.maximum(self.cells, 1))).max(initial=1))
        unit = lcm(self.entry.unit(element_bytes), self._fullest)
        least = max(cell_bytes * self._fullest, self.entry.min_bytes, 1)
        size_bytes = -(-least // unit) * unit
        if not self.entry.in_range(size_bytes):
            return None
        whole = size_bytes // self._fullest
        return PaddedChoice(
            self.entry, size_bytes, self.cells * whole, self._time_us(size_bytes * (1 - self.entry.padding))
        )

    def _time_us(self, shown_bytes: float) -> float:
        """Return the time in µs at a size without padding, as the curve counts it, linear between and after points."""
        sizes, times_us = self._sizes, self._times_us
        if shown_bytes <= sizes[-1] or len(sizes) == 1:
            return float(np.interp(shown_bytes, sizes, times_us))
        slope = (times_us[-1] - times_us[-2]) / (sizes[-1] - sizes[-2])
        return times_us[-1] + max(slope, 0.0) * (shown_bytes - sizes[-1])
