"""Define the Work objects that torch.distributed's callers get."""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, TypeAlias

import torch
from torch.distributed import Work
from torch.distributed import distributed_c10d as c10d

from runtime.torch.c10d.untraced import untraced, untraced_methods
from runtime.torch.counters import HELD, Tally
from runtime.torch.failures.apart import ABANDONED, wait_apart, wait_in_intervals
from runtime.torch.failures.calls import HandedOnCall
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.rank_choices import requested_method
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


_FOLDER = str(Path(__file__).parent.parent)  # That of PACKAGE.


def caller_place(depth: int = 1) -> Place:
    """Return the place of the Python code outside this package that called it; None if a C++ thread called it.

    At least `depth` frames above belong to this package.
    """
    try:
        frame: FrameType | None = sys._getframe(depth)
    except ValueError:  # There are not so many.
        return None
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDER):
        frame = frame.f_back
    return None if frame is None else (id(frame), id(frame.f_code), frame.f_lasti)


# The ids of the code of torch's functions, whose callers are never C++.
PYTHON_CALLERS = {
    id(inspect.unwrap(value).__code__)
    for value in vars(c10d).values()
    if type(value) is FunctionType  # `isinstance` makes a deprecated object of the module warn.
}


class _Futures(Work):  # type: ignore[misc]
    """A Work whose futures suit both Python and C++ callers, such as the built-in hooks of DDP.

    C++ takes lists of tensors only, and has no callbacks that must be called in the order of tasks. The caller is C++
    if Python is still at the instruction at which it was when the Work was made.
    """

    _origin: Place

    def _future_for_caller(self, future: Any, outputs: Sequence[Any]) -> Any:
        """Return the future, or for C++ a future of the written tensors that ends when it ends.

        Without outputs C++ gets the future itself, too.
        """
        return _script().tensors_after(future, list(outputs)) if outputs and caller_place() == self._origin else future


@untraced_methods
class TaskWork(GroupTask, _Futures):
    """A task as the Work of torch.distributed."""

    def __init__(self, function: Callable[[], None], outputs: Sequence[Any], record: Record) -> None:
        super().__init__(function, outputs, record)
        self._origin = caller_place()

    def get_future(self) -> Any:
        """Return a future of the written tensors, for Python or C++."""
        return self._future_for_caller(super().get_future(), self._outputs)


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
        self._origin, self._outputs, self._streams = caller_place(), outputs, streams
        self._inner, self._record, self._watch, self._waiting = inner, record, watch, waiting
        self._wait = wait or inner.wait
        self._on_abandon: list[Callable[[], None]] = []  # Functions that end its futures.
        self._context = copy_context()  # It holds the method of `using`, so callbacks choose as their call did.
        self._start = time.monotonic()
        self._recorded = False
        watch.begin(self, waiting)

    def be_of(self, origin: Place, start: float) -> None:
        """Set the place of the call's caller, and its start by `time.monotonic`, of a call that was made before."""
        self._origin, self._start = origin, start

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
            self._record(time.monotonic() - self._start)
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
            return inner if caller_place() == self._origin else inner.then(lambda ended: self._ended(ended.value))
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
        self._on_abandon.append(finish)
        inner.add_done_callback(lambda _: finish())
        return self._future_for_caller(future, self._outputs)

    def abandon(self) -> None:
        """Set the results of its futures, since they are in vain and may never end by themselves.

        Their waits then raise RuntimeError, unless the call is over. It does nothing for futures of a device's streams.
        """
        while self._on_abandon:
            # Each has its own thread, since a callback may wait for anything.
            threading.Thread(target=self._on_abandon.pop(), daemon=True).start()

    def source_rank(self) -> int:
        """Return the place in the group of the rank that sent the message."""
        return int(self._inner.source_rank())

    def _source_rank(self) -> int:
        return int(self._inner._source_rank())

    def synchronize(self) -> None:
        """Wait until the call is over, as `wait` does without a time-out."""
        self.wait()


@untraced
def end_call(inner: Any, entry: list[Any], watch: FailureWatch, tally: Tally | None, unlimited: bool = True) -> None:
    """Wait for a call that was handed straight to Gloo, and count its end unless the tally is None.

    `HandedOnWork` says what the arguments are.

    Raises:
        RuntimeError: The call failed or took too long; the message names the rank to blame.
    """
    number, size_bytes = entry[0], entry[4]
    entry[2] = thread = threading.get_ident()
    entry[8] = None
    if number is None:
        watch.calls.messages[thread] = entry
    try:
        if size_bytes < watch.parts_from_bytes:
            inner.wait()
        elif number is None or unlimited:
            wait_apart(inner.wait, partial(watch.abandons_waits, entry[7] or ()))
        else:
            wait_in_intervals(inner, watch.abandons_waits)
    except RuntimeError:
        with watch.guard(HandedOnCall(*entry).waiting):
            raise
    finally:
        if number is None:
            watch.calls.messages.pop(thread, None)
        else:
            watch.calls.handed_on.pop(number, None)
    if tally is not None:
        ended, start = tally.ended, entry[1]
        ended.append((size_bytes, start, time.monotonic() - start))
        if len(ended) > HELD:
            tally.add_up()


