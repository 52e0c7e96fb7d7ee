"""Measure the time that counts against a budget, and end work when its time is over.

A deadline is a reading of `now`. `limited` sets one for a piece of work. The work ends at the next call of
`check_deadline`, which therefore stands in every loop that may take long. What cannot look at the clock, as a solver,
runs in a child process or has a time limit of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, copy_context
from itertools import islice
from typing import TypeVar

Answer = TypeVar("Answer")
Item = TypeVar("Item")

_LOOK_S = 0.01  # After so long a deadline that may have moved is read again.


class TimeUp(BaseException):
    """The exception that ends work whose time is over; no `except Exception` swallows it."""


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the KeyboardInterrupt in an error's chain of causes and contexts; None without one.

    Compiled functions report Ctrl-C by another error. An error's cause is followed if it has one, else its context.
    """
    cause = error.__cause__ or error.__context__
    return cause if isinstance(cause, KeyboardInterrupt) or cause is None else interrupt_behind(cause)


class _Uncounted:
    """The time that counts against no budget.

    Attributes:
        seconds: Seconds that did not count so far.
        since: When the clock stopped to count, a reading of `time.monotonic()`; 0 while it counts.
    """

    seconds = 0.0
    since = 0.0


def now() -> float:
    """Return `time.monotonic()` in seconds, without the time that counts against no budget (`uncounted`)."""
    clock_s = _Uncounted.since or time.monotonic()
    return clock_s - _Uncounted.seconds


def restart() -> None:
    """Forget the time that did not count so far, for a new command; earlier readings of `now` then mean nothing."""
    _Uncounted.seconds = 0.0


def uncounted(work: Callable[[], Answer], counts: Callable[[], bool] = lambda: False) -> Answer:
    """Run `work` and return its result; its time counts against no budget unless `counts` returns True at the end.

    The clock of `now` stands still meanwhile. Inside another `uncounted`, the outer one alone decides, and `counts` is
    not called. Also the time of work that raises is taken off.

    This is no context manager: Ctrl-C while one is entered would skip its end, and the clock would stand still.
    """
    if _Uncounted.since:
        return work()
    start_s = time.monotonic()
    try:
        _Uncounted.since = start_s
        return work()
    finally:
        _Uncounted.since = 0.0
        if not counts():
            _Uncounted.seconds += time.monotonic() - start_s


class Deadline:
    """The time when some work ends, which is never later than the end of the work around it.

    Attributes:
        until: Returns a reading of `now`; it may change from call to call.
        around: Deadline of the work around; None without one.
        look_at: When the time that is left is computed again, a reading of `time.monotonic()`.
    """

    def __init__(self, until: Callable[[], float] | float, around: Deadline | None = None) -> None:
        self.until = until if callable(until) else lambda: until
        self.around = around
        self.look_at = 0.0

    def remaining_s(self) -> float:
        """Return the seconds that are left; 0 or less once the time is over."""
        own_s = self.until() - now()
        return own_s if self.around is None else min(own_s, self.around.remaining_s())

    def check(self) -> None:
        """Raise TimeUp if the time is over; it may notice so up to 10 ms late.

        It is cheap enough for loops whose rounds take microseconds: the time that is left is computed every 10 ms at
        most.
        """
        clock_s = time.monotonic()
        if clock_s < self.look_at:
            return
        left_s = self.remaining_s()
        if left_s <= 0:
            raise TimeUp
        self.look_at = clock_s + min(left_s, _LOOK_S)


_in_force: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def limited(until: Callable[[], float] | float, work: Callable[[], Answer]) -> Answer:
    """Run `work` and return its result, or raise TimeUp at its first look at the clock after its time.

    The deadline of the work around this call holds too: the earlier one counts. If the time is over already, `work` is
    not started.

    Args:
        until: A reading of `now`, or a function that returns one and is called again and again.
        work: What to run; it looks at the clock by `check_deadline`.

    Raises:
        TimeUp: The time was over before the work ended.
    """
    deadline = Deadline(until, _in_force.get())
    deadline.check()

    def work_in_time() -> Answer:
        """Run the work with its deadline in force."""
        _in_force.set(deadline)
        return work()

    return copy_context().run(work_in_time)  # Even Ctrl-C cannot leave the deadline in force afterwards.


def check_deadline() -> None:
    """Raise TimeUp if the time of the work around this call is over; without a limit it does nothing.

    It may notice so up to 10 ms late, and is cheap enough for loops whose rounds take microseconds.
    """
    deadline = _in_force.get()
    if deadline is not None:
        deadline.check()


def remaining_s() -> float:
    """Return the seconds that are left to the work around this call: 0 or less once it is over, inf without a limit."""
    deadline = _in_force.get()
    return float("inf") if deadline is None else deadline.remaining_s()


def checking_deadline(items: Iterable[Item], every: int = 1) -> Iterator[Item]:
    """Yield items in order, and look at the clock before the first and then before every `every`-th one.

    Args:
        items: The items.
        every: Number of items from one look at the clock to the next: 1, or more where an item takes microseconds.

    Raises:
        TimeUp: The time of the work around is over.
    """
    remaining = iter(items)
    for item in remaining:
        check_deadline()
        yield item
        yield from islice(remaining, every - 1)
