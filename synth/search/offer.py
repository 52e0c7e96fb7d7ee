"""Offers of algorithms and programs for ranges of message sizes, and the partition of sizes among them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from synth.model.collective import Floats
from synth.model.problem import LARGEST
from synth.verify.algorithm import Algorithm

Server = TypeVar("Server")
End = TypeVar("End", int, int | None)
Changes = Callable[[int, Server, int, Server], Iterable[tuple[int, Server]]]


class Execution(Protocol):
    """An algorithm as an executor runs it."""

    def time_us(self, size_bytes: float) -> float:
        """Return the time of the program that runs for messages of a size in bytes, in µs."""

    def serves(self, size_bytes: float) -> bool:
        """Return whether the executor takes messages of about a size in bytes; its files take only multiples."""

    def unit_bytes(self, size_bytes: float) -> int:
        """Return the number of bytes of which served messages of about a size, no power of two, are multiples."""


@dataclass(frozen=True, eq=False)
class Offer:
    """An algorithm, or its program once there is one, and the message sizes that it serves.

    Attributes:
        algorithm: The algorithm.
        execution: Its program; None before it is lowered.
        low: Smallest size in bytes.
        high: Largest size in bytes, inclusive; None if there is no end.
        shown: Size in bytes at which tables show it.
        refused: Why the executor can hold no program of it; empty where that was not tried.
        elapsed_s: Seconds from the beginning of the search until it was there; None if unknown.
        library: Name of the vendor library to which the range is left, as its own algorithm is faster; then `execution`
            has its times, and `refused` is the reason for no file. Empty for the algorithm itself.
        least_size: Message size in bytes below which its chunks are too small for the executor, as far as is known
            before it is lowered.
    """

    algorithm: Algorithm
    execution: Execution | None = None
    low: int = 0
    high: int | None = None
    shown: int = LARGEST
    refused: str = ""
    elapsed_s: float | None = None
    least_size: float = 0.0
    library: str = ""

    @property
    def order(self) -> tuple[int, int, int]:
        """Return (steps, sends, chunks), the key by which the simpler of two equally fast algorithms comes first."""
        return self.algorithm.steps, len(self.algorithm.schedule), self.algorithm.chunks

    def time_us(self, size_bytes: float) -> float:
        """Return the time in µs for messages of a size in bytes: of the program if there is one, or of the schedule."""
        return (self.execution or self.algorithm).time_us(size_bytes)

    def rank_at(self, size_bytes: float) -> tuple[float, int, int, int]:
        """Return the key by which the faster of two algorithms at a size comes first, and of equals the simpler.

        It is the time in µs, rounded to about nine digits, and then `order`.
        """
        return _rounded(self.time_us(size_bytes)), *self.order

    def at_size(self, size_bytes: int) -> Offer:
        """Return a copy of the offer for one message size, which is its range and is shown."""
        return replace(self, low=size_bytes, high=size_bytes, shown=size_bytes)

    def serves(self, size_bytes: float) -> bool:
        """Return whether it is of use for messages of about a size in bytes, whatever its range.

        Without a program, the size must be at least `least_size`; a program states it itself.
        """
        return size_bytes >= self.least_size if self.execution is None else self.execution.serves(size_bytes)

    def unit_bytes(self, size_bytes: float) -> int:
        """Return the number of bytes of which served messages of about a size, no power of two, are multiples."""
        return 1 if self.execution is None else self.execution.unit_bytes(size_bytes)

    def taken_us(self, size_bytes: int) -> float:
        """Return the time at a size in µs; inf for a size that the executor's files do not take.

        The size that is shown always has its time.
        """
        if size_bytes == self.shown or self.serves(size_bytes):
            return self.time_us(size_bytes)
        return float(np.inf)

    def without_program(self, reason: str) -> Offer:
        """Return the offer of the schedule only, with the reason why the executor can hold no program of it."""
        return replace(self, execution=None, refused=reason, least_size=0.0)


def rounded(times_us: ArrayLike) -> Floats:
    """Return times to about nine digits, so that rounding errors rarely make an algorithm faster than a simpler one.

    The result has the shape of `times_us`.
    """
    mantissas, exponents = np.frexp(times_us)
    return np.ldexp(np.round(mantissas, 9), exponents)


def _rounded(time_us: float) -> float:
    """Return what `rounded` returns for one time, without the arrays that cost more than the rounding."""
    if not math.isfinite(time_us):
        return time_us
    mantissa, exponent = math.frexp(time_us)
    return math.ldexp(round(mantissa * 1e9) / 1e9, exponent)


def partition(
    low: int, high: End, samples: Sequence[tuple[int, Server]], changes: Changes[Server]
) -> list[tuple[Server, int, End]]:
    """Partition the sizes from `low` to `high` bytes among servers, given the server of some sizes between them.

    Args:
        low: Smallest size in bytes.
        high: Largest size in bytes, inclusive; None if there is no end.
        samples: One or more rising sizes in bytes, each with its server; the first server also serves from `low`.
        changes: Function that takes two neighbouring sizes of different servers, as (size, server, size, server), and
            returns (first size, server) of each change between them, in order.

    Returns:
        (server, smallest size, largest size) of each range, in order.
    """
    starts: list[tuple[int, Server]] = [(low, samples[0][1])]
    for (size, server), (next_size, next_server) in pairwise(samples):
        if server != next_server:
            starts += changes(size, server, next_size, next_server)
    ends: list[End] = [*(start - 1 for start, _ in starts[1:]), high]
    return [(server, start, end) for (start, server), end in zip(starts, ends, strict=True)]


def changes_to_the_byte(server_at: Callable[[int], Server]) -> Changes[Server]:
    """Return a function for `partition` that finds changes by bisection, given the server of any size.

    It misses changes between two sizes of one server.
    """

    def changes(low: int, server: Server, high: int, next_server: Server) -> Iterator[tuple[int, Server]]:
        """Yield (first size, server) of the changes from size `low` to size `high`; none if both have one server."""
        if server == next_server:
            return
        if high - low == 1:
            yield high, next_server
            return
        middle = (low + high) // 2
        middle_server = server_at(middle)
        yield from changes(low, server, middle, middle_server)
        yield from changes(middle, middle_server, high, next_server)

    return changes