@untraced_methods
class HandedOnWork(Work):  # type: ignore[misc]
    """The Work of a call that was handed straight to Gloo, which costs no more than what every call needs.

    A call that all ranks make is in `Calls.handed_on` until it is over. A single message is in `Calls.messages` while
    a thread waits for it. It is built without arguments, by C++, and gets its attribute then.

    Attributes:
        handed_on: Gloo's Work; the call, as a list in the form of `HandedOnCall`, which this object changes; the watch
            of the group; the tally, which has counted the call's start; the tensors that the call writes; the place of
            its caller; the method that `using` named; and whether Gloo's Work ends only when somebody waits for it,
            without a time limit.
    """

    handed_on: tuple[Any, list[Any], FailureWatch, Tally, Sequence[Any], Place, Any, bool]
    _full: WrappedWork | None = None
    _is_counted = False  # Whether the tally has counted the call's end.

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over and return True; without a time-out, up to that of Gloo.

        Raises:
            RuntimeError: The call failed or took too long; the message names the rank to blame.
        """
        if timeout is not None or self._full is not None:
            return self._as_full().wait(timeout)
        inner, entry, watch, tally, _, _, _, unlimited = self.handed_on
        end_call(inner, entry, watch, None if self._is_counted else tally, unlimited)
        self._is_counted = True
        return True

    def _as_full(self) -> WrappedWork:
        """Return the Work that can do all that a Work can, built the first time; it takes over the call."""
        if self._full is None:
            inner, entry, watch, tally, outputs, origin, using, unlimited = self.handed_on
            wait = inner.wait
            if entry[0] is None or unlimited:
                if entry[4] >= watch.parts_from_bytes:
                    wait = partial(wait_apart, inner.wait, partial(watch.abandons_waits, entry[7] or ()))
            else:
                wait = partial(wait_in_intervals, inner, watch.abandons_waits)

            def record(seconds: float) -> None:
                """Count the call, which is over, unless a wait has counted it."""
                if not self._is_counted:
                    self._is_counted = True
                    tally.end(entry[4], seconds)
                watch.calls.handed_on.pop(entry[0], None)

            context = copy_context()
            context.run(requested_method.set, using)
            full = context.run(WrappedWork, inner, record, watch, HandedOnCall(*entry).waiting, wait, outputs)
            full.be_of(origin, entry[1])
            self._full = full
        return self._full

    def is_completed(self) -> bool:
        """Return True if the call is over."""
        return bool(self.handed_on[0].is_completed())

    def is_success(self) -> bool:
        """Return True if the call is over without an error."""
        return bool(self.handed_on[0].is_success())

    def exception(self) -> Any:
        """Return the exception of Gloo's Work."""
        return self.handed_on[0].exception()

    def result(self) -> Any:
        """Return the result of Gloo's Work."""
        return self.handed_on[0].result()

    def get_future(self) -> Any:
        """Return a future of the call's value, as `WrappedWork.get_future` does."""
        return self._as_full().get_future()

    def source_rank(self) -> int:
        """Return the place in the group of the rank that sent the message."""
        return int(self.handed_on[0].source_rank())

    def _source_rank(self) -> int:
        return int(self.handed_on[0]._source_rank())

    def synchronize(self) -> None:
        """Wait until the call is over, as `wait` does without a time-out."""
        self.wait()


@untraced_methods
class DeferredWork(_Futures):
    """The Work of a call that has begun, but ends only when somebody waits for it: its caller, or else a task.

    The task starts when somebody asks for a future or whether the call is over. It is built without arguments, by C++,
    and gets its attribute then.

    Attributes:
        deferred: A function that waits for the end of the call on any thread, and raises its error; it is called once.
            The tensors that the call writes. What gives a task to the group's thread, as `TaskThread.put` does. The
            place of the call's caller if that may be C++. The context of the call. A lock, which a thread that finishes
            the call holds.
    """

    deferred: tuple[
        Callable[[], object], Sequence[Any], Callable[[GroupTask, bool], None], Place, Context, threading.Lock
    ]
    _over = False
    _error: BaseException | None = None

    def _end(self) -> None:
        """Finish the call, or wait until another thread has finished it; raise its error."""
        finish, _, _, _, _, once = self.deferred
        with once:
            if not self._over:
                try:
                    finish()
                except BaseException as error:
                    self._error = error
                finally:
                    self._over = True
        if self._error is not None:
            raise self._error

    def _task(self) -> GroupTask:
        """Return the task that finishes the call, started on the group's thread the first time."""
        if "_first_task" not in self.__dict__:
            _, outputs, put, _, context, _ = self.deferred
            task = context.run(GroupTask, self._end, outputs, lambda _: None)
            if self.__dict__.setdefault("_first_task", task) is task:  # Threads may come here at the same time.
                put(task, False)
        first_task: GroupTask = self.__dict__["_first_task"]
        return first_task

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the call is over and return True.

        Raises:
            RuntimeError: The call failed, or the time is up first; the message names the call.
        """
        if timeout is not None and timeout > timedelta(0):
            return self._task().wait(timeout)
        self._end()
        return True

    def is_completed(self) -> bool:
        """Return True if the call is over; if not, it ends without a further wait from now on."""
        if not self._over and not self.deferred[-1].locked():
            self._task()
        return self._over

    def is_success(self) -> bool:
        """Return True if the call is over without an error."""
        return self.is_completed() and self._error is None

    def exception(self) -> BaseException | None:
        """Return the error of the call, or None if it has not failed."""
        return self._error

    def result(self) -> list[Any]:
        """Return the tensors that the call writes, without a wait for it."""
        return list(self.deferred[1])

    def get_future(self) -> Any:
        """Return a future of the written tensors, for Python or C++."""
        _, outputs, _, self._origin, _, _ = self.deferred
        return self._future_for_caller(self._task().get_future(), outputs)

    def synchronize(self) -> None:
        """Wait until the call is over, and raise its error."""
        self.wait()


@untraced_methods
class FinishedWork(Work):  # type: ignore[misc]
    """The Work of a call for which its caller has waited already: it is over from the start."""

    def wait(self, _: Any = None) -> bool:
        """Return True at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def get_future(self) -> Any:
        """Return a future that is already done, without tensors."""
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


FINISHED = FinishedWork()


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
