"""What a search states about the next minute: nothing once all is proved, else who goes on and where the gap is."""

from __future__ import annotations

from synth.app.present.table import format_next_minute, table
from synth.engines.request import Options
from synth.model.problem import make_problem
from synth.model.sizes import parse_size
from synth.search.plans import SearchPlan, Stage
from synth.search.search import search
from synth.search.statement import next_minute, statement
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
    outlook, worst = document["next_minute"], max(row["worst"]["gap"] for row in document["algorithms"])
    assert outlook["gap"] == worst > 1
    assert outlook["time_s"] > outlook["bound_s"]
    line = format_next_minute(outlook)
    assert f"every engine has ended · largest gap of all sizes {worst:.3f} at " in line
    assert line.endswith(" searches there only)")
    assert format_next_minute(outlook, "budget").startswith(
        "next minute: bounds and programs (every engine has ended) ·"
    )
    assert format_next_minute(outlook | {"engines": ["lns", "flow"]}).startswith("next minute: engine lns then flow ·")


def test_the_largest_gap_is_that_of_own_algorithms_and_its_size_is_theirs(workers: Workers) -> None:
    tuning = SearchPlan(PLAIN.stages[:2], rest=False, windows=0)
    result = search(make_problem(load("ring:4"), "broadcast"), Options(), workers, plan=tuning)
    rows = statement(result)["algorithms"]
    left = rows[0] | {"engine": "NCCL", "worst": rows[0]["worst"] | {"gap": 99.0}}
    assert next_minute(result, [*rows, left])["gap"] < 99.0
    assert next_minute(result, [left])["gap"] == 99.0
    outlook = next_minute(result, rows) | {"bytes": (4 << 20) - 1}
    assert " just below 4M" in format_next_minute(outlook)
    assert " at 4M" in format_next_minute(outlook | {"bytes": 4 << 20})


def test_brackets_are_explained_where_they_are_shown(workers: Workers) -> None:
    problem = make_problem(load("dgx-a100"), "allgather", (0, 1, 2, 3))
    document = statement(search(problem, Options(size=1 << 20), workers, plan=PLAIN))
    choice = {"algorithm": "ring", "protocol": "LL", "channels": None, "time_us": 9.0, "source_us": None}
    document["libraries"] = {"NCCL": {"version": "2.30", "own_clock": True}}
    document["algorithms"][0]["libraries"] = {"NCCL": choice | {"vs": 1.5, "vs_low": 1.2, "vs_high": 1.8}}
    assert table(document, 8, None).count("the brackets hold") == 1
    for width in range(60, 120, 5):
        text = table(document, 8, width)
        assert ("× (" in text) == ("the brackets hold" in " ".join(text.split()))
    document["algorithms"][0]["libraries"] = {"NCCL": choice | {"vs": 1.5, "vs_low": 0.9, "vs_high": 1.8}}
    assert "the brackets hold" not in table(document, 8, None)


def test_rows_of_both_forms_that_read_the_same_stand_once(workers: Workers) -> None:
    tuning = SearchPlan(PLAIN.stages[:2], rest=False, windows=0)
    document = statement(search(make_problem(load("ring:4"), "broadcast"), Options(), workers, plan=tuning))
    [row, *_] = [row | {"refused": "", "max_bytes": 1806335} for row in document["algorithms"]]
    document |= {"inplace": True, "algorithms": [row], "other_form": [row | {"max_bytes": 1806336}]}
    assert "out of place" not in table(document, 4, 80)
    document["other_form"] = [row | {"max_bytes": 1906336}]
    assert "out of place" in table(document, 4, 80)


def test_the_size_to_search_at_is_one_that_the_option_takes() -> None:
    """Check sizes that the text rounds or that it states with a fraction: ends of ranges are such sizes."""
    outlook = {"engines": [], "window_bytes": None, "one_size": False, "gap": 1.5}
    for size in (1 << 15, 37376, 106750):
        line = format_next_minute({**outlook, "bytes": size})
        assert parse_size(line.partition("--size ")[2].partition(" ")[0], "size") == size
