"""Capacities for all-to-alls whose sizes change at every call: few matrices, of which one holds each call's blocks.

A file of an executor has fixed proportions of its blocks; only the size of the message is free. A file serves a call at
the least size at which each block of the call fits into the file's block, and the rest is padding. The capacities are
chosen so that the mean time over a trace of calls is small. The capacity factor of a mixture of experts (GShard,
Lepikhin et al., arXiv 2006.16668) is one number for all blocks, beyond which tokens are dropped; here none is dropped.

Calls are clustered as by k-means (Lloyd's method), with two differences: the distance is the bound of the time that
a call takes with its padding, and the centre of a cluster is the fastest of some shapes between the mean and the
entrywise largest of its calls.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.bounds.borders import Borders
from synth.model.collective import MOST_CELLS, Bools, Floats, Ints, fullest
from synth.model.deadline import checking_deadline

_WHOLE_BYTES = 16
_LESS = 1 - 1e-9  # A smaller gain is rounding.


@dataclass(frozen=True)
class ClusterTuning:
    """Limits of the choice of capacities.

    Attributes:
        starts: Number of starts of the clustering, each from other calls.
        rounds: Most rounds of a start; most starts end before.
        most_sizes: Sizes in the matrices that are clustered; of a longer trace, calls are drawn.
        towards_largest: Places of the tried shapes of a cluster, between its mean (0) and its entrywise largest (1).
        cells_of_rank: Cells of the fullest buffer for each rank, as a block is padded by half a cell on average.
        cuts: Numbers of cells of a buffer that are tried, up to the most and down to half of it.
    """

    starts: int = 4
    rounds: int = 12
    most_sizes: int = 1 << 20
    towards_largest: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    cells_of_rank: int = 32
    cuts: int = 17


@dataclass(frozen=True, eq=False)
class Capacity:
    """The sizes of the blocks that a file has at one size of its message: whole cells.

    Attributes:
        cells: Cells of the block from position to position, int64, shape (k, k), with an empty diagonal.
        cell_bytes: Bytes of a cell.
    """

    cells: Ints
    cell_bytes: int

    @property
    def blocks(self) -> Ints:
        """Return the bytes from position to position, int64, shape (k, k)."""
        return self.cells * self.cell_bytes

    @property
    def buffer_bytes(self) -> int:
        """Return the message size: the bytes of the fullest buffer, of all that one rank sends or receives."""
        return int(fullest(self.cells)) * self.cell_bytes

    def cell_bytes_for(self, trace: Ints) -> Ints:
        """Return the least bytes of a cell with which each call fits, int64, shape (m,); −1 where no cell is enough.

        Args:
            trace: Bytes from position to position in each call, int64, shape (m, k, k).
        """
        needed = -(-trace // np.maximum(self.cells, 1))
        needed[:, self.cells == 0] = np.where(trace[:, self.cells == 0] > 0, -1, 0)
        return np.where((needed < 0).any(axis=(1, 2)), -1, needed.max(axis=(1, 2)))

    def holding(self, trace: Ints) -> Capacity:
        """Return the capacity of the same proportions with the least cells that hold the calls of a trace.

        Cells are multiples of 16 bytes, as executors cut messages at these.
        """
        least = int(self.cell_bytes_for(trace).max())
        return Capacity(self.cells, -(-least // _WHOLE_BYTES) * _WHOLE_BYTES)


def even_capacity(trace: Ints) -> Capacity:
    """Return the capacity with one cell for each block that is used at all, as large as the largest block of a trace.

    Args:
        trace: Bytes from position to position in each call, int64, shape (m, k, k), with empty diagonals.
    """
    return Capacity(_used(trace).astype(np.int64), 1).holding(trace)


def choose_capacities(
    trace: Ints, count: int, borders: Borders, seed: int = 0, tuning: ClusterTuning = ClusterTuning()
) -> list[Capacity]:
    """Return up to `count` capacities, of which at least one holds each call of a trace; see the head of this module.

    There are fewer where more would gain nothing. The same arguments give the same capacities.

    Args:
        trace: Bytes from position to position in each call, int64, shape (m, k, k), with empty diagonals; in each call
            something is sent.
        count: Most capacities.
        borders: The borders of the group, which state the bound of a time.
        seed: Seed of the calls that are drawn.
        tuning: Limits.

    Raises:
        TimeUp: The time of the work around is over.
    """
    clustering = _Clustering(trace, borders, seed, tuning)
    best = min((clustering.run(count, seed, start) for start in range(tuning.starts)), key=lambda run: run[0])
    cells = {cut.tobytes(): cut for cut in (clustering.in_cells(shape) for shape in best[1])}
    capacities = [Capacity(cut, 1) for cut in cells.values()]
    times_us = np.stack([padded_us(capacity, trace, borders) for capacity in capacities])
    owner = times_us.argmin(axis=0)
    return [
        capacity.holding(trace[owner == number])
        for number, capacity in enumerate(capacities)
        if (owner == number).any()
    ]


def padded_us(capacity: Capacity, trace: Ints, borders: Borders) -> Floats:
    """Return the bound of each call's time in µs with the padding of a capacity, shape (m,); inf where it never fits.

    Args:
        capacity: The capacity.
        trace: The calls, int64, shape (m, k, k); in each of them something is sent.
        borders: The borders of the group.
    """
    cell_bytes = capacity.cell_bytes_for(trace)
    return borders.scaled_us(capacity.cells.astype(np.float64), np.where(cell_bytes < 0, np.inf, cell_bytes))


class _Clustering:
    """The clustering of a trace, or of a sample of its calls.

    Attributes:
        used: Whether a block is used in any call, shape (k, k).
        calls: Bytes of the clustered calls, float64, shape (m, k, k).
        shapes: The same in bytes for each µs of the call's bound, so that long calls do not outweigh short ones.
    """

    def __init__(self, trace: Ints, borders: Borders, seed: int, tuning: ClusterTuning) -> None:
        self.used = _used(trace)
        # Every n-th call could be of one layer only.
        count = max(1, min(len(trace), tuning.most_sizes // self.used.size))
        chosen = np.sort(np.random.default_rng(seed).permutation(len(trace))[:count])
        self.calls: Floats = trace[chosen].astype(np.float64)
        self.shapes: Floats = self.calls / borders.bound_us(self.calls)[:, None, None]
        self._borders, self._tuning = borders, tuning
        self._most_cells = min(MOST_CELLS, tuning.cells_of_rank * len(self.used))

    def run(self, count: int, seed: int, start: int) -> tuple[float, list[Floats]]:
        """Return (sum of the times in µs, shapes of the centres) of the best clustering from one start.

        Args:
            count: Most centres.
            seed: Seed of the random choice of the first clusters.
            start: Number of the start, which makes its choice another.
        """
        owner = self._first_owner(count, np.random.default_rng([seed, start]))
        best: tuple[float, list[Floats]] = (np.inf, [])
        for _ in checking_deadline(range(self._tuning.rounds)):
            centres = [self._centre(owner == number) for number in np.unique(owner)]
            times_us = np.stack([self._times_us(centre, self.calls) for centre in centres])
            total, owner = float(times_us.min(axis=0).sum()), times_us.argmin(axis=0)
            if total >= best[0] * _LESS:
                break
            best = (total, centres)
        return best

    def in_cells(self, shape: Floats) -> Ints:
        """Return the number of cells of each block that holds a shape, int64, shape (k, k); a used block has a cell.

        Several sizes of a cell are tried. With the chosen one the fullest buffer is the smallest, its padding included.
        """
        cuts = []
        for cells in np.linspace(self._most_cells / 2, self._most_cells, self._tuning.cuts).astype(int).tolist():
            cut = np.ceil(shape * (cells / fullest(shape) * _LESS)).astype(np.int64)
            cut[self.used] = np.maximum(cut[self.used], 1)
            padded = fullest(cut) * float((shape[self.used] / cut[self.used]).max())
            cuts.append((fullest(cut) > MOST_CELLS, padded, cut))
        best: Ints = min(cuts, key=lambda cut: cut[:2])[2]
        best //= int(np.gcd.reduce(best[self.used]))
        return best

    def _first_owner(self, count: int, draw: np.random.Generator) -> Ints:
        """Return the cluster of each call from which a start begins, int64, shape (m,).

        Calls are drawn as centres by the square of their distance to the centres before (k-means++, Arthur and
        Vassilvitskii, 2007). Each call belongs to its nearest centre; distances are those of shapes as vectors, because
        the time of a call with the padding of another one depends on the noise of single blocks.
        """
        vectors = self.shapes[:, self.used]
        nearest = np.ones(len(vectors))
        owner = np.zeros(len(vectors), dtype=np.int64)
        for number in range(count):
            if nearest.sum() <= 0:
                break
            chosen = int(draw.choice(len(vectors), p=nearest / nearest.sum()))
            distance = ((vectors - vectors[chosen]) ** 2).sum(axis=1)
            is_nearer = distance < (nearest if number else np.inf)
            owner[is_nearer] = number
            nearest = np.where(is_nearer, distance, nearest)
        return owner

    def _centre(self, chosen: Bools) -> Floats:
        """Return the shape with which the chosen calls take the least time, of those that the tuning states."""
        shapes, calls = self.shapes[chosen], self.calls[chosen]
        mean, largest = shapes.mean(axis=0), shapes.max(axis=0)
        tried = [self._floored(mean + share * (largest - mean)) for share in self._tuning.towards_largest]
        tried.append(self.used.astype(np.float64))
        return min(tried, key=lambda shape: float(self._times_us(shape, calls).sum()))

    def _floored(self, shape: Floats) -> Floats:
        """Return a shape in which each block that is used at all has about a cell or more."""
        return np.where(self.used, np.maximum(shape, fullest(shape) / self._most_cells), 0.0)

    def _times_us(self, shape: Floats, calls: Floats) -> Floats:
        """Return the bounds of the times of calls with the padding of a shape, in µs, shape (m,)."""
        scales = (calls[:, self.used] / shape[self.used]).max(axis=1)
        return self._borders.scaled_us(shape, scales)


def _used(trace: Ints) -> Bools:
    """Return whether each block is used in any call of a trace, shape (k, k)."""
    return np.asarray((trace > 0).any(axis=0))
