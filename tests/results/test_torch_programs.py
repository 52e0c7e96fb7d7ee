"""The script that runs random programs on several back ends of torch.distributed."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from results.scripts import torch_programs


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_programs_end_with_right_results_on_all_back_ends() -> None:
    answers = torch_programs.run_job(3, 8, 1)
    assert answers is not None
    assert all(answer["wrong"] == [] for answer in answers)
    assert {name for answer in answers for name in answer["served"]} >= {"gloo", "second", "third"}


def test_jobs_that_fail_or_are_wrong_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([None, [{"wrong": ["all_reduce"], "served": {"gloo": 2}}] * 2])
    monkeypatch.setattr(torch_programs, "run_job", lambda *_: next(answers))
    row = torch_programs.row_of(2, torch_programs.PROGRAMS_OF_JOB + 1)
    assert row[:6] == [2, torch_programs.PROGRAMS_OF_JOB + 1, 2, "gloo 4", 2, 1]
