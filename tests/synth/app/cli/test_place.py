"""`synth place` and `synth topo show --levels`: the table, JSON, the files, and refusals in one line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from synth.parallelism.axes import parse_axes, process_groups
from tests.synth.app.cli.calling import Call
from topologies.levels.hierarchy import find_levels
from topologies.load import load

STEP = """[[call]]
name = "tp"
collective = "allreduce"
over = ["tp"]
bytes = "64M"
times = 8

[[call]]
name = "dp"
collective = "reducescatter"
over = ["dp"]
bytes = "64M"
overlaps = ["tp"]
"""
ASKED = ("place", "--topo", "dgx-h100:2", "--axes", "dp=2,tp=8", "--workload", "step.toml")


@pytest.fixture
def step(working_folder: Path) -> Path:
    path = working_folder / "step.toml"
    path.write_text(STEP)
    return path


def test_the_table_and_the_files(synth: Call, step: Path) -> None:
    answer = synth(*ASKED, "--top", "0", "-o", "out")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("dgx-h100:2 · node:2,gpu:8 · dp=2,tp=8 · 2 placements")
    assert "default order: place 1 of 2; none is faster" in answer.out
    assert "no placement's step is faster than" in answer.out
    out = step.parent / "out"
    assert {path.name for path in out.iterdir()} == {"placement.json", "mesh.py", "rankfile", "hosts"}
    assert json.loads((out / "placement.json").read_text())["default"] == 0
    assert (out / "rankfile").read_text().startswith("rank 0=+n0 slot=0\n")
    again = synth(*ASKED, "--top", "0", "-o", "two")
    assert again.out.replace("two", "out") == answer.out
    assert (out / "placement.json").read_bytes() == (step.parent / "two" / "placement.json").read_bytes()


def test_the_tables_fit_the_terminal_and_wide_shows_all(
    synth: Call, step: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step.write_text(STEP.replace('"dp"\n', f'"{"gradients " * 4}"\n', 1))
    monkeypatch.setenv("COLUMNS", "80")
    narrow, wide = synth(*ASKED, "--top", "0"), synth(*ASKED, "--top", "0", "--wide")
    assert max(map(len, narrow.out.splitlines())) <= 80 < max(map(len, wide.out.splitlines()))
    left_out = narrow.flat.rsplit("--wide also shows ", 1)[1].split(", ")
    heads = next(line for line in wide.out.splitlines() if line.startswith("call ")).split()
    assert set(left_out) < set(heads)
    assert "--wide also" not in wide.out


def test_json_is_one_object(synth: Call, step: Path) -> None:
    assert step.exists()
    document = json.loads(synth(*ASKED, "--budget", "100ms", "--top", "1", "--json").out)
    levels = find_levels(load("dgx-h100:2"))
    axes = parse_axes("dp=2,tp=8", levels)
    assert document["levels"] == {"node": 2, "gpu": 8}
    assert document["axes"] == {"dp": 2, "tp": 8}
    times = [row["time_us"] for row in document["placements"]]
    assert times == sorted(times)
    assert document["placements"][0]["searched"]
    for row in document["placements"]:
        assert {"matrix", "groups", "order", "time_us", "bottleneck", "vs_default"} <= set(row)
        assert [math.prod(row["matrix"][axis.name]) for axis in axes] == [2, 8]
        assert sorted(row["order"]) == list(range(16))
        for groups in row["groups"].values():
            assert sorted(rank for group in groups for rank in group) == list(range(16))
        default = document["placements"][document["default"]]
        assert row["vs_default"] == pytest.approx(default["time_us"] / row["time_us"])
    best = document["placements"][0]
    mesh = process_groups(levels.ranks.reshape(2, 8), [1]).tolist()
    assert best["order"] == list(range(16))
    assert best["groups"]["tp"] == mesh


def test_a_ready_workload_and_given_levels(synth: Call) -> None:
    arguments = ("place", "--topo", "torus:4x4", "--axes", "dp=4,tp=4", "--workload", "fsdp", "--top", "0")
    assert synth(*arguments).code == 0
    answer = synth(*arguments, "--levels", "a:2,b:2,c:4", "--json")
    assert list(json.loads(answer.out)["levels"]) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--axes", "dp=2,tp=4"), "axes: 2·4 = 8, but node:2,gpu:8 has 16 devices; the sizes must multiply to that"),
        (("--axes", "dp=3,tp=8"), "axes: dp=3 fits no level of node:2,gpu:8; it must divide the 16 devices"),
        (("--levels", "node:3,gpu:8"), "levels: 3·8 = 24 devices, but dgx-h100:2 has 16 ranks"),
        (("--axes", "dq=2,tp=8"), "step.toml: call 2 over: 'dp' is no axis"),
        (("--workload", "none.toml"), "none.toml: no such file"),
        (("--exhaustive",), "exhaustive: 16 ranks have too many orders; it must be at most 9 ranks"),
        (("--budget", "soon"), "--budget 'soon': is not a time"),
        (("--top", "-1"), "--top"),
        (("-o", "step.toml/x"), "step.toml/x"),
    ],
)
def test_wrong_input_is_one_line(synth: Call, step: Path, options: tuple[str, ...], line: str) -> None:
    arguments = list(ASKED)
    for option in options[:1]:
        if option in arguments:
            at = arguments.index(option)
            del arguments[at : at + 2]
    answer = synth(*arguments, *options)
    assert answer.code == 2
    assert line in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""
    assert [path.name for path in step.parent.iterdir()] == ["step.toml"]


def test_levels_are_shown(synth: Call, working_folder: Path) -> None:
    answer = synth("topo", "show", "dgx-h100:4", "--levels")
    assert answer.out.splitlines()[0] == "dgx-h100:4: node:4,gpu:8"
    document = json.loads(synth("topo", "show", "mi250:2", "--levels", "--json").out)
    assert math.prod(level["size"] for level in document["levels"]) == 32
    assert all(
        sorted(rank for part in level["parts"] for rank in part) == list(range(32)) for level in document["levels"]
    )
    lines = ["name = 'uneven'", "ranks = 5", "[[links]]"]
    (working_folder / "uneven.toml").write_text("\n".join(lines))
    assert synth("topo", "show", "uneven.toml", "--levels").code == 2


def test_the_report_shows_a_ranking(synth: Call, step: Path) -> None:
    assert synth(*ASKED, "--top", "0", "-o", "out").code == 0
    answer = synth("report", "out", "-o", "page.html")
    assert answer.code == 0
    assert answer.out.startswith("page.html: 2 placements")
    assert "dgx-h100:2: dp=2, tp=8" in (step.parent / "page.html").read_text()
    refused = synth("report", "out", "--topo", "ring:4")
    assert (refused.code, refused.out) == (2, "")


def test_a_library_for_every_group_of_the_best_placement(synth: Call, step: Path) -> None:
    arguments = ("place", "--topo", "full:4", "--axes", "dp=2,tp=2", "--workload", "step.toml", "--budget", "100ms")
    answer = synth(*arguments, "--top", "1", "--library", "out", "--json")
    assert answer.code == 0, answer.err
    document = json.loads(answer.out)
    best = document["placements"][0]
    assert set(document["library"]) == {"tp", "dp"}
    for call, time_us in zip(document["calls"], best["call_us"], strict=True):
        saved = document["library"][call["name"]]
        assert len(saved["files"]) == len(best["groups"][",".join(call["over"])]) == 2
        assert saved["time_us"] == pytest.approx(time_us, rel=0.05)
        for path in saved["files"]:
            assert synth("verify", path).code == 0
    assert (step.parent / "out" / "index.json").exists()
    refused = synth(*arguments, "--top", "0", "--library", "other")
    assert (refused.code, refused.out) == (2, "")
    assert not (step.parent / "other").exists()
