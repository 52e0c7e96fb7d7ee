"""A wait that nothing ends is left as soon as it is in vain; all other waits end by themselves."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch

from runtime.torch.c10d.work import WrappedWork
from runtime.torch.failures.apart import ABANDONED, PARTS_FROM_BYTES, wait_apart, wait_in_intervals
from runtime.torch.failures.causes import Waiting
from runtime.torch.failures.lost import FailureWatch
from runtime.torch.programs.transport import Transport, exchange
from runtime.torch.tasks import TaskThread
from runtime.torch.threads import helping, own_threads


class Endless:
    """A work of the wrapped back end that only `end` ends."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.error: Exception | None = None
        self.future: Any = torch.futures.Future()

    def end(self, error: Exception | None = None) -> None:
        self.error = error
        self.over.set()

    def is_completed(self) -> bool:
        return self.over.is_set()

    def get_future(self) -> Any:
        return self.future

    def wait(self, limit: timedelta | None = None) -> str:
        if not self.over.wait(None if limit is None else limit.total_seconds()):
            raise RuntimeError("Operation timed out!")
        if self.error is not None:
            raise self.error
        return "over"


WAYS: list[Callable[[Endless, Callable[[], bool]], Any]] = [
    lambda work, in_vain: wait_apart(work.wait, in_vain),
    wait_in_intervals,
]


@pytest.mark.parametrize("wait", WAYS)
def test_a_wait_ends_by_itself_or_when_it_is_in_vain(wait: Callable[..., Any]) -> None:
    work, failing, stuck = Endless(), Endless(), Endless()
    threading.Timer(0.15, work.end).start()
    assert wait(work, lambda: False) == "over"
    threading.Timer(0.15, failing.end, (ValueError("no such luck"),)).start()
    with pytest.raises(ValueError, match="no such luck"):
        wait(failing, lambda: False)
    looks = iter((False, True))
    with pytest.raises(RuntimeError, match=ABANDONED):
        wait(stuck, lambda: next(looks))
    assert wait(work, lambda: True) == "over"  # A finished work is not in vain.
    stuck.end()


class Unlimited(Endless):
    """A work as Gloo's reduce-scatter: its wait ignores limits, and it never reports that it is over."""

    def is_completed(self) -> bool:
        return False

    def wait(self, limit: timedelta | None = None) -> str:
        del limit
        return super().wait()


@pytest.mark.parametrize("wait", WAYS)
def test_a_failed_work_is_not_waited_for(wait: Callable[..., Any]) -> None:
    for after in (0.0, 0.3):
        failing = Unlimited()
        threading.Timer(after, failing.end, (RuntimeError("Timed out waiting 3 ms"),)).start()
        with pytest.raises(RuntimeError, match="Timed out waiting 3 ms"):
            wait(failing, lambda: False)


def test_waiting_threads_are_reused_and_known_to_make_no_calls() -> None:
    used = {wait_apart(threading.get_ident, lambda: False) for _ in range(20)}
    assert len(used) == 1
    assert used <= own_threads()
    gate = threading.Event()
    with pytest.raises(RuntimeError, match=ABANDONED):
        wait_apart(gate.wait, lambda: True)
    assert wait_apart(threading.get_ident, lambda: False) not in used  # That thread still waits.
    gate.set()


def test_threads_may_be_added_while_another_asks_for_all() -> None:
    over = threading.Event()
    kept = [TaskThread("thread of a test") for _ in range(500)]  # To go through many takes time.

    def add_until_over() -> None:
        while not over.is_set():
            kept[:50] = [TaskThread("thread of a test") for _ in range(50)]

    adder = threading.Thread(target=add_until_over)
    switch_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    adder.start()
    try:
        for _ in range(1000):
            assert None not in own_threads()
    finally:
        sys.setswitchinterval(switch_interval)
        over.set()
        adder.join()


def test_threads_that_help_may_write_any_tensor() -> None:
    assert wait_apart(torch.is_inference_mode_enabled, lambda: False)
    with torch.inference_mode():
        tensor = torch.zeros(3)
    written = list[bool]()

    def write() -> None:
        with helping():
            tensor.add_(1)
            written.append(True)

    thread = threading.Thread(target=write)
    thread.start()
    thread.join()
    assert written


class Messages:
    """Messages whose waits never end."""

    def __init__(self) -> None:
        self.work = Endless()

    def send(self, *_: Any) -> Endless:
        return self.work

    recv = send


@pytest.mark.parametrize(("elements", "leaves"), [(PARTS_FROM_BYTES // 8, True), (PARTS_FROM_BYTES // 8 - 1, False)])
def test_messages_that_may_arrive_in_parts_are_left(elements: int, leaves: bool) -> None:
    messages = Messages()
    transport = Transport(messages, (0, 1), 0, 0, "a call", in_vain=lambda: True)
    room = torch.zeros(elements, dtype=torch.float64)
    if leaves:
        with pytest.raises(RuntimeError, match=ABANDONED):
            exchange(transport, [None, room], [None, room.clone()])
        messages.work.end()
    else:
        threading.Timer(0.3, messages.work.end).start()
        exchange(transport, [None, room], [None, room.clone()])


def test_a_future_ends_with_its_cause_when_its_work_is_left() -> None:
    watch = FailureWatch(0, (0, 1))
    work = Endless()
    wrapped = WrappedWork(work, lambda _: None, watch, Waiting("allreduce", 1), partial(work.wait))
    ended, later = wrapped.get_future(), Endless()
    assert not ended.done()
    watch.messages = later
    watch._has_ended_waits, watch._abandons_at = True, time.monotonic()
    watch.look()
    with pytest.raises(RuntimeError, match=f"allreduce: {ABANDONED}"):
        ended.wait()
    work.future.set_result([1])  # Too late, and harmless.
    ended_work = Endless()
    future = WrappedWork(ended_work, lambda _: None, FailureWatch(0, (0, 1)), Waiting("allreduce", 1)).get_future()
    ended_work.end()
    ended_work.future.set_result([2])
    assert future.wait() == [2]
