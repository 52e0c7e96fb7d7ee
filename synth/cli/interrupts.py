"""Ctrl-C: once, and the search stops and the best so far is written; twice, and all is left where it stands.

Once there is an answer, which is being written, it takes a third one to leave.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from contextlib import suppress
from types import FrameType

_RETRY_S = 0.02  # after which an interrupt that fell into an import is tried again
_LEAVING_S = 0.15  # in which a second Ctrl-C may put the disk in order


class Unanswered(Exception):
    """Ctrl-C came before a search had found anything."""


class _State:
    came = 0
    answered = False


def install() -> None:
    """Take over Ctrl-C for a command that begins."""
    _State.came, _State.answered = 0, False
    atexit.unregister(_end)
    atexit.register(_end)
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGALRM, _interrupt)


def let_finish() -> None:
    """There is an answer: from now on the first two Ctrl-C let it be written and printed, a third one leaves."""
    _State.answered = True


def came() -> int:
    """How often Ctrl-C came."""
    return _State.came


def leave(_signal: int = signal.SIGALRM, _frame: FrameType | None = None) -> None:
    """End the process as soon as the disk is in order; to be called again by the timer where it is not."""
    writer = sys.modules.get("emit.library.write")  # where nothing is written it need not be there
    if writer is not None and not writer.abandon():
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        return
    os._exit(130)


def _end() -> None:
    """After a second Ctrl-C, before Python takes its handlers back: the timer would kill the process then."""
    if _State.came > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(130)


def _interrupt(signal_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but never inside an import: some library swallows it, or half a module is left."""
    _State.came += signal_ == signal.SIGINT
    writer = sys.modules.get("emit.library.write")
    if _State.answered and writer is not None:
        writer.stop_waiting()  # for a library that another process holds: the answer is written beside it
    if _State.came > 1:
        if _State.answered and _State.came == 2:
            if sys.stderr.isatty():
                os.write(2, b"\r\x1b[2Kthe answer is being written; Ctrl-C again leaves without it\n")
            return
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, _LEAVING_S)
        raise KeyboardInterrupt
    if signal_ == signal.SIGINT and sys.stderr.isatty():
        then = b"" if _State.answered else b"; Ctrl-C again leaves at once"
        os.write(2, b"\r\x1b[2Kstopping: what was found is written" + then + b"\n")
    if _State.answered:
        return
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("importlib."):
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt
