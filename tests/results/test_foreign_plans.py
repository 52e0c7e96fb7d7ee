"""Tests of the script that judges plans of other makers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from results.scripts import foreign_plans
from tests.emit.mscclpp.test_foreign_plans import late_first_store, packets


def test_every_label_is_a_verdict_with_its_reason() -> None:
    labels = foreign_plans.labels()
    assert len(labels) == 80
    for label in labels.values():
        assert label["verdict"] in ("right", "wrong", "not judged", "not readable")
        assert label["why"] or label["verdict"] == "right"


def test_verdicts_labels_and_runs_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the table of a right plan, of a wrong one with the wrong label, and of one that cannot be read."""
    (tmp_path / "good.json").write_text(json.dumps(packets()))
    (tmp_path / "late.json").write_text(json.dumps(late_first_store()))
    (tmp_path / "torn.json").write_text('{"gpus": [')
    labels = {name: {"verdict": "right", "why": ""} for name in ("good", "late")}
    written: list[str] = []
    monkeypatch.setattr(foreign_plans, "labels", lambda: labels)
    monkeypatch.setattr(foreign_plans, "write", lambda _, text: written.append(text))
    foreign_plans.main([str(tmp_path)])
    (text,) = written
    assert "3 plans: 1 right, 1 wrong, 1 not readable. 1 verdicts are those of the labels." in text
    assert "| good | right | right | 12 of 12 |" in text
    assert "0 plans that are judged right ended wrong" in text


def test_a_right_verdict_on_a_plan_that_ends_wrong_is_counted() -> None:
    row = foreign_plans.Row("x", "right", "", "right", "", 12, 11, 0.1)
    assert row.contradicts
