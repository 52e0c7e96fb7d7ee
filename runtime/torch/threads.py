"""Record which threads run tasks, help other threads or wait for a task, for the search for deadlocks.

This file is separate from `runtime.torch.tasks`. That module registers at exit the function that stops threads, which
must run before the function that closes connections, and so must be registered after it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

waiting_threads: set[int] = set()  # Threads that wait for a task without a time limit.
_lanes: weakref.WeakSet[Any] = weakref.WeakSet()  # Every `TaskThread`.
_adding = threading.Lock()  # The set must not change while it is copied.
_helping: set[int | None] = set()  # Threads that work for a waiting thread.


@contextmanager
def helping() -> Iterator[None]:
    """Return a context for a thread that makes no calls of its own, but works for a thread that waits for it.

    As in `GroupTask.run` the thread may write any tensor, and leaves nothing for autograd: torch's modes are set per
    thread.
    """
    me = threading.get_ident()
    _helping.add(me)
    try:
        with torch.inference_mode():
            yield
    finally:
        _helping.discard(me)


def add_lane(lane: Any) -> None:
    """Record a `TaskThread` for as long as it lives."""
    with _adding:
        _lanes.add(lane)


def all_lanes() -> list[Any]:
    """Return every `TaskThread` that lives."""
    with _adding:
        return list(_lanes)


def own_threads() -> set[int | None]:
    """Return the identifiers of all threads that run tasks and of all that help other threads."""
    return {lane._thread.ident for lane in all_lanes() if lane._thread is not None} | _helping
