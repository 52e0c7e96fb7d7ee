"""Tests of the table about simulators: their models in cases worked out by hand, and the reasons for differences."""

from __future__ import annotations

from dataclasses import replace

import pytest

from emit.operations import CALC, RECV, SEND, Operation
from results.scripts import simulators
from results.scripts.simulators import Case, Row, one_message
from tests.emit.small_programs import ring_allreduce
from tests.oracles import link_queues, loggops
from topologies.load import load

PAIR = [
    [Operation(SEND, (), 1, 0, 100), Operation(SEND, (0,), 1, 0, 50)],
    [Operation(RECV, (), 0, 0, 100), Operation(RECV, (), 0, 0, 50), Operation(CALC, (1,))],
]


@pytest.mark.parametrize(
    ("rules", "path", "expected_ns"),
    [
        (link_queues.Rules(), (0,), 110 + 60 + 1),
        (link_queues.Rules(ends_at_arrival=False), (0,), 100 + 60 + 1),
        (link_queues.Rules(), (0, 1), 2 * 110 + 2 * 60 + 1),
        (link_queues.Rules(stores=False), (0, 1), 120 + 70 + 1),
        (link_queues.Rules(ends_at_arrival=False, stores=False), (0, 1), 100 + 70 + 1),
    ],
)
def test_queues_by_hand(rules: link_queues.Rules, path: tuple[int, ...], expected_ns: float) -> None:
    assert link_queues.time_ns(PAIR, lambda *_: path, {0: 10.0, 1: 10.0}, {0: 1.0, 1: 1.0}, rules) == expected_ns


def test_loggops_by_hand() -> None:
    assert loggops.time_units(PAIR, 10, 2) == 2 * 99 + 10 + 2 * 49
    without_order = [
        [replace(operation, after=()) for operation in operations] for operations in (PAIR[0], PAIR[1][:2])
    ]
    cross = [
        [*without_order[0], Operation(RECV, (), 1, 1, 100)],
        [*without_order[1], Operation(SEND, (), 0, 1, 100)],
    ]
    # Rank 0's second send waits until its CPU has received the message from rank 1.
    assert loggops.time_units(cross, 10, 2) == 10 + 2 * 99 + 10 + 2 * 49
    assert loggops.time_units(cross, 10, 2, loggops.Rules(cpu=False)) == 2 * 99 + 10 + 2 * 49
    with pytest.raises(ValueError, match="never end"):
        loggops.time_units([[Operation(RECV, (), 1)], []], 1, 1)


@pytest.mark.parametrize("spec", ["ring:4", "star:4", "full:4"])
def test_the_model_with_our_rules_gives_our_time(spec: str) -> None:
    for program in (one_message(4), ring_allreduce(4)):
        case = Case(spec, "x", load(spec), program, 1 << 20, None)
        our_rules = link_queues.Rules(ends_at_arrival=False, stores=False)
        assert simulators.queued_us(case, our_rules) == pytest.approx(case.ours_us, rel=1e-3)


def test_a_difference_is_explained_by_rules() -> None:
    case = Case("star:4", "x", load("star:4"), one_message(4), 1 << 20, None)
    row = simulators.astra_row(None, case)
    assert (row.theirs_us, row.why) == (None, "a switch stores before it forwards")
    assert "Not run" in simulators.summary([row])
    reason_of_none = simulators.explained(
        case.ours_us, case.ours_us * 1.5, simulators.ASTRA_RULES, lambda **_: case.ours_us * 1.5
    )
    assert reason_of_none == simulators.UNEXPLAINED
    reason_of_order = simulators.explained(
        case.ours_us, case.ours_us * 1.5, simulators.ASTRA_RULES, lambda **_: case.ours_us
    )
    assert reason_of_order == simulators.ORDER
    page = simulators.text([row], [Row(case, 9.0, 9.0, reason_of_none)], "none", 1)
    assert "1 differences are not explained" in page
