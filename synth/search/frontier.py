"""The frontier: which algorithm serves which message sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import compress, pairwise
from typing import Protocol

import numpy as np

from synth.model.collective import Floats
from synth.model.problem import LARGEST, SMALLEST
from synth.verify.algorithm import Algorithm

_WORTH = 0.02  # an algorithm that is never better than the others by this part is left out
_QUICK = 200_000  # sends of all algorithms whose times at all sizes take a moment
_ENDS = 20.0  # at the smallest and the largest size even a twentieth of that counts
POWERS = [1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())]


class Execution(Protocol):
    """An algorithm as an executor runs it."""

    def time_us(self, size_bytes: float) -> float:
        """The time of what runs for messages of `size_bytes`, in µs."""

    def serves(self, size_bytes: float) -> bool:
        """Whether the executor takes messages of about so many bytes: its files only take what divides."""


@dataclass(eq=False)
class Contender:
    """An algorithm with its time: its schedule's, or that of its execution, where there is one.

    refused: why the executor can hold no program for it, where that was tried. found_s: when it was found, in seconds
    since the search began. least_size: of a message in bytes, below which its chunks are too small for the executor, as
    far as is known before it is lowered.
    """

    algorithm: Algorithm
    execution: Execution | None = None
    refused: str = ""
    found_s: float | None = None
    least_size: float = 0.0

    @property
    def order(self) -> tuple[int, int, int]:
        """Among equals, the simpler first."""
        return self.algorithm.steps, len(self.algorithm.schedule), self.algorithm.chunks

    def time_us(self, size_bytes: float) -> float:
        """In µs, for messages of `size_bytes`."""
        return (self.execution or self.algorithm).time_us(size_bytes)

    def serves(self, size_bytes: float) -> bool:
        """Whether it is of use for messages of about so many bytes."""
        return size_bytes >= self.least_size if self.execution is None else self.execution.serves(size_bytes)


@dataclass(frozen=True)
class Range:
    """What serves the sizes in bytes from `low` to `high` inclusive; high is None where there is no end.

    `shown` is the size at which tables show it.
    """

    contender: Contender
    low: int
    high: int | None
    shown: int

    @property
    def algorithm(self) -> Algorithm:
        return self.contender.algorithm

    def time_us(self, size_bytes: float) -> float:
        """In µs, for messages of `size_bytes`."""
        return self.contender.time_us(size_bytes)

    def taken_us(self, size_bytes: int) -> float:
        """The same; inf for sizes that the executor's files do not take, but for the one that is shown."""
        if size_bytes == self.shown or self.contender.serves(size_bytes):
            return self.time_us(size_bytes)
        return float(np.inf)


def frontier(contenders: Sequence[Contender]) -> list[Range]:
    """Cover all sizes with the fastest of the contenders, in predicted time; few rather than many."""
    won = winners(contenders)
    ranges: list[Range] = []
    low = 0
    for number, (best, sizes) in enumerate(won):
        high = None
        if number < len(won) - 1:
            after, its = won[number + 1]
            high = _takeover(best, after, sizes[-1], its[0]) - 1
        shown = sizes[0] if number == 0 else sizes[-1] if high is None else sizes[(len(sizes) - 1) // 2]
        ranges.append(Range(best, low, high, shown))
        low = (high or 0) + 1
    return ranges if len(ranges) != 1 else [replace(ranges[0], shown=LARGEST)]


def winners(contenders: Sequence[Contender]) -> list[tuple[Contender, list[int]]]:
    """Who is on the frontier, by size, each with the powers of two that it is the fastest for, in bytes."""
    if not contenders:
        return []
    kept = sorted(_worth_looking_at(contenders), key=lambda c: c.order)
    times = _times(kept, POWERS)
    while len(kept) > 1:
        losses = _losses(times)
        least = losses.min()
        if least > _WORTH:
            break
        last = int(np.flatnonzero(losses == least)[-1])
        kept.pop(last)
        times = np.delete(times, last, axis=0)
    winner = times.argmin(axis=0)
    starts = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(POWERS)]
    return [(kept[winner[first]], POWERS[first:after]) for first, after in pairwise(starts)]


def _times(contenders: Sequence[Contender], sizes: Sequence[int]) -> Floats:
    """µs, shape (contenders, sizes); inf for sizes that others serve and it does not."""
    times = np.array([[c.time_us(size) for size in sizes] for c in contenders])
    serves = np.array([[c.serves(size) for size in sizes] for c in contenders])
    return np.where(serves | ~serves.any(axis=0), times, np.inf)


def _worth_looking_at(contenders: Sequence[Contender]) -> list[Contender]:
    """Without those that are clearly slower than others at a few sizes spread over the whole range."""
    every = 1 if sum(len(c.algorithm.schedule) for c in contenders) < _QUICK else 4
    times = _times(contenders, POWERS[::every])
    return list(compress(contenders, (times <= 1.2 * times.min(axis=0)).any(axis=1)))


def _losses(times: Floats) -> Floats:
    """For each algorithm (row) the largest part by which some size gets slower when it is left out."""
    first, second = np.partition(times, 1, axis=0)[:2]
    own = times == first  # where two are as fast, neither is missed
    with np.errstate(invalid="ignore"):
        lost = np.where(own & (first > 0) & (first < np.inf), second / np.where(first > 0, first, 1.0) - 1, 0.0)
    return np.asarray(np.maximum(lost.max(axis=1), _ENDS * np.maximum(lost[:, 0], lost[:, -1])))


def _takeover(before: Contender, after: Contender, low: int, high: int) -> int:
    """The first size at which `after` is faster, next to `low` where that is enough, else by bisection."""
    if before.serves(low) and not after.serves(low):
        return high
    if after.time_us(low + 1) < before.time_us(low + 1):  # the protocol changes there
        return low + 1
    while high - low > max(1, low // 256):
        middle = (low + high) // 2
        if after.time_us(middle) < before.time_us(middle):
            high = middle
        else:
            low = middle
    return high
