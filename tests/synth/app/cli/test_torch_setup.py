"""`synth torch-setup`: the steps in their order, what they gained, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from synth.app.cli.measuring import torch_setup as module
from tests.synth.app.cli.calling import Call
from topologies.load import load
from topologies.text.writer import to_toml

ROW = {"collective": "allreduce", "min_bytes": 1024, "max_bytes": 65536, "backend": "synth", "algorithm": "ring"}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Record the commands instead of running them, and let those that write files write them."""
    commands: list[list[str]] = []

    def run(words: Sequence[str], env: Mapping[str, str], **_: Any) -> SimpleNamespace:
        arguments = list(words[list(words).index("synth") + 1 :])
        commands.append(arguments)
        target = Path(arguments[-1])
        if arguments[0] == "calibrate":
            target.write_text(to_toml(load("full:2")))
        elif arguments[0] == "tune":
            gain = {"median": 1.6, "at_least": 1.3, "confidence": 0.99}
            rows = [ROW | {"gain": gain}]
            if "alltoallv" in arguments[arguments.index("--ops") + 1]:
                assert load(env["SYNTH_TOPOLOGY"]).nranks == 2
                rows.append(ROW | {"collective": "alltoallv", "algorithm": "planned", "gain": gain})
            target.write_text(json.dumps({"rows": rows}))
        else:
            target.mkdir(exist_ok=True)
        return SimpleNamespace(returncode=0, stderr="")

    monkeypatch.setattr(module.subprocess, "run", run)
    monkeypatch.setattr(module, "BACKENDS", {"torch": SimpleNamespace(require=lambda: None)})
    return commands


def test_it_measures_searches_and_compares(steps: list[list[str]], tmp_path: Path, synth: Call) -> None:
    printed = synth("torch-setup", "--ranks", "2", "--ops", "allreduce,allgather", "-o", str(tmp_path / "tuned"))
    assert [command[0] for command in steps] == ["calibrate", "allreduce", "allgather", "tune"]
    files = [word for command in steps for word in command if word.endswith((".toml", ".json"))]
    assert all(word.startswith(str(tmp_path / "tuned")) for word in files)
    assert "allreduce 1K to 64K: 1.60 × as fast as Gloo, surely 1.30 ×: ring" in " ".join(printed.out.split())
    assert "allgather: Gloo is fastest at every size" in printed.out
    assert f"export SYNTH_LIBRARY={tmp_path}/tuned/library SYNTH_TABLE={tmp_path}/tuned/table.json" in printed.out


def test_sizes_of_each_call_are_compared_without_a_search(steps: list[list[str]], tmp_path: Path, synth: Call) -> None:
    printed = synth("torch-setup", "--ranks", "2", "--ops", "alltoallv", "-o", str(tmp_path / "tuned"))
    assert [command[0] for command in steps] == ["calibrate", "tune"]
    assert "alltoallv 1K to 64K: 1.60 × as fast as Gloo, surely 1.30 ×: planned" in " ".join(printed.out.split())
    assert f"SYNTH_TOPOLOGY={tmp_path}/tuned/here.toml" in printed.out


def test_a_folder_is_continued_but_not_with_other_ranks(steps: list[list[str]], tmp_path: Path, synth: Call) -> None:
    arguments = ["torch-setup", "--ops", "allreduce", "-o", str(tmp_path)]
    synth(*arguments, "--ranks", "2")
    synth(*arguments, "--ranks", "2")
    assert [command[0] for command in steps] == ["calibrate", "allreduce", "tune", "allreduce", "tune"]
    refused = synth(*arguments, "--ranks", "3")
    assert (refused.code, len(refused.err.splitlines())) == (2, 1)
    assert "has 2 ranks, not 3" in refused.err


def test_a_step_that_fails_is_named_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, synth: Call
) -> None:
    failing = SimpleNamespace(returncode=2, stderr="progress\nsynth: the link is down\n")
    monkeypatch.setattr(module.subprocess, "run", lambda *_, **__: failing)
    monkeypatch.setattr(module, "BACKENDS", {"torch": SimpleNamespace(require=lambda: None)})
    refused = synth("torch-setup", "--ranks", "2", "-o", str(tmp_path))
    assert refused.code == 2
    assert "calibrate" in refused.err
    assert refused.err.strip().endswith("the link is down")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--ops", "nothing"], "is not known"),
        (["--sizes", "1K"], ""),
        (["--sizes", "9:1"], "has its larger end first"),
        (["--sizes", "1:9:1"], "is no range"),
        (["--budget", "soon"], "--budget"),
        (["--topo", "ring:3"], "has 3 ranks"),
    ],
)
def test_wrong_values_are_refused_before_anything_runs(
    words: list[str], why: str, steps: list[list[str]], tmp_path: Path, synth: Call
) -> None:
    printed = synth("torch-setup", "--ranks", "2", *words, "-o", str(tmp_path / "x"))
    assert (printed.code == 2) == bool(why)
    assert why in printed.err
    assert bool(steps) != bool(why)


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.slow
def test_it_tunes_a_job_of_two_processes(tmp_path: Path, synth: Call) -> None:
    (tmp_path / "here.toml").write_text(to_toml(load("full:2")))
    words = ["--ops", "allreduce", "--sizes", "1K:4K", "--budget", "5s", "-o", str(tmp_path)]
    printed = synth("torch-setup", "--ranks", "2", *words)
    assert (printed.code, printed.err) == (0, "")
    assert json.loads((tmp_path / "table.json").read_text())["rows"]
