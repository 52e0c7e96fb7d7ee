"""The thread on which our collectives run one after the other, and the code that waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextvars import copy_context
from datetime import timedelta
from importlib.util import find_spec
from itertools import permutations, tee
from operator import methodcaller
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch

from runtime.torch.c10d.work import DeferredWork, HandedOnWork, TaskWork, WrappedWork
from runtime.torch.counters import Counters
from runtime.torch.failures.causes import Cause, Waiting
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.tasks import GroupTask, TaskThread
from tests.hang import HANG_S


def task(function: Callable[[], object]) -> GroupTask:
    return GroupTask(lambda: function() and None, [], lambda _: None)


def deferred_work(finish: Callable[[], object], outputs: list[Any], put: Callable[..., None]) -> DeferredWork:
    work = DeferredWork()
    work.deferred = finish, outputs, put, None, copy_context(), threading.Lock()
    return work


@pytest.fixture
def thread() -> Iterator[TaskThread]:
    task_thread = TaskThread("group of ranks 0, 1")
    yield task_thread
    task_thread.stop()


def test_a_task_with_a_waiting_caller_runs_after_earlier_tasks(thread: TaskThread) -> None:
    order: list[int] = []
    gate = threading.Event()
    thread.put(task(gate.wait), False)
    for k in range(5):
        thread.put(task(lambda k=k: order.append(k)), False)
    last = task(lambda: order.append(5))
    thread.put(last, True)
    assert order == []
    gate.set()
    last.wait()
    assert order == [0, 1, 2, 3, 4, 5]


def test_an_error_reaches_all_waiting_callers_and_stops_nothing(thread: TaskThread) -> None:
    def fails() -> None:
        raise ValueError("no such luck")

    gate = threading.Event()
    first, bad, good = task(gate.wait), task(fails), task(lambda: None)
    for work in (first, bad, good):
        thread.put(work, False)
    with pytest.raises(RuntimeError, match=r"not over within 0\.01 s"):
        bad.wait(timedelta(milliseconds=10))
    gate.set()
    good.wait()
    with pytest.raises(ValueError, match="no such luck"):
        bad.wait()
    # For a future of torch's own type, C++ code sees the error too, and `then` is not called with a result.
    with pytest.raises(RuntimeError, match="no such luck"):
        bad.get_future().then(lambda future: future.value()).wait()
    assert bad.get_future().done()


def test_callbacks_call_and_wait_in_the_order_of_their_tasks(thread: TaskThread) -> None:
    gate = threading.Event()
    called: list[int] = []

    def waits(k: int) -> None:
        next_one = task(lambda: called.append(k))
        thread.put(next_one, False)
        next_one.get_future().wait()
        thread.put(task(lambda: called.append(k + 10)), True)

    tasks = [task(gate.wait) for _ in range(4)]
    for waiting_task in tasks:
        thread.put(waiting_task, False)
    futures = [work.get_future().then(lambda _, k=k: waits(k)) for k, work in enumerate(tasks)]
    gate.set()
    for future in futures:
        future.wait()
    assert [k for k in called if k < 10] == [0, 1, 2, 3]
    assert sorted(called) == [0, 1, 2, 3, 10, 11, 12, 13]


def test_nothing_runs_beside_a_task_that_its_caller_runs(thread: TaskThread) -> None:
    begun, gate = threading.Event(), threading.Event()
    ran: list[str] = []

    def slow() -> None:
        begun.set()
        gate.wait()
        ran.append("here")

    caller = threading.Thread(target=thread.put, args=(task(slow), True))
    caller.start()
    begun.wait()
    lane_task = task(lambda: ran.append("lane"))
    thread.put(lane_task, False)
    with pytest.raises(RuntimeError, match="not over"):
        lane_task.wait(timedelta(milliseconds=50))
    gate.set()
    lane_task.wait()
    caller.join()
    assert ran == ["here", "lane"]


def test_ctrl_c_in_a_task_ends_it_and_is_remembered(thread: TaskThread) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    stopped = task(interrupted)
    with pytest.raises(KeyboardInterrupt):
        thread.put(stopped, True)
    assert stopped.is_completed()
    assert thread.interrupted
    thread.drain()  # It does not wait for ever.
    with pytest.raises(KeyboardInterrupt):
        stopped.wait()


class Streams:
    """A device's future, as NCCL's: only futures made of it by `then` know its streams."""

    def __init__(self) -> None:
        self.of: Streams | None = None
        self.made: Any = None

    def then(self, callback: Callable[[Any], Any]) -> Streams:
        later = Streams()
        later.of, later.made = self, callback(self)
        return later

    def value(self) -> list[int]:
        return [3]


class OnDevice:
    """A work of NCCL's."""

    def __init__(self) -> None:
        self.future = Streams()

    def wait(self) -> bool:
        return True

    def get_future(self) -> Streams:
        return self.future


