"""What a search says of the next minute: nothing once all is proved, else who goes on and where the gap is."""

from __future__ import annotations

from synth.app.present.table import format_next_minute
from synth.engines.request import Options
from synth.model.problem import make_problem
from synth.search.plans import SearchPlan, Stage
from synth.search.search import search
from synth.search.statement import statement
from synth.solvers.workers import Workers
from topologies.load import load

PLAIN = SearchPlan((Stage("route"), Stage("baseline", always=True), Stage("ksync")), rest=False, windows=0)


def test_what_is_proved_ends_the_search(workers: Workers) -> None:
    found = search(make_problem(load("full:4"), "alltoall"), Options(size=1 << 20), workers, plan=PLAIN)
    assert (found.ended, found.queue, found.refutable, found.claims) == ("", (), None, [])
    assert found.baselines  # what stands beside the answer is there nevertheless
    assert format_next_minute(statement(found)["next_minute"]) == "next minute: nothing, all is proved optimal"


def test_the_largest_gap_is_named(workers: Workers) -> None:
    tuning = SearchPlan(PLAIN.stages[:2], rest=False, windows=0)
    found = search(make_problem(load("ring:4"), "broadcast"), Options(), workers, plan=tuning)
    document = statement(found)
    told, worst = document["next_minute"], max(row["worst"]["gap"] for row in document["algorithms"])
    assert told["gap"] == worst > 1
    assert told["time_s"] > told["bound_s"]
    line = format_next_minute(told)
    assert f"largest gap {worst:.3f} at " in line
    assert line.endswith(", algorithm improved last")
    assert "every engine has ended (to search further: --size " in line
    assert format_next_minute(told | {"engines": ["lns", "flow"]}).startswith("next minute: engine lns then flow ·")
