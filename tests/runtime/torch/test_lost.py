"""What ranks conclude from one another's words about a failure; processes that really end: test_process_group.py."""

from __future__ import annotations

import json
from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install 'synth-collectives[torch]'", allow_module_level=True)

import torch.distributed as dist

from runtime.torch import lost as torch_lost
from runtime.torch.lost import Lookout, plain
from topologies.errors import MessageLost

RANKS = (7, 3, 5, 9)  # of the group, as the job numbers them


class Connections:
    """A wrapped back end: which peers can be reached."""

    def __init__(self, closed: set[int]) -> None:
        self.closed = closed

    def send(self, _: Any, peer: int, __: int) -> None:
        if peer in self.closed:
            raise RuntimeError("Connection closed by peer")


class Gone(Connections):
    """A store whose keeper has ended."""

    def set(self, *_: str) -> None:
        raise RuntimeError("Broken pipe")


def word(told: str = "allreduce", number: int | None = 1, gone: Any = (), missed: Any = ()) -> str:
    return json.dumps({"told": told, "number": number, "gone": list(gone), "missed": list(missed)})


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PATIENCE_S", "_SURE_S"):
        monkeypatch.setattr(torch_lost, name, 0.1)


def said(error: RuntimeError, closed: set[int], words: dict[int, str], peers: Any = None) -> str:
    """What place 0 says of an error when the others have said `words`."""
    store = dist.HashStore()
    for place, text in words.items():
        store.set(f"failed/{place}", text)
    lookout = Lookout(store, 0, RANKS)
    lookout.inner = Connections(closed)
    with pytest.raises(RuntimeError) as caught, lookout.over("allreduce", 1, peers):
        raise error
    return str(caught.value)


CLOSED = RuntimeError("Connection closed by peer")
LATE = RuntimeError("Timed out waiting 5000ms")


@pytest.mark.parametrize(
    ("error", "closed", "words", "peers", "lost"),
    [
        pytest.param(CLOSED, {2}, {1: word(), 3: word()}, None, "5", id="ended"),
        pytest.param(
            CLOSED, {1, 2}, {1: word(gone=[2]), 3: word()}, None, "5", id="one gave up because of it"
        ),
        pytest.param(CLOSED, {2}, {}, None, "5", id="the others compute and know of nothing"),
        pytest.param(CLOSED, {1, 2}, {3: word()}, None, "3, 5", id="two at once"),
        pytest.param(LATE, {1, 2, 3}, {1: word(), 3: word()}, None, "5", id="hangs"),
        pytest.param(
            MessageLost("Timed out", 1),
            {1, 2, 3},
            {1: word(missed=[2]), 3: word()},
            None,
            "5",
            id="hangs, ring",
        ),
        pytest.param(CLOSED, {3}, {3: word(number=None, gone=[2])}, [3], "5", id="a chain of messages"),
    ],
)
def test_the_first_one_lost_is_named(
    error: RuntimeError, closed: set[int], words: dict[int, str], peers: Any, lost: str
) -> None:
    assert f"; lost: rank {lost} (" in said(error, closed, words, peers)


def test_a_call_that_fails_by_itself_is_nobodys_fault() -> None:
    assert said(RuntimeError("Invalid scalar type"), set(), {}) == "Invalid scalar type"


def test_ranks_that_call_differently_are_not_lost() -> None:
    text = said(LATE, {1, 2, 3}, {1: word("broadcast"), 2: word(), 3: word()})
    assert "lost" not in text
    assert "rank 5 calls allreduce, rank 3 calls broadcast" in text
    assert "rank 7" not in text  # one pair is enough


def test_a_late_rank_learns_that_the_others_gave_up() -> None:
    words = {place: word(missed=[0]) for place in (1, 2, 3)}
    assert "the others gave up waiting for this rank" in said(CLOSED, {1, 2, 3}, words)


def test_the_keeper_of_the_store_is_lost_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_lost, "keeper_of", lambda _: 3)
    lookout = Lookout(Gone(set()), 0, RANKS)
    lookout.inner = Connections({1})
    with (
        pytest.raises(RuntimeError, match=r"; lost: rank 3 \(the store of rank 3 is gone\)"),
        lookout.over("barrier"),
    ):
        raise CLOSED


def test_a_second_failure_says_the_same_without_asking_again() -> None:
    lookout = Lookout(dist.HashStore(), 0, RANKS)
    lookout.inner = Connections({2})
    texts = []
    for _ in range(2):
        with pytest.raises(RuntimeError) as caught, lookout.over("barrier"):
            raise CLOSED
        texts.append(str(caught.value))
        lookout.inner = Connections({1, 2, 3})
    assert texts[0] == texts[1]


def test_what_gloo_says_becomes_one_clear_line() -> None:
    long = "[/a/b/pair.cc:553] Connection closed by peer [127.0.0.1]:5. This is typically caused by a crash.\nAt: x"
    assert plain(RuntimeError(long)) == "Connection closed by peer [127.0.0.1]:5"
    assert plain(RuntimeError()) == "RuntimeError"
