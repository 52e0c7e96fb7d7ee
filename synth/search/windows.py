"""Bounds by windows of time, found by a solver's process while engines work: the budget goes where the gap is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from synth.bounds.prove import refute
from synth.bounds.search import DEFAULT
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.search.result import SearchResult
from synth.solvers.workers import Workers

_MET = 1.01  # time / bound from which on a size is left
_LOWER = 0.98  # of the time that was reached: all is tried again
_FINER = (80, 160)  # slots of time, where it is still worth it when engines have ended


class Asking(Protocol):
    """The search whose bounds they are."""

    problem: Problem
    workers: Workers
    result: SearchResult
    begun: float
    deadline: float

    def scheduled_us(self, size_bytes: float) -> float:
        """The time of the best schedule so far, in µs."""


class Windows:
    """Asks for one linear program after another, for the size whose gap is largest.

    Attributes:
        sizes: in bytes, of which some may be worth it.
    """

    def __init__(self, asking: Asking, sizes: Sequence[int], gap: float) -> None:
        """gap: time / bound from which on a size is looked at."""
        self.sizes = sizes
        self._asking, self._gap, self._tuning = asking, gap, DEFAULT
        self._steps: Iterator[None] | None = None
        self._done: dict[int, float] = {}  # sizes for which all was tried, with the times reached then in µs

    def step(self) -> bool:
        """Take what has been solved and ask for more; False where there is nothing more to ask for."""
        if self._steps is None:
            self._steps = self._run()
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None
            return False
        return True

    def finish(self, until: float, finer_s: float) -> None:
        """Steps until `until` of `now`, and for so many seconds of these with more and more slots of time."""
        while now() < until and self.step():
            pass
        until = min(until, now() + finer_s)
        for slots in _FINER:
            self._tuning = replace(DEFAULT, window_slots=(slots,))
            self._done.clear()
            while now() < until and self.step():
                pass

    def _run(self) -> Iterator[None]:
        asking = self._asking
        while (size := self.farthest()) is not None:
            reached_us = asking.scheduled_us(size)
            self._done[size] = reached_us
            before = asking.result.bound
            for bound in refute(
                asking.problem, before, size, reached_us, asking.workers, asking.deadline, self._tuning
            ):
                if bound is not before:
                    before = bound
                    asking.result.raise_bound(asking.result.bound.merged(bound.witnesses), now() - asking.begun)
                yield
                if asking.scheduled_us(size) <= asking.result.bound.at(size)[0] * _MET:
                    break

    def farthest(self) -> int | None:
        """The size whose gap is largest, of those that are worth it and for which not all was tried.

        A time that has come down since says better which ends to try.
        """
        asking = self._asking
        gaps = {}
        for size in self.sizes:
            us, least_us = asking.scheduled_us(size), asking.result.bound.at(size)[0]
            new = us < self._done.get(size, np.inf) * _LOWER
            if new and 0 < least_us * self._gap < us < np.inf:
                gaps[size] = us / least_us
        return max(gaps, key=lambda size: (gaps[size], -size), default=None)
