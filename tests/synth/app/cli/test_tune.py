"""`synth tune` and `synth calibrate`: later calls of torch follow what these commands measure."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

from runtime.torch.table import load_table
from tests import ROOT
from tests.hang import HANG_S
from tests.synth.app.cli.calling import Call
from topologies.load import load
from topologies.text.writer import to_toml

with_torch = pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed: pip install '.[torch]'")


def processes(folder: Path, *arguments: object, **about: str) -> subprocess.CompletedProcess[str]:
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    return subprocess.run(
        [sys.executable, "-m", "synth", *map(str, arguments)],
        cwd=folder,
        env=plain | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)} | about,
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )


@contextmanager
def begun(folder: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Start a long `synth tune` of two ranks, and yield it after its first size."""
    arguments = ("tune", "--ranks", "2", "--ops", "allreduce", "--sizes", "8:1G:1.1", "--turns", "7", *more)
    with subprocess.Popen(
        [sys.executable, "-m", "synth", *arguments],
        cwd=folder,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("allreduce of ranks 0,1, 8 bytes")
        yield process


def children(process: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.slow
@with_torch
def test_tune_writes_the_table_that_was_measured(tmp_path: Path) -> None:
    arguments = ("--ops", "all_reduce,gather", "--sizes", "64,64K", "--turns", "7")
    completed = processes(tmp_path, "tune", "--ranks", 3, *arguments, "--group", "0,1,2", "--group", "2,1")
    assert (completed.returncode, completed.stderr) == (0, "")
    rows = load_table(tmp_path / "table.json")
    assert {(row.collective, row.ranks) for row in rows} == {(c, n) for c in ("allreduce", "gather") for n in (2, 3)}
    measured = json.loads((tmp_path / "table.json").read_text())["measured"]
    for row in rows:
        of_it = [m for m in measured if (m["collective"], len(m["group"])) == (row.collective, row.ranks)]
        assert {(m["backend"], m["algorithm"]) for m in of_it} > {(row.backend, row.algorithm)}
        whole = 4 * row.ranks if row.collective == "gather" else 4  # Sizes are whole elements of every block.
        assert {m["size_bytes"] for m in of_it} == {size // whole * whole for size in (64, 65536)}
    for line in (
        "allreduce of ranks 0,1,2, 64 bytes of float32",
        "gather of ranks 1,2, 65536 bytes of float32",
    ):
        assert line in completed.stdout


@pytest.mark.slow
@with_torch
def test_ranks_look_for_modules_where_the_command_does(tmp_path: Path) -> None:
    """Check that a module in the current folder hides no package from the ranks.

    The command `synth` does not look into that folder.
    """
    (tmp_path / "runtime.py").write_text("")
    arguments = ("tune", "--ranks", "2", "--ops", "allreduce", "--sizes", "64", "--turns", "7")
    completed = subprocess.run(
        [sys.executable, "-P", "-m", "synth", *arguments],
        cwd=tmp_path,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (completed.returncode, completed.stderr) == (0, "")
    assert load_table(tmp_path / "table.json")


@pytest.mark.slow
@with_torch
def test_calibrate_writes_the_links_of_the_topology(tmp_path: Path) -> None:
    for _ in range(4):  # A busy machine's times are refused, in one line.
        completed = processes(tmp_path, "calibrate", "--ranks", 3, "--topo", "line:3", "-o", "here.toml")
        if completed.returncode == 0:
            break
        assert completed.returncode == 2
        assert "less busy" in completed.stderr
        assert not (tmp_path / "here.toml").exists()
    assert (completed.returncode, completed.stderr) == (0, "")
    calibrated, topology = load(str(tmp_path / "here.toml")), load("line:3")
    assert list(zip(calibrated.link_src, calibrated.link_dst, strict=True)) == list(
        zip(topology.link_src, topology.link_dst, strict=True)
    )
    assert (calibrated.alpha_us > 0).all()
    assert not (calibrated.bandwidth_gbs == topology.bandwidth_gbs).all()
    assert not calibrated.alpha_assumed
    assert len([line for line in completed.stdout.splitlines() if "→" in line]) == 4


@pytest.mark.slow
@with_torch
def test_ctrl_c_keeps_the_measurements(tmp_path: Path) -> None:
    with begun(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        output = process.stdout.read()  # type: ignore[union-attr]
    assert process.returncode == 130
    assert "wrote table.json" in output
    assert load_table(tmp_path / "table.json")[0].min_bytes == 8


@with_torch
def test_a_rank_that_cannot_start_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("{}")
    completed = processes(tmp_path, "tune", "--ranks", 2, SYNTH_TABLE="table.json")
    assert completed.returncode == 2
    assert completed.stderr.startswith("synth: table table.json: ")
    assert completed.stderr.count("\n") == 1


@pytest.mark.slow
@with_torch
def test_ranks_do_not_outlive_the_command(tmp_path: Path) -> None:
    with begun(tmp_path, "-o", "left.json") as process:
        ranks = children(process.pid)
        process.send_signal(signal.SIGHUP)
        process.stdout.read()  # type: ignore[union-attr]
    assert process.returncode == 128 + signal.SIGHUP
    assert len(ranks) == 2
    assert not any(Path(f"/proc/{rank}").exists() for rank in ranks)
    assert not (tmp_path / "left.json").exists()


@with_torch
def test_a_rank_that_is_killed_ends_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "table.json").write_text("whole")
    with begun(tmp_path) as process:
        os.kill(max(children(process.pid)), signal.SIGKILL)
        output = process.stdout.read()  # type: ignore[union-attr]
        errors = process.stderr.read()  # type: ignore[union-attr]
    assert process.returncode == 1
    assert "rank 1" in errors
    assert errors.startswith("synth: ")
    assert errors.count("\n") == 1
    assert "wrote table.json.part, with the measurements so far" in output
    assert load_table(tmp_path / "table.json.part")
    assert (tmp_path / "table.json").read_text() == "whole"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tune",), "--ranks"),
        (("tune", "--ranks", "2", "--ops", "allredude"), "allredude"),
        (("tune", "--ranks", "2", "--sizes", "1M:1K"), "has its larger end first"),
        (("tune", "--ranks", "2", "--types", "float8"), "--types"),
        (("tune", "--ranks", "2", "--group", "0,5"), "--group"),
        (("tune", "--ranks", "2", "--group", "0"), "--group"),
        (("tune", "--ranks", "2", "--library", "nowhere"), "nowhere"),
        (("tune", "--ranks", "2", "-o", "no/where.json"), "no/where.json"),
        (("tune", "--ranks", "2", "-o", "."), "cannot be written"),
        (("tune", "--ranks", "2", "--turns", "6"), "--turns"),
        (("calibrate", "--ranks", "2", "-o", "here.txt"), ".toml"),
        (("calibrate", "--ranks", "2", "-o", "no/where.toml"), "no/where.toml"),
        (("calibrate",), "--ranks"),
        (("calibrate", "--ranks", "4", "--topo", "dgx1"), "dgx1 has 8"),
        (("calibrate", "--ranks", "4", "--topo", "nowhere.toml"), "nowhere.toml"),
    ],
)
def test_refusals(synth: Call, arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.backends.find_spec", lambda _: True)  # refused before torch is loaded
    answer = synth(*arguments)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_without_torch_it_says_how_to_get_it(synth: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.backends.find_spec", lambda _: None)
    for command in ("tune", "calibrate"):
        answer = synth(command, "--ranks", "2")
        assert answer.code == 2
        assert "pip install '.[torch]'" in answer.err


@with_torch
def test_unequal_all_to_alls_have_rows_of_their_own(tmp_path: Path) -> None:
    network = tmp_path / "net.toml"
    network.write_text(to_toml(load("full:2")))
    words = ("tune", "--ranks", "2", "--ops", "alltoallv", "--sizes", "4K", "--turns", "7")
    done = processes(tmp_path, *words, SYNTH_TOPOLOGY=str(network))
    assert done.returncode == 0, done.stderr
    (row,) = load_table(tmp_path / "table.json")
    assert (row.collective, row.ranks) == ("alltoallv", 2)
    measured = json.loads((tmp_path / "table.json").read_text())["measured"]
    assert {(m["backend"], m["algorithm"]) for m in measured} >= {("gloo", None), ("synth", "direct")}
