"""Test of the time that a command keeps for checking the files that a library has for its question."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from emit.library.library_file import CHECKED_PER_S
from synth.app.arguments import QuestionArguments
from synth.app.cli.asking.answer import _with_time_for
from synth.app.question import make_question


@pytest.mark.parametrize(
    ("budget_s", "seconds_of_files", "left_s"), [(30.0, 6, 24.0), (4.0, 6, 2.0), (1.0, 6, 1.0), (30.0, 0, 30.0)]
)
def test_the_budget_leaves_time_for_existing_files(
    tmp_path: Path, budget_s: float, seconds_of_files: int, left_s: float
) -> None:
    path = tmp_path / "a.xml"
    path.write_bytes(bytes(seconds_of_files * CHECKED_PER_S))
    entries: list[Any] = [SimpleNamespace(path=path), SimpleNamespace(path=path), SimpleNamespace(path=tmp_path / "no")]
    question = make_question(QuestionArguments("allreduce", topo="ring:4", budget=budget_s))
    options = _with_time_for(entries, question).options
    assert options.budget_s == pytest.approx(left_s)
    assert (options.stated_s or budget_s) == budget_s
