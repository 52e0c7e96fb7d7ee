"""Work objects of torch.distributed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch.distributed import Work

from runtime.torch.failures.apart import LEFT
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.tasks import Record, Task


class TaskWork(Task, Work):  # type: ignore[misc]
    """A task as torch.distributed's callers see it."""


class WrappedWork(Work):  # type: ignore[misc]
    """The wrapped back end's work: its time is recorded when it is waited for.

    watch: watches it from now on, as `waiting`, and says who is to blame for its errors. wait: until `inner` is over,
    by default `inner.wait`; what is given can be left where it would be in vain.
    """

    def __init__(
        self,
        inner: Any,
        record: Record,
        watch: FailureWatch,
        waiting: Waiting,
        wait: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        self._inner, self._record, self._watch, self._waiting = inner, record, watch, waiting
        self._wait = wait or inner.wait
        self._leave: list[Callable[[], None]] = []  # which end its futures
        self._context = copy_context()  # what is asked for by `using`: callbacks choose as their call did
        self._start = time.perf_counter()
        self._recorded = False
        watch.begin(self, waiting)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """As the inner's. Raises RuntimeError."""
        if timeout is None:
            return bool(self._ended(self._wait))
        return bool(self._ended(partial(self._inner.wait, timeout), limited=True))

    def _ended(self, ask: Callable[[], Any], limited: bool = False) -> Any:
        """What `ask` gives at the end, whose time is recorded once."""
        try:
            with self._watch.guard(self._waiting, limited=limited):
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
        inner, context, end = self._inner.get_future(), self._context.copy(), torch.futures.Future()
        once = threading.Lock()

        def finish() -> None:
            if once.acquire(blocking=False):
                context.run(end.set_result, None)

        def value() -> Any:
            if not inner.done():
                raise RuntimeError(LEFT)
            return inner.value()

        future = end.then(lambda _: self._ended(value))
        self._leave.append(finish)
        inner.add_done_callback(lambda _: finish())
        return future

    def leave(self) -> None:
        """End its futures: it is in vain, and may never end."""
        while self._leave:
            threading.Thread(target=self._leave.pop(), daemon=True).start()  # for callbacks wait for what they please

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
