"""`synth simulate`: the time of a file by size; exit code 0 right, 1 wrong or deadlock, 2 what cannot be timed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from emit.msccl.format import write_msccl
from emit.program import Program
from synth.app.cli.size_ranges import parse_sweep
from tests.emit.small_programs import RIGHT, direct_gather, ring_allgather, ring_allreduce
from tests.synth.app.cli.calling import Call
from topologies.errors import InputError

pytestmark = pytest.mark.usefixtures("wide_terminal")


def simulated(synth: Call, *arguments: object, code: int = 0) -> dict[str, Any]:
    answer = synth("simulate", *arguments, "--json")
    assert (answer.code, answer.err) == (code, "")
    report: dict[str, Any] = json.loads(answer.out)
    return report


def write(path: Path, program: Program) -> Path:
    path.write_text(write_msccl(program))
    return path


@pytest.fixture
def ring(working_folder: Path) -> Path:
    return write(working_folder / "ring.xml", ring_allreduce(4))


@pytest.mark.parametrize("name", RIGHT)
def test_figures(synth: Call, working_folder: Path, name: str) -> None:
    """Check that the time is never below the bound, and that bandwidths are those of nccl-tests."""
    program = RIGHT[name]
    n = program.nranks
    report = simulated(
        synth, write(working_folder / "a.xml", program), "--topo", f"full:{max(3, n)}", "--sizes", "1K,1M,1G"
    )
    assert (report["status"], report["collective"]) == ("right", program.collective)
    assert (report["group"], report["steps"]) == (list(range(n)), program.nsteps)
    rooted = program.collective in ("broadcast", "reduce", "gather", "scatter")
    assert report["root"] == (program.root if rooted else None)
    times = [row["time_us"] for row in report["sizes"]]
    assert times == sorted(times)
    part = {"allreduce": 2 * (n - 1) / n, "broadcast": 1, "reduce": 1}.get(program.collective, (n - 1) / n)
    for row, size in zip(report["sizes"], (1 << 10, 1 << 20, 1 << 30), strict=True):
        assert row["bytes"] == size
        assert row["algbw_gbs"] == pytest.approx(size / row["time_us"] / 1e3)
        assert row["busbw_gbs"] == pytest.approx(row["algbw_gbs"] * part)
        assert row["gap"] == pytest.approx(row["time_us"] / row["bound_us"])
        assert row["gap"] >= 1
        assert row["proof"]


def test_table(synth: Call, ring: Path) -> None:
    answer = synth("simulate", ring, "--topo", "ring:4", "--size", "64K:1M:4x")
    assert (answer.code, answer.err) == (0, "")
    lines = answer.out.splitlines()
    assert lines[0].startswith(
        f"{ring}: right: allreduce on 4 ranks, {ring_allreduce(4).nsteps} instructions, 8 FIFO slots"
    )
    assert lines[1].startswith("allreduce · ring:4 · ranks 0,1,2,3 (")
    assert lines[2] == "LL128, 4 threadblocks, 1 channel"
    assert lines[4].split("  ")[0] == "message size"
    assert [line.split("  ")[0] for line in lines[5:8]] == ["64 KiB", "256 KiB", "1 MiB"]
    report = simulated(synth, ring, "--topo", "ring:4", "--sizes", "64K:1M:4x")
    for line, row in zip(lines[5:8], report["sizes"], strict=True):
        assert f"  {row['algbw_gbs']:.2f}  " in line
        assert line.endswith(f"  {row['gap']:.3f}")
        assert f": {row['proof']}" in answer.out


def test_default_sizes(synth: Call, ring: Path) -> None:
    rows = simulated(synth, ring, "--topo", "ring:4")["sizes"]
    assert [row["bytes"] for row in rows] == [1 << k for k in range(10, 31, 2)]


def test_ranks_of_the_topology(synth: Call, ring: Path) -> None:
    """Check that --group orders the ranks: on a ring, only the ring's own order has neighbours one hop apart."""
    arguments = (ring, "--topo", "ring:4", "--sizes", "1M")
    assert simulated(synth, *arguments, "--group", "1-3,0")["group"] == [1, 2, 3, 0]
    straight = simulated(synth, *arguments)["sizes"]
    assert simulated(synth, *arguments, "--group", "3,2,1,0")["sizes"][0]["time_us"] == straight[0]["time_us"]
    refusal = synth("simulate", *arguments, "--group", "0,2,1,3").refusal
    assert "rank 0 sends to rank 1, to which ring:4 has no link, where they are ranks 0 and 2" in refusal


