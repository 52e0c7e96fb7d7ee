"""A new answer beside what a library has for its question."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synth.app.clusters.merging import _beside
from synth.app.clusters.task import Answer

NAME = "schedules/a.synth"


@pytest.mark.parametrize(("stored", "is_renamed"), [(b"old", True), (b"new", False)])
def test_rows_state_the_schedule_of_the_answer_and_not_another_one_of_its_name(
    tmp_path: Path, stored: bytes, is_renamed: bool
) -> None:
    """Check rows with and without a file, whose figures are those of the answer's schedule."""
    (tmp_path / NAME).parent.mkdir()
    (tmp_path / NAME).write_bytes(stored)
    entry: Any = SimpleNamespace(files={"file": "a.json", "schedule": NAME}, inside=lambda name: tmp_path / name)
    filed, late = {"file": "b.json", "schedule": NAME}, {"target": "mscclpp", "refused": "late", "schedule": NAME}
    answer = Answer("key", {}, "a", [filed], [late], 1.0, False, {NAME: b"new"})
    (row,), (unfiled,), files = _beside(answer, [entry])
    assert row["schedule"] == unfiled["schedule"]
    assert (row["schedule"] != NAME) == is_renamed
    assert files == {row["schedule"]: b"new"}
    assert (filed["schedule"], late["schedule"]) == (NAME, NAME)
