"""Bounds by windows of time, for the size with the largest gap, which a solver's process finds beside other work.

While engines work, each of their answers is followed by a step here; while programs are made, a thread takes the steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Protocol

from synth.bounds.prove import refute
from synth.bounds.search import DEFAULT
from synth.engines.request import Options
from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import contained
from synth.model.problem import Problem
from synth.search.budget import Budget
from synth.search.gaps import LargestGap, Progressing
from synth.search.plans import SearchPlan
from synth.solvers.workers import Workers

MOST_RANKS = DEFAULT.window_ranks  # Ranks up to which a search looks for such bounds.
_MET = 1.003  # Time / bound below which a size needs no better bound.
_FINER = (81,)  # Numbers of slots of time that are still worth it once engines have ended.
_LEAVING_S = 0.2  # How long the thread may take to notice that it is to end; then it is left alone.
_PAUSE_S = 0.02  # How long the thread leaves the processor to the work beside it between two looks at the solver.


def allows_windows(problem: Problem, plan: SearchPlan, options: Options) -> bool:
    """Return whether bounds by windows of time are searched.

    They are if the plan has a share of the budget for them, ranks are few, and the user pins no shape.
    """
    return plan.windows > 0 and problem.nranks <= MOST_RANKS and not options.pinned


def finer_windows_s(plan: SearchPlan, options: Options) -> float:
    """Return the most seconds for bounds with finer slots of time: a share of the budget for one size, 0 for more."""
    return plan.windows_finer * options.budget_s * (options.size is not None)


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
        self._is_finer_done = False
        self._pause_s = 0.0
        self._stopped = threading.Event()

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
        except BaseException:
            self._steps = None
            raise
        return True

    def finish(self, until: float, finer_s: float) -> None:
        """Run steps while there is something to do, then again with finer slots of time if that was not done before.

        Args:
            until: Reading of `now` at which all ends.
            finer_s: Most seconds of that time for finer slots; 0 for none.
        """
        self._run_steps(until)
        until = min(until, now() + finer_s)
        for slots in _FINER if finer_s > 0 and not self._is_finer_done else ():
            self._tuning = replace(DEFAULT, window_slots=(slots,))
            self.next_gap.restart()
            self._run_steps(until)
        self._is_finer_done = self._is_finer_done or finer_s > 0
        self._tuning = DEFAULT

    def _run_steps(self, until: float) -> None:
        """Run steps until none is left to do, the clock reads `until`, or the work beside them was interrupted."""
        while now() < until and not self._stopped.wait(self._pause_s) and self.step():
            pass

    @contextmanager
    def beside(self, until: float, finer_s: float) -> Iterator[None]:
        """Run `finish` in a thread as long as the body of the context runs.

        What the thread finds after the end of the context does not count. The body must use neither the solvers nor the
        bound.

        Args:
            until: As in `finish`.
            finer_s: As in `finish`.
        """

        def finish_in_time() -> None:
            """Finish; the end of the time ends it too, where it looks at the clock."""
            finish = partial(self.finish, until, finer_s)
            with suppress(TimeUp):
                contained("search for bounds by windows of time", partial(limited, until, finish), None)

        self._pause_s = _PAUSE_S
        thread = threading.Thread(target=copy_context().run, args=(finish_in_time,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._stopped.set()
            thread.join(_LEAVING_S)

    def _run(self) -> Iterator[None]:
        """Raise the bound for one size after another, the largest gap first; yield after each look at the solvers.

        It ends when no size is worth work.
        """
        while (size := self.next_gap.size()) is not None:
            self.next_gap.mark_tried(size)
            try:
                yield from self._raise_at(size)
            except BaseException:
                self.next_gap.forget(size)  # It was cut off, and is tried again.
                raise

    def _raise_at(self, size: int) -> Iterator[None]:
        """Raise the bound at a size in bytes until it is met or all is tried; yield after each look at the solver."""
        search, before = self._search, self._search.result.bound
        reached_us = search.scheduled_us(size)
        for bound in refute(
            search.problem, before, size, reached_us, search.workers, search.budget.deadline, self._tuning
        ):
            if self._stopped.is_set():
                return
            if bound is not before:
                before = bound
                merged = search.result.bound.merged(bound.witnesses)
                search.result.raise_bound(merged, now() - search.budget.begun)
            yield
            if search.scheduled_us(size) <= search.result.bound.at(size)[0] * _MET:
                break
