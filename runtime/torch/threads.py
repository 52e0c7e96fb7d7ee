"""Which threads run tasks, help others or wait for a task: known here to whoever looks for deadlocks.

Apart from `runtime.torch.tasks`, since what ends threads at exit is registered there, and must run before what closes
connections, so be registered after it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

waiting_threads: set[int] = set()  # those that wait for a task, however long
lanes: weakref.WeakSet[Any] = weakref.WeakSet()  # every `TaskThread`
_helping: set[int | None] = set()


@contextmanager
def helping() -> Iterator[None]:
    """A context for a thread that makes no calls of its own: another one, which made one, waits for it.

    As in `Task.run` it may write any tensor, and leaves nothing for autograd: modes of torch are each thread's own.
    """
    me = threading.get_ident()
    _helping.add(me)
    try:
        with torch.inference_mode():
            yield
    finally:
        _helping.discard(me)


def own_threads() -> set[int | None]:
    """All threads of tasks, and those that help others."""
    return {lane._thread.ident for lane in list(lanes) if lane._thread is not None} | _helping
