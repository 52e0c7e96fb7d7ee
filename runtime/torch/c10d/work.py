"""Define the Work objects that torch.distributed's callers get."""

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

from runtime.torch.c10d.untraced import PACKAGE, untraced_methods
from runtime.torch.failures.apart import ABANDONED
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.tasks import GroupTask, Record

Place: TypeAlias = tuple[int, int, int] | None  # A frame's id, its code's id, and the index of its instruction.

# A future's value has a C++ type. A future of Python's holds a Python object; only a script makes one of tensors.
_SCRIPT = """
def after(end: Future[int], tensors: List[Tensor]) -> List[Tensor]:
    torch.jit.wait(end)
    return tensors

def tensors_after(end: Future[int], tensors: List[Tensor]) -> Future[List[Tensor]]:
    return torch.jit.fork(after, end, tensors)
"""


@cache
def _script() -> Any:
    """Return the compiled functions of _SCRIPT."""
    unit = torch._C.CompilationUnit()
    unit.define(_SCRIPT)
    return unit


def _caller() -> Place:
    """Return the place of the Python code outside this package that called it; None if a C++ thread called it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith(PACKAGE):
        frame = frame.f_back
    return None if frame is None else (id(frame), id(frame.f_code), frame.f_lasti)


class _Futures(Work):  # type: ignore[misc]
    """A Work whose futures suit both Python and C++ callers, such as the built-in hooks of DDP.

    C++ takes lists of tensors only, and has no callbacks that must be called in the order of tasks. The caller is C++
    if Python is still at the instruction at which it was when the Work was made.
    """

    _origin: Place

    def _for_caller(self, future: Any, outputs: Sequence[Any]) -> Any:
        """Return the future, or for C++ a future of the written tensors that ends when it ends.

        Without outputs C++ gets the future itself, too.
        """
        return _script().tensors_after(future, list(outputs)) if outputs and _caller() == self._origin else future


@untraced_methods
class TaskWork(GroupTask, _Futures):
    """A task as the Work of torch.distributed."""

    def __init__(self, function: Callable[[], None], outputs: Sequence[Any], record: Record) -> None:
        super().__init__(function, outputs, record)
        self._origin = _caller()

    def get_future(self) -> Any:
        """Return a future of the written tensors, for Python or C++."""
        return self._for_caller(super().get_future(), self._outputs)


@untraced_methods
class WrappedWork(_Futures):
    """The Work of the wrapped back end; its time is recorded when somebody waits for it.

    Args:
        inner: The wrapped back end's Work.
        record: Takes the seconds that the call took.
        watch: Watches the work from now on, and names the rank to blame for an error.
        waiting: What the watch knows of the call.
        wait: Waits until `inner` is over; by default `inner.wait`. Another function can leave a wait that is in vain.
        outputs: The tensors that the call writes.
        streams: Whether the futures belong to a device's streams, as those of NCCL. They are over before the work is,
            and their waits are never left.
    """

    def __init__(
        self,
        inner: Any,
        record: Record,
        watch: FailureWatch,
        waiting: Waiting,
        wait: Callable[[], Any] | None = None,
        outputs: Sequence[Any] = (),
        streams: bool = False,
    ) -> None:
        super().__init__()
        self._origin, self._outputs, self._streams = _caller(), outputs, streams
        self._inner, self._record, self._watch, self._waiting = inner, record, watch, waiting
        self._wait = wait or inner.wait
        self._leave: list[Callable[[], None]] = []  # Functions that end its futures.
        self._context = copy_context()  # It holds the method of `using`, so callbacks choose as their call did.
        self._start = time.perf_counter()
        self._recorded = False
        watch.begin(self, waiting)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over and return True; without a time-out, up to that of the wrapped back end.

        Raises:
            RuntimeError: The call failed or took too long; the message names the rank to blame.
        """
        if timeout is None:
            return bool(self._ended(self._wait))
        return bool(self._ended(partial(self._inner.wait, timeout), is_limited=True))

    def _ended(self, ask: Callable[[], Any], is_limited: bool = False) -> Any:
        """Return the result of `ask`, which waits for the end of the call, and record the time once if it succeeds.

        The watch does not watch the work any more, also if `ask` fails. `is_limited` states that the caller may go on
        elsewhere after a time limit.

        Raises:
            RuntimeError: The call failed or took too long; the message names the rank to blame.
        """
        try:
            with self._watch.guard(self._waiting, is_limited=is_limited):
                result = ask()
        finally:
            self._watch.end(self)
        if not self._recorded:
            self._recorded = True
            self._record(time.perf_counter() - self._start)
        return result

    def is_completed(self) -> bool:
        """Return True if the wrapped work is over."""
        return bool(self._inner.is_completed())

    def is_success(self) -> bool:
        """Return True if the wrapped work succeeded."""
        return bool(self._inner.is_success())

    def exception(self) -> Any:
        """Return the exception of the wrapped work."""
        return self._inner.exception()

    def result(self) -> Any:
        """Return the result of the wrapped work."""
        return self._inner.result()

    def get_future(self) -> Any:
        """Return a future of the wrapped work's value, which also records the time and names lost ranks.

        For C++ callers its value is a list of the written tensors. For them a future of a device's streams is the
        wrapped work's own, which records nothing.
        """
        inner = self._inner.get_future()
        if self._streams:  # Only futures derived from it know which streams wait for which.
            return inner if _caller() == self._origin else inner.then(lambda ended: self._ended(ended.value))
        context, end = self._context.copy(), torch.futures.Future()
        once = threading.Lock()

        def finish() -> None:
            """Set the result of the future once, in the context of the call."""
            if once.acquire(blocking=False):
                context.run(end.set_result, None)

        def value() -> Any:
            """Return the value of the wrapped future, which must be over."""
            if not inner.done():
                raise RuntimeError(ABANDONED)
            return inner.value()

        future = end.then(lambda _: self._ended(value))
        self._leave.append(finish)
        inner.add_done_callback(lambda _: finish())
        return self._for_caller(future, self._outputs)

    def leave(self) -> None:
        """Set the results of its futures, since they are in vain and may never end by themselves.

        Their waits then raise RuntimeError, unless the call is over. It does nothing for futures of a device's streams.
        """
        while self._leave:
            # Each has its own thread, since a callback may wait for anything.
            threading.Thread(target=self._leave.pop(), daemon=True).start()

    def source_rank(self) -> int:
        """Return the place in the group of the rank that sent the message."""
        return int(self._inner.source_rank())

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())

    def synchronize(self) -> None:
        """Wait until the call is over, as `wait` does without a time-out."""
        self.wait()


@untraced_methods
class CombinedWork(Work):  # type: ignore[misc]
    """Several works as one Work."""

    def __init__(self, works: Sequence[Any], outputs: Sequence[Any]) -> None:
        super().__init__()
        self._works, self._outputs = list(works), list(outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for all works one by one, each up to the time-out, and return True; raise the first error of a work."""
        for work in self._works:
            work.wait() if timeout is None else work.wait(timeout)
        return True

    def is_completed(self) -> bool:
        """Return True if all works are over."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return True if all works succeeded."""
        return all(work.is_success() for work in self._works)

    def exception(self) -> Any:
        """Return the first exception of a work, or None."""
        return next((work.exception() for work in self._works if work.exception() is not None), None)

    def result(self) -> list[Any]:
        """Return the tensors that the works write."""
        return self._outputs

    def get_future(self) -> Any:
        """Return a future of the written tensors that ends with the last work; its wait raises an error of a work."""
        outputs = self._outputs
        return torch.futures.collect_all([work.get_future() for work in self._works]).then(
            lambda futures: [future.value() for future in futures.value()] and outputs
        )

    def synchronize(self) -> None:
        """Wait for all works, and raise the first error of a work."""
        self.wait()
