"""Work objects of torch.distributed."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import copy_context
from datetime import timedelta
from functools import cache, partial
from types import FrameType
from typing import Any, TypeAlias

import torch
from torch.distributed import Work

from runtime.torch.failures.apart import LEFT
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.tasks import Record, Task
from runtime.torch.untraced import untraced_methods

_OURS = __name__.rpartition(".")[0]  # this package
Place: TypeAlias = tuple[int, int, int] | None  # a frame, its code, and the instruction that it is at

# A future's value is of one of C++'s types: in Python that of a Python object, but for what a script makes.
_SCRIPT = """
def after(end: Future[int], tensors: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(end)
    return tensors

def tensors_after(end: Future[int], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(after, end, tensors)
"""


@cache
def _script() -> Any:
    made = torch._C.CompilationUnit()
    made.define(_SCRIPT)
    return made


def _caller() -> Place:
    """Where Python is outside this package; None where a thread of C++'s has called it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(_OURS):
        frame = frame.f_back
    return None if frame is None else (id(frame), id(frame.f_code), frame.f_lasti)


class _Futures(Work):  # type: ignore[misc]
    """A work whose futures are for Python and for C++, as for the built-in hooks of DDP.

    C++ takes lists of tensors only, and has no callbacks that must be called in the order of tasks. It is C++ that asks
    for a future where Python is still at the instruction at which it was when the work was made.
    """

    _made_at: Place

    def _for_caller(self, future: Any, written: Sequence[Any]) -> Any:
        """This future, or for C++ one that ends as it does, with the tensors that are written."""
        return _script().tensors_after(future, list(written)) if written and _caller() == self._made_at else future


@untraced_methods
class TaskWork(Task, _Futures):
    """A task as torch.distributed's callers see it."""

    def __init__(self, function: Callable[[], None], written: Sequence[Any], record: Record) -> None:
        super().__init__(function, written, record)
        self._made_at = _caller()

    def get_future(self) -> Any:
        return self._for_caller(super().get_future(), self._written)


@untraced_methods
class WrappedWork(_Futures):
    """The wrapped back end's work: its time is recorded when it is waited for.

    watch: watches it from now on, as `waiting`, and says who is to blame for its errors. wait: until `inner` is over,
    by default `inner.wait`; what is given can be left where it would be in vain. written: the tensors that it writes.
    streams: whether its futures are a device's streams', as NCCL's: they are over before the work is, and are not left.
    """

    def __init__(
        self,
        inner: Any,
        record: Record,
        watch: FailureWatch,
        waiting: Waiting,
        wait: Callable[[], Any] | None = None,
        written: Sequence[Any] = (),
        streams: bool = False,
    ) -> None:
        super().__init__()
        self._made_at, self._written, self._streams = _caller(), written, streams
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
        inner = self._inner.get_future()
        if self._streams:  # only what follows from it knows which streams wait for which
            return inner if _caller() == self._made_at else inner.then(lambda ended: self._ended(ended.value))
        context, end = self._context.copy(), torch.futures.Future()
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
        return self._for_caller(future, self._written)

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


@untraced_methods
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