def test_a_future_of_a_device_is_made_by_then() -> None:
    seconds: list[float] = []
    inner = OnDevice()
    work = WrappedWork(inner, seconds.append, FailureWatch(0, (0, 1)), Waiting("allreduce", 1), streams=True)
    future = work.get_future()
    assert future.of is inner.future
    assert future.made == [3]
    assert len(seconds) == 1


def test_cpp_gets_lists_of_tensors_and_sees_errors(thread: TaskThread) -> None:
    tensor = torch.zeros(3)

    def fails() -> None:
        raise RuntimeError("lost: rank 3")

    for function in (lambda: tensor.zero_() is None, fails):
        works, same_works = tee(map(TaskWork, [function], [[tensor]], [lambda _: None]))
        # As C++ does it: no line of Python runs between the creation of a work and the request for its future.
        (future,) = list(map(methodcaller("get_future"), works))
        (work,) = same_works
        thread.put(work, False)
        if function is fails:
            with pytest.raises(RuntimeError, match="lost: rank 3"):
                future.wait()
        else:
            assert [result.data_ptr() for result in future.wait()] == [tensor.data_ptr()]
        assert (
            future is not work.get_future() is work.get_future()
        )  # It is Python's future, whose callbacks run in the order of tasks.


def test_a_deferred_call_ends_once_on_the_thread_that_waits(thread: TaskThread) -> None:
    ended_on: list[int] = []
    work = deferred_work(lambda: ended_on.append(threading.get_ident()), [], thread.put)
    assert ended_on == []
    assert work.wait()
    assert (work.is_completed(), work.is_success(), work.wait()) == (True, True, True)
    assert ended_on == [threading.get_ident()]


def test_a_deferred_call_ends_by_itself_once_somebody_asks(thread: TaskThread) -> None:
    tensor = torch.zeros(2)
    for ask in (lambda work: work.is_completed(), lambda work: work.get_future().wait()):
        ended = threading.Event()
        work = deferred_work(ended.set, [tensor], thread.put)
        ask(work)
        assert ended.wait(HANG_S)
        assert work.get_future().wait()[0] is tensor


def test_a_deferred_call_keeps_its_error_for_all(thread: TaskThread) -> None:
    def fails() -> None:
        raise RuntimeError("lost: rank 3")

    work = deferred_work(fails, [], thread.put)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="lost: rank 3"):
            work.wait()
    with pytest.raises(RuntimeError, match="lost: rank 3"):
        work.get_future().wait()
    assert not work.is_success()


def test_a_task_that_waits_for_one_that_it_adds_runs_it(thread: TaskThread) -> None:
    order: list[str] = []

    def outer() -> None:
        inner = task(lambda: order.append("inner"))
        thread.put(inner, True)
        inner.wait()
        order.append("outer")

    outer_task = task(outer)
    thread.put(outer_task, False)
    outer_task.wait(timedelta(seconds=HANG_S))
    assert order == ["inner", "outer"]


class Handed:
    """A work of Gloo's, which may fail."""

    def __init__(self, error: str = "") -> None:
        self.error = error

    def wait(self, _: timedelta | None = None) -> bool:
        if self.error:
            raise RuntimeError(self.error)
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


def handed_on(inner: Handed, watch: FailureWatch) -> HandedOnWork:
    """Return the work of call 1."""
    work = HandedOnWork()
    entry = [
        1,
        0.0,
        None,
        lambda size, kind, opts: f"{opts}, {size} bytes of {kind}",
        4,
        "int32",
        "reduce",
        None,
        inner,
    ]
    watch.calls.handed_on[1] = entry
    tally = Counters().tally("reduce", "gloo")
    tally.start(4)
    work.handed_on = inner, entry, watch, tally, (), None, None, False
    return work


def test_a_call_that_was_handed_on_is_counted_and_closed_when_it_is_over() -> None:
    for timeout in (None, timedelta(seconds=1)):
        watch = FailureWatch(0, (0, 1))
        work = handed_on(Handed(), watch)
        assert watch.calls.is_open(1)
        assert work.wait(timeout)
        assert not watch.calls.is_open(1)
        (sizes,) = work.handed_on[3].add_up().classes.values()
        assert sizes.calls == 1


def test_a_call_that_was_handed_on_is_counted_once_however_often_it_is_waited_for() -> None:
    def wait_for_a_future(work: HandedOnWork) -> None:
        work.get_future().wait()

    limited = methodcaller("wait", timedelta(seconds=1))
    for ways in permutations((methodcaller("wait"), limited, wait_for_a_future)):
        work = handed_on(Handed(), FailureWatch(0, (0, 1)))
        for wait in (*ways, *ways):
            wait(work)
        (sizes,) = work.handed_on[3].add_up().classes.values()
        assert sizes.calls == 1


def test_the_error_of_a_call_that_was_handed_on_names_the_call() -> None:
    watch = FailureWatch(0, (0, 1))
    watch.cause = Cause("lost: rank 1")
    work = handed_on(Handed("Connection closed by peer"), watch)
    with pytest.raises(RuntimeError, match="reduce, 4 bytes of int32: Connection closed by peer"):
        work.wait()
    assert not watch.calls.is_open(1)
