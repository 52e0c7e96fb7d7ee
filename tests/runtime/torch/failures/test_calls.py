"""The record of every call, read only on request: texts, numbers, counts."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

from runtime.torch.counters import HELD, Counters
from runtime.torch.failures.calls import MOST_TEXTS, Calls


def describe(size_bytes: int, kind: Any, opts: Any) -> str:
    return f"{opts}, {size_bytes} bytes of {kind}"


def passed(calls: Calls, since: float = 0.0) -> int:
    """Record a call that was handed on and whose wait is not over; return its number."""
    calls.last_number = number = next(calls.numbers)
    calls.handed_on[number] = number, since, 7, describe, 4, "int32", "allreduce"
    calls.recent.append(calls.handed_on[number])
    return number


def test_calls_that_are_handed_on_share_the_numbers_of_the_others() -> None:
    calls = Calls()
    first, second = calls.issue("broadcast"), passed(calls)
    third = calls.issue("barrier")
    assert (first.number, second, third.number, calls.last_number) == (1, 2, 3, 3)
    texts = [calls.text(number) for number in range(5)]
    assert texts == [None, "broadcast", "allreduce, 4 bytes of int32", "barrier", None]


def test_the_open_call_is_the_first_that_is_not_over() -> None:
    calls = Calls()
    first, second, third = calls.issue("broadcast"), passed(calls), calls.issue("barrier")
    assert calls.first_open() == 1
    calls.close(first)
    assert (calls.first_open(), calls.is_open(second)) == (2, True)
    del calls.handed_on[second]
    assert (calls.first_open(), calls.is_open(second)) == (3, False)
    calls.close(third)
    assert calls.first_open() == 4
    assert calls.text(second) is not None  # Texts of finished calls are kept too.


def test_a_lasting_wait_is_one_object() -> None:
    calls = Calls()
    number = passed(calls, since=5.0)
    (wait,) = calls.waits()
    assert (wait.waiting.number, wait.since, wait.thread, wait.is_reported) == (number, 5.0, 7, False)
    wait.is_reported = True
    second_number = passed(calls)
    assert [wait.is_reported for wait in calls.waits()] == [True, False]
    del calls.handed_on[number]
    assert [wait.waiting.number for wait in calls.waits()] == [second_number]


class Started:
    """A work of the wrapped back end."""

    def __init__(self) -> None:
        self.over = False

    def is_completed(self) -> bool:
        return self.over


def test_a_call_that_nobody_waits_for_is_forgotten_when_it_is_over() -> None:
    calls, works = Calls(), [Started(), Started()]
    for work in works:
        number = passed(calls)
        calls.handed_on[number] = [*calls.handed_on[number][:2], None, *calls.handed_on[number][3:], None, work]
    assert [wait.thread for wait in calls.waits()] == [None, None]
    works[0].over = works[1].over = True
    calls.handed_on[2][2], calls.handed_on[2][8] = 7, None  # A thread waits for it now.
    assert [(wait.waiting.number, wait.thread) for wait in calls.waits()] == [(2, 7)]
    assert (calls.is_open(1), calls.first_open()) == (False, 2)


def test_a_wait_for_a_message_needs_only_its_peer_and_has_no_number() -> None:
    calls = Calls()
    calls.messages[7] = [None, 5.0, 7, describe, 4, "int32", "send", (1,), None]
    (wait,) = calls.waits()
    assert (wait.waiting.number, wait.waiting.peers, wait.thread) == (None, (1,), 7)
    assert calls.first_open() == 1


def test_texts_are_kept_only_of_the_latest_calls() -> None:
    calls = Calls()
    for at in range(3 * MOST_TEXTS):
        calls.close(calls.issue(f"call {at}"))
    assert calls.text(3 * MOST_TEXTS) == f"call {3 * MOST_TEXTS - 1}"
    assert calls.text(2 * MOST_TEXTS) is None


@pytest.mark.parametrize("reason", ["", "no table"])
def test_counts_from_many_threads_are_exact(reason: str) -> None:
    counters = Counters()
    tally = counters.tally("allreduce", "gloo", reason)
    calls_per_thread = HELD + 10

    def work() -> None:
        for _ in range(calls_per_thread):
            tally.start(4)
            tally.end(4, 0.5)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counters.count("allreduce", "gloo", 8)(1.5)
    assert counters.ran("allreduce", "gloo") == 4 * calls_per_thread + 1
    row = next(line.split() for line in counters.text().splitlines() if line.startswith("allreduce"))
    assert row[:3] == ["allreduce", "gloo", str(4 * calls_per_thread + 1)]
    assert float(row[-1]) == 1500.0
    assert (f"not ours: allreduce, {4 * calls_per_thread} calls: {reason}" in counters.text()) == bool(reason)
    assert counters.last("allreduce") == "gloo"
