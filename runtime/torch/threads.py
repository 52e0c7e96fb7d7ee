"""Which threads run tasks, and which wait for one: known here to whoever looks for deadlocks.

Apart from `runtime.torch.tasks`, since what ends threads at exit is registered there, and must run before what closes
connections, so be registered after it.
"""

from __future__ import annotations

import weakref
from typing import Any

waiting_threads: set[int] = set()  # those that wait for a task, however long
lanes: weakref.WeakSet[Any] = weakref.WeakSet()  # every `TaskThread`


def lane_threads() -> set[int | None]:
    """All threads of tasks."""
    return {lane._thread.ident for lane in list(lanes) if lane._thread is not None}
