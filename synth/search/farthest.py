"""The message size whose gap is largest: where the budget goes, of engines as of bounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from synth.search.result import SearchResult

_LOWER = 0.98  # of the time that was reached: a size is worth another look


class Reached(Protocol):
    """A search: the times that it has reached, and the bound that it has proved."""

    result: SearchResult

    def scheduled_us(self, size_bytes: float) -> float:
        """The time of the best schedule so far, in µs; inf where there is none."""


class Farthest:
    """Tells which size comes next.

    Attributes:
        sizes: in bytes, of which some may be worth it.
        gap: time / bound from which on one is.
    """

    def __init__(self, reached: Reached, sizes: Sequence[int], gap: float) -> None:
        self.sizes, self.gap = sizes, gap
        self._reached = reached
        self._done: dict[int, float] = {}  # sizes for which all was tried, with the times reached then in µs

    def size(self) -> int | None:
        """The size whose gap is largest, of those that are worth it and for which not all was tried; None: none is.

        A time that has come down since it was tried makes it worth another look.
        """
        gaps = {}
        for size in self.sizes:
            us, least_us = self._reached.scheduled_us(size), self._reached.result.bound.at(size)[0]
            new = us < self._done.get(size, np.inf) * _LOWER
            if new and 0 < least_us * self.gap < us < np.inf:
                gaps[size] = us / least_us
        return max(gaps, key=lambda size: (gaps[size], -size), default=None)

    def done(self, size_bytes: int, *, for_good: bool = False) -> None:
        """All is, or will be, tried for a size; for_good: whatever time is reached later."""
        self._done[size_bytes] = 0.0 if for_good else self._reached.scheduled_us(size_bytes)

    def restart(self) -> None:
        """Nothing was tried for any size."""
        self._done.clear()
