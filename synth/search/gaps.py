"""Choose the message size whose gap is largest, which is where engines and bounds spend the budget next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from synth.search.result import SearchResult

_LOWER = 0.98  # A size is worth another look once its time has fallen below this part of the time tried before.


class Progressing(Protocol):
    """A search with the times that it has reached and the bound that it has proved."""

    result: SearchResult

    def scheduled_us(self, size_bytes: float) -> float:
        """Return the time of the best schedule so far, in µs; inf if there is none."""


class LargestGap:
    """The choice of the next size to work on.

    Attributes:
        sizes: Message sizes in bytes to choose from.
        gap: Time / bound above which a size is worth work.
    """

    def __init__(self, search: Progressing, sizes: Sequence[int], gap: float) -> None:
        self.sizes, self.gap = sizes, gap
        self._search = search
        self._tried_us: dict[int, float] = {}  # By size in bytes, the time in µs that was reached when it was tried.

    def size(self) -> int | None:
        """Return the untried size with the largest gap (time / bound), in bytes; None if no size is worth work.

        A size is untried again once its time has fallen by more than 2 % since. Of equal gaps the smallest size comes
        first. Sizes without a schedule or without a bound above 0 do not count.
        """
        gaps = {}
        for size in self.sizes:
            us, bound_us = self._search.scheduled_us(size), self._search.result.bound.at(size)[0]
            is_untried = us < self._tried_us.get(size, np.inf) * _LOWER
            if is_untried and 0 < bound_us * self.gap < us < np.inf:
                gaps[size] = us / bound_us
        return max(gaps, key=lambda size: (gaps[size], -size), default=None)

    def mark_tried(self, size_bytes: int, *, for_good: bool = False) -> None:
        """Record that everything is tried for a size in bytes.

        Args:
            size_bytes: The size.
            for_good: Whether it stays tried even after its time has fallen, until `restart`.
        """
        self._tried_us[size_bytes] = 0.0 if for_good else self._search.scheduled_us(size_bytes)

    def forget(self, size_bytes: int) -> None:
        """Remove the record that a size in bytes was tried."""
        self._tried_us.pop(size_bytes, None)

    def restart(self) -> None:
        """Remove the record of the sizes that were tried."""
        self._tried_us.clear()
