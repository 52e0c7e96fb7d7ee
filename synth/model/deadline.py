"""Measure the time that counts against a budget, and interrupt work when its time is over.

A deadline is a reading of `now`. It is kept in two ways: code with a loop reads the clock; code without one, or with
one whose rounds take too long, is interrupted as Ctrl-C would interrupt it (`limited`).
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar, copy_context
from types import CodeType, FrameType
from typing import TypeVar

Answer = TypeVar("Answer")
Item = TypeVar("Item")
Whole = TypeVar("Whole", bound=Callable[..., object])

_AGAIN_S = 0.5  # After so long TimeUp is raised again, as some library may have swallowed it.
_UNREADY_S = 0.005  # After so long the watch tries again where the code must not be interrupted.
_PATIENCE_S = 0.3  # So long the watch waits until a frame of this project runs.
_JUMPS = 10  # At each jump of a loop the interpreter checks whether an exception is to be raised.
_OUR_PACKAGES = ("topologies", "synth", "emit", "runtime")
_LOOK_S = 0.01  # After so long a deadline that may have moved is read again.
_LONGEST_S = 0.2  # between two looks at the clock, which may have stood still
_whole: set[CodeType] = set()


class TimeUp(KeyboardInterrupt):
    """The exception that ends work whose time is over; it can interrupt whatever Ctrl-C can interrupt."""


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the Ctrl-C or TimeUp that a compiled function reports by another error; None without one."""
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
    """Start the clock of a new command: all seconds count so far, and earlier readings mean nothing."""
    _Uncounted.seconds = 0.0


def uncounted(work: Callable[[], Answer], counts: Callable[[], bool] = lambda: False) -> Answer:
    """Run `work` and return its result; its time counts against no budget unless `counts` returns True at the end.

    This is no context manager: an exception that is raised while one is entered skips its end, and the clock would
    stand still.
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


def whole(function: Whole) -> Whole:
    """Mark a function that no TimeUp may interrupt, and return it.

    A TimeUp within it would leave half done what the function opens or closes.
    """
    _whole.add(function.__code__)
    return function


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
        """Raise TimeUp if the time is over; this is cheap enough for loops whose rounds take microseconds."""
        clock_s = time.monotonic()
        if clock_s < self.look_at:
            return
        left_s = self.remaining_s()
        if left_s <= 0:
            raise TimeUp
        self.look_at = clock_s + min(left_s, _LOOK_S)


_in_force: ContextVar[Deadline | None] = ContextVar("deadline", default=None)


def limited(until: Callable[[], float] | float, work: Callable[[], Answer]) -> Answer:
    """Run `work` and return its result, or raise TimeUp in this thread when its time is over.

    Args:
        until: A reading of `now`, or a function that returns one and is called again and again. After it TimeUp is
            raised wherever this thread is, but not in an import; compiled code or a wait for another process ends
            first.
        work: What to run.

    Raises:
        TimeUp: The time was over before the work ended.
    """
    deadline = Deadline(until, _in_force.get())
    deadline.check()

    def work_in_time() -> Answer:
        """Run the work with its deadline in force."""
        _in_force.set(deadline)
        return work()

    in_context = copy_context()  # Even Ctrl-C cannot leave the deadline in force afterwards.
    if deadline.until() == float("inf"):
        return in_context.run(work_in_time)
    watch = _ClockWatch(deadline.until)
    try:
        try:
            watch.start()
            return in_context.run(work_in_time)
        finally:
            watch.end()
    except TimeUp:
        watch.end()  # The TimeUp may have come within the first call of `end`.
        raise


def check_deadline() -> None:
    """Raise TimeUp if the time of the work around this call is over."""
    deadline = _in_force.get()
    if deadline is not None:
        deadline.check()


def remaining_s() -> float:
    """Return the seconds that are left to the work around this call; inf if nothing limits it."""
    deadline = _in_force.get()
    return float("inf") if deadline is None else deadline.remaining_s()


def checking_deadline(items: Iterable[Item], every: int = 1) -> Iterator[Item]:
    """Yield items, and raise TimeUp if the time of the work around is over.

    Args:
        items: The items.
        every: Number of items from one look at the clock to the next: 1, or more where an item takes microseconds.
    """
    for number, item in enumerate(items):
        if number % every == 0:
            check_deadline()
        yield item


class _ClockWatch:
    """A thread that raises TimeUp in the thread that made it, until that thread calls `end`."""

    def __init__(self, until: Callable[[], float]) -> None:
        self.until, self.over = until, False
        self.watched = threading.get_ident()
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def start(self) -> None:
        """Start to watch the clock."""
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """Stop the watch: nothing is raised from here on."""
        while True:
            try:
                with self.lock:
                    self.over = True
                # A pending TimeUp is raised in this loop. Taking it back instead makes CPython 3.11 spin.
                for _ in range(_JUMPS):
                    pass
                break
            except TimeUp:
                continue
        self.ended.set()

    def _run(self) -> None:
        """Raise TimeUp again and again while the watched thread is late."""
        wait_s, late_s = 0.0, 0.0
        while not self.ended.wait(wait_s):
            late_s = now() - self.until()
            wait_s = min(_LONGEST_S, -late_s)
            if wait_s > 0:
                continue
            with self.lock:
                if self.over:
                    return
                ready = _is_ready(sys._current_frames().get(self.watched), late_s)
                if ready:
                    _raise_in(self.watched, TimeUp)
            wait_s = _AGAIN_S if ready else _UNREADY_S


def _raise_in(thread: int, exception: type[BaseException]) -> None:
    """Raise an exception in a thread, as soon as it runs Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(exception))


def _is_ready(frame: FrameType | None, late_s: float) -> bool:
    """Return whether a frame may be interrupted.

    It may if it belongs to this project, or after a while wherever it is; but never within an import, the start of a
    thread, a `__del__` or a function marked `whole`. An interrupted import would leave half a module. What the
    interpreter calls itself, such as `__del__` or a callback of the garbage collection, would swallow the exception. A
    thread that is being started has the number of the thread that starts it until it runs (CPython 3.11): the exception
    would be raised in the new thread, and its starter would wait for ever.
    """
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    if name.partition(".")[0] not in _OUR_PACKAGES and late_s < _PATIENCE_S:
        return False
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        starts = module == "threading" and frame.f_code.co_name == "start"
        if starts or frame.f_code.co_name == "__del__" or module.startswith("importlib.") or frame.f_code in _whole:
            return False
        frame = frame.f_back
    return True
