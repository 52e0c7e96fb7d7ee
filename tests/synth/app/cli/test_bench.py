"""`synth bench`: the table of nccl-tests for what really ran; a wrong element fails the command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from emit.library.entry import IndexEntry
from emit.targets import TARGETS
from synth.app.cli.files.file_choice import Chosen
from synth.app.cli.measuring.bench import Prediction
from synth.app.cli.programs import read_program
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from tests import EXAMPLES
from tests.emit.library.made_indices import entry_row
from tests.hang import HANG_S
from tests.synth.app.cli.calling import Call
from topologies.load import apply_costs, load


@pytest.fixture
def ring(synth: Call, working_folder: Path) -> Path:
    assert synth("compile", EXAMPLES / "ring.py", "--set", "ranks=4", "-o", "ring.xml").code == 0
    return working_folder / "ring.xml"


def test_table(synth: Call, ring: Path) -> None:
    answer = synth("bench", ring, "--wide", "-b", "1K", "-e", "16K", "-f", "4", "-n", "1")
    assert (answer.code, answer.err) == (0, "")
    rows = [line.split() for line in answer.out.splitlines() if not line.startswith("#")]
    assert [row[:5] for row in rows] == [[str(n), str(n // 4), "float", "sum", "-1"] for n in (1024, 4096, 16384)]
    for row in rows:
        size, (time_us, algbw, busbw) = int(row[0]), map(float, row[5:8])
        assert algbw == pytest.approx(size / time_us / 1e3, abs=0.01)
        assert busbw == pytest.approx(algbw * 1.5, abs=0.02)
        assert (row[8], row[12], row[13:]) == (
            "0",
            "0",
            ["–", "–", "ring"],
        )  # No network is named.
    assert answer.out.endswith("every element right\n")


@pytest.mark.parametrize("kind", ["half", "bfloat16", "int64"])
def test_types_and_steps(synth: Call, ring: Path, kind: str) -> None:
    arguments = (
        "bench",
        ring,
        "-b",
        "100",
        "-e",
        "300",
        "-i",
        "100",
        "-d",
        kind,
        "-o",
        "max",
        "-n",
        "1",
        "--json",
    )
    report = json.loads(synth(*arguments).out)
    width = 8 if kind == "int64" else 2
    assert [row["size_bytes"] for row in report["rows"]] == [n // width * width for n in (100, 200, 300)]
    assert {(row["type"], row["redop"], row["backend"]) for row in report["rows"]} == {(kind, "max", "host")}
    assert report["wrong"] == 0


def test_a_pipe_gets_all_columns_unless_a_width_is_stated(
    synth: Call, ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("bench", ring, "-b", "4K", "-n", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    assert "redop" in synth(*arguments).out
    monkeypatch.setenv("COLUMNS", "80")
    narrow = synth(*arguments).out
    assert max(map(len, narrow.splitlines())) <= 80
    assert "--wide also shows count, type, redop" in narrow
    assert "redop" in synth(*arguments, "--wide").out.splitlines()[1]


def test_wrong_elements_fail_the_command(synth: Call, ring: Path, working_folder: Path) -> None:
    wrong = working_folder / "wrong.xml"
    text = ring.read_text()
    wrong.write_text(text.replace('type="s" srcbuf="i" srcoff="0"', 'type="s" srcbuf="i" srcoff="1"'))
    assert wrong.read_text() != text
    answer = synth("bench", wrong, "-b", "4K", "-n", "1")
    assert answer.code == 1
    assert "elements wrong" in answer.out


def test_a_library_run_names_its_files(synth: Call, working_folder: Path) -> None:
    arguments = ("--topo", "dgx-a100", "--group", "0,2,4,6", "--budget", "0.5s", "--target", "executor-nccl")
    assert synth("allreduce", *arguments, "--costs", "none").code == 0
    report = json.loads(synth("bench", "out", "-b", "1K", "-e", "1M", "-f", "32", "-n", "1", "--json").out)
    entries = json.loads((working_folder / "out" / "index.json").read_text())["algorithms"]
    for row in report["rows"]:
        serving = [e for e in entries if e["min_bytes"] <= row["size_bytes"] <= (e["max_bytes"] or 1 << 60)]
        assert sorted(e["inplace"] for e in serving) == [False, True]  # a column each
        serving = [e for e in serving if not e["inplace"]]
        assert [Path(e["file"]).stem for e in serving] == [row["algorithm"]]
        assert row["predicted_us"] > 0
        assert row["in_place"]["wrong"] == row["out_of_place"]["wrong"] == 0
        xml = "out/" + serving[0]["file"]
        priced = json.loads(synth("simulate", xml, "--topo", "dgx-a100", "--sizes", row["size_bytes"], "--json").out)
        assert (row["predicted_us"], row["bound_us"]) == tuple(
            priced["sizes"][0][key] for key in ("time_us", "bound_us")
        )
        assert row["bound_us"] <= row["predicted_us"] * (1 + 1e-9)
        lone_row = json.loads(synth("bench", xml, "-b", row["size_bytes"], "-n", "1", "--json").out)["rows"][0]
        assert [lone_row[key] for key in ("predicted_us", "bound_us")] == [row["predicted_us"], row["bound_us"]]
    assert synth("allgather", *arguments).code == 0
    answer = synth("bench", "out")
    assert (answer.code, "choose one, as with --collective allgather --group" in answer.err) == (2, True)
    assert synth("bench", "out", "--collective", "all_gather_into_tensor", "-n", "1", "-b", "8K").code == 0


def test_one_side_only(synth: Call, working_folder: Path) -> None:
    alltoall = EXAMPLES / "alltoall.py"
    assert synth("compile", alltoall, "--set", "gpus=4", "-o", "a.xml").code == 0
    report = json.loads(synth("bench", working_folder / "a.xml", "-b", "4K", "-n", "1", "--json").out)
    assert report["rows"][0]["in_place"] is None
    assert report["rows"][0]["redop"] == "none"


REFUSED = [
    (("-b", "0"), "--minbytes"),
    (("-b", "2K", "-e", "1K"), "-e 1K: is less than -b; it must be 2K or more"),
    (("-f", "1", "-e", "2M"), "a factor above 1"),
    (("-d", "float8"), "type 'float8' is not known; it must be one of float, half"),
    (("-o", "xor"), "reduction 'xor'"),
    (("--group", "0,1"), "choose from a library"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: " ".join(value))
def test_refusals(synth: Call, ring: Path, arguments: tuple[str, ...], message: str) -> None:
    answer = synth("bench", ring, *arguments)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert message in answer.err


def test_a_file_that_cannot_run_is_refused(synth: Call, working_folder: Path) -> None:
    assert "none.xml" in synth("bench", "none.xml").err
    (working_folder / "empty").mkdir()
    assert synth("bench", "empty").code == 2


def test_predicted_time_and_bound_on_another_network(synth: Call, ring: Path) -> None:
    answers = [synth("bench", ring, "-b", "64K", "-n", "1", "--json", *more) for more in ((), ("--topo", "ring:4"))]
    plain, on_ring = (json.loads(answer.out)["rows"][0] for answer in answers)
    assert (plain["predicted_us"], plain["bound_us"]) == (None, None)
    assert 0 < on_ring["bound_us"] <= on_ring["predicted_us"]
    assert synth("bench", ring, "--topo", "nowhere").refusal


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: pip install '.[torch]'")
def test_over_torch(synth: Call, working_folder: Path) -> None:
    """Check a run over torch against the README, whose all-reduce is in place."""
    assert synth("compile", EXAMPLES / "alltoall.py", "--set", "gpus=3", "-o", "a.xml").code == 0
    arguments = ("a.xml", "--backend", "torch", "-b", "1K", "-e", "4K", "-f", "4", "-n", "2", "--json")
    completed = subprocess.run(
        [sys.executable, "-m", "synth", "bench", *arguments],
        cwd=working_folder,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(EXAMPLES.parent)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    rows = json.loads(completed.stdout)["rows"]
    assert [row["size_bytes"] for row in rows] == [size // 12 * 12 for size in (1024, 4096)]  # whole blocks
    for row in rows:
        assert (row["algorithm"], row["backend"], row["in_place"]) == ("a", "torch", None)
        assert row["out_of_place"]["wrong"] == 0
        took = row["size_bytes"] / row["out_of_place"]["time_us"] / 1e3
        assert row["out_of_place"]["algbw_gbs"] == pytest.approx(took)


def test_a_stored_schedule_runs_from_memory(synth: Call, working_folder: Path) -> None:
    arguments = ("--topo", "mesh:2x3", "--relay", "all", "--target", "none", "--engine", "flow", "--budget", "300ms")
    assert synth("allgather", *arguments, "--size", "64K", "--group", "0,4,5").code == 0
    (schedule,) = (working_folder / "out" / "schedules").glob("*.synth")
    rows = json.loads(synth("bench", schedule, "--backend", "host", "-b", "64K", "-n", "3", "--json").out)["rows"]
    assert rows[0]["out_of_place"]["wrong"] == 0
    assert rows[0]["predicted_us"] >= rows[0]["bound_us"] > 0
    schedule.write_bytes(schedule.read_bytes()[:-100])
    assert schedule.name in synth("bench", schedule, "--backend", "host").refusal


def test_the_measured_run_is_drawn_beside_the_predicted_one(synth: Call, ring: Path, working_folder: Path) -> None:
    answer = synth("bench", ring, "--backend", "host", "-b", "4K", "-n", "1", "--topo", "ring:4", "--trace", "t.json")
    assert (answer.code, answer.err) == (0, "")
    assert answer.out.endswith("# trace → t.json\n")
    kinds = {event.get("cat") for event in json.loads((working_folder / "t.json").read_text())["traceEvents"]}
    assert kinds == {None, "measured", "send", "recv", "message"}
    synth("bench", ring, "-b", "4K", "-n", "1", "--trace", "t.json", "--json")
    kinds = {event.get("cat") for event in json.loads((working_folder / "t.json").read_text())["traceEvents"]}
    assert kinds == {None, "measured"}  # No network is named.
    for arguments, why in (
        (("-e", "8K", "--trace", "u.json"), "--trace: there are 2 sizes; it must be one"),
        (("--trace", "no/u.json"), "no/u.json: cannot be written"),
        (("--trace", "u.json", "--backend", "torch"), "must be with --backend host"),
    ):
        assert why in synth("bench", ring, "-b", "4K", *arguments).refusal
    assert not (working_folder / "u.json").exists()


@pytest.mark.parametrize(("target", "factor"), [("mscclpp", 1.1), ("executor-nccl", 1.0)])
def test_the_bound_is_for_the_executor_that_the_index_names(ring: Path, target: str, factor: float) -> None:
    """Check that a file of an executor without LL128 has the bound without LL128, as its search has."""
    topology = apply_costs(load("dgx1"), "auto")
    file = f"{TARGETS[target].folder}/x{TARGETS[target].suffix}"
    row = entry_row(collective="reducescatter", topology="dgx1", target=target, file=file, min_bytes=0, max_bytes=None)
    entry = IndexEntry.of(row, Path())
    program = read_program(str(ring), None)[0]
    bound = Prediction(Chosen("x", ring, program, None, entry), topology).bound
    least_us = prove(make_problem(topology, "reducescatter", entry.group)).at(1 << 20)[0]
    assert bound is not None
    assert (bound.at(1 << 20)[0] > factor * least_us) == (factor > 1)


def test_eighty_columns_have_room_for_the_bound_and_say_whose_times_are_measured(
    synth: Call, ring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    answer = synth("bench", ring, "--topo", "ring:4", "-b", "1M", "-n", "1")
    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "bound" in answer.out.splitlines()[1]
    assert "predicted and bound are for the devices of ring:4" in answer.flat
    assert "works in place only and ran after a copy of the input" in answer.flat
