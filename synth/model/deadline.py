"""Time that counts against a budget, and the end of what runs when it is over.

A deadline is a reading of `now`. It is kept in two ways: who has a loop of its own reads the clock; what has none, or
one that takes too long, is interrupted as Ctrl-C interrupts it (`limited`).
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import TypeVar

Answer = TypeVar("Answer")
Whole = TypeVar("Whole", bound=Callable[..., object])

_AGAIN_S = 0.5  # after which it is said again, where some library swallowed it
_UNREADY_S = 0.005  # after which it is tried again where it would fall into what must not be interrupted
_PATIENCE_S = 0.3  # for which it waits until a frame of ours runs
_JUMPS = 10  # at each of which the interpreter looks whether something is to be raised
_OURS = ("topologies", "synth", "emit", "runtime")
_LONGEST_S = 0.2  # between two looks at the clock, which may have stood still
_whole: set[CodeType] = set()


class TimeUp(KeyboardInterrupt):
    """The time of what runs is over: whatever can be interrupted by Ctrl-C can be by this."""


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """Return the Ctrl-C, or the end of time, that a compiled function reports by another error; None without one."""
    cause = error.__cause__ or error.__context__
    return cause if isinstance(cause, KeyboardInterrupt) or cause is None else interrupt_behind(cause)


class _Apart:
    """What did not count so far, in seconds, and since when nothing counts (0: it counts)."""

    seconds = 0.0
    since = 0.0


def now() -> float:
    """Seconds of `time.monotonic()` without those that count against no budget (`uncounted`)."""
    here = _Apart.since or time.monotonic()
    return here - _Apart.seconds


def restart() -> None:
    """A command begins: all seconds count so far, and readings of before mean nothing from here on."""
    _Apart.seconds = 0.0


def uncounted(work: Callable[[], Answer], counts: Callable[[], bool] = lambda: False) -> Answer:
    """What `work` returns; its time counts against no budget, unless `counts` says at the end that it does.

    No context manager: what is raised while one is entered leaves it without its end, and the clock would stand still.
    """
    if _Apart.since:
        return work()
    begun = time.monotonic()
    try:
        _Apart.since = begun
        return work()
    finally:
        _Apart.since = 0.0
        if not counts():
            _Apart.seconds += time.monotonic() - begun


def whole(function: Whole) -> Whole:
    """The function, into which no TimeUp falls once it has begun: what it opens, or ends, would be left half so."""
    _whole.add(function.__code__)
    return function


def limited(until: Callable[[], float] | float, work: Callable[[], Answer]) -> Answer:
    """What `work` returns.

    Args:
        until: a reading of `now`, or what tells it, asked again and again. After it TimeUp is raised in this thread,
            wherever it is, but not in an import; what is compiled or waits for another process ends first.

    Raises TimeUp.
    """
    when = until if callable(until) else lambda: until
    if when() <= now():
        raise TimeUp
    if when() == float("inf"):
        return work()
    watch = _Watch(when)
    try:
        try:
            watch.start()
            return work()
        finally:
            watch.end()
    except TimeUp:
        watch.end()  # it may have come within the other one
        raise


class _Watch:
    """A thread that raises TimeUp in the one that made it, until that says that it is over."""

    def __init__(self, until: Callable[[], float]) -> None:
        self.until, self.over = until, False
        self.watched = threading.get_ident()
        self.lock = threading.Lock()
        self.ended = threading.Event()

    def start(self) -> None:
        """Begin to look at the clock."""
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        """Nothing is raised from here on."""
        while True:
            try:
                with self.lock:
                    self.over = True
                for _ in range(_JUMPS):  # what was raised before comes here; to take it back makes CPython 3.11 spin
                    pass
                break
            except TimeUp:
                continue
        self.ended.set()

    def _run(self) -> None:
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


def _raise_in(thread: int, what: type[BaseException]) -> None:
    """Raise an exception in a thread, as soon as it runs Python again."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(what))


def _is_ready(frame: FrameType | None, late_s: float) -> bool:
    """Whether a frame may be interrupted: one of ours, or after a while any, but never within an import, the
    start of a thread, a `__del__` or what is `whole`.

    Of an import half a module would be left; what the interpreter calls, such as `__del__` or a callback of the
    collection of garbage, would swallow it. A thread that is being started has the number of the one that starts it
    until it runs (CPython 3.11): it would be raised there, and who starts it would wait for ever.
    """
    name = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    if name.partition(".")[0] not in _OURS and late_s < _PATIENCE_S:
        return False
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        starts = module == "threading" and frame.f_code.co_name == "start"
        if starts or frame.f_code.co_name == "__del__" or module.startswith("importlib.") or frame.f_code in _whole:
            return False
        frame = frame.f_back
    return True
