"""Work objects of torch.distributed, and the thread on which our own collectives run one after the other."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import Work

from runtime.torch.lost import FailureWatch

Record = Callable[[float], None]  # takes the seconds that a call took
Guard = Callable[[], AbstractContextManager[None]]  # makes a `FailureWatch.guard`


class Task(Work):  # type: ignore[misc]
    """A function that runs once, on a thread or at once; what waits for it sees its error.

    written: the tensors that it writes.
    """

    def __init__(self, function: Callable[[], None], written: Sequence[Any], record: Record) -> None:
        super().__init__()
        self._function: Callable[[], None] | None = function
        self._written, self._record = list(written), record
        self._end: Any = torch.futures.Future()
        # set_exception would do for Python only: torch's own code (DDP) takes the exception for a result, and crashes
        self._future = self._end.then(self._outcome)
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
        self._record(time.perf_counter() - start)
        self._over.set()
        self._end.set_result(None)

    def _outcome(self, _: Any) -> list[Any]:
        if self._error is not None:
            raise self._error
        return self._written

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
        return self._written

    def get_future(self) -> Any:
        return self._future

    def synchronize(self) -> None:
        self.wait()


class WrappedWork(Work):  # type: ignore[misc]
    """The wrapped back end's work: its time is recorded when it is waited for.

    guard: what its errors are raised in, to say who was lost; `watch` watches it from now on.
    """

    def __init__(self, inner: Any, record: Record, watch: FailureWatch, guard: Guard) -> None:
        super().__init__()
        self._inner, self._record, self._watch, self._guard = inner, record, watch, guard
        self._start = time.perf_counter()
        self._recorded = False
        watch.begin(self)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As the inner's. Raises RuntimeError."""
        return bool(self._ended(self._inner.wait if timeout is None else partial(self._inner.wait, timeout)))

    def _ended(self, ask: Callable[[], Any]) -> Any:
        """What `ask` gives at the end, whose time is recorded once."""
        try:
            with self._guard():
                found = ask()
        finally:
            self._watch.end(self)
        if not self._recorded:
            self._recorded = True
            self._record(time.perf_counter() - self._start)
        return found

    def is_completed(self) -> bool:
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        return self._inner.exception()

    def result(self) -> Any:
        return self._inner.result()

    def get_future(self) -> Any:
        """The inner's, which also records its time and says who was lost."""
        return self._inner.get_future().then(lambda future: self._ended(future.value))

    def source_rank(self) -> int:
        return int(self._inner.source_rank())

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())

    def synchronize(self) -> None:
        self.wait()


class CombinedWork(Work):  # type: ignore[misc]
    """Several works as one."""

    def __init__(self, works: Sequence[Any], written: Sequence[Any]) -> None:
        super().__init__()
        self._works, self._written = list(works), list(written)

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
        return self._written

    def get_future(self) -> Any:
        written = self._written
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda futures: [future.value() for future in futures.value()] and written
        )

    def synchronize(self) -> None:
        self.wait()


_PATIENCE_S = 2.0  # for a thread that is to end
_LETTING_GO_S = 0.05  # Gloo's threads drop a call's tensors after it is over, and need the interpreter for it
_threads: weakref.WeakSet[TaskThread] = weakref.WeakSet()


@atexit.register
def _stop_all() -> None:
    """A thread that lives on while the interpreter ends can take the process down with it."""
    for thread in list(_threads):
        thread.stop()
    if _threads:
        time.sleep(_LETTING_GO_S)


class TaskThread:
    """One thread for the tasks of a group, in the order they were given: the same on all ranks."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._last: Task | None = None
        self._thread: threading.Thread | None = None
        self._order = threading.Lock()
        _threads.add(self)

    def put(self, task: Task, wait: bool) -> None:
        """Run it after those before it. wait: the caller waits anyway, so do it here where none is under way.

        Raises RuntimeError where it would be waited for by the very thread that is to run it.
        """
        with self._order:
            if wait and (self._last is None or self._last.is_completed()):
                self._last = task
            else:
                if wait and threading.current_thread() is self._thread:
                    raise RuntimeError(
                        f"{self.name}: called and waited for in a callback of an earlier call, while a later one waits"
                        " for its turn, which would be a deadlock; it must be waited for elsewhere"
                    )
                if self._thread is None:
                    self._thread = threading.Thread(target=self._work, name=self.name, daemon=True)
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
