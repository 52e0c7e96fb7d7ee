"""What an answer states about NCCL: in its rows, in the table, and why there is nothing."""

from __future__ import annotations

from typing import Any

import pytest

from synth.app.present.table import table
from synth.baselines.nccl.fitted import fitted_model
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from synth.search.result import SearchResult
from synth.search.statement import compare, over_sizes, statement
from topologies.costed import with_costs
from topologies.load import load

MIB = 1 << 20


def result(collective: str, spec: str, group: list[int], costs: bool = False) -> SearchResult:
    topology = with_costs(load(spec)) if costs else load(spec)
    problem = make_problem(topology, collective, group)
    return SearchResult(problem, bound=prove(problem, max_flow=False))


def shown(search_result: SearchResult, times_us: dict[int, float]) -> tuple[dict[str, Any], str]:
    """Return the statement and the table of an answer with given times by size."""
    shape = {"steps": 1, "rounds": 1, "chunks": 1, "engine": "x", "refused": "", "min_bytes": 0, "max_bytes": None}
    shape |= {"switch_ops": False, "sends": 1}
    document = statement(search_result)
    document["algorithms"] = [
        shape | compare(search_result, us, size) | over_sizes(search_result, lambda _, us=us: us, size, size, size, 1)
        for size, us in times_us.items()
    ]
    return document, table(document, search_result.problem.topology.nranks)


def test_rows_and_table_state_the_time_of_nccl() -> None:
    search_result = result("allreduce", "dgx-a100", [0, 2, 4, 6], costs=True)
    document, text = shown(search_result, {1024: 5.0, 1 << 30: 5000.0})
    for row, us in zip(document["algorithms"], (5.0, 5000.0), strict=True):
        choice = fitted_model(load("dgx-a100"), [0, 2, 4, 6]).choose("allreduce", row["shown_bytes"])
        nccl = row["libraries"]["NCCL"]
        assert nccl["time_us"] == choice.time_us  # The library's own time.
        assert nccl["vs"] == pytest.approx(choice.time_us / us)
        assert (nccl["algorithm"], nccl["protocol"]) == (choice.algorithm, choice.protocol)
    assert document["libraries"]["NCCL"]["not_modelled"] == ""
    line = next(line for line in text.splitlines() if line.startswith("vs NCCL"))
    assert "what NCCL 2.30 would run (ring LL @ 1K, ring Simple @ 1G), timed by a model fitted to" in line


def test_no_library_stands_beside_times_without_costs() -> None:
    document, text = shown(result("allreduce", "dgx-a100", [0, 2, 4, 6]), {1024: 5.0})
    assert document["algorithms"][0]["libraries"] == {}
    assert "which these times leave out (--costs none, or" in document["libraries"]["NCCL"]["not_modelled"]
    assert "no vs NCCL: " in text
    assert "vs " not in text.replace("vs baseline", "").replace("no vs NCCL: ", "")


@pytest.mark.parametrize(
    ("collective", "spec", "why"),
    [
        ("allreduce", "mi300x", "states no compute capability"),
        ("allgather", "torus:2x2", "states no compute capability"),
        ("alltoall", "dgx-h100:2", "grouped send and receive"),
        ("alltoall", "dgx1", "on GPUs with NVLink switches only"),
    ],
)
def test_no_column_where_nccl_is_not_modelled(collective: str, spec: str, why: str) -> None:
    search_result = result(
        collective, spec, [0, 1, 8, 9] if "h100" in spec else [0, 1, 2, 3], costs=":2" in spec and "torus" not in spec
    )
    document, text = shown(search_result, {MIB: 100.0})
    assert why in document["libraries"]["NCCL"]["not_modelled"]
    assert "NCCL" not in document["algorithms"][0]["libraries"]
    assert "vs NCCL" not in text
