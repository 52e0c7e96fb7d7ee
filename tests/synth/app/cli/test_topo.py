"""`synth topo planner`: the table of a group for programs in C, and refusals in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from emit.library.selection.skewed_table import HEADERS, table_bytes
from tests.synth.app.cli.calling import Call
from tests.synth.engines.skewed.questions import any_planner_of


@pytest.mark.parametrize(
    ("words", "spec", "group"),
    [
        (("dgx-h100:2",), "dgx-h100:2", (9, 0, 1, 8)),
        (("dgx1",), "dgx1", (0, 1, 2, 7, 6, 5, 4, 3)),
        (("dgx-h100:2", "--costs", "machine"), "costs of Simple", (0, 1, 8, 9)),
    ],
)
def test_the_command_writes_the_table_and_the_headers(
    working_folder: Path, synth: Call, words: tuple[str, ...], spec: str, group: tuple[int, ...]
) -> None:
    answer = synth("topo", "planner", *words, "--group", ",".join(map(str, group)), "-o", "planner")
    assert (answer.code, answer.err) == (0, "")
    written = {file.name: file.read_bytes() for file in (working_folder / "planner").iterdir()}
    assert written.pop("skewed.table") == table_bytes(any_planner_of(spec, group).shape)
    assert written == {header.name: header.read_bytes() for header in HEADERS}


@pytest.mark.parametrize("form", ["toml", "graphml"])
def test_a_topology_is_shown_in_a_file_as_on_the_screen(working_folder: Path, synth: Call, form: str) -> None:
    shown = synth("topo", "show", "dgx-a100:2", "--format", form)
    assert synth("topo", "show", "dgx-a100:2", "--format", form, "-o", f"my.{form}").code == 0
    assert (working_folder / f"my.{form}").read_text() == shown.out
    assert "leave out --levels" in synth("topo", "show", "dgx1", "-o", "levels.txt", "--levels").refusal


def test_what_has_no_planner_is_refused(working_folder: Path, synth: Call) -> None:
    group = synth("topo", "planner", "ring:4", "--group", "0,2", "-o", "none")
    assert "rank 0 does not reach rank 2 inside the group" in group.refusal
    assert "must be 2 to 128" in synth("topo", "planner", "ring:129", "-o", "none").refusal
    assert "states no [costs]" in synth("topo", "planner", "ring:4", "--costs", "machine", "-o", "none").refusal
    assert not (working_folder / "none").exists()
    (working_folder / "file").write_text("")
    assert "a folder you may write to" in synth("topo", "planner", "dgx-h100:2", "-o", "file").refusal
    assert "--out is missing; add --out DIR (write to this folder)" in synth("topo", "planner", "dgx-h100:2").refusal


def test_check_takes_faults(synth: Call) -> None:
    hurt = synth("topo", "check", "dgx1", "--without", "link:1-2")
    assert (hurt.code, "30 links" in hurt.out, "every rank reaches every other" in hurt.out) == (0, True, True)
    gone = synth("topo", "check", "dgx-a100", "--without", "rank:3", "--json")
    assert gone.code == 0  # A rank that is gone need not be reached.
    lost = synth("topo", "check", "torus:4x4", "--without", "rank:5").out
    assert "15 of 16 ranks" in lost
    assert "every live rank reaches every other" in lost
    apart = synth("topo", "check", "ring:4", "--without", "link:0-1", "--without", "link:2-3")
    assert (apart.code, "--group 0,3" in apart.out) == (1, True)


def test_check_and_show_take_slow_parts(synth: Call) -> None:
    assert "degraded link:0-1=2GBps" in synth("topo", "check", "ring:4", "--degrade", "link:0-1=16Gbps").out
    shown = synth("topo", "show", "ring:4", "--without", "link:1-2", "--degrade", "link:0-1=50%").out
    assert shown.startswith('name = "ring:4 without link:1-2 degraded link:0-1=50%"')
