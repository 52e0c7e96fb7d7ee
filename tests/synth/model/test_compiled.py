"""The choice between the interpreter and compiled loops."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from synth.model import compiled
from synth.model.compiled import Runner, _CallInThread, _compiled, choose_runner, compiling_all, is_little
from synth.model.deadline import now


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin and end as a process that has interpreted nothing and does not know what is on disk."""
    monkeypatch.setattr(compiled, "_interpreted_s", 0.0)
    monkeypatch.setattr(compiled, "_has_compiled", False)
    monkeypatch.setattr(compiled, "is_loaded", lambda: False)
    compiled.are_some_on_disk.cache_clear()
    yield
    compiled.are_some_on_disk.cache_clear()


def test_a_fresh_home_interprets_for_longer_before_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "loops_folder", lambda: tmp_path)
    assert [choose_runner(2.0).interpreted for _ in range(4)] == [True, True, True, False]
    assert is_little(500, 100)


def test_where_loops_are_on_disk_they_are_loaded_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "loop").mkdir()
    monkeypatch.setattr(compiled, "loops_folder", lambda: tmp_path)
    assert [choose_runner(0.4).interpreted for _ in range(2)] == [True, False]
    assert not is_little(500, 100)
    assert is_little(99, 100)


def test_after_a_loop_that_was_missing_others_are_not_compiled_for_little_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a home where a small search left a few loops does not compile all others in the next one."""
    (tmp_path / "loop").mkdir()
    monkeypatch.setattr(compiled, "loops_folder", lambda: tmp_path)
    monkeypatch.setattr(compiled, "is_loaded", lambda: True)
    compilations = [0]

    def call(number: int) -> None:
        compilations[0] += number

    loop = _CallInThread(call, lambda: compilations[0])
    monkeypatch.setattr(compiled, "_report_once", lambda: None)
    loop(0)
    assert not choose_runner(0.1).interpreted
    loop(1)
    assert choose_runner(0.1).interpreted
    assert is_little(500, 100)


def test_a_call_in_another_thread_does_not_stop_the_clock_of_the_main_one() -> None:
    """Check that loops which bounds load or compile beside the search take nothing from its budget unseen."""
    calls, may_end = threading.Event(), threading.Event()

    def call() -> None:
        calls.set()
        assert may_end.wait(60)

    thread = threading.Thread(target=_CallInThread(call, lambda: 0), daemon=True)
    thread.start()
    assert calls.wait(60)
    before = now()
    time.sleep(0.01)
    passed_s = now() - before
    may_end.set()
    thread.join()
    assert passed_s > 0


def test_the_notice_of_compiling_comes_only_after_it_took_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that short compilations are silent until they add up, and that calls which compile nothing do not count."""
    compilations, notices, clock = [0], list[float](), [0.0]

    def call(seconds: float, number: int) -> None:
        compilations[0] += number
        clock[0] += seconds
        time.sleep(2 * compiled._LOOK_S)

    monkeypatch.setattr(compiled, "monotonic", lambda: clock[0])
    monkeypatch.setattr(compiled, "_report_once", lambda: notices.append(clock[0]))
    monkeypatch.setattr(compiled, "_compiled_s", 0.0)
    monkeypatch.setattr(compiled, "_LOOK_S", 0.01)
    loop = _CallInThread(call, lambda: compilations[0])
    for seconds, number in ((10.0, 0), (1.5, 1), (10.0, 0)):
        loop(seconds, number)
    assert not notices
    loop(1.0, 1)
    assert notices


def test_a_warm_up_compiles_loops_of_little_work_in_a_fresh_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiled, "loops_folder", lambda: tmp_path)
    with compiling_all():
        assert not choose_runner(0.001).interpreted
        assert not is_little(1, 100)
    assert choose_runner(0.001).interpreted
    assert is_little(1, 100)


def test_a_home_where_nothing_can_be_kept_is_like_a_fresh_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "loops_folder", lambda: None)
    assert choose_runner(1.0).interpreted


@pytest.mark.parametrize(("folder", "kept"), [(Path("/home/loops"), "kept for later runs;"), (None, "not kept:")])
def test_compiling_is_logged_and_not_printed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    folder: Path | None,
    kept: str,
) -> None:
    monkeypatch.setattr(compiled, "loops_folder", lambda: folder)
    monkeypatch.setattr(compiled, "log", logging.getLogger("synth.fresh"))  # As where no command ran before.
    compiled._report_once.__wrapped__()
    assert not caplog.records
    with caplog.at_level(logging.INFO, "synth"):
        compiled._report_once.__wrapped__()
    assert kept in caplog.text
    assert capfd.readouterr() == ("", "")


def _scaled(number: int, factor: int, is_negative: bool) -> int:
    return -number * factor if is_negative else number * factor


def _combined(number: int) -> int:
    total = 0
    for _ in range(2):
        total = _scaled(total + number, 2, False)
    return total + _scaled(number, 3, True)


def test_a_loop_is_compiled_once_whatever_constants_its_callers_write_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "folder_of", lambda *_: None)
    assert Runner(interpreted=False)(_combined, 5) == _combined(5) == 15
    assert len(_compiled(_scaled, is_called=True).signatures) == 1
