"""The frontier: which algorithm serves which message sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise

import numpy as np

from synth.model.collective import Floats
from synth.model.problem import LARGEST, SMALLEST
from synth.verify.algorithm import Algorithm

_WORTH = 0.02  # an algorithm that is never better than the others by this part is left out
_QUICK = 200_000  # sends of all algorithms whose times at all sizes take a moment
_ENDS = 20.0  # at the smallest and the largest size even a twentieth of that counts


@dataclass(frozen=True)
class Range:
    """One algorithm's sizes in bytes, from `low` to `high` inclusive; high is None where there is no end.

    `shown` is the size at which tables show it.
    """

    algorithm: Algorithm
    low: int
    high: int | None
    shown: int


def frontier(algorithms: Sequence[Algorithm]) -> list[Range]:
    """Cover all sizes with the fastest of the algorithms, in predicted time; few rather than many."""
    if not algorithms:
        return []
    kept = sorted(_worth_looking_at(algorithms), key=lambda a: (a.steps, len(a.schedule), a.chunks))
    sizes = [1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())]
    times = _times(kept, sizes)
    while len(kept) > 1:
        losses = [_loss(times, i) for i in range(len(kept))]
        least = min(losses)
        if least > _WORTH:
            break
        last = max(i for i, loss in enumerate(losses) if loss == least)
        kept.pop(last)
        times = np.delete(times, last, axis=0)
    winner = times.argmin(axis=0)
    starts = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(sizes)]
    ranges: list[Range] = []
    low = 0
    for first, after in pairwise(starts):
        algorithm, high = kept[winner[first]], None
        if after < len(sizes):
            high = _takeover(algorithm, kept[winner[after]], sizes[after - 1], sizes[after]) - 1
        shown = sizes[0] if first == 0 else sizes[-1] if high is None else sizes[(first + after - 1) // 2]
        ranges.append(Range(algorithm, low, high, shown))
        low = (high or 0) + 1
    return ranges if len(ranges) > 1 else [replace(ranges[0], shown=LARGEST)]


def _times(algorithms: Sequence[Algorithm], sizes: Sequence[int]) -> Floats:
    """µs, shape (algorithms, sizes)."""
    return np.array([[a.time_us(size) for size in sizes] for a in algorithms])


def _worth_looking_at(algorithms: Sequence[Algorithm]) -> list[Algorithm]:
    """Without those that are clearly slower than others at a few sizes spread over the whole range."""
    every = 1 if sum(len(a.schedule) for a in algorithms) < _QUICK else 4
    times = _times(algorithms, [1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length(), every)])
    return list(compress(algorithms, (times <= 1.2 * times.min(axis=0)).any(axis=1)))


def _loss(times: Floats, without: int) -> float:
    """The largest part by which some size gets slower when one algorithm (row) is left out."""
    own, rest = times[without], np.delete(times, without, axis=0).min(axis=0)
    losses = np.divide(rest, own, out=np.ones_like(own), where=own > 0) - 1
    return float(max(losses.max(), losses[0] * _ENDS, losses[-1] * _ENDS))


def _takeover(before: Algorithm, after: Algorithm, low: int, high: int) -> int:
    """The first size at which `after` is faster, by bisection between two sizes."""
    while high - low > max(1, low // 256):
        middle = (low + high) // 2
        if after.time_us(middle) < before.time_us(middle):
            high = middle
        else:
            low = middle
    return high
