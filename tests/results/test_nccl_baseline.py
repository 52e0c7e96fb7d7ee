"""Tests of the table of NCCL's own cost model: its published runs, and the report of large deviations."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from results.scripts.nccl_baseline import (
    GOAL_POINTS,
    PUBLISHED,
    SWITCHING,
    asked_of,
    bus_factor,
    cluster,
    points,
    ranks_of,
    summary,
    switches,
    why,
)
from synth.baselines.nccl.fitted import fitted_model
from synth.baselines.nccl.model import nccl_model
from synth.baselines.vendors import LIBRARIES
from topologies.load import load

RUNS: list[dict[str, Any]] = tomllib.loads(PUBLISHED.read_text(encoding="utf-8"))["run"]


def test_published_runs_have_an_address_and_no_point_twice() -> None:
    assert sum(len(run.get("rows", [0])) for run in RUNS) >= GOAL_POINTS
    for run in RUNS:
        assert run["source"].startswith("https://")
        assert {"date", "gpu", "collective", "machine", "nodes"} <= set(run)
        sizes = [size for size, _ in run.get("rows", [])]
        assert sizes == sorted(set(sizes))
        assert all(us > 0 for _, us in run.get("rows", []))


@pytest.mark.parametrize("number", [n for n, run in enumerate(RUNS) if run["nodes"] > 1])
def test_nics_of_a_run_are_distributed_over_its_gpus(number: int) -> None:
    run = RUNS[number]
    topology = cluster(run)
    assert topology.nranks == ranks_of(run)
    (node,) = nccl_model(topology, range(topology.nranks)).communicator.kinds
    assert len(node.nics) == run["nics"]
    assert {nic.gbs for nic in node.nics} == {run["nic_gbs"]}
    assert {gpu for nic in node.nics for gpu in nic.gpus} == set(range(node.gpus))


def run_at(factor: float) -> dict[str, Any]:
    """Return a published run whose times are `factor` times those of the model."""
    model = fitted_model(load("dgx-a100"), range(8))
    rows = [[1 << k, factor * model.choose("allreduce", 1 << k).time_us] for k in range(10, 34)]
    return {"machine": "dgx-a100", "nodes": 1, "collective": "allreduce", "rows": rows}


@pytest.mark.parametrize(
    ("factor", "error", "verdict"), [(1.0, "0%", "met"), (1.5, "50%", "not met"), (0.7, "30%", "not met")]
)
def test_the_error_of_a_model_is_reported(factor: float, error: str, verdict: str) -> None:
    runs = [run_at(factor)]
    run_points = list(points(1, runs[0]))
    rows = {name: cells for name, *cells in summary(runs, run_points)}
    assert rows["NCCL, all"] == [24, error, verdict]
    assert rows["RCCL, all"][:2] == [0, "–"]


def test_a_run_counts_for_the_library_that_it_names() -> None:
    runs = [run_at(1.0) | {"library": "NCCL"}]
    assert {name: count for name, count, *_ in summary(runs, list(points(1, runs[0])))}["NCCL, all"] == 24


def test_the_farthest_run_is_reported() -> None:
    runs = [run_at(1.2), run_at(1.7) | {"library": "NCCL"}]
    found = [point for number, run in enumerate(runs, 1) for point in points(number, run)]
    assert "up to 1.7 times the measured bandwidth (run 2)" in why(runs, found)


@pytest.mark.parametrize(("library", "spec"), [(name, spec) for name, specs in SWITCHING.items() for spec in specs])
def test_every_row_of_switches_is_modelled(library: str, spec: str) -> None:
    topology, ranks = asked_of(library, spec)
    assert LIBRARIES[library].model(topology, ranks).choose("allreduce", 1 << 20).time_us > 0
    assert len(ranks) == topology.nranks or library == "MSCCL++"


def test_a_run_of_few_points_does_not_meet_the_goal() -> None:
    runs = [run_at(1.0)]
    runs[0]["rows"] = runs[0]["rows"][: GOAL_POINTS - 1]
    summary_rows = summary(runs, list(points(1, runs[0])))
    assert {verdict for *_, verdict in summary_rows} == {"not met"}
    assert not [row for row in summary(runs, []) if row[3] == "met"]


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert [bus_factor(c, 8) for c in ("allreduce", "allgather", "reducescatter", "broadcast", "reduce")] == [
        1.75, 0.875, 0.875, 1, 1,
    ]  # fmt: skip


def test_switches_name_the_choice_at_both_ends() -> None:
    model = nccl_model(load("dgx-h100"), range(8))
    text = switches(model, "allreduce")
    assert text.startswith("ring LL")
    assert text.endswith("NVLS Simple")
    assert text.count("·") == text.count("**") // 2
