"""The table beside simulators: their models on what is known by hand, and what explains a difference."""

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
    ("rules", "way", "due"),
    [
        (link_queues.Rules(), (0,), 110 + 60 + 1),
        (link_queues.Rules(ends_at_arrival=False), (0,), 100 + 60 + 1),
        (link_queues.Rules(), (0, 1), 2 * 110 + 2 * 60 + 1),
        (link_queues.Rules(stores=False), (0, 1), 120 + 70 + 1),
        (link_queues.Rules(ends_at_arrival=False, stores=False), (0, 1), 100 + 70 + 1),
    ],
)
def test_queues_by_hand(rules: link_queues.Rules, way: tuple[int, ...], due: float) -> None:
    assert link_queues.time_ns(PAIR, lambda *_: way, {0: 10.0, 1: 10.0}, {0: 1.0, 1: 1.0}, rules) == due


def test_loggops_by_hand() -> None:
    assert loggops.time_units(PAIR, 10, 2) == 2 * 99 + 10 + 2 * 49
    both = [[replace(one, after=()) for one in own] for own in (PAIR[0], PAIR[1][:2])]
    cross = [
        [*both[0], Operation(RECV, (), 1, 1, 100)],
        [*both[1], Operation(SEND, (), 0, 1, 100)],
    ]
    # rank 0's second send waits until its CPU has the message from rank 1
    assert loggops.time_units(cross, 10, 2) == 10 + 2 * 99 + 10 + 2 * 49
    assert loggops.time_units(cross, 10, 2, loggops.Rules(cpu=False)) == 2 * 99 + 10 + 2 * 49
    with pytest.raises(ValueError, match="never end"):
        loggops.time_units([[Operation(RECV, (), 1)], []], 1, 1)


@pytest.mark.parametrize("spec", ["ring:4", "star:4", "full:4"])
def test_with_our_rules_the_model_is_ours(spec: str) -> None:
    for program in (one_message(4), ring_allreduce(4)):
        of = Case(spec, "x", load(spec), program, 1 << 20, None)
        due = link_queues.Rules(ends_at_arrival=False, stores=False)
        assert simulators.queued_us(of, due) == pytest.approx(of.ours_us, rel=1e-3)


def test_a_difference_is_put_down_to_the_rules_that_bring_it_about() -> None:
    of = Case("star:4", "x", load("star:4"), one_message(4), 1 << 20, None)
    row = simulators.astra_row(None, of)
    assert (row.theirs_us, row.why) == (None, "a switch stores before it forwards")
    assert "Not run" in simulators.summary([row])
    beside = simulators.explained(of.ours_us, of.ours_us * 1.5, simulators.ASTRA_RULES, lambda **_: of.ours_us * 1.5)
    assert beside == simulators.UNEXPLAINED
    other = simulators.explained(of.ours_us, of.ours_us * 1.5, simulators.ASTRA_RULES, lambda **_: of.ours_us)
    assert other == simulators.ORDER
    page = simulators.text([row], [Row(of, 9.0, 9.0, beside)], "none", 1)
    assert "1 differences are not explained" in page
