"""Tests of the script that runs plans, on single questions."""

from __future__ import annotations

import pytest

from results.scripts import plans
from results.scripts.plans import Row, algorithms, examine, groups
from synth.model.problem import make_problem
from tests.synth.engines.test_switch import answers
from topologies.load import load


@pytest.mark.parametrize(
    ("topology", "collective", "group", "relay"),
    [("full:4", "broadcast", (0, 1, 2), "none"), ("ring:8", "allgather", (0, 2), "all")],
)
def test_plans_of_a_question(topology: str, collective: str, group: tuple[int, ...], relay: str) -> None:
    row = Row(topology, collective)
    plan_texts: dict[str, str] = {}
    for algorithm in algorithms(topology, collective, group, 0.2, relay)[:1]:  # For small messages.
        examine(row, algorithm, group, 2, plan_texts)
    counts = row.counts
    assert counts["right"] == counts["offsets"] == counts["plans"] > counts["LL"] > 0
    assert counts["found"] == counts["planted"] >= 3 * counts["plans"] - counts["LL"]
    assert not row.wrong
    assert len(plan_texts) == counts["plans"]


def test_plans_in_switches() -> None:
    row, group = Row("dgx-h100", "allreduce"), (4, 1, 6, 3)
    examine(row, answers(make_problem(load("dgx-h100"), "allreduce", group), 8)[0], group, 1, {})
    counts = row.counts
    assert counts["right"] == counts["offsets"] == counts["plans"] == 4
    assert counts["found"] == counts["planted"] >= 4 * counts["plans"]
    assert not row.wrong


def test_groups_in_switches_overlap() -> None:
    (first_group, second_group, *_) = plans.overlapping_groups("dgx-h100")
    assert set(first_group) != set(second_group)
    assert set(plans.overlapping_groups("dgx-h100")) > {(0, 1, 2, 3, 4), (7, 6, 5, 4, 3)}


def test_a_wrong_plan_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "ends_right", lambda *_, **__: False)
    row = Row("ring:4", "alltoall")
    examine(row, algorithms("ring:4", "alltoall", (0, 1), 0.2, "none")[0], (0, 1), 1, {})
    assert row.wrong[0] == "alltoall ring:4 (0, 1): Simple in place"


def test_groups_of_several_nodes_have_the_first_ranks_of_each() -> None:
    assert list(groups("dgx-h100:2"))[1:3] == [(0, 1, 8), (0, 1, 8, 9)]
