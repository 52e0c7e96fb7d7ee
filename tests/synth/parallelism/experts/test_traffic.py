"""What a placement of experts sends, compared with a routing copy by copy and with the planner's own bound."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from synth.engines.skewed.planner import Planner
from synth.parallelism.experts.traffic import (
    ExpertRouting,
    copies_between,
    exchange_us,
    messages_per_copy,
    scaled,
    traffic_of_layer,
)
from tests.synth.parallelism.experts.routings import (
    THREE_BY_ONE,
    TWO_BY_TWO,
    UNEVEN,
    even_routing,
    random_routing,
    small_shape,
    token_routing,
)
from topologies.errors import InputError


def routed_by_hand(node: list[int], copies: list[list[int]], held: list[set[int]]) -> list[list[Fraction]]:
    """Return the copies from rank to rank by the three rules, one rank and expert at a time."""
    ranks = range(len(node))
    sent = [[Fraction(0)] * len(node) for _ in ranks]
    for source in ranks:
        for expert, count in enumerate(copies[source]):
            holders = [rank for rank in ranks if expert in held[rank]]
            near = [rank for rank in holders if node[rank] == node[source]]
            goals = [source] if source in holders else near or holders
            for goal in goals:
                sent[source][goal] += Fraction(count, len(goals))
    return sent


@pytest.mark.parametrize("group", [TWO_BY_TWO, THREE_BY_ONE, UNEVEN])
@pytest.mark.parametrize("seed", range(4))
def test_copies_follow_the_rules(group: tuple[int, ...], seed: int) -> None:
    shape, draw = small_shape(group), np.random.default_rng(seed)
    copies = draw.integers(0, 50, (shape.nranks, 5))
    placement = np.stack([draw.permutation(5)[:3] for _ in range(shape.nranks)])
    placement[0] = (0, 1, 2)
    placement[1] = (3, 4, int(draw.integers(5)))  # It may hold an expert twice, as EPLB's placement can.
    exact = routed_by_hand(shape.node_of.tolist(), copies.tolist(), [set(row) for row in placement.tolist()])
    assert copies_between(shape, copies.astype(float), placement) == pytest.approx(np.array(exact, dtype=float))


@pytest.mark.parametrize("group", [TWO_BY_TWO, THREE_BY_ONE, (0, 1, 2)])
def test_the_time_is_the_bound_of_the_planner(group: tuple[int, ...]) -> None:
    shape, draw = small_shape(group), np.random.default_rng(len(group))
    planner = Planner(shape, interpreted=True)
    for sizes in (
        draw.integers(0, 1 << 24, (shape.nranks, shape.nranks)),
        np.diag(draw.integers(1, 1 << 24, shape.nranks)),
        np.ones((shape.nranks, shape.nranks), dtype=np.int64),
        np.eye(shape.nranks, k=1, dtype=np.int64) << 20,
    ):
        assert exchange_us(shape, sizes.astype(float)) == pytest.approx(planner.bound(sizes), rel=1e-12)


def test_traffic_adds_up() -> None:
    routing = random_routing(small_shape(), 1, 6, 3, by_source=True)
    placement = np.array([(0, 1), (2, 3), (4, 5), (0, 3)])
    traffic = traffic_of_layer(routing, 0, placement)
    copies = routing.copies_of_nodes(0)
    # Node 0 lacks experts 4 and 5, and node 1 lacks 1 and 2.
    assert traffic.between_nodes == pytest.approx(copies[0, [4, 5]].sum() + copies[1, [1, 2]].sum())
    assert traffic.load.sum() == pytest.approx(routing.copies.sum())
    assert traffic.imbalance == pytest.approx(traffic.load.max() / traffic.load.mean())


def test_ranks_of_a_node_may_change_places() -> None:
    shape, draw = small_shape(None, "dgx-h100:2"), np.random.default_rng(0)
    routing = even_routing(shape, draw.zipf(1.5, (1, 24)).clip(max=99).astype(float))
    placement = np.concatenate([np.arange(24), draw.integers(0, 24, 24)]).reshape(16, 3)
    before = traffic_of_layer(routing, 0, placement)
    for order in (np.r_[draw.permutation(8), 8 + draw.permutation(8)], np.r_[8:16, 0:8]):
        after = traffic_of_layer(routing, 0, placement[order])
        assert after.time_us == pytest.approx(before.time_us, rel=1e-12)
        assert after.load == pytest.approx(before.load[order])


@pytest.mark.parametrize("group", [TWO_BY_TWO, THREE_BY_ONE, UNEVEN])
def test_a_token_goes_once_to_each_node(group: tuple[int, ...]) -> None:
    shape, draw = small_shape(group), np.random.default_rng(0)
    tokens = np.stack([draw.permutation(5)[:3] for _ in range(9)])
    # Expert 0 is in every node and each other one in one node, so that nothing is left to chance.
    nnodes, home = shape.nnodes, np.array([-1, 0, 1, 0, 1])
    placement = np.stack([np.resize(np.flatnonzero((home == node) | (home < 0)), 3) for node in shape.node_of])
    ratio = messages_per_copy(shape, placement, tokens, 5)
    for source, goal in product(range(nnodes), repeat=2):
        copies = [sum(home[expert] == goal for expert in token) for token in tokens.tolist()]
        if source != goal and any(copies):
            assert ratio[source, goal] == pytest.approx(np.count_nonzero(copies) / sum(copies))


def test_whole_tokens_send_no_more_than_their_copies() -> None:
    for seed in range(4):
        routing = token_routing(small_shape(), 40, 6, 3, seed)
        blind = ExpertRouting(routing.shape, routing.copies, routing.dispatch_bytes, routing.combine_bytes)
        placement = np.array([(0, 1), (2, 3), (4, 5), (0, 3)])
        whole, copies = (traffic_of_layer(one, 0, placement) for one in (routing, blind))
        assert whole.time_us < copies.time_us
        assert whole.between_nodes < copies.between_nodes
        assert np.array_equal(whole.load, copies.load)
        single_copies = token_routing(small_shape(), 40, 6, 1, seed)
        blind = ExpertRouting(
            single_copies.shape, single_copies.copies, single_copies.dispatch_bytes, single_copies.combine_bytes
        )
        assert traffic_of_layer(single_copies, 0, placement).time_us == pytest.approx(
            traffic_of_layer(blind, 0, placement).time_us
        )


@pytest.mark.parametrize("counts", [(1e-320, 1e-310, 0, 0), (1.0, 0, 0, 0)])
def test_scaled_figures_are_limited(counts: tuple[float, ...]) -> None:
    routing = even_routing(small_shape(), np.array([counts]))
    with pytest.raises(InputError, match=r"--copies: .*it must be fewer"):
        scaled(routing, 2e15)
    assert scaled(even_routing(small_shape(), np.ones((1, 4))), 1e15).copies.max() <= 1e15
