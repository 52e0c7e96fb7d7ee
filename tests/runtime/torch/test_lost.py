"""What ranks conclude from one another's reports about a failure; processes that really end: test_process_group.py."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install 'synth-collectives[torch]'", allow_module_level=True)

import torch.distributed as dist

from runtime.torch.lost import FailureWatch, Tuning, error_text
from topologies.errors import MessageLost

RANKS = (7, 3, 5, 9)  # of the group, as the job numbers them
SOON = Tuning(reports=0.1, closed=0.1)


class Connections:
    """A wrapped back end: which peers can be reached."""

    def __init__(self, closed: set[int]) -> None:
        self.closed = closed

    def send(self, _: Any, peer: int, __: int) -> None:
        if peer in self.closed:
            raise RuntimeError("Connection closed by peer")


class Gone(Connections):
    """A store whose server has ended."""

    def set(self, *_: str) -> None:
        raise RuntimeError("Broken pipe")


def report(call: str = "allreduce", number: int | None = 1, gone: Any = (), missed: Any = ()) -> str:
    return json.dumps({"call": call, "number": number, "gone": list(gone), "missed": list(missed)})


def message(error: RuntimeError, closed: set[int], reports: dict[int, str], peers: Any = None) -> str:
    """The message that place 0 raises for an error when these are the others' reports."""
    store = dist.HashStore()
    for place, text in reports.items():
        store.set(f"failed/{place}", text)
    watch = FailureWatch(store, 0, RANKS, Connections(closed), tuning=SOON)
    with pytest.raises(RuntimeError) as caught, watch.guard("allreduce", 1, peers):
        raise error
    return str(caught.value)


CLOSED = RuntimeError("Connection closed by peer")
LATE = RuntimeError("Timed out waiting 5000ms")


@pytest.mark.parametrize(
    ("error", "closed", "reports", "peers", "lost"),
    [
        pytest.param(CLOSED, {2}, {1: report(), 3: report()}, None, "5", id="ended"),
        pytest.param(CLOSED, {1, 2}, {1: report(gone=[2]), 3: report()}, None, "5", id="one gave up because of it"),
        pytest.param(CLOSED, {2}, {}, None, "5", id="the others compute and know of nothing"),
        pytest.param(CLOSED, {1, 2}, {3: report()}, None, "3, 5", id="two at once"),
        pytest.param(LATE, {1, 2, 3}, {1: report(), 3: report()}, None, "5", id="hangs"),
        pytest.param(
            MessageLost("Timed out", 1),
            {1, 2, 3},
            {1: report(missed=[2]), 3: report()},
            None,
            "5",
            id="hangs, ring",
        ),
        pytest.param(CLOSED, {3}, {3: report(number=None, gone=[2])}, [3], "5", id="a chain of messages"),
    ],
)
def test_the_first_one_lost_is_named(
    error: RuntimeError, closed: set[int], reports: dict[int, str], peers: Any, lost: str
) -> None:
    assert f"; lost: rank {lost} (" in message(error, closed, reports, peers)


def test_a_call_that_fails_by_itself_is_nobodys_fault() -> None:
    assert message(RuntimeError("Invalid scalar type"), set(), {}) == "Invalid scalar type"


def test_ranks_that_call_differently_are_not_lost() -> None:
    text = message(LATE, {1, 2, 3}, {1: report("broadcast"), 2: report(), 3: report()})
    assert "lost" not in text
    assert "rank 5 calls allreduce, rank 3 calls broadcast" in text
    assert "rank 7" not in text  # one pair is enough


def test_a_late_rank_learns_that_the_others_gave_up() -> None:
    reports = {place: report(missed=[0]) for place in (1, 2, 3)}
    assert "the others gave up waiting for this rank" in message(CLOSED, {1, 2, 3}, reports)


def test_the_server_of_the_store_is_lost_with_it() -> None:
    watch = FailureWatch(Gone(set()), 0, RANKS, Connections({1}), 3, SOON)
    with (
        pytest.raises(RuntimeError, match=r"; lost: rank 3 \(the store of rank 3 is gone\)"),
        watch.guard("barrier"),
    ):
        raise CLOSED


def test_a_second_failure_says_the_same_without_asking_again() -> None:
    watch = FailureWatch(dist.HashStore(), 0, RANKS, Connections({2}), tuning=SOON)
    texts = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught, watch.guard("barrier"):
            raise CLOSED
        texts.append(str(caught.value))
        watch.messages = Connections({1, 2, 3})
    assert texts[0] == texts[1]


def test_what_gloo_says_becomes_one_clear_line() -> None:
    long = "[/a/b/pair.cc:553] Connection closed by peer [127.0.0.1]:5. This is typically caused by a crash.\nAt: x"
    assert error_text(RuntimeError(long)) == "Connection closed by peer [127.0.0.1]:5"
    assert error_text(RuntimeError()) == "RuntimeError"
