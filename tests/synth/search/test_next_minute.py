"""What a search states about the next minute: nothing once all is proved, else who goes on and where the gap is."""

from __future__ import annotations

from synth.app.present.table import format_next_minute
from synth.engines.request import Options
from synth.model.problem import make_problem
from synth.model.sizes import parse_size
from synth.search.plans import SearchPlan, Stage
from synth.search.search import search
from synth.search.statement import statement
from synth.solvers.workers import Workers
from topologies.load import load

PLAIN = SearchPlan((Stage("route"), Stage("baseline", always=True), Stage("ksync")), rest=False, windows=0)


def test_a_proof_ends_the_search(workers: Workers) -> None:
    result = search(make_problem(load("full:4"), "alltoall"), Options(size=1 << 20), workers, plan=PLAIN)
    assert (result.stop_reason, result.remaining_engines, result.next_window_size, result.claims) == ("", (), None, [])
    assert result.baselines  # The answers beside the best one are there nevertheless.
    assert format_next_minute(statement(result)["next_minute"]) == "next minute: nothing, all is proved optimal"


def test_the_largest_gap_is_named(workers: Workers) -> None:
    tuning = SearchPlan(PLAIN.stages[:2], rest=False, windows=0)
    result = search(make_problem(load("ring:4"), "broadcast"), Options(), workers, plan=tuning)
    document = statement(result)
    next_minute, worst = document["next_minute"], max(row["worst"]["gap"] for row in document["algorithms"])
    assert next_minute["gap"] == worst > 1
    assert next_minute["time_s"] > next_minute["bound_s"]
    line = format_next_minute(next_minute)
    assert f"every engine has ended · largest gap of all sizes {worst:.3f} at " in line
    assert line.endswith(" searches there only)")
    assert format_next_minute(next_minute, "budget").startswith(
        "next minute: bounds and programs (every engine has ended) ·"
    )
    assert format_next_minute(next_minute | {"engines": ["lns", "flow"]}).startswith(
        "next minute: engine lns then flow ·"
    )


def test_the_size_to_search_at_is_one_that_the_option_takes() -> None:
    """Check sizes that the text rounds or that it states with a fraction: ends of ranges are such sizes."""
    outlook = {"engines": [], "window_bytes": None, "one_size": False, "gap": 1.5}
    for size in (1 << 15, 37376, 106750):
        line = format_next_minute({**outlook, "bytes": size})
        assert parse_size(line.partition("--size ")[2].partition(" ")[0], "size") == size
