"""Work objects of torch.distributed, and the thread on which our own collectives run one after the other."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import Work

Note = Callable[[float], None]  # seconds that something took


class Task(Work):  # type: ignore[misc]
    """A function that runs once, on a lane or at once; what waits for it sees its error.

    made: the tensors it writes.
    """

    def __init__(self, function: Callable[[], None], made: Sequence[Any], note: Note) -> None:
        super().__init__()
        self._function: Callable[[], None] | None = function
        self._made, self._note = list(made), note
        self._future: Any = torch.futures.Future()
        self._over = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """Do it; never raises."""
        assert self._function is not None
        start = time.perf_counter()
        try:
            self._function()
        except Exception as error:
            self._error = error
        self._function = None
        self._note(time.perf_counter() - start)
        self._over.set()
        if self._error is None:
            self._future.set_result(self._made)
        else:
            self._future.set_exception(self._error)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it is over. Raises what it raised, or RuntimeError when the time is up first."""
        limit = timeout.total_seconds() if timeout is not None and timeout > timedelta(0) else None
        if not self._over.wait(limit):
            raise RuntimeError(f"not over within {limit} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._over.is_set()

    def is_success(self) -> bool:
        return self._over.is_set() and self._error is None

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> list[Any]:
        return self._made

    def get_future(self) -> Any:
        return self._future

    def synchronize(self) -> None:
        self.wait()


class Passed(Work):  # type: ignore[misc]
    """The wrapped back end's work: its time is noted when it is waited for, and `what` stands before its errors."""

    def __init__(self, inner: Any, what: str, note: Note) -> None:
        super().__init__()
        self._inner, self._what, self._note = inner, what, note
        self._start = time.perf_counter()
        self._noted = False

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As the inner's. Raises RuntimeError."""
        try:
            done = self._inner.wait() if timeout is None else self._inner.wait(timeout)
        except RuntimeError as error:
            raise RuntimeError(f"{self._what}: {error}") from error
        if not self._noted:
            self._noted = True
            self._note(time.perf_counter() - self._start)
        return bool(done)

    def is_completed(self) -> bool:
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def result(self) -> Any:
        return self._inner.result()

    def get_future(self) -> Any:
        return self._inner.get_future()

    def source_rank(self) -> int:
        return int(self._inner.source_rank())

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())

    def synchronize(self) -> None:
        self.wait()


class Together(Work):  # type: ignore[misc]
    """Several works as one."""

    def __init__(self, works: Sequence[Any], made: Sequence[Any]) -> None:
        super().__init__()
        self._works, self._made = list(works), list(made)

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        return next((work.exception() for work in self._works if work.exception() is not None), None)

    def result(self) -> list[Any]:
        return self._made

    def get_future(self) -> Any:
        made = self._made
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda futures: [future.value() for future in futures.value()] and made
        )

    def synchronize(self) -> None:
        self.wait()


_PATIENCE_S = 2.0  # for a thread that is to end
_lanes: weakref.WeakSet[Lane] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that lives on while the interpreter ends can take the process down with it."""
    for lane in list(_lanes):
        lane.stop()


class Lane:
    """One thread for the tasks of a group, in the order they were given: the same on all ranks."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._last: Task | None = None
        self._thread: threading.Thread | None = None
        self._order = threading.Lock()
        _lanes.add(self)

    def put(self, task: Task, wait: bool) -> None:
        """Run it after those before it. wait: the caller waits anyway, so do it here where none is under way."""
        with self._order:
            if wait and (self._last is None or self._last.is_completed()):
                self._last = task
            else:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                    self._thread.start()
                self._last = task
                self._tasks.put(task)
                return
        task.run()

    def drain(self) -> None:
        """Wait for all that was put; errors stay with their tasks."""
        with self._order:
            last = self._last
        if last is not None:
            last._over.wait()

    def stop(self) -> None:
        """After what was put, the thread ends."""
        if self._thread is not None:
            self._tasks.put(None)
            self._thread.join(_PATIENCE_S)
            self._thread = None

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task.run()
