"""`synth library export --for ncclx`, and the check of such files."""

from __future__ import annotations

from pathlib import Path

from emit.library.selection.ncclx import read_rules
from tests.synth.app.cli.calling import Call

WHOLE = "allgather,*,ring,ll,4,*,*"


def test_export_and_check(synth: Call, working_folder: Path) -> None:
    question = ("allgather", "--topo", "dgx-a100", "--size", "1M", "--engine", "route", "--budget", "2s")
    assert synth(*question, "--target", "executor-nccl", "--out", "lib").code == 0
    answer = synth("library", "export", "lib", "--for", "ncclx", "-o", "out")
    assert (answer.code, answer.err) == (0, "")
    assert f"NCCLX_TUNER_CONFIG_FILE={working_folder / 'out' / 'ncclx_tuner.csv'}" in answer.out
    assert read_rules("out/ncclx_tuner.csv") == read_rules("out/ncclx_tuner.json")
    for name in ("ncclx_tuner.csv", "ncclx_tuner.json"):
        assert synth("library", "check", f"out/{name}").out.endswith("rules: all right\n")
    (working_folder / "wrong.csv").write_text(f"{WHOLE}\n{WHOLE}\n")
    answer = synth("library", "check", "wrong.csv")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
