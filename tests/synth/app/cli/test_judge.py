"""`synth judge`: usual and slow machines are told apart, and what cannot be judged is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from synth.baselines.nccl.fitted import fitted_model
from tests.synth.app.cli.calling import Call
from topologies.load import load

HEADS = "#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong"
SIZES = tuple(1 << exponent for exponent in (10, 14, 20, 26, 28, 30))


def printed(spec: str, ranks: int, collective: str, slower: float, program: str, wrong: int = 0) -> str:
    """Return what nccl-tests would print of times that are `slower` times the usual ones."""
    model = fitted_model(load(spec), range(ranks))
    lines = [f"./{program} -g {ranks}", f"# nThread 1 nGpus {ranks} minBytes 1024 maxBytes 1073741824 step: 2", HEADS]
    for size in SIZES:
        us = slower * model.choose(collective, size).time_us
        share = (2 if collective == "allreduce" else 1) * (1 - 1 / ranks)
        times = f"{us:.2f} {size / us / 1e3:.2f} {share * size / us / 1e3:.2f} {wrong}"
        lines.append(f"{size} {size // 4} float sum -1 {times} {times}")
    return "\n".join(lines)


def judged(synth: Call, path: Path, text: str, *options: str) -> str:
    """Return what `synth judge` prints of a text."""
    path.write_text(text)
    answer = synth("judge", str(path), *options, "--budget", "0.5s")
    assert (answer.code, answer.err) == (0, ""), answer.err
    return answer.out


@pytest.mark.parametrize("spec", ["dgx-a100", "dgx-h100"])
def test_a_usual_machine_is_called_usual(synth: Call, tmp_path: Path, spec: str) -> None:
    out = judged(synth, tmp_path / "x", printed(spec, 8, "allgather", 1.02, "all_gather_perf"), "--topo", spec)
    assert "allgather" in out.splitlines()[0]
    assert "slow" not in out
    assert sum(line.endswith("usual") for line in out.splitlines()) == len(SIZES)


def test_a_slow_machine_is_called_slow(synth: Call, tmp_path: Path) -> None:
    text = printed("dgx-h100", 8, "allreduce", 1.6, "all_reduce_perf")
    out = judged(synth, tmp_path / "x", text, "--topo", "dgx-h100")
    assert sum(line.endswith("slow") for line in out.splitlines()) == len(SIZES)
    assert "from 64 MiB: 62% of what NCCL usually reaches on dgx-h100" in " ".join(out.split())
    assert "a call takes about" in out


@pytest.mark.parametrize("working", [4, 6])
def test_lost_nics_are_named(synth: Call, tmp_path: Path, working: int) -> None:
    text = printed("dgx-h100:2", 16, "allreduce", 8 / working, "all_reduce_perf")
    out = judged(synth, tmp_path / "x", text, "--topo", "dgx-h100:2")
    assert f"looks like {working} of 8 NICs of a node" in " ".join(out.split())


def test_wrong_results_and_other_machines_are_named(synth: Call, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(printed("dgx-a100", 8, "allreduce", 1.0, "all_reduce_perf", wrong=3))
    answer = synth("judge", str(tmp_path / "x"), "--topo", "dgx-a100", "--budget", "0.5s")
    assert (answer.code, answer.err) == (1, "")
    assert "wrong results: 6 sizes" in answer.out
    text = printed("dgx-h100", 8, "allreduce", 1.0, "all_reduce_perf")
    assert "took less time than the bound" in judged(synth, tmp_path / "x", text, "--topo", "dgx1")


def test_the_algorithm_of_the_log_is_compared(synth: Call, tmp_path: Path) -> None:
    text = printed("dgx-a100", 8, "allreduce", 1.0, "all_reduce_perf")
    log = "h:1:2 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo TREE proto SIMPLE channel{Lo..Hi}={0..1}"
    out = judged(synth, tmp_path / "x", text.replace(HEADS, f"{HEADS}\n{log}"), "--topo", "dgx-a100")
    assert "1 size did not run what NCCL usually takes, the first 1 KiB: tree Simple instead of ring LL" in " ".join(
        out.split()
    )


def test_cuda_graphs_are_named(synth: Call, tmp_path: Path) -> None:
    text = printed("dgx-a100", 8, "allreduce", 1.0, "all_reduce_perf")
    for graph, is_named in (("0", False), ("20", True)):
        run = text.replace("step: 2", f"step: 2(factor) validation: 1 graph: {graph}")
        assert ("CUDA graph" in judged(synth, tmp_path / "x", run, "--topo", "dgx-a100")) == is_named


def test_another_gpu_is_named(synth: Call, tmp_path: Path) -> None:
    device = "#  Rank {} Group  0 Pid 7 on host device 0 [0x16] NVIDIA A100-SXM4-40GB"
    devices = "\n".join(device.format(rank) for rank in range(8))
    text = f"{devices}\n{printed('dgx-h100', 8, 'allreduce', 1.0, 'all_reduce_perf').replace('nThread', 'threads')}"
    assert "the text names NVIDIA A100-SXM4-40GB, and dgx-h100 is 8 H100" in " ".join(
        judged(synth, tmp_path / "x", text, "--topo", "dgx-h100").split()
    )


def test_json_and_picture(synth: Call, tmp_path: Path) -> None:
    text = printed("dgx-a100", 8, "allreduce", 1.0, "all_reduce_perf")
    options = "--topo", "dgx-a100", "--json", "--plot", str(tmp_path / "times.svg")
    document = json.loads(judged(synth, tmp_path / "x", f"{text}\n{text}", *options))
    assert [len(run["rows"]) for run in document["runs"]] == [len(SIZES)] * 2
    assert (tmp_path / "times.svg").read_text().count("<svg") == 1
    for row in document["runs"][0]["rows"]:
        assert row["usual_low_us"] <= row["out_of_place_us"] <= row["usual_high_us"]
        assert row["bound_us"] <= 1.03 * row["out_of_place_us"]


def test_a_picture_that_cannot_be_written_is_one_line(
    synth: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError("no room is left")  # Without a number, as compressors raise it.

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", full)
    (tmp_path / "x").write_text(printed("dgx-a100", 8, "allreduce", 1.0, "all_reduce_perf"))
    options = "--topo", "dgx-a100", "--plot", str(tmp_path / "times.svg"), "--budget", "0.5s"
    assert "cannot be written (no room is left)" in synth("judge", str(tmp_path / "x"), *options).refusal


@pytest.mark.parametrize("slower", [1.0, 1.5])
def test_costs_are_fitted_to_what_was_measured(synth: Call, tmp_path: Path, slower: float) -> None:
    text = printed("dgx-a100", 8, "allreduce", slower, "all_reduce_perf")
    out = judged(synth, tmp_path / "x", text, "--topo", "dgx-a100", "--out", str(tmp_path / "own.toml"))
    assert "fitted: LL (latency × " in " ".join(out.split())
    usual, own = load("dgx-a100").costs, load(str(tmp_path / "own.toml")).costs
    assert usual is not None
    assert own is not None
    assert own.source.startswith("measured here")
    assert load(str(tmp_path / "own.toml")).name == "dgx-a100-measured"  # Its files do not replace the machine's.
    # The small messages tell of the start of LL, and the large ones of the bandwidth of Simple.
    assert own.protocols["LL"].start_us == pytest.approx(slower * usual.protocols["LL"].start_us, rel=0.06)
    usual_share, own_share = (costs.protocols["Simple"].efficiency["nvlink"] for costs in (usual, own))
    assert own_share == pytest.approx(usual_share / slower, rel=0.05)


def test_costs_that_cannot_be_fitted_are_named_after_the_table(synth: Call, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(printed("dgx-a100", 8, "allreduce", 1.0, "all_reduce_perf"))
    options = "--topo", "ring:8", "--out", str(tmp_path / "own.toml"), "--budget", "0.5s"
    answer = synth("judge", str(tmp_path / "x"), *options)
    assert (answer.code, answer.err) == (2, "synth: ring:8 states no [costs], whose figures would be fitted\n")
    assert "message size" in answer.out
    assert not (tmp_path / "own.toml").exists()


def test_measured_costs_are_not_compared_with_usual_machines(synth: Call, tmp_path: Path) -> None:
    text = printed("dgx-a100", 8, "allreduce", 1.5, "all_reduce_perf")
    judged(synth, tmp_path / "x", text, "--topo", "dgx-a100", "--out", str(tmp_path / "own.toml"))
    question = (
        "allreduce",
        "--topo",
        str(tmp_path / "own.toml"),
        "--size",
        "64K",
        "--engine",
        "route",
        "--budget",
        "1s",
    )
    document = json.loads(synth(*question, "--out", str(tmp_path / "out"), "--json").out)
    assert "measured on one machine" in document["libraries"]["NCCL"]["not_modelled"]
    again = judged(synth, tmp_path / "x", text, "--topo", str(tmp_path / "own.toml"))
    assert "NCCL usually" in again


def test_machines_without_a_model_have_bounds_only(synth: Call, tmp_path: Path) -> None:
    lines = [HEADS, "1048576 262144 float sum -1 900 1.17 2.04 0 900 1.17 2.04 0"]
    out = judged(synth, tmp_path / "x", "\n".join(lines), "--topo", "torus:2x4", "--collective", "allreduce")
    assert "what NCCL usually takes is not known: " in out


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("nothing", (), "no table of nccl-tests in it"),
        (f"{HEADS}\n1024 256 float none -1 9 0.1 0.1 0 9 0.1 0.1 0", (), "the text does not name the collective"),
        ("REDUCE", (), "give --collective"),
        ("RUN", ("--collective", "broadcast"), "is a run of allreduce, and --collective says broadcast"),
        ("RUN", ("--group", "0-3"), "8 ranks took part, and --group names 4"),
        ("RUN", ("--topo", "dgx-a100:2", "--group", "0-99"), "--group"),
        ("RUN", ("--topo", "ring:4"), "8 ranks took part, and ring:4 has 4"),
        ("RUN", ("--plot", "times.txt"), "must end in .svg, .png, .pdf"),
        ("RUN", ("--out", "times.txt"), "toml"),
        ("RUN", ("--collective", "nothing"), "nothing"),
        ("RUN".replace("RUN", "HYPERCUBE"), (), "hypercube is not judged"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    synth: Call, tmp_path: Path, text: str, options: tuple[str, ...], message: str
) -> None:
    texts = {
        "RUN": printed("dgx-a100", 8, "allreduce", 1.0, "all_reduce_perf"),
        "HYPERCUBE": printed("dgx-a100", 8, "allreduce", 1.0, "hypercube_perf"),
        "REDUCE": f"{HEADS}\n1024 256 float sum -1 9 0.1 0.1 0 9 0.1 0.1 0",
    }
    (tmp_path / "x").write_text(texts.get(text, text))
    topology = () if "--topo" in options else ("--topo", "dgx-a100")
    answer = synth("judge", str(tmp_path / "x"), *topology, *options, "--budget", "0.5s")
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""


def test_a_missing_file_is_refused(synth: Call, tmp_path: Path) -> None:
    answer = synth("judge", str(tmp_path / "none"), "--topo", "dgx1")
    assert (answer.code, answer.err.count("\n")) == (2, 1)
