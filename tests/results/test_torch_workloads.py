"""Tests of the training jobs: they learn, the same with every method, and wrong losses are found."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from results.scripts.torch_workloads import METHODS, check_losses, networks, report


def row(method: str, *losses: float) -> dict[str, Any]:
    """Return a row as a job writes it."""
    calls = [["allreduce", method, 0.5]]
    seconds = {"seconds": [1.0, 1.0], "cpu_seconds": [0.1, 0.1]}
    return {"workload": "DLRM", "method": method, "losses": list(losses), "calls": calls, **seconds}


def test_networks_join_all_ranks() -> None:
    for ranks, (_, _, links) in networks().items():
        reached, ends = {0}, [set(pair) for pair in links]
        while more := [pair for pair in ends if pair & reached and not pair <= reached]:
            reached.update(*more)
        assert reached == set(range(ranks))


@pytest.mark.parametrize("losses", [(1.0, 0.5, 0.26), (1.0, 1.1, 1.2)])
def test_losses_that_differ_or_do_not_fall_are_found(losses: tuple[float, ...]) -> None:
    check_losses([row("gloo", 1.0, 0.5, 0.25), row("auto", 1.0, 0.5, 0.25)])
    with pytest.raises(SystemExit, match="loss"):
        check_losses([row("gloo", 1.0, 0.5, 0.25), row("auto", *losses)])


@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_job_trains_every_workload_with_every_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from results.measuring.workloads import WORKLOADS
    from results.scripts.auto import run_job

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    result = tmp_path / "rows.json"
    run_job(tmp_path, 2, "results.scripts.torch_workloads", "--worker", result, "--steps", 2)
    rows = json.loads(result.read_text())
    check_losses(rows)
    assert [(r["workload"], r["method"]) for r in rows] == [(name, method) for name in WORKLOADS for method in METHODS]
    served = {(r["method"], backend.split()[0]) for r in rows for _, backend, _ in r["calls"]}
    assert served >= {("gloo", "gloo"), ("synth", "synth"), ("auto", "gloo")}
    assert ("gloo", "synth") not in served
    assert any("mixture of experts" in part for part in report({"two ranks": rows}))
