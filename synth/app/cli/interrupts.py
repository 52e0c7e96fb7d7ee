"""The handling of Ctrl-C: the first one stops the search and writes the best answer so far, the second one exits.

Once there is an answer, which is being written, a third Ctrl-C is needed to exit. SIGTERM counts as Ctrl-C.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

_STOPPING = (signal.SIGINT, signal.SIGTERM)  # what Ctrl-C sends, and `kill` and job schedulers
_RETRY_S = 0.02  # time after which an interrupt that came at a bad time is tried again
_LEAVING_S = 0.15  # time for a second Ctrl-C to put the disk in order


class Unanswered(Exception):
    """Ctrl-C came before a search had an answer."""


class _InterruptState:
    """The state of the process.

    Attributes:
        came: Number of times that Ctrl-C came.
        answered: Whether there is an answer.
        hook_before: What reports exceptions that Python cannot raise, for errors that are no Ctrl-C.
    """

    came = 0
    answered = False
    hook_before: Callable[[sys.UnraisableHookArgs], object] = staticmethod(sys.__unraisablehook__)


def install() -> None:
    """Set the handlers of Ctrl-C and SIGTERM for a command that begins, and forget earlier interrupts and answers.

    SIGALRM is handled too, `sys.unraisablehook` is taken until `end_command` is called, and a function runs at exit.
    """
    _InterruptState.came, _InterruptState.answered = 0, False
    atexit.unregister(_end)
    atexit.register(_end)
    for number in (*_STOPPING, signal.SIGALRM):
        signal.signal(number, _interrupt)
    if sys.unraisablehook is not _raise_again:
        _InterruptState.hook_before = sys.unraisablehook
        sys.unraisablehook = _raise_again


def end_command() -> None:
    """Restore `sys.unraisablehook`, and let other work in this process wait for libraries again.

    The signal handlers stay.
    """
    sys.unraisablehook = _InterruptState.hook_before
    writer = sys.modules.get("emit.library.saving.write")
    if writer is not None:
        writer.allow_waiting()


def let_finish() -> None:
    """Record that there is an answer: the next two Ctrl-C let it be written and printed, a third one exits."""
    _InterruptState.answered = True


def came() -> int:
    """Return how many times Ctrl-C came since `install`."""
    return _InterruptState.came


def leave(_signal: int = signal.SIGALRM, _frame: FrameType | None = None) -> None:
    """Stop the process with exit code 130 as soon as the disk is in order; set a timer to try again if it is not.

    It can be a signal handler; the arguments are not used.
    """
    writer = sys.modules.get("emit.library.saving.write")  # A command that writes nothing does not load it.
    if writer is not None and not writer.abandon():
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
        return
    os._exit(130)


def _end() -> None:
    """Stop the process with exit code 130 if Ctrl-C came twice; otherwise do nothing.

    It runs before Python restores its handlers, since the timer would then kill the process. Output is flushed.
    """
    if _InterruptState.came > 1:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(130)


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Set a timer to raise Ctrl-C again if Python dropped it, as it does in a finalizer or a callback."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)
    else:
        _InterruptState.hook_before(unraisable)


def _interrupt(signal_: int, frame: FrameType | None) -> None:
    """Raise KeyboardInterrupt, but not inside an import: some libraries swallow it, or leave half a module.

    Inside an import, and while files are moved to their places in a library, a timer tries again. If there is an
    answer, the first two Ctrl-C raise nothing, so that it is written. The second without an answer, or the third with
    one, raises anywhere, and the process is stopped after 0.15 s. On a terminal a message is printed.

    Args:
        signal_: SIGINT or SIGTERM, which count, or SIGALRM of a timer, which does not.
        frame: The frame that was interrupted.
    """
    _InterruptState.came += signal_ in _STOPPING
    writer = sys.modules.get("emit.library.saving.write")
    if _InterruptState.answered and writer is not None:
        writer.stop_waiting()  # If another process holds the library, the answer is written beside it.
    if _InterruptState.came > 1:
        if _InterruptState.answered and _InterruptState.came == 2:
            if sys.stderr.isatty():
                os.write(2, b"\r\x1b[2Kthe answer is being written; Ctrl-C again exits without it\n")
            return
        signal.signal(signal.SIGALRM, leave)
        signal.setitimer(signal.ITIMER_REAL, _LEAVING_S)
        raise KeyboardInterrupt
    if signal_ in _STOPPING and sys.stderr.isatty():
        advice = b"" if _InterruptState.answered else b"; Ctrl-C again exits at once"
        os.write(2, b"\r\x1b[2Kstopping and writing the best answer so far" + advice + b"\n")
    if _InterruptState.answered:
        return
    is_bad_time = False
    while frame is not None and not is_bad_time:
        is_bad_time = str(frame.f_globals.get("__name__", "")).startswith("importlib.")
        frame = frame.f_back
    # Inside an import the writer's module may be there only in part.
    is_bad_time = is_bad_time or (writer is not None and writer.is_moving())
    signal.setitimer(signal.ITIMER_REAL, _RETRY_S if is_bad_time else 0)
    if not is_bad_time:
        raise KeyboardInterrupt
