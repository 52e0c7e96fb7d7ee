"""Wait for messages so that the caller can leave the wait, since the wrapped back end does not end all waits.

Gloo ends the waits of a connection that breaks or is closed, but forgets the message that it is transferring. A wait
for that message lasts until its time-out (gloo/transport/tcp/pair.cc, `signalException`: operations that have begun to
be read or written are no longer in its lists). Python cannot interrupt such a wait. So if a message may arrive in
parts, another thread waits for it, and the caller can leave that thread behind.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

from runtime.torch.failures.address import all_on_this_host
from runtime.torch.threads import helping

# A message from this size on may arrive in parts; the kernel takes shorter ones as a whole.
PARTS_FROM_BYTES = 32 << 10
# The same for loopback, whose segments hold 64 KiB and whose buffers hold 20 segments or more from the start.
_PARTS_ON_HOST_FROM_BYTES = 128 << 10
_TICK_S = 0.1  # Seconds between two checks whether a wait is in vain.
_TICK = timedelta(seconds=_TICK_S)
ABANDONED = "given up amid a message"

_idle: list[_Waiter] = []
os.register_at_fork(after_in_child=_idle.clear)


def parts_from_bytes() -> int:
    """Return the size in bytes from which on a message between two processes of this job may arrive in parts."""
    return _PARTS_ON_HOST_FROM_BYTES if all_on_this_host() else PARTS_FROM_BYTES


def wait_apart(wait: Callable[[], Any], in_vain: Callable[[], bool]) -> Any:
    """Return or raise what `wait` returns or raises on another thread.

    Args:
        wait: Function that waits.
        in_vain: Returns True if the wait will never end; it is asked ten times a second.

    Raises:
        RuntimeError: The wait is `in_vain`; it is raised soon after that is so, while `wait` goes on on its thread.
    """
    try:
        waiter = _idle.pop()
    except IndexError:
        waiter = _Waiter()
    job = _Job(wait)
    waiter.jobs.put(job)
    while not job.over.acquire(timeout=_TICK_S):
        if in_vain():
            raise RuntimeError(ABANDONED)
    if job.error is not None:
        raise job.error
    return job.value


def wait_in_intervals(work: Any, in_vain: Callable[[], bool]) -> Any:
    """Wait for a collective of Gloo in short intervals; unlike single messages, such a wait can go on after a time-out.

    It returns what `work.wait` returns. Collectives whose waits ignore a time limit (`TorchOperation.unlimited`) need
    `wait_apart`.

    Args:
        work: Gloo's Work.
        in_vain: Returns True if the wait will never end.

    Raises:
        RuntimeError: The wait is `in_vain`; it is raised soon after that is so. An error of `work.wait()` is raised as
            it is.
    """
    while True:
        start = time.monotonic()
        try:
            return work.wait(_TICK)
        except RuntimeError:
            if work.is_completed():
                return work.wait()
            if time.monotonic() - start < _TICK_S / 2:  # It failed before the interval was over.
                raise
            if in_vain():
                raise RuntimeError(ABANDONED) from None


class _Job:
    """A wait that another thread executes, with its result or error."""

    def __init__(self, wait: Callable[[], Any]) -> None:
        self.wait: Callable[[], Any] | None = wait
        self.over = threading.Lock()
        self.over.acquire()
        self.value: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """Wait, and store the result or the error."""
        assert self.wait is not None
        try:
            self.value = self.wait()
        except BaseException as error:
            self.error = error
        self.wait = None


class _Waiter:
    """A thread that waits for other threads, one job after the other."""

    def __init__(self) -> None:
        self.jobs: SimpleQueue[_Job] = SimpleQueue()
        threading.Thread(target=self._work, name="synth waiter", daemon=True).start()

    def _work(self) -> None:
        """Run jobs for ever."""
        with helping():
            while True:
                job = self.jobs.get()
                job.run()
                _idle.append(self)
                job.over.release()
                del job
