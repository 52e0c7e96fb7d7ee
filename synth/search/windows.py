"""Bounds by windows of time, found by a solver's process while engines work: the budget goes where the gap is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from synth.bounds.prove import refute
from synth.bounds.search import DEFAULT
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.search.farthest import Farthest, Reached
from synth.solvers.workers import Workers

_MET = 1.003  # time / bound from which on a size is left
_FINER = (81,)  # slots of time, where it is still worth it when engines have ended


class Asking(Reached, Protocol):
    """The search whose bounds they are."""

    problem: Problem
    workers: Workers
    begun: float
    deadline: float


class Windows:
    """Asks for one linear program after another, for the size whose gap is largest.

    Attributes:
        farthest: which size that is.
    """

    def __init__(self, asking: Asking, sizes: Sequence[int], gap: float) -> None:
        """gap: time / bound from which on a size is looked at."""
        self.farthest = Farthest(asking, sizes, gap)
        self._asking, self._tuning = asking, DEFAULT
        self._steps: Iterator[None] | None = None

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
        for slots in _FINER if finer_s > 0 else ():
            self._tuning = replace(DEFAULT, window_slots=(slots,))
            self.farthest.restart()
            while now() < until and self.step():
                pass
        self._tuning = DEFAULT

    def _run(self) -> Iterator[None]:
        asking = self._asking
        while (size := self.farthest.size()) is not None:
            self.farthest.done(size)
            reached_us = asking.scheduled_us(size)
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
