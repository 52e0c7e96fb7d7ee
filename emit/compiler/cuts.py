"""How many cells a block of a program has: as many as divide what frameworks send, at no more than a little time.

An executor takes only messages that divide into as many cells as its program has. A block of 5 chunks divides few of
the usual sizes; one of 64 cells, 12 or 13 a chunk, divides most, and the steps stay as many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from synth.model.common_chunk import CommonChunk, common_chunk, cut_blocks
from synth.model.problem import LARGEST
from synth.timing.simulate import predict_us
from synth.verify.algorithm import Algorithm

_DOUBLING = 1.005  # what twice as many cells must gain of the time, since they divide fewer sizes


def best_cut(algorithm: Algorithm, cells: Sequence[int]) -> CommonChunk:
    """The cells of an algorithm's blocks: one of these numbers, all at least its chunks; a cell a chunk where none is.

    That of the least time for large messages, each doubling weighed as what it must gain.
    """
    collective = algorithm.problem.collective
    alike = np.ptp(collective.fraction) == 0 and collective.nchunks % collective.chunks == 0
    if not cells or collective.chunks in cells or not alike:
        return common_chunk(collective)
    tried = [cut_blocks(collective, widths) for number in cells for widths in _widths(algorithm, number)]
    doublings = np.log2([common.cells.chunks / cells[0] for common in tried])
    worth = [cut_time_us(algorithm, common, LARGEST) for common in tried] * _DOUBLING**doublings
    return tried[int(np.argmin(worth))]


def _widths(algorithm: Algorithm, cells: int) -> list[list[int]]:
    """Cells of each chunk of a block: larger and smaller ones in turn, and the larger ones sent first."""
    chunks, schedule = algorithm.problem.collective.chunks, algorithm.schedule
    first = np.full(chunks, np.inf)
    np.minimum.at(first, schedule.chunk % chunks, schedule.start_us)
    early = np.full(chunks, cells // chunks)
    early[np.argsort(first, kind="stable")[: cells % chunks]] += 1
    return [np.diff(np.arange(chunks + 1) * cells // chunks).tolist(), early.tolist()]


def cut_time_us(algorithm: Algorithm, common: CommonChunk | None, size_bytes: float) -> float:
    """The time of the schedule with chunks as long as so many cells; None: as they are."""
    if common is None or np.ptp(common.count) == 0:
        return algorithm.time_us(size_bytes)
    problem = algorithm.problem
    fraction = common.count * common.cells.fraction[0]
    cut = replace(problem, collective=replace(problem.collective, fraction=fraction))
    return predict_us(cut, algorithm.schedule, size_bytes)
