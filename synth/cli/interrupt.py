"""Ctrl-C amid an import waits for its end: raised there, it is swallowed by some library or leaves half a module."""

from __future__ import annotations

import signal
from types import FrameType

_AGAIN_S = 0.02


def install() -> None:
    """From now on SIGINT raises KeyboardInterrupt in the main thread, but never inside an import."""
    signal.signal(signal.SIGINT, _interrupted)
    signal.signal(signal.SIGALRM, _interrupted)


def _interrupted(_signal: int, frame: FrameType | None) -> None:
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith("importlib."):
            signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
            return
        frame = frame.f_back
    signal.setitimer(signal.ITIMER_REAL, 0)
    raise KeyboardInterrupt