def test_the_index_states_the_ranks(synth: Call, working_folder: Path) -> None:
    arguments = ("allgather", "--topo", "dgx1", "--group", "2,3,0,1", "--engine", "route")
    assert synth(*arguments).code == 0
    path = sorted((working_folder / "out").rglob("*.xml"))[0]
    assert simulated(synth, path, "--topo", "dgx1", "--sizes", "1M")["group"] == [2, 3, 0, 1]
    assert simulated(synth, path, "--topo", "dgx1", "--sizes", "1M", "--group", "0-3")["group"] == [0, 1, 2, 3]
    assert simulated(synth, path, "--topo", "full:4", "--sizes", "1M")["group"] == [0, 1, 2, 3]
    for index in (working_folder / "out").rglob("index.json"):
        index.write_text("[")
    assert simulated(synth, path, "--topo", "full:4", "--sizes", "1M")["group"] == [0, 1, 2, 3]


def test_a_wrong_file_has_a_time_but_no_gap(synth: Call, working_folder: Path) -> None:
    wrong = working_folder / "wrong.xml"
    wrong.write_text(write_msccl(ring_allgather(4)).replace('srcoff="0"', 'srcoff="1"'))
    answer = synth("simulate", wrong, "--topo", "ring:4", "--sizes", "1M")
    assert (answer.code, answer.err) == (1, "")
    assert answer.out.splitlines()[0].startswith(f"{wrong}: wrong: read before write: rank 0 tb 0 step 0: ")
    right = simulated(
        synth, write(working_folder / "right.xml", ring_allgather(4)), "--topo", "ring:4", "--sizes", "1M"
    )
    report = simulated(synth, wrong, "--topo", "ring:4", "--sizes", "1M", code=1)
    assert (report["status"], report["sizes"][0]["gap"], report["sizes"][0]["bound_us"]) == ("wrong", None, None)
    assert report["sizes"][0]["time_us"] == right["sizes"][0]["time_us"]


def test_a_deadlock_has_no_time(synth: Call, ring: Path) -> None:
    answer = synth("simulate", ring, "--topo", "ring:4", "--depth", "1")
    assert (answer.code, answer.err) == (1, "")
    first, second = answer.out.splitlines()
    assert first.startswith(f"{ring}: deadlock: deadlock at 1 FIFO slot: ")
    assert second.startswith("no time: cannot be timed: deadlock at 1 FIFO slot: ")
    report = simulated(synth, ring, "--topo", "ring:4", "--depth", "1", code=1)
    assert report["status"] == "deadlock"
    assert "sizes" not in report
    assert simulated(synth, ring, "--topo", "ring:4", "--depth", "2")["fifo_depth"] == 2


def test_a_file_without_a_goal_is_not_judged(synth: Call, working_folder: Path) -> None:
    path = working_folder / "custom.xml"
    path.write_text(write_msccl(ring_allgather(4), target="msccl").replace('"allgather"', '"custom"'))
    report = simulated(synth, path, "--topo", "ring:4", "--sizes", "1M")
    row = report["sizes"][0]
    assert report["status"] == "not judged"
    assert (row["busbw_gbs"], row["bound_us"], row["gap"]) == (None, None, None)
    path.write_text(write_msccl(ring_allgather(4)))
    assert simulated(synth, path, "--topo", "ring:4", "--sizes", "1M")["sizes"][0]["time_us"] == row["time_us"]


def test_the_root_is_found(synth: Call, working_folder: Path) -> None:
    report = simulated(
        synth, write(working_folder / "g.xml", direct_gather(3, 1)), "--topo", "dgx1", "--group", "3,0,2"
    )
    assert report["root"] == 0


