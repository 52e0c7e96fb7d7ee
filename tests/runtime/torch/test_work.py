"""The thread on which our collectives run one after the other, and what waits for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from importlib.util import find_spec

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install 'synth-collectives[torch]'", allow_module_level=True)

from runtime.torch.work import Task, TaskThread


def task(function: Callable[[], object]) -> Task:
    return Task(lambda: function() and None, [], lambda _: None)


@pytest.fixture
def thread() -> Iterator[TaskThread]:
    made = TaskThread("group of ranks 0, 1")
    yield made
    made.stop()


def test_what_is_waited_for_at_once_runs_after_what_was_begun_before(thread: TaskThread) -> None:
    done: list[int] = []
    gate = threading.Event()
    thread.put(task(gate.wait), False)
    for k in range(5):
        thread.put(task(lambda k=k: done.append(k)), False)
    last = task(lambda: done.append(5))
    thread.put(last, True)
    assert done == []
    gate.set()
    last.wait()
    assert done == [0, 1, 2, 3, 4, 5]


def test_an_error_reaches_all_that_wait_and_stops_nothing(thread: TaskThread) -> None:
    def fails() -> None:
        raise ValueError("no such luck")

    gate = threading.Event()
    first, bad, good = task(gate.wait), task(fails), task(lambda: None)
    for each in (first, bad, good):
        thread.put(each, False)
    with pytest.raises(RuntimeError, match=r"not over within 0\.01 s"):
        bad.wait(timedelta(milliseconds=10))
    gate.set()
    good.wait()
    with pytest.raises(ValueError, match="no such luck"):
        bad.wait()
    # a future of torch's own kind: its C++ code sees the error too, and `then` is not called with a result
    with pytest.raises(RuntimeError, match="no such luck"):
        bad.get_future().then(lambda future: future.value()).wait()
    assert bad.get_future().done()


def test_a_callback_that_would_wait_for_its_own_thread_is_refused(thread: TaskThread) -> None:
    gate = threading.Event()
    first, last = task(gate.wait), task(lambda: None)
    thread.put(first, False)
    called = first.get_future().then(lambda _: thread.put(task(lambda: None), True))
    thread.put(last, False)
    gate.set()
    with pytest.raises(RuntimeError, match="group of ranks 0, 1: called and waited for in a callback"):
        called.wait()
    last.wait()
