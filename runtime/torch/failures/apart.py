"""Waits for messages that their caller can leave, since the wrapped back end does not end all of them.

Gloo ends the waits of a connection that breaks, or is closed, but forgets the message that it is in the middle of: what
waits for that does so until its time-out (gloo/transport/tcp/pair.cc, `signalException`: operations that have begun to
be read or written are no longer in its lists). Python cannot interrupt such a wait. So where a message may arrive in
parts its wait is another thread's, and its caller leaves that behind.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from runtime.torch.threads import helping

PARTS_FROM_BYTES = 32 << 10  # a message from here on may arrive in parts: what is shorter the kernel takes as a whole
_TICK_S = 0.1  # between two looks at whether a wait is in vain
LEFT = "given up amid a message"

_idle: list[_Waiter] = []
os.register_at_fork(after_in_child=_idle.clear)


def wait_apart(wait: Callable[[], Any], in_vain: Callable[[], bool]) -> Any:
    """What `wait` gives, or raises, on another thread. Raises RuntimeError as soon as it is `in_vain`."""
    try:
        waiter = _idle.pop()
    except IndexError:
        waiter = _Waiter()
    job = _Job(wait)
    waiter.jobs.put(job)
    while not job.over.acquire(timeout=_TICK_S):
        if in_vain():
            raise RuntimeError(LEFT)
    if job.error is not None:
        raise job.error
    return job.value


def wait_in_turns(work: Any, in_vain: Callable[[], bool]) -> Any:
    """Wait for a collective of Gloo's, whose waits go on after a time-out, unlike those for single messages.

    Where they know no limit (`Operation.unlimited`) only `wait_apart` can leave them. Raises what `work.wait()` raises,
    and RuntimeError soon after it is `in_vain`.
    """
    while True:
        begun = time.monotonic()
        try:
            return work.wait(timedelta(seconds=_TICK_S))
        except RuntimeError:
            if work.is_completed():
                return work.wait()
            if time.monotonic() - begun < _TICK_S / 2:  # not the end of the turn, whatever it says of being completed
                raise
            if in_vain():
                raise RuntimeError(LEFT) from None


class _Job:
    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait: Callable[[], Any] | None = wait
        self.over = threading.Lock()
        self.over.acquire()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        assert self.wait is not None
        try:
            self.value = self.wait()
        except BaseException as error:
            self.error = error
        self.wait = None


class _Waiter:
    """A thread that waits for others, one job after the other."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._work, name="synth waiter", daemon=True).start()

    def _work(self) -> None:
        with helping():
            while True:
                job = self.jobs.get()
                job.run()
                _idle.append(self)
                job.over.release()
                del job
