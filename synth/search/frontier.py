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

_WORTH = 0.02  # An algorithm that is nowhere faster than the others by this part is left out.
_QUICK = 200_000  # Up to so many sends of all algorithms, their times at all sizes are quick to compute.
_ENDS = 20.0  # The factor for the smallest and the largest size, where a twentieth of that counts.
POWERS = [1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())]


class Execution(Protocol):
    """An algorithm as an executor runs it."""

    def time_us(self, size_bytes: float) -> float:
        """Return the time of the program that runs for messages of a size in bytes, in µs."""

    def serves(self, size_bytes: float) -> bool:
        """Return whether the executor takes messages of about a size in bytes; its files take only multiples."""


@dataclass(eq=False)
class Contender:
    """An algorithm with its time: the time of its schedule, or of its program once there is one.

    Attributes:
        algorithm: The algorithm.
        execution: Its program; None before it is lowered.
        refused: Why the executor can hold no program of it; empty where that was not tried.
        found_s: When it was found, in seconds since the search began.
        least_size: Message size in bytes below which its chunks are too small for the executor, as far as is known
            before it is lowered.
    """

    algorithm: Algorithm
    execution: Execution | None = None
    refused: str = ""
    found_s: float | None = None
    least_size: float = 0.0

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the key by which the simpler of two equally fast algorithms comes first."""
        return self.algorithm.steps, len(self.algorithm.schedule), self.algorithm.chunks

    def time_us(self, size_bytes: float) -> float:
        """Return the time for messages of a size in bytes, in µs."""
        return (self.execution or self.algorithm).time_us(size_bytes)

    def serves(self, size_bytes: float) -> bool:
        """Return whether it is of use for messages of about a size in bytes."""
        return size_bytes >= self.least_size if self.execution is None else self.execution.serves(size_bytes)


@dataclass(frozen=True)
class Range:
    """An algorithm and the message sizes that it serves.

    Attributes:
        contender: The algorithm with its time.
        low: Smallest size in bytes.
        high: Largest size in bytes, inclusive; None if there is no end.
        shown: Size in bytes at which tables show it.
    """

    contender: Contender
    low: int
    high: int | None
    shown: int

    @property
    def algorithm(self) -> Algorithm:
        """Return the algorithm."""
        return self.contender.algorithm

    def time_us(self, size_bytes: float) -> float:
        """Return the time for messages of a size in bytes, in µs."""
        return self.contender.time_us(size_bytes)

    def taken_us(self, size_bytes: int) -> float:
        """Return the time at a size in µs; inf for a size that the executor's files do not take.

        The size that is shown always has its time.
        """
        if size_bytes == self.shown or self.contender.serves(size_bytes):
            return self.time_us(size_bytes)
        return float(np.inf)


def frontier(contenders: Sequence[Contender]) -> list[Range]:
    """Return ranges that cover all sizes with the fastest contenders by predicted time; few ranges rather than many."""
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
    """Return the contenders on the frontier by size, each with the powers of two in bytes that it is fastest for."""
    if not contenders:
        return []
    candidates = sorted(_worth_looking_at(contenders), key=lambda c: c.order)
    times = _times(candidates, POWERS)
    while len(candidates) > 1:
        losses = _losses(times)
        least = losses.min()
        if least > _WORTH:
            break
        last = int(np.flatnonzero(losses == least)[-1])
        candidates.pop(last)
        times = np.delete(times, last, axis=0)
    winner = times.argmin(axis=0)
    starts = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(POWERS)]
    return [(candidates[winner[first]], POWERS[first:after]) for first, after in pairwise(starts)]


def _times(contenders: Sequence[Contender], sizes: Sequence[int]) -> Floats:
    """Return times in µs, shape (contenders, sizes); inf where a contender does not serve a size that another does."""
    times = np.array([[c.time_us(size) for size in sizes] for c in contenders])
    serves = np.array([[c.serves(size) for size in sizes] for c in contenders])
    return np.where(serves | ~serves.any(axis=0), times, np.inf)


def _worth_looking_at(contenders: Sequence[Contender]) -> list[Contender]:
    """Return the contenders that are not clearly slower than others at a few sizes spread over the whole range."""
    every = 1 if sum(len(c.algorithm.schedule) for c in contenders) < _QUICK else 4
    times = _times(contenders, POWERS[::every])
    return list(compress(contenders, (times <= 1.2 * times.min(axis=0)).any(axis=1)))


def _losses(times: Floats) -> Floats:
    """Return for each contender the largest part by which a size gets slower without it.

    Args:
        times: Times in µs, shape (contenders, sizes).
    """
    first, second = np.partition(times, 1, axis=0)[:2]
    own = times == first  # If two are equally fast, neither is missed.
    with np.errstate(invalid="ignore"):
        loss = np.where(own & (first > 0) & (first < np.inf), second / np.where(first > 0, first, 1.0) - 1, 0.0)
    return np.asarray(np.maximum(loss.max(axis=1), _ENDS * np.maximum(loss[:, 0], loss[:, -1])))


def _takeover(before: Contender, after: Contender, low: int, high: int) -> int:
    """Return the first size at which `after` is faster than `before`, by bisection between two sizes in bytes.

    The size next to `low` comes first, because the protocol may change there.
    """
    if before.serves(low) and not after.serves(low):
        return high
    if after.time_us(low + 1) < before.time_us(low + 1):  # The protocol changes there.
        return low + 1
    while high - low > max(1, low // 256):
        middle = (low + high) // 2
        if after.time_us(middle) < before.time_us(middle):
            high = middle
        else:
            low = middle
    return high
