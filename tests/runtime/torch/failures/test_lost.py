"""What ranks tell each other when a call fails; for processes that really end see test_process_group.py."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from importlib.util import find_spec
from threading import Thread, Timer
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("PyTorch is not installed: pip install '.[torch]'", allow_module_level=True)

import torch.distributed as dist

from runtime.torch.failures import link
from runtime.torch.failures.address import Address
from runtime.torch.failures.causes import Fact, Waiting, error_end, find_cause
from runtime.torch.failures.link import PresenceTuning
from runtime.torch.failures.lost import FailureWatch, LostTuning
from runtime.torch.failures.presence import Presence
from runtime.torch.messages import error_text

RANKS = (7, 3, 5)  # The job's numbers of the group's ranks.
SOON = LostTuning(long=0.05, grace=0.1, spread=0.2, answers=0.3)
MINE = Waiting("allreduce", 4)
HERE = {"made": 4, "text": "allreduce", "inside": True, "waits": ["allreduce of group 0"]}
ELSEWHERE = {"made": 3, "text": None, "inside": False, "waits": ["broadcast of group 1"]}


@pytest.mark.parametrize(
    ("facts", "beginning", "blamed"),
    [
        ({3: Fact(end_reason=""), 5: Fact(answer=HERE)}, "lost: rank 3 (its connection is closed)", (3,)),
        ({3: Fact(end_reason=""), 5: Fact(end_reason="")}, "lost: rank 3, 5 (their connections are closed)", (3, 5)),
        (
            {3: Fact(end_reason="raised ValueError: x", calls_made=3)},
            "rank 3 raised ValueError: x: it has made 3 calls",
            (3,),
        ),
        (
            {3: Fact(end_reason="raised E: y; lost: rank 9"), 5: Fact(end_reason="was interrupted")},
            "rank 5 was inter",
            (5,),
        ),
        (
            {3: Fact(end_reason="raised E: y; lost"), 5: Fact(end_reason="raised F: a; it must be b")},
            "rank 5 raised F",
            (5,),
        ),
        ({3: Fact(answer=HERE | {"text": "broadcast"})}, "rank 3 calls broadcast, rank 7 calls allreduce", ()),
        ({3: Fact(answer=HERE | {"cause": ["known", 4, [5]]}), 5: Fact()}, "known", (5,)),
        ({3: Fact(answer=HERE), 5: Fact()}, "no answer from rank 5: connected, so not lost", (5,)),
        ({3: Fact(answer=ELSEWHERE)}, "rank 3 is in broadcast of group 1, rank 7 in allreduce of group 0", (3,)),
        ({3: Fact(answer=ELSEWHERE | {"waits": []})}, "rank 3 has made 3 calls of group 0, this is call 4", (3,)),
        ({3: Fact(answer=HERE), 5: Fact(is_connected=False)}, "nothing is known of rank 5", ()),
        ({3: Fact(answer=HERE), 5: Fact(answer=HERE)}, "all ranks are in this call", ()),
    ],
)
def test_the_culprit_is_named_and_no_connected_rank_is_lost(
    facts: dict[int, Fact], beginning: str, blamed: tuple[int, ...]
) -> None:
    cause = find_cause(MINE, 7, "group 0", facts)
    assert cause.text.startswith(beginning)
    assert cause.blamed_ranks == blamed
    for rank, fact in facts.items():  # A live process in the place of an ended one is not lost.
        live = find_cause(MINE, 7, "group 0", facts | {rank: replace(fact, end_reason=None, answer=HERE)})
        assert f"lost: rank {rank}" not in live.text


@contextmanager
def processes(count: int) -> Iterator[list[Presence]]:
    presences = [Presence(PresenceTuning(tick=0.02)) for _ in range(count)]
    try:
        yield presences
    finally:
        for own in presences:
            own.close()


def until(over: Callable[[], Any]) -> None:
    end = time.monotonic() + 20
    while not over():
        assert time.monotonic() < end
        time.sleep(0.005)


class Messages:
    """A wrapped back end: a wait ends only when a receive with a time-out closes it, as with Gloo."""

    def __init__(self) -> None:
        self.closed = False

    def send(self, *_: Any) -> None:
        if self.closed:
            raise RuntimeError("Connection closed by peer")

    def recv(self, *_: Any) -> Messages:
        return self

    def wait(self, limit: timedelta) -> None:
        if limit < timedelta(seconds=1):
            self.closed = True
            return
        until(lambda: self.closed)
        raise RuntimeError("Application timeout caused pair closure")


@contextmanager
def group() -> Iterator[tuple[list[Presence], list[FailureWatch]]]:
    """Start three ranks that have met."""
    with processes(len(RANKS)) as owns:
        store = dist.HashStore()
        watches = [
            FailureWatch(me, RANKS, Messages(), "0", SOON, lambda own=own: own)  # type: ignore[misc]
            for me, own in enumerate(owns)
        ]
        threads = [Thread(target=watch.meet, args=(store, timedelta(seconds=20), True)) for watch in watches]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        until(lambda: all(a.is_open(b.name) for a in owns for b in owns if a is not b))
        yield owns, watches


def fails(watch: FailureWatch, waiting: Waiting, error: str | None = None) -> str:
    """Return the message of a wait that does not end, or that ends with `error`."""

    def call() -> None:
        with watch.guard(waiting):
            if error is None:
                watch.messages.wait(timedelta(seconds=60))
            watch.messages.closed = True
            raise RuntimeError(error)

    with pytest.raises(RuntimeError) as caught:
        call()
    return str(caught.value)


def test_a_closed_connection_is_the_end_of_its_process_for_all_waiting_ranks() -> None:
    with group() as (owns, watches):
        calls = [watch.issue("allreduce") for watch in watches]
        owns[1].close()
        for me in (0, 2):
            assert fails(watches[me], calls[me]).endswith("; lost: rank 3 (its connection is closed)")
        with pytest.raises(RuntimeError, match="lost: rank 3"), watches[0].guard(watches[0].issue("next"), new=True):
            pass


def test_a_rank_that_waits_for_one_that_gave_up_gives_up_for_the_same_cause() -> None:
    with group() as (_, watches):
        waiting = Waiting("receive from rank 7", peers=[0])
        messages = []
        thread = Thread(target=lambda: messages.append(fails(watches[1], waiting)))
        thread.start()
        until(lambda: watches[1].calls.waits())
        text = fails(watches[0], watches[0].issue("allreduce"), "Timed out waiting 1 ms")
        assert "; rank 3 is in receive from rank 7 of group 0" in text
        thread.join()
        assert "the others gave up waiting for this rank: rank 3 is in receive" in messages[0]


def test_calls_that_differ_are_found_while_they_wait() -> None:
    with group() as (_, watches):
        calls = [watch.issue("broadcast" if me == 1 else "allreduce") for me, watch in enumerate(watches)]
        messages: list[str] = []
        threads = [
            Thread(target=lambda pair=pair: messages.append(fails(*pair)))  # type: ignore[misc]
            for pair in zip(watches, calls, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(messages) == 3
        assert all("rank 3 calls broadcast" in text and "calls allreduce" in text for text in messages)


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_blocks_that_do_not_fit_are_found_while_ranks_wait(late: float) -> None:
    """Check that all ranks name the pair, whether or not the last one makes the call before others report theirs."""
    sent, expected = [[1, 2, 3], [4, 5, 6], [7, 8, 9]], [[1, 4, 7], [2, 5, 8], [3, 5, 9]]
    with group() as (_, watches):
        messages: list[str] = []

        def call(place: int) -> None:
            if place == 1:
                time.sleep(late)
            messages.append(fails(watches[place], watches[place].issue("alltoall", (sent[place], expected[place]))))

        threads = [Thread(target=call, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        text = "rank 3 sends rank 5 6 elements; it must be 5, as many as that rank expects"
        assert [text in message for message in messages] == [True] * 3, messages


def test_blocks_that_fit_are_no_cause() -> None:
    with group() as (_, watches):
        keys = [Messages() for _ in range(2)]  # Any objects.
        for place, (sent, expected) in enumerate([([1, 2, 3], [1, 4, 7]), ([4, 5, 6], [2, 5, 8])]):
            watches[place].begin(keys[place], watches[place].issue("alltoall", (sent, expected)))
        until(lambda: all(wait.is_reported for watch in watches[:2] for wait in watch.calls.waits()))
        assert [watch.cause for watch in watches] == [None] * 3


def test_last_words_come_before_the_end_and_earlier_calls_are_not_to_blame() -> None:
    with group() as (owns, watches):
        for watch in watches:
            with watch.guard(watch.issue("first")):
                pass
        owns[1].say_end(error_end(ValueError("bad batch\nmore")))
        until(lambda: all(owns[me].ends for me in (0, 2)))
        second = watches[0].issue("second")
        assert fails(watches[0], second).endswith(
            "; rank 3 raised ValueError: bad batch: it has made 1 call of group 0 (ranks 7, 3, 5), this is call 2"
        )
        watches[2].look()
        assert not watches[2].messages.closed  # None of its waits is in vain.


def test_a_rank_that_left_after_its_part_is_not_to_blame() -> None:
    with group() as (_, watches):
        calls = [watch.issue("allreduce") for watch in watches]
        with watches[1].guard(calls[1]):
            pass
        watches[1].leave()
        until(lambda: watches[0].departures)
        watches[0].begin(calls[0], calls[0])
        watches[0].look()
        assert not watches[0].messages.closed
        another = watches[0].issue("another")
        watches[0].begin(another, another)
        until(lambda: watches[0].messages.closed)


def test_a_call_that_fails_by_itself_has_no_culprit() -> None:
    with group() as (_, watches):
        waiting = watches[0].issue("allreduce")
        with pytest.raises(RuntimeError, match=r"^Invalid scalar type$"), watches[0].guard(waiting):
            raise RuntimeError("Invalid scalar type")


def test_an_absent_rank_is_named() -> None:
    with processes(1) as (own,), pytest.raises(RuntimeError, match=r"^rank 3, 5 did not come within 0\.1 s$"):
        FailureWatch(0, RANKS, None, "0", SOON, lambda: own).meet(dist.HashStore(), timedelta(seconds=0.1), True)


def test_a_rank_that_did_not_come_is_among_the_last_words() -> None:
    with processes(2) as (own, other):
        own.connect(other.address)
        other.connect(own.address)
        until(lambda: own.is_open(other.name) and other.is_open(own.name))
        with pytest.raises(RuntimeError, match="rank 3, 5 did not come"):
            FailureWatch(0, RANKS, None, "0", SOON, lambda: own).meet(dist.HashStore(), timedelta(seconds=0.1), True)
        own.say_end("ended")
        until(lambda: other.ends)
        assert "rank 3, 5 did not come within 0.1 s" in other.ends[own.name].reason
        other.of_rank[7] = own.name  # Who waits for that rank reports the same.
        with pytest.raises(RuntimeError, match="rank 7 ended"):
            FailureWatch(1, RANKS, None, "0", SOON, lambda: other).meet(dist.HashStore(), timedelta(seconds=9), False)
        assert "rank 3, 5 did not come within 0.1 s" in other.failed_meeting


def test_a_rank_that_ended_before_a_group_was_made_is_named_at_once() -> None:
    with group() as (owns, watches):
        owns[2].close()
        until(lambda: owns[0].ends)
        later = FailureWatch(0, RANKS, None, "1", SOON, lambda: owns[0])
        with pytest.raises(RuntimeError, match="lost: rank 5"):
            later.meet(dist.HashStore(), timedelta(seconds=60), False)
        assert watches


def test_a_call_that_failed_is_among_the_last_words() -> None:
    """Check that a failed call is in the last words.

    A process that waits for this rank in another group learns of the rank that it waited for.
    """
    with group() as (owns, watches):
        assert "rank 3, 5 have made 0 calls" in fails(
            watches[0], watches[0].issue("allreduce"), "Timed out waiting 1 ms"
        )
        owns[0].say_end("ended")
        until(lambda: owns[2].ends)
        why = owns[2].ends[owns[0].name].reason
        assert why.startswith("ended (one of its calls had failed: rank 3, 5 have made 0 calls")
        facts = {7: Fact(end_reason=why), 5: Fact(end_reason="was interrupted")}
        assert find_cause(MINE, 3, "group 1", facts).blamed_ranks == (5,)


def test_ctrl_c_ends_the_wait_of_the_main_thread_and_the_others_learn_why() -> None:
    with group() as (owns, watches):
        timer = Timer(0.05, watches[0].interrupt)
        timer.start()
        assert fails(watches[0], watches[0].issue("allreduce")).endswith("rank 7 was interrupted")
        assert fails(watches[1], watches[1].issue("allreduce")).endswith("; rank 7 was interrupted")
        assert not owns[1].ends


def test_messages_do_not_grow_with_the_open_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    with group() as (owns, watches):
        sent = list[int]()
        monkeypatch.setattr(link, "json", Measured(sent))
        for watch in watches:
            watch.calls.begin_wait = partial(_begin_long_ago, watch.calls.begin_wait)  # type: ignore[method-assign]
        open_calls = [[watch.issue(f"allreduce {k}") for k in range(5000)] for watch in watches]
        for watch, calls in zip(watches, open_calls, strict=True):
            for waiting in calls:
                watch.begin(waiting, waiting)
        waits = [f"allreduce 0 of {watch.group}" for watch in watches]
        assert [watch.state({"group": watch.id, "number": 1})["waits"] for watch in watches] == [[w] for w in waits]
        for watch in watches:
            ((of, number, text, _),) = watch.held()[2] or ()
            assert (of, number, text) == (watch.id, 1, waits[0])
        until(lambda: all(len(watch._heard) == 2 for watch in watches))  # Each has heard of the other's first wait.
        watches[1].end(open_calls[1][0])  # The next call is the first one now, and is sent.
        until(lambda: watches[2]._heard[1] == 2)
        for watch in watches:  # Answers take long on a loaded machine.
            watch.tuning = replace(SOON, answers=10)
        assert "all ranks are in this call" in fails(watches[0], open_calls[0][-1], "Timed out waiting 1 ms")
        assert sent
        assert max(sent) < 2000
        assert not any(own.ends for own in owns)


class Measured:
    """A replacement of the module json that notes the lengths of its texts."""

    def __init__(self, sent: list[int]) -> None:
        self.sent, self.loads = sent, json.loads

    def dumps(self, value: Any) -> str:
        text = json.dumps(value)
        self.sent.append(len(text))
        return text


def _begin_long_ago(begin: Callable[[Any, Any], None], key: Any, wait: Any) -> None:
    begin(key, replace(wait, since=wait.since - 60))


def test_a_process_that_ended_before_it_could_connect_is_named() -> None:
    with processes(2) as owns:
        smaller, greater = sorted(owns, key=lambda own: own.name)
        address = greater.address
        greater.close()
        smaller.connect(address)
        until(lambda: greater.name in smaller.ends)
        assert smaller.ends[greater.name].is_closed


def test_strangers_are_not_heard() -> None:
    with processes(2) as (first, second):
        to = Address.parse(first.address)
        for line in (b"{}\n", b'{"secret": "x", "name": "y"}\n', b"[" * 60_000 + b"\n", b"\xff" * (1 << 17)):
            with socket.create_connection((to.ip, to.port)) as stranger:
                stranger.sendall(line)
                stranger.settimeout(20)
                with suppress(ConnectionResetError):
                    assert stranger.recv(1) == b""
        smaller, greater = sorted((first, second), key=lambda own: own.name)
        greater.connect(smaller.address)
        until(lambda: smaller.is_open(greater.name))
        assert not first.ends


def test_gloos_messages_become_one_clear_line() -> None:
    long = "[/a/b/pair.cc:553] Connection closed by peer [127.0.0.1]:5. This is typically caused by a crash.\nAt: x"
    assert error_text(RuntimeError(long)) == "Connection closed by peer [127.0.0.1]:5"
    assert error_text(RuntimeError()) == "RuntimeError"
