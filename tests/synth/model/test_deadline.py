"""Work ends at its first look at the clock after its time; time that is set aside does not count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace

import pytest

from synth.model import deadline
from synth.model.compiled import Runner
from synth.model.deadline import TimeUp, check_deadline, checking_deadline, limited, now, remaining_s, uncounted


class Ticking:
    """A clock on which each reading takes a second."""

    seconds = 0.0

    def monotonic(self) -> float:
        self.seconds += 1.0
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Ticking:
    ticking = Ticking()
    monkeypatch.setattr(deadline, "time", ticking)
    return ticking


def endless() -> None:
    while True:
        check_deadline()


def test_work_that_looks_at_the_clock_is_ended(clock: Ticking) -> None:
    with pytest.raises(TimeUp):
        limited(now() + 50, endless)
    assert 50 <= clock.seconds <= 60


@pytest.mark.usefixtures("clock")
def test_work_whose_time_is_over_does_not_begin() -> None:
    works = []
    with pytest.raises(TimeUp):
        limited(now() - 1, lambda: works.append("work"))
    assert works == []


def test_work_that_ends_in_time_returns_and_nothing_is_raised_later(clock: Ticking) -> None:
    assert limited(now() + 50, lambda: 3) == 3
    clock.seconds += 100
    check_deadline()
    assert remaining_s() == float("inf")


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, TimeUp])
def test_no_deadline_is_in_force_after_an_error(clock: Ticking, error: type[BaseException]) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(error):
        limited(now() + 50, fail)
    clock.seconds += 100
    check_deadline()


def test_of_nested_limits_only_the_sooner_one_is_raised(clock: Ticking) -> None:
    def inner() -> str:
        with pytest.raises(TimeUp):
            limited(now() + 20, endless)
        check_deadline()
        return "went on"

    assert limited(now() + 5000, inner) == "went on"
    assert clock.seconds < 100


def test_the_outer_limit_ends_the_inner_work(clock: Ticking) -> None:
    with pytest.raises(TimeUp):
        limited(now() + 20, partial(limited, now() + 5000, endless))
    assert clock.seconds < 100


def test_a_limit_that_moves_is_read_again(clock: Ticking) -> None:
    until = [now() + 5000]

    def work() -> None:
        assert remaining_s() > 1000
        until[0] = now() + 50
        endless()

    with pytest.raises(TimeUp):
        limited(lambda: until[0], work)
    assert clock.seconds < 200


@pytest.mark.usefixtures("clock")
def test_a_work_without_a_limit_may_get_one() -> None:
    until = [float("inf")]

    def work() -> None:
        check_deadline()
        until[0] = now() + 50
        endless()

    with pytest.raises(TimeUp):
        limited(lambda: until[0], work)


@pytest.mark.usefixtures("clock")
def test_an_error_that_is_swallowed_is_raised_again() -> None:
    works = []

    def swallow() -> None:
        for _ in range(2):
            with pytest.raises(TimeUp):
                endless()
            works.append("swallowed")
        endless()

    with pytest.raises(TimeUp):
        limited(now() + 20, swallow)
    assert len(works) == 2


@pytest.mark.usefixtures("clock")
def test_no_handler_of_errors_swallows_the_end() -> None:
    def swallow() -> None:
        try:
            endless()
        except Exception:
            raise AssertionError from None

    with pytest.raises(TimeUp):
        limited(now() + 20, swallow)


@pytest.mark.usefixtures("clock")
def test_clean_up_runs_when_the_time_is_over() -> None:
    """Check that work may use `with` and `finally`, also in a generator."""
    events = []

    def answers() -> Iterator[int]:
        try:
            while True:
                check_deadline()
                yield 1
        finally:
            events.append("closed")

    with pytest.raises(TimeUp):
        limited(now() + 20, partial(sum, answers()))
    assert events == ["closed"]


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("every", [1, 7])
def test_items_are_yielded_until_the_time_is_over(every: int) -> None:
    items = []

    def work() -> None:
        for item in checking_deadline(iter(int, 1), every):  # The items have no end.
            items.append(item)

    with pytest.raises(TimeUp):
        limited(now() + 40, work)
    assert items
    assert len(items) % every == 0
    assert list(checking_deadline("abc", every)) == ["a", "b", "c"]


@pytest.mark.usefixtures("clock")
def test_a_loop_that_runs_again_and_again_is_ended() -> None:
    def work() -> None:
        while True:
            Runner(interpreted=True)(abs, -1)

    with pytest.raises(TimeUp):
        limited(now() + 20, work)


def test_few_looks_read_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a look is cheap: the deadline itself, which may take long to compute, is seldom read."""
    clock_s, reads = [0.0], []
    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=lambda: clock_s[0]))
    end = now() + 1.0

    def until() -> float:
        reads.append(clock_s[0])
        return end

    def work() -> None:
        while True:
            clock_s[0] += 1e-5
            check_deadline()

    with pytest.raises(TimeUp):
        limited(until, work)
    assert clock_s[0] == pytest.approx(1.0, abs=1e-3)
    assert 50 < len(reads) < 200


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
