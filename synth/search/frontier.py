"""The frontier: which algorithm serves which message sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
    algorithms = _worth_looking_at(algorithms)
    sizes = [1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())]
    times = {id(a): [a.time_us(size) for size in sizes] for a in algorithms}
    kept = sorted(algorithms, key=lambda a: (a.steps, len(a.schedule), a.chunks))
    while len(kept) > 1:
        losses = [(_loss(kept, a, times), -i) for i, a in enumerate(kept)]
        least, at = min(losses)
        if least > _WORTH:
            break
        kept.pop(-at)
    winners = [min(kept, key=lambda a: (times[id(a)][i], kept.index(a))) for i in range(len(sizes))]
    ranges: list[Range] = []
    low, first = 0, 0
    for i in range(1, len(sizes) + 1):
        if i < len(sizes) and winners[i] is winners[i - 1]:
            continue
        after = winners[i] if i < len(sizes) else None
        high = None if after is None else _takeover(winners[i - 1], after, sizes[i - 1], sizes[i]) - 1
        shown = sizes[0] if first == 0 else sizes[-1] if high is None else sizes[(first + i - 1) // 2]
        ranges.append(Range(winners[i - 1], low, high, shown))
        low, first = (high or 0) + 1, i
    if len(ranges) == 1:
        return [Range(ranges[0].algorithm, 0, None, LARGEST)]
    return ranges


def _worth_looking_at(algorithms: Sequence[Algorithm]) -> list[Algorithm]:
    """Without those that are clearly slower than others at a few sizes spread over the whole range."""
    every = 1 if sum(len(a.schedule) for a in algorithms) < _QUICK else 4
    few = [1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length(), every)]
    times = [[a.time_us(size) for size in few] for a in algorithms]
    best = [min(column) for column in zip(*times, strict=True)]
    near = [any(t <= 1.2 * b for t, b in zip(own, best, strict=True)) for own in times]
    return [a for a, keep in zip(algorithms, near, strict=True) if keep]


def _loss(kept: Sequence[Algorithm], without: Algorithm, times: dict[int, list[float]]) -> float:
    """The largest part by which some size gets slower when one algorithm is left out."""
    mine = times[id(without)]
    rest = [min(column) for column in zip(*(times[id(a)] for a in kept if a is not without), strict=True)]
    losses = [other / own - 1 if own > 0 else 0.0 for own, other in zip(mine, rest, strict=True)]
    return max(max(losses), losses[0] * _ENDS, losses[-1] * _ENDS)


def _takeover(before: Algorithm, after: Algorithm, low: int, high: int) -> int:
    """The first size at which `after` is faster, by bisection between two sizes."""
    while high - low > max(1, low // 256):
        middle = (low + high) // 2
        if after.time_us(middle) < before.time_us(middle):
            high = middle
        else:
            low = middle
    return high