def test_sizes_that_the_file_is_not_for(synth: Call, working_folder: Path) -> None:
    path = write(working_folder / "a.xml", replace(ring_allgather(4), min_bytes=2048, max_bytes=1 << 20))
    arguments = (path, "--topo", "ring:4", "--sizes", "1K,2K,1M,2M")
    assert [row["served"] for row in simulated(synth, *arguments)["sizes"]] == [False, True, True, False]
    out = synth("simulate", *arguments).out
    assert out.endswith("* outside the sizes that the file is for: 2 KiB to 1 MiB\n")
    assert [line.split("  ")[0] for line in out.splitlines()[5:9]] == ["1 KiB *", "2 KiB", "1 MiB", "2 MiB *"]
    assert "*" not in synth("simulate", path, "--topo", "ring:4", "--sizes", "2K,1M").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.xml", "--topo", "ring:4"), "none.xml: no such file"),
        (("ring.xml",), "--topo"),
        (("ring.xml", "--topo", "ring:3"), "program has 4 ranks, ring:3 has 3"),
        (("ring.xml", "--topo", "ring:5", "--group", "0-2"), "group has 3 ranks, the program 4"),
        (("ring.xml", "--topo", "ring:4", "--group", "0-4"), "--group: rank 4"),
        (("ring.xml", "--topo", "ring:4", "--group", "0,1,1,2"), "twice"),
        (("ring.xml", "--topo", "line:4"), "rank 3 sends to rank 0, to which line:4 has no link"),
        (("ring.xml", "--topo", "nothing"), "not known"),
        (("ring.xml", "--topo", "ring:4", "--depth", "0"), "--depth 0"),
        (("ring.xml", "--topo", "ring:4", "--sizes", ""), "--sizes"),
        (("text.xml", "--topo", "ring:4"), "not readable"),
    ],
)
@pytest.mark.usefixtures("ring")
def test_refusals(synth: Call, working_folder: Path, arguments: tuple[str, ...], message: str) -> None:
    (working_folder / "text.xml").write_text("hello\n")
    assert message in synth("simulate", *arguments).refusal


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("64K", [65536]),
        ("1M,4K", [1 << 20, 4096]),
        ("1K:8K", [1024, 2048, 4096, 8192]),
        ("1K:9K:2x", [1024, 2048, 4096, 8192]),
        ("3:100:3", [3, 9, 27, 81]),
        ("5:5", [5]),
    ],
)
def test_sweeps(text: str, sizes: list[int]) -> None:
    assert parse_sweep(text) == sizes


@pytest.mark.parametrize(
    "text",
    ["", ",", "1K:", ":1K", "1K:2K:", "2K:1K", "1K:2K:1x", "1K:2K:0", "1K:2K:x", "1K:2K:2xx", "1K:2K:-2", "1K:2K:1.5",
     "0:1K", "1:2:3:4", "a", "1K:2K:²", "1K:2K:9999999999", ",".join(["1"] * 1001), "1K\n:2K:z"],
)  # fmt: skip
def test_sweeps_refused(text: str) -> None:
    with pytest.raises(InputError, match="--sizes: ") as refused:
        parse_sweep(text)
    assert len(str(refused.value)) < 250
    assert "\n" not in str(refused.value)


def test_a_real_process(process: Call, working_folder: Path) -> None:
    path = write(working_folder / "a.xml", ring_allgather(4))
    answer = process("simulate", path, "--topo", "ring:4", "--sizes", "1M")
    assert (answer.code, answer.err) == (0, "")
    again = process("simulate", path, "--topo", "ring:4", "--sizes", "1M")
    assert again.out == answer.out


@pytest.mark.usefixtures("working_folder")
@pytest.mark.parametrize("target", ["mscclpp", "executor-nccl"])
def test_the_bound_is_that_of_the_search_for_the_same_executor(synth: Call, target: str) -> None:
    """Check sizes at which a protocol, or an operation of switches, that the executor lacks would lower the bound."""
    for size in ("2K", "2M"):
        asked = "--topo", "dgx-h100", "--group", "0-2", "--size", size
        searched = synth("allreduce", *asked, "--target", target, "--out", f"of-{size}", "--json", "--engine", "route")
        assert (searched.code, searched.err) == (0, "")
        answer = json.loads(searched.out)
        row = answer["algorithms"][0]
        simulated = json.loads(synth("simulate", row["file"], *asked, "--json").out)["sizes"][0]
        assert simulated["time_us"] == pytest.approx(row["time_us"])
        assert simulated["bound_us"] == pytest.approx(row["bound_us"])
