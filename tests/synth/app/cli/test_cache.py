"""The same question is answered from the cache with the same files the second time; another question is searched."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emit.library.programs import Programs
from synth.app.cli.asking import answer
from synth.app.synthesis import find_answer
from synth.model.deadline import TimeUp
from synth.search.result import SearchResult
from synth.storage.cache import Cache
from tests.synth.app.cli.calling import Call, caller

ASKED = ("allgather", "--topo", "ring:4", "--engine", "route", "--size", "64K", "--budget", "5s")


@pytest.fixture
def synth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNTH_CACHE", str(tmp_path / "cache"))
    return caller(monkeypatch, capsys)


def contents(folder: str) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def test_the_second_time_is_from_the_cache_with_the_same_files(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    first = json.loads(synth(*ASKED, "--out", "one", "--json").out)
    monkeypatch.setattr("synth.app.cli.asking.answer.find_answer", None)  # A search would fail.
    again = synth(*ASKED, "--out", "two")
    assert "from the cache" in again.out
    assert contents("one") == contents("two")
    cached = json.loads(synth(*ASKED, "--out", "two", "--json").out)
    assert (first.pop("cached"), cached.pop("cached")) == (False, True)
    assert json.loads(json.dumps(first).replace("one/", "two/")) == cached
    assert "1 answer," in synth("cache", "info").out
    assert json.loads(synth("cache", "clear", "--json").out)["removed"] == 1


def test_another_question_or_a_changed_answer_is_searched(synth: Call) -> None:
    synth(*ASKED, "--out", "one")
    for option in (("--proof",), ("--cache", "none")):
        assert "from the cache" not in synth(*ASKED, *option, "--out", f"at{option[0]}").out
    for path in (p for p in Path("cache").rglob("*") if p.is_file()):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert "from the cache" not in synth(*ASKED, "--out", "three").out
    assert Path("three/index.json").exists()


def test_an_answer_that_is_searched_sooner_than_checked_is_not_kept(
    synth: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("synth.app.cli.asking.cached_answers.CHECKED_PER_S", 1)
    monkeypatch.setattr("synth.app.cli.asking.cached_answers._SOON_CHECKED", 10)
    synth(*ASKED, "--out", "one")
    assert "from the cache" not in synth(*ASKED, "--out", "two").out


def test_an_answer_without_a_file_for_want_of_time_is_not_kept(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_late(*_: object) -> None:
        raise TimeUp

    with monkeypatch.context() as patch:
        patch.setattr(Programs, "lower", too_late)
        assert "the budget ended before it was ready" in synth(*ASKED, "--out", "one").out
    again = synth(*ASKED, "--out", "one").out
    assert "from the cache" not in again
    assert "one/msccl/" in again
    assert "from the cache" in synth(*ASKED, "--out", "one").out


def test_an_answer_that_the_budget_ended_in_a_first_run_is_not_kept(
    synth: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that it is searched again, and that a later answer of the cache says how to search longer."""

    def cut_short(*arguments: Any) -> SearchResult:
        return replace(find_answer(*arguments), stop_reason="budget")

    monkeypatch.setattr(answer, "find_answer", cut_short)
    for is_first_run in (True, False):
        monkeypatch.setattr(answer, "is_first_run", lambda is_first=is_first_run: is_first)
        out = synth(*ASKED, "--out", f"first-{is_first_run}").flat
        assert "from the cache" not in out
        assert "the budget ended: the best so far" in out
        assert "every engine has ended" not in out.replace("(every engine has ended)", "")
    out = synth(*ASKED, "--out", "one").flat
    assert "from the cache" in out
    assert "ended with its budget: --budget 10s searches longer" in out
    assert "from the cache" not in synth(*ASKED[:-1], "10s", "--out", "one").flat


def test_a_library_that_has_other_files_is_searched_for(synth: Call) -> None:
    synth(*ASKED, "--out", "one")
    synth("allgather", "--topo", "ring:4", "--engine", "route", "--size", "1M", "--budget", "5s", "--out", "two")
    assert "from the cache" not in synth(*ASKED, "--out", "two").out


def test_only_answers_are_cleared(synth: Call, tmp_path: Path) -> None:
    """Check that other files stay, that a folder without answers is no cache, and that an emptied cache is one."""
    photos = tmp_path / "photos"
    (photos / "ab").mkdir(parents=True)
    (photos / "ab" / "beach.jpg").write_bytes(b"x")
    for command in ("info", "clear"):
        assert synth("cache", command, "--cache", photos).code == 0  # Its only folder is named as those of a cache are.
    assert (photos / "ab" / "beach.jpg").is_file()
    (photos / "beach.jpg").write_bytes(b"x")
    assert "no answers of synth" in synth("cache", "clear", "--cache", photos).refusal
    key = "ab" * 20
    Cache(photos).put(key, b"answer")
    assert "1 answer removed" in synth("cache", "clear", "--cache", photos).out
    (photos / "beach.jpg").unlink()
    assert synth("cache", "info", "--cache", photos).code == 0


def test_a_longer_budget_searches_again_what_a_shorter_one_ended(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check budgets of one class: with no more time, the answer of the cache stays."""
    monkeypatch.setattr(answer, "is_first_run", lambda: False)
    with monkeypatch.context() as patch:
        patch.setattr(answer, "find_answer", lambda *given: replace(find_answer(*given), stop_reason="budget"))
        synth(*ASKED, "--out", "one")
    assert "from the cache" in synth(*ASKED[:-1], "4500ms", "--out", "two").out
    assert "from the cache" not in synth(*ASKED[:-1], "6s", "--out", "one").out


def test_the_check_of_a_library_says_how_more_is_proved(synth: Call) -> None:
    advice = "asking again with --proof proves them"
    for options, is_advised in (((), True), (("--proof",), False)):
        synth(*ASKED, "--out", "one", *options)
        assert (advice in synth("library", "check", "one").flat) == is_advised
