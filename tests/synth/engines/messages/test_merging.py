"""Messages of growing width: each node sends only what it has, all nodes learn all, in fewer messages."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.engines.messages.merging import Doors, MessagePhase, evened, growing, lasts_us
from synth.engines.messages.nodes import nodes_of
from synth.engines.messages.plans import MessagesForm, spreading
from synth.model.problem import make_problem
from synth.verify.algorithm import Algorithm
from topologies.costed import with_costs
from topologies.load import load

doors = st.builds(
    Doors, places=st.integers(1, 8), block_us=st.floats(0.1, 10), gap_us=st.floats(0, 5), alpha_us=st.floats(0.1, 40)
)


@settings(max_examples=100)
@given(st.integers(2, 20), doors, st.integers(1, 20))
def test_messages_carry_what_has_come(nodes: int, own: Doors, widest: int) -> None:
    phases, known = growing(nodes, own, widest), 1
    for messages, width, links in phases:
        assert width <= min(known, widest)
        assert links == 1
        known += messages * width
    assert known == nodes
    assert sum(messages for messages, *_ in phases) <= nodes - 1


@settings(max_examples=100)
@given(st.integers(2, 20), doors, st.integers(1, 20))
def test_the_last_messages_are_spread_over_all_doors(nodes: int, own: Doors, widest: int) -> None:
    phases = growing(nodes, own, widest)
    spread = evened(phases, own.places)
    total = sum(messages for messages, *_ in phases)
    assert sum(phase.messages for phase in spread) == total
    assert sum(phase.messages for phase in spread if phase.links == own.places > 1) == (total % own.places)
    assert sum(phase.messages * phase.width for phase in spread) == nodes - 1


@given(doors)
def test_times_of_direct_messages(own: Doors) -> None:
    """Check that direct messages leave one after the other over each door, and that spread ones share the doors."""
    rounds = 3
    direct = (MessagePhase(rounds * own.places, 1, 1),)
    busy_us = rounds * own.block_us + (rounds - 1) * own.gap_us
    assert lasts_us(1 + rounds * own.places, own, direct) == pytest.approx(busy_us + own.alpha_us)
    spread = (MessagePhase(rounds, 1, own.places),)
    busy_us = rounds * own.block_us / own.places + (rounds - 1) * own.gap_us
    assert lasts_us(1 + rounds, own, spread) == pytest.approx(busy_us + own.alpha_us)


def test_merged_messages_have_fewer_gaps() -> None:
    own = Doors(2, 1.4, 1.0, 7.0)
    direct, merged = (growing(16, own, widest) for widest in (1, 3))
    assert sum(messages for messages, *_ in merged) < sum(messages for messages, *_ in direct) == 15
    assert lasts_us(16, own, merged) < lasts_us(16, own, direct) - own.gap_us


@pytest.mark.parametrize(
    "merged",
    [((6, 1, 1),), ((3, 1, 1), (1, 3, 1)), ((2, 1, 1), (2, 2, 2)), ((4, 1, 1), (2, 1, 4)), ((3, 1, 1), (1, 4, 4))],
)
@pytest.mark.parametrize("waves", [1, 2])
def test_plans_are_right(merged: tuple[tuple[int, int, int], ...], waves: int) -> None:
    """Check that every rank of seven nodes gets every chunk once, in as many messages as the form says."""
    problem = make_problem(with_costs(load("dgx-h100:7")), "allgather", tuple(range(0, 56, 2))).under("LL")
    nodes = nodes_of(problem.network)
    assert nodes is not None
    form = MessagesForm(7, 1, merged=tuple(MessagePhase(*phase) for phase in merged))
    schedule = spreading(nodes, problem.collective, form).schedule(waves)
    Algorithm(problem.with_chunks(waves), schedule, "test")
    assert len(schedule) == 28 * 27 * waves
    leaves = (problem.network.gap_us[schedule.link] > 0) & ~schedule.joined
    assert leaves.sum() == 7 * waves * sum(messages * links for messages, _, links in merged)
