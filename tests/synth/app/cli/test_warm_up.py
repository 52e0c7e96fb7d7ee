"""The command `warm-up`, with a small question in place of those that take a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.app.cli import warm_up
from synth.model import loop_cache
from tests.synth.app.cli.calling import Call

SMALL = {"collective": "allgather", "topo": "ring:4", "size": "1M", "engine": "route"}


def test_it_says_where_loops_are_and_leaves_no_files(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_QUESTIONS", (SMALL,))
    answer = synth("warm-up")
    assert (answer.code, answer.err) == (0, "")
    assert f"loops for large problems are compiled, in {loop_cache.loops_folder()}" in answer.out
    assert not list(Path().iterdir())


def test_a_question_that_runs_out_of_time_is_no_failure(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    too_large = {**SMALL, "topo": "mesh:40x40", "chunks": 7, "engine": "auto"}
    monkeypatch.setattr(warm_up, "_QUESTIONS", (too_large, SMALL))
    monkeypatch.setattr(warm_up, "_BUDGET_S", 0.01)
    answer = synth("warm-up")
    assert answer.code == 0
    assert "ran out of time; run this again" in answer.out


def test_a_folder_that_cannot_be_written_is_refused(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "loops_folder", lambda: None)
    assert "set NUMBA_CACHE_DIR" in synth("warm-up").refusal
