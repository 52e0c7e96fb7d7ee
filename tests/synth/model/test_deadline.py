"""Work is ended when its time is over, wherever it is; time that is set aside does not count."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from synth.model import deadline
from synth.model.deadline import TimeUp, limited, now, uncounted, whole


def endless() -> None:
    while True:
        sum(range(100))


def test_work_that_does_not_look_at_the_clock_is_ended() -> None:
    begun = now()
    with pytest.raises(TimeUp):
        limited(begun + 0.05, endless)
    assert now() >= begun + 0.05


def test_work_that_ends_in_time_returns_and_nothing_is_raised_later() -> None:
    assert limited(now() + 0.05, lambda: 3) == 3
    end = now() + 0.2
    while now() < end:
        sum(range(100))


def test_of_nested_limits_only_the_sooner_one_is_raised() -> None:
    def inner() -> str:
        with pytest.raises(TimeUp):
            limited(now() + 0.02, endless)
        return "went on"

    for _ in range(3):
        assert limited(now() + 5, inner) == "went on"


def test_the_outer_limit_ends_the_inner_work() -> None:
    for _ in range(3):
        late = now() + 60
        with pytest.raises(TimeUp):
            limited(now() + 0.02, partial(limited, late, endless))
        assert now() < late


def test_a_limit_that_moves_is_read_again() -> None:
    until = [now() + 60]
    threading.Timer(0.05, lambda: until.__setitem__(0, 0.0)).start()
    with pytest.raises(TimeUp):
        limited(lambda: until[0], endless)


def test_an_error_that_is_swallowed_is_raised_again() -> None:
    def swallow() -> None:
        for _ in range(2):
            try:
                endless()
            except TimeUp:
                continue
        endless()

    with pytest.raises(TimeUp):
        limited(now() + 0.02, swallow)


def test_a_thread_that_is_being_started_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the limit does not break the start of a thread.

    Until a thread runs, it has the number of the thread that starts it, so an error for it would be raised in the other
    one.
    """
    begin, started = threading._start_new_thread, []  # type: ignore[attr-defined]

    def slowly(*arguments: object) -> object:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            sum(range(100))
        return begin(*arguments)

    def work() -> None:
        thread = threading.Thread(target=time.sleep, args=(0,))
        with monkeypatch.context() as patched:
            patched.setattr(threading, "_start_new_thread", slowly)
            thread.start()
        started.append(thread)
        endless()

    with pytest.raises(TimeUp):
        limited(now() + 0.05, work)
    assert len(started) == 1


@pytest.mark.parametrize("is_whole", [True, False])
def test_uninterruptible_work_is_ended_at_its_end(is_whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "_whole", set())
    events = []

    def work() -> None:
        until = time.monotonic() + 0.6
        while time.monotonic() < until:
            pass
        events.append("work")

    def work_and_go_on() -> None:
        (whole(work) if is_whole else work)()
        endless()

    with pytest.raises(TimeUp):
        limited(now() + 0.05, work_and_go_on)
    assert events == (["work"] if is_whole else [])


def test_a_finalizer_is_not_interrupted() -> None:
    """Check that no limit is raised within a finalizer, where Python would print the error and go on."""
    events = []

    class Held:
        def __del__(self) -> None:
            until = time.monotonic() + 0.6
            while time.monotonic() < until:
                pass
            events.append("end")

    def let_go_and_go_on() -> None:
        instance = Held()
        del instance
        endless()

    with pytest.raises(TimeUp):
        limited(now() + 0.05, let_go_and_go_on)
    assert events == ["end"]


def test_time_apart_does_not_count() -> None:
    begun, before = time.monotonic(), now()
    uncounted(lambda: time.sleep(0.2))
    counted, elapsed = now() - before, time.monotonic() - begun
    assert elapsed - counted >= 0.2
    before = now()
    uncounted(lambda: time.sleep(0.2), counts=lambda: True)
    assert now() - before >= 0.2


def test_the_clock_goes_on_after_time_apart_that_ends_with_an_error() -> None:
    with pytest.raises(ZeroDivisionError):
        uncounted(lambda: 1 // 0)
    before = now()
    time.sleep(0.02)
    assert now() > before
