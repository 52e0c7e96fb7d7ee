"""Bounds by windows of time, which a solver's process finds while engines work, for the size with the largest gap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from synth.bounds.prove import refute
from synth.bounds.search import DEFAULT
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.search.budget import Budget
from synth.search.gaps import LargestGap, Progressing
from synth.solvers.workers import Workers

_MET = 1.003  # Time / bound below which a size needs no better bound.
_FINER = (81,)  # Numbers of slots of time that are still worth it once engines have ended.


class BoundedSearch(Progressing, Protocol):
    """A search whose bounds are to be raised."""

    problem: Problem
    workers: Workers
    budget: Budget


class Windows:
    """A sequence of linear programs, each for the size whose gap is largest.

    Attributes:
        next_gap: The choice of that size.
    """

    def __init__(self, search: BoundedSearch, sizes: Sequence[int], gap: float) -> None:
        """Set up bounds for a search.

        Args:
            search: The search, whose `result` gets the bounds.
            sizes: Message sizes in bytes to choose from.
            gap: Time / bound above which a size is looked at.
        """
        self.next_gap = LargestGap(search, sizes, gap)
        self._search, self._tuning = search, DEFAULT
        self._steps: Iterator[None] | None = None

    def step(self) -> bool:
        """Collect the linear programs that are solved, raise the search's bound by them, and send the next ones.

        Returns:
            False if no size is worth work; a later call looks for one again.
        """
        if self._steps is None:
            self._steps = self._run()
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None
            return False
        return True

    def finish(self, until: float, finer_s: float) -> None:
        """Run steps while there is something to do, then again with finer slots of time.

        Args:
            until: Reading of `now` at which all ends.
            finer_s: Most seconds of that time for finer slots; 0 for none.
        """
        while now() < until and self.step():
            pass
        until = min(until, now() + finer_s)
        for slots in _FINER if finer_s > 0 else ():
            self._tuning = replace(DEFAULT, window_slots=(slots,))
            self.next_gap.restart()
            while now() < until and self.step():
                pass
        self._tuning = DEFAULT

    def _run(self) -> Iterator[None]:
        """Raise the bound for one size after another, the largest gap first; yield after each look at the solvers.

        It ends when no size is worth work.
        """
        search = self._search
        while (size := self.next_gap.size()) is not None:
            self.next_gap.mark_tried(size)
            reached_us = search.scheduled_us(size)
            before = search.result.bound
            for bound in refute(
                search.problem, before, size, reached_us, search.workers, search.budget.deadline, self._tuning
            ):
                if bound is not before:
                    before = bound
                    merged = search.result.bound.merged(bound.witnesses)
                    search.result.raise_bound(merged, now() - search.budget.begun)
                yield
                if search.scheduled_us(size) <= search.result.bound.at(size)[0] * _MET:
                    break
