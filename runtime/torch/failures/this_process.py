"""Keep the one presence of this process, and report to the other processes of the job why this one ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

from runtime.torch.failures.causes import error_end
from runtime.torch.failures.presence import Presence

_own: Presence | None = None
_making = threading.Lock()


def presence() -> Presence:
    """Return the presence of this process, built at the first call; from then on it reports the process's end."""
    global _own
    with _making:
        if _own is None:
            _own = Presence()
            _own.hear_signals()
            sys.excepthook = _report_error(sys.excepthook)
            atexit.register(_report_exit)  # Registered late, to run before the threads are drained.
        return _own


_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], Any]


def _report_error(earlier_hook: _Hook) -> _Hook:
    """Return a hook for errors that end the program, which reports them to the other processes.

    The hook then calls `earlier_hook`.
    """

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """Report the error, then call the earlier hook."""
        if _own is not None:
            _own.say_end(error_end(error))
        earlier_hook(kind, error, trace)

    return hook


def _report_exit() -> None:
    """Report to the other processes that this one ends."""
    if _own is not None:
        _own.say_end("ended")


@atexit.register
def _close() -> None:
    """Close the presence: a thread that still runs while the interpreter ends can crash the process."""
    if _own is not None:
        _own.close()


def _forget() -> None:
    """Remove the presence in a forked process: its copies would hide from other processes that its parent ends."""
    global _own, _making
    _making = threading.Lock()
    if _own is not None:
        _own.drop()
        _own = None


os.register_at_fork(after_in_child=_forget)
