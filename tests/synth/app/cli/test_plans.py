"""Execution plans in the commands that take files: timed, run, drawn, compiled again and converted."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from emit.check import order
from emit.check.capacity import CAPACITY
from emit.library import load_index
from tests import EXAMPLES
from tests.emit.mscclpp import test_foreign_plans as foreign
from tests.synth.app.cli.calling import Call

RING = EXAMPLES / "ring.py"


@pytest.fixture
def plan(synth: Call, working_folder: Path) -> Path:
    """Write the plan of an all-reduce of four ranks on two nodes."""
    arguments = ("--set", "ranks=4", "--target", "mscclpp", "-o", "ring.json")
    assert synth("compile", RING, *arguments, "--topo", "dgx2:2", "--group", "0,1,16,17").code == 0
    return working_folder / "ring.json"


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_the_table_states_the_time_of_the_plan(collective: str, synth: Call, working_folder: Path) -> None:
    answer = synth(collective, "--topo", "ring:4", "--target", "mscclpp", "--engine", "baseline")
    assert (answer.code, answer.err) == (0, "")
    entries = load_index(working_folder / "out")
    assert {entry.target for entry in entries} == {"mscclpp"}
    for entry in entries:
        size = entry.row["shown_bytes"]
        report = json.loads(synth("simulate", entry.path, "--topo", "ring:4", "--sizes", size, "--json").out)
        assert report["sizes"][0]["time_us"] == pytest.approx(entry.row["time_us"])
        assert report["status"] == "right"


def test_simulate(plan: Path, synth: Call) -> None:
    report = json.loads(synth("simulate", plan, "--topo", "dgx2:2", "--group", "0,1,16,17", "--json").out)
    assert (report["collective"], report["fifo_depth"], report["protocol"]) == ("allreduce", None, "Simple")
    assert report["threadblocks"] >= 4
    assert all(row["gap"] >= 1 for row in report["sizes"])
    times = [row["time_us"] for row in report["sizes"]]
    assert times == sorted(times)
    assert "an execution plan (JSON) has no FIFO" in synth("simulate", plan, "--topo", "ring:4", "--depth", "2").refusal
    assert "has no link" in synth("simulate", plan, "--topo", "torus:4x4", "--group", "0,2,5,7").refusal


def test_simulate_a_wrong_or_untimed_plan(synth: Call, working_folder: Path) -> None:
    document = foreign.gets()
    del document["gpus"][0]["threadblocks"][0]["ops"][1]
    (working_folder / "a.json").write_text(json.dumps(document))
    assert "a.json: wrong: " in synth("simulate", "a.json", "--topo", "full:2").refusal
    (working_folder / "b.json").write_text(json.dumps(foreign.multicast()))
    assert (
        "no switch of the topology reduces over ranks 0, 1" in synth("simulate", "b.json", "--topo", "full:2").refusal
    )
    (working_folder / "c.json").write_text("[]")
    assert "it must be an object" in synth("bench", "c.json").refusal


def test_bench(plan: Path, synth: Call, working_folder: Path) -> None:
    arguments = ("--backend", "host", "-b", "4K", "-e", "64K", "-f", "4", "--json")
    report = json.loads(synth("bench", plan, *arguments, "--topo", "full:4").out)
    assert report["wrong"] == 0
    timed = json.loads(synth("simulate", plan, "--topo", "full:4", "--sizes", "4K,16K,64K", "--json").out)
    assert [row["predicted_us"] for row in report["rows"]] == [row["time_us"] for row in timed["sizes"]]
    for target in ("executor-nccl", "mscclpp"):
        assert (
            synth("allgather", "--topo", "ring:4", "--target", target, "--engine", "route", "--size", "64K").code == 0
        )
    for options, name in (((), "executor-nccl"), (("--target", "mscclpp"), "mscclpp")):
        row = json.loads(synth("bench", "out", *arguments[:2], "-b", "64K", "--json", *options).out)["rows"][0]
        assert row["out_of_place"]["wrong"] == 0
        times = [entry.row["time_us"] for entry in load_index(working_folder / "out") if entry.target == name]
        assert any(row["predicted_us"] == pytest.approx(time_us) for time_us in times)
    assert "target 'x': is not known" in synth("bench", "out", "--target", "x").refusal
    assert "this is one file" in synth("bench", plan, "--target", "mscclpp").refusal


def test_report(plan: Path, synth: Call, working_folder: Path) -> None:
    answer = synth("report", plan, "--topo", "full:4", "--size", "64K")
    assert (answer.code, answer.err) == (0, "")
    page = (working_folder / "report.html").read_text()
    assert "MSCCL++, Simple" in page
    assert "The drawing shows the messages of the plan" in page
    timed = json.loads(synth("simulate", plan, "--topo", "full:4", "--sizes", "64K", "--json").out)
    assert f"{timed['sizes'][0]['time_us']:.3g} µs" in page
    arguments = ("--topo", "ring:4", "--target", "mscclpp", "--engine", "route", "--size", "64K", "--proof")
    assert synth("allgather", *arguments).code == 0
    entries = load_index(working_folder / "out")
    number = len(entries) + len({entry.schedule for entry in entries})  # The plans and the schedules.
    assert synth("report", "out").out.startswith(f"report.html: 1 algorithm, {number} files, ")


def test_a_plan_that_is_too_large_for_a_program_is_timed(
    plan: Path, synth: Call, working_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that times, a page and an export need no program of a plan, as racks have large ones; a run has a line."""
    arguments = ("simulate", plan, "--topo", "full:4", "--sizes", "64K", "--json")
    timed = json.loads(synth(*arguments).out)
    search = ("allgather", "--topo", "ring:4", "--target", "mscclpp", "--engine", "route", "--size", "64K")
    assert synth(*search).code == 0
    monkeypatch.setattr(order, "CAPACITY", replace(CAPACITY, moves=10))
    assert json.loads(synth(*arguments).out) == timed
    assert synth("report", plan, "--topo", "full:4", "--size", "64K").code == 0
    page = (working_folder / "report.html").read_text()
    assert re.search(r"Not drawn: \S*ring.json: program moves \d+ chunks", page)
    assert "The drawing shows" not in page
    assert f"{timed['sizes'][0]['time_us']:.3g} µs" in page
    assert "it must be at most 10 to be checked" in synth("bench", plan).refusal
    assert synth("library", "export", "out", "--for", "mscclpp", "-o", "exported").code == 0
    assert synth("library", "diff", "out", "out").code == 0


def test_optimize_and_convert(plan: Path, synth: Call) -> None:
    for arguments in (
        ("convert", plan, "a.xml"),
        ("optimize", plan, "-o", "b.xml", "--topo", "full:4"),
        ("optimize", plan, "-o", "c.json", "--target", "mscclpp", "--topo", "full:4"),
        ("convert", plan, "d.json", "--outofplace"),
    ):
        answer = synth(*arguments)
        assert (answer.code, answer.err) == (0, ""), arguments
        file = next(word for word in arguments[2:] if str(word)[1:] in (".xml", ".json"))
        assert synth("verify", file).code == 0

    def times(file: object) -> list[float]:
        report = json.loads(synth("simulate", file, "--topo", "full:4", "--json").out)
        return [row["time_us"] for row in report["sizes"]]

    assert all(new <= old * (1 + 1e-9) for new, old in zip(times("c.json"), times(plan), strict=True))
