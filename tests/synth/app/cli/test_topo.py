"""`synth topo planner`: the table of a group for programs in C, and refusals in one line."""

from __future__ import annotations

from pathlib import Path

from emit.library.selection.skewed_table import HEADER, table_bytes
from tests.synth.app.cli.calling import Call
from tests.synth.engines.skewed.questions import planner_of


def test_the_command_writes_the_table_and_the_header(working_folder: Path, synth: Call) -> None:
    answer = synth("topo", "planner", "dgx-h100:2", "--group", "9,0,1,8", "-o", "planner")
    assert (answer.code, answer.err) == (0, "")
    assert (working_folder / "planner/skewed.table").read_bytes() == table_bytes(
        planner_of("dgx-h100:2", (9, 0, 1, 8)).shape
    )
    assert (working_folder / "planner" / HEADER.name).read_bytes() == HEADER.read_bytes()
    assert "have no link" in synth("topo", "planner", "ring:4", "-o", "none").refusal
    assert not (working_folder / "none").exists()
    (working_folder / "file").write_text("")
    assert "a folder you may write to" in synth("topo", "planner", "dgx-h100:2", "-o", "file").refusal
    assert "--out is missing; add --out DIR (write to this folder)" in synth("topo", "planner", "dgx-h100:2").refusal
