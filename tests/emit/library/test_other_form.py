"""Calls of the other form, in or out of place, have the best of all that was found, not what serves the usual form."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from emit.library.index import load_index
from emit.library.programs import Programs
from emit.library.saving.save import save
from emit.msccl.read import read_msccl
from emit.timing.predict import Predictor
from synth import synthesize
from topologies.errors import InputError

NEARLY = 1.02  # the frontier leaves out what gains less


@pytest.mark.parametrize(("collective", "ranks"), [("reducescatter", 3), ("allgather", 4), ("broadcast", 3)])
def test_no_other_algorithm_serves_them_faster(tmp_path: Path, collective: str, ranks: int) -> None:
    answer = synthesize(collective, f"ring:{ranks}", target="executor-nccl", budget=1)
    found = answer.found
    saved = save(found, tmp_path, "executor-nccl")
    assert saved.other_form is not None
    assert saved.index is not None
    usual = Programs(found.problem, "executor-nccl")
    other = usual.other_form()
    assert other is not None
    assert other.inplace != usual.inplace
    shown = [(served.shown, served.time_us(served.shown)) for served in saved.found.ranges]
    longer = [size for size, us in shown if saved.other_form.found.fastest(size).time_us(size) > 1.005 * us]
    assert len(longer) == sum(" in place of " in remark for remark in saved.remarks)
    mine = [entry for entry in load_index(tmp_path) if entry.inplace == other.inplace]
    assert len(mine) == len(saved.other_form.found.ranges)
    assert mine[0].min_bytes == 0
    assert mine[-1].max_bytes is None
    for entry in mine:
        size = entry.values["shown_bytes"]
        time_us = Predictor(read_msccl(entry.path), found.problem.topology, entry.communicator).time_us(size)
        assert entry.values["time_us"] == pytest.approx(time_us)
        for algorithm in {served.algorithm for served in found.ranges} | {one.algorithm for one in found.others}:
            try:
                by = other.lower(algorithm)
            except InputError:
                continue
            assert not by.serves(size) or time_us <= NEARLY * by.time_us(size)


def test_a_target_s_only_form_has_no_other(tmp_path: Path) -> None:
    found = synthesize("alltoall", "ring:3", target="executor-nccl", budget=1).found
    assert save(found, tmp_path, "executor-nccl").other_form is None


def test_ctrl_c_waits_for_no_lowering_and_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not lowered when Ctrl-C comes has no file; those that the library has for the other form stay."""
    found = synthesize("allgather", "ring:3", target="executor-nccl", budget=1.5, engine="route").found
    save(found, tmp_path, "executor-nccl")
    before = load_index(tmp_path)
    monkeypatch.setattr("emit.library.programs._AT_ONCE", 0)
    saved = save(replace(found, ended="interrupted"), tmp_path, "executor-nccl")
    assert any("interrupted before it was lowered" in remark for remark in saved.remarks)
    assert load_index(tmp_path) == before
    alone = save(replace(found, ended="interrupted"), tmp_path / "alone", "executor-nccl")
    assert alone.index is not None
    assert {entry.inplace for entry in load_index(tmp_path / "alone")} == {before[0].inplace}
