"""`synth reduce-program`: the answer, the files, the table, and refusals in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.synth.app.cli.calling import Call

ASKED = ("reduce-program", "--topo", "full:4", "--axes", "dp=2,tp=2", "--over", "dp", "--levels", "node:2,gpu:2")


def test_answer_and_files(synth: Call, working_folder: Path) -> None:
    answer = synth(*ASKED, "--budget", "0.4s", "--json")
    assert answer.code == 0, answer.err
    report = json.loads(answer.out)
    assert {"programs", "single", "searched", "bound_us"} <= set(report)
    assert report["groups"] == [[0, 2], [1, 3]]
    best = report["programs"][0]
    assert set(best) >= {"steps", "time_us", "file"}
    assert (working_folder / best["file"]).is_file()
    assert best["time_us"] >= report["bound_us"] * (1 - 1e-9)
    assert synth("verify", best["file"]).code == 0


def test_table(synth: Call) -> None:
    answer = synth(*ASKED[:5], *ASKED[7:], "--over", "dp,tp", "--budget", "0.4s", "--target", "none", "--size", "1M")
    assert answer.code == 0
    assert "one all-reduce as a library runs it" in answer.out
    assert "searched schedule" in answer.out


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--axes", "dp=3,tp=2", "axes"),
        ("--axes", "dp", "axes"),
        ("--over", "ep", "over"),
        ("--levels", "node:3,gpu:2", "levels"),
        ("--hierarchy", "all", "hierarchy"),
        ("--matrix", "dp=2x2,tp=1x1", "matrix"),
        ("--matrix", "dp", "matrix"),
        ("--length", "6", "--length"),
        ("--size", "-1", "--size"),
        ("--target", "none-such", "--target"),
    ],
)
def test_refused_in_one_line(synth: Call, working_folder: Path, option: str, value: str, why: str) -> None:
    options = dict(zip(ASKED[1::2], ASKED[2::2], strict=True)) | {option: value}
    answer = synth("reduce-program", *(word for pair in options.items() for word in pair))
    assert answer.code == 2
    assert why in answer.refusal
    assert not list(working_folder.iterdir())
