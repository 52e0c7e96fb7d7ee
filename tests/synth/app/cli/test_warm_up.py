"""The command `warm-up`, with a small question in place of those that take a minute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from synth import synthesize
from synth.app.cli import warm_up
from synth.engines.skewed.loop import plan_into
from synth.engines.skewed.routes.routing import plan_routed
from synth.model import loop_cache
from synth.model.compiled import Runner
from tests.synth.app.cli.calling import Call

SMALL = {"collective": "allgather", "topo": "ring:4", "size": "1M", "engine": "route"}


def test_it_says_where_loops_are_and_leaves_no_files(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "_QUESTIONS", (SMALL,))
    answer = synth("warm-up")
    assert (answer.code, answer.err) == (0, "")
    assert f"loops for large problems are compiled, in {loop_cache.loops_folder()}" in answer.flat
    assert not list(Path().iterdir())


def test_a_question_that_runs_out_of_time_is_no_failure(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    too_large = {**SMALL, "topo": "mesh:40x40", "chunks": 7, "engine": "auto"}
    monkeypatch.setattr(warm_up, "_QUESTIONS", (too_large, SMALL))
    monkeypatch.setattr(warm_up, "_BUDGET_S", 0.01)
    answer = synth("warm-up")
    assert answer.code == 0
    assert "ran out of time; run this again" in answer.out


def test_it_does_not_claim_loops_that_another_process_kept_it_from_storing(
    synth: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_up, "_QUESTIONS", (SMALL,))
    monkeypatch.setattr(loop_cache, "_remaining_s", 0)
    answer = synth("warm-up")
    assert answer.code == 0
    assert "loops for large problems are compiled" not in answer.out
    assert "not stored" in answer.out
    assert "run this again" in answer.out


def test_a_folder_that_cannot_be_written_is_refused(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_up, "loops_folder", lambda: None)
    assert "set NUMBA_CACHE_DIR" in synth("warm-up").refusal


def test_plans_of_uneven_exchanges_on_straight_and_routed_paths_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that both planners of the engine `skewed` run, of which a question runs one."""
    run = Runner.__call__
    loops: set[object] = set()

    def run_and_note(runner: Runner, loop: Callable[..., Any], *arguments: Any) -> Any:
        loops.add(loop)
        return run(runner, loop, *arguments)

    monkeypatch.setattr(Runner, "__call__", run_and_note)
    for question in warm_up._QUESTIONS:
        if question["engine"] == "skewed":
            synthesize(**{"budget": 5, **question})
    assert loops >= {plan_into, plan_routed}
