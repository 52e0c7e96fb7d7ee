"""Tests that calls of the other form (in or out of place) get the best of all results, too."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from emit.library.index import load_index
from emit.library.lowered import Lowered
from emit.library.programs import Programs
from emit.library.run_by import run_by
from emit.library.saving.save import save
from emit.msccl.read import read_msccl
from emit.timing.predict import Predictor
from synth import synthesize
from synth.search.settings import TargetSettings
from topologies.errors import InputError

NEARLY = 1.02  # The frontier leaves out candidates that gain less.


@pytest.mark.parametrize(("collective", "ranks"), [("reducescatter", 3), ("allgather", 4), ("broadcast", 3)])
def test_no_other_algorithm_serves_the_other_form_faster(tmp_path: Path, collective: str, ranks: int) -> None:
    answer = synthesize(collective, f"ring:{ranks}", target="executor-nccl", budget=0.4)
    result = answer.result
    saved = save(result, tmp_path, TargetSettings("executor-nccl"))
    assert saved.other_form is not None
    assert saved.index is not None
    usual = Programs(result.problem, TargetSettings("executor-nccl"))
    other_form = usual.other_form()
    assert other_form is not None
    assert other_form.inplace != usual.inplace
    entries = [entry for entry in load_index(tmp_path) if entry.inplace == other_form.inplace]
    assert len(entries) == len(saved.other_form.result.ranges)
    assert entries[0].min_bytes == 0
    assert entries[-1].max_bytes is None
    all_lowered = []
    for algorithm in {offer.algorithm for offer in (*result.ranges, *result.unused)}:
        with suppress(InputError):
            all_lowered.append(other_form.lower(algorithm))
    assert all_lowered
    for entry in entries:
        size = entry.row["shown_bytes"]
        time_us = Predictor(read_msccl(entry.path), result.problem.topology, entry.communicator).time_us(size)
        assert entry.row["time_us"] == pytest.approx(time_us)
        assert all(not lowered.serves(size) or time_us <= NEARLY * lowered.time_us(size) for lowered in all_lowered)


def test_a_single_form_has_no_other_form(tmp_path: Path) -> None:
    result = synthesize("alltoall", "ring:3", target="executor-nccl").result
    assert save(result, tmp_path, TargetSettings("executor-nccl")).other_form is None


def test_ctrl_c_ends_lowering_and_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that after Ctrl-C nothing more is lowered, and that existing files of the other form stay."""
    result = synthesize("allgather", "ring:3", target="executor-nccl", engine="route").result
    save(result, tmp_path, TargetSettings("executor-nccl"))
    before = load_index(tmp_path)
    monkeypatch.setattr("emit.library.run_by._AT_ONCE", 0)
    saved = save(replace(result, stop_reason="interrupted"), tmp_path, TargetSettings("executor-nccl"))
    assert not any("no file" in remark for remark in saved.remarks)  # The library's own file serves these calls.
    assert load_index(tmp_path) == before
    saved_alone = save(replace(result, stop_reason="interrupted"), tmp_path / "alone", TargetSettings("executor-nccl"))
    assert saved_alone.index is not None
    assert any("interrupted before it was lowered" in remark for remark in saved_alone.remarks)
    assert {entry.inplace for entry in load_index(tmp_path / "alone")} == {before[0].inplace}


def test_the_other_form_runs_as_many_instances_without_trying_others(monkeypatch: pytest.MonkeyPatch) -> None:
    result = synthesize("allgather", "dgx-a100", group=[0, 2, 4], size="64M", engine="route", budget=5).result
    programs = Programs(result.problem, size=1 << 26)
    result = run_by(result, programs)
    usual = result.ranges[0].execution
    assert isinstance(usual, Lowered)
    assert usual.repetition.instances > 1
    other_form = programs.other_form()
    assert other_form is not None
    freely = other_form.lower(result.ranges[0].algorithm)
    monkeypatch.setattr("emit.library.program_maker.rank_instances", None)
    lowered = run_by(result, other_form).ranges[0].execution
    assert isinstance(lowered, Lowered)
    assert lowered.program.inplace == other_form.inplace != usual.program.inplace
    assert lowered.repetition == usual.repetition
    assert lowered.time_us(1 << 26) <= NEARLY * freely.time_us(1 << 26)
