"""The search for placements of experts: right, deterministic, even, and not behind EPLB."""

from __future__ import annotations

import numpy as np
import pytest

from synth.parallelism.experts.check import check_placement
from synth.parallelism.experts.placement import PlacedExperts, PlacedLayer, fewest_slots, most_slots, place_experts
from synth.parallelism.experts.search import _packed
from synth.parallelism.experts.traffic import ExpertRouting, routing_of_tokens, traffic_of_layer
from tests.combinations import every_other
from tests.synth.parallelism.experts.routings import (
    THREE_BY_ONE,
    UNEVEN,
    all_placements,
    even_routing,
    random_routing,
    routing_of,
    small_shape,
    token_routing,
)
from topologies.errors import InputError, VerificationError

RIGHT = np.array([(0, 1), (2, 3), (1, 2), (0, 3)])


@pytest.mark.parametrize(
    ("placement", "fault"),
    [
        (RIGHT[:3], "has shape"),
        (RIGHT[:, :1], "has shape"),
        (np.where(RIGHT == 3, 4, RIGHT), "a slot holds no expert"),
        (np.where(RIGHT == 3, -1, RIGHT), "a slot holds no expert"),
        (RIGHT + 0.5, "a slot holds no expert"),
        (np.where(RIGHT == 0, 1, RIGHT), "rank 0 holds an expert twice"),
        (np.array([(0, 1), (0, 2), (1, 2), (0, 2)]), "no rank holds expert 3"),
    ],
)
def test_planted_faults_are_found(placement: np.ndarray, fault: str) -> None:
    check_placement(RIGHT, 4, 2, 4)
    with pytest.raises(VerificationError, match=fault):
        check_placement(placement, 4, 2, 4)
    placed = place_experts(random_routing(small_shape(), 1, 4, 0, by_source=False), 2)
    if placement.shape[1] == 2:
        with pytest.raises(VerificationError, match=fault):
            PlacedLayer(placed.layers[0].routing, 0, placement, placed.layers[0].bound)


@pytest.mark.parametrize(
    ("case", "by_source"),
    every_other(
        [
            ("dgx-h100:3", UNEVEN, 5, 2),
            ("dgx-h100:3", UNEVEN, 5, 5),
            ("dgx-h100:3", THREE_BY_ONE, 7, 3),
            ("dgx-h100:3", None, 1, 1),
            ("dgx-h100:3", None, 48, 2),
            ("dgx-h100", (0, 1, 2, 3), 12, 4),
            ("mi300x:2", None, 30, 3),
        ],
        [False, True],
    ),
)
def test_placements_are_right_and_repeatable(
    case: tuple[str, tuple[int, ...] | None, int, int], by_source: bool
) -> None:
    topology, group, experts, slots = case
    routing = random_routing(small_shape(group, topology), 3, experts, slots, by_source)
    placed, again = place_experts(routing, slots), place_experts(routing, slots)
    assert np.array_equal(placed.experts, again.experts)
    assert placed.bound_us == again.bound_us
    for layer in placed.layers:
        assert layer.bound.time_us <= layer.traffic.time_us * (1 + 1e-9)
        assert layer.traffic.load.max() <= layer.bound.rank_load * (1 + 1e-9)
    # Layers are placed independently of each other.
    second_layer = place_experts(routing_of(routing.shape, routing.copies[1:2]), slots)
    assert np.array_equal(second_layer.experts[0], placed.experts[1])


def test_copies_of_zero_and_huge_and_tiny_numbers() -> None:
    shape = small_shape()
    load = np.array([np.zeros(6), [1e15, 0, 0, 0, 0, 0], [5e-324, 0, 0, 0, 0, 0], [1e-300, 1, 1e15, 0, 0, 0]])
    placed = place_experts(even_routing(shape, load), 2)
    assert placed.layers[0].traffic.time_us == placed.layers[0].bound.time_us == 0
    assert np.isfinite([placed.time_us, placed.bound_us]).all()


@pytest.mark.parametrize("group", [THREE_BY_ONE, UNEVEN, (0, 1, 2)])
def test_small_placements_are_near_the_best_of_all(group: tuple[int, ...]) -> None:
    for seed in range(4):
        routing = random_routing(small_shape(group), 1, 4, seed, by_source=seed % 2 == 1)
        placed = place_experts(routing, 2, 100.0)
        best = min(traffic_of_layer(routing, 0, p).time_us for p in all_placements(len(group), 2, 4))
        assert placed.time_us <= best * 1.25


def test_the_imbalance_is_kept_where_slots_allow_it() -> None:
    draw = np.random.default_rng(1)
    routing = even_routing(small_shape(None, "dgx-h100:4"), np.exp(draw.normal(size=(2, 256))) * 1000)
    for imbalance in (1.05, 1.5):
        placed = place_experts(routing, 9, imbalance)
        assert all(layer.traffic.imbalance <= imbalance for layer in placed.layers)


def test_a_looser_limit_is_never_slower() -> None:
    for seed in range(3):
        routing = random_routing(small_shape(None, "dgx-h100:2"), 2, 16, seed, by_source=False)
        previous: PlacedExperts | None = None
        for imbalance in (1.0, 1.1, 1.17, 1.5, 3.0):
            placed = place_experts(routing, 2, imbalance)
            if previous is not None:
                for layer, stricter in zip(placed.layers, previous.layers, strict=True):
                    assert layer.traffic.time_us <= stricter.traffic.time_us * (1 + 1e-9)
            previous = placed


@pytest.mark.parametrize(("topology", "slots"), [("dgx-h100:4", 9), ("dgx-b200:2", 18)])
def test_fewer_copies_between_nodes_than_eplb(topology: str, slots: int) -> None:
    draw = np.random.default_rng(2)
    load = np.stack([draw.permutation(1 / np.arange(1, 257) ** a) * 1e5 for a in (0.0, 0.5, 1.0, 1.5)])
    placed = place_experts(even_routing(small_shape(None, topology), load), slots)
    for layer, eplb in zip(placed.layers, placed.eplb, strict=True):
        assert layer.traffic.between_nodes < eplb.between_nodes
        assert layer.traffic.time_us < eplb.time_us


def test_slots_are_limited_where_they_would_fill_the_memory() -> None:
    assert most_slots(256, 64) == 256
    for nranks in (2, 64, 500, 2048):
        most = most_slots(4096, nranks)
        assert fewest_slots(4096, nranks) < most <= 4096
        assert nranks**2 * most <= 1 << 25


def test_wrong_numbers_are_refused() -> None:
    routing = random_routing(small_shape(), 1, 6, 0, by_source=False)
    for slots, imbalance, groups, text in (
        (1, 1.1, 1, "slots: 1 for 6 experts on 4 ranks; it must be 2 to 6"),
        (7, 1.1, 1, "slots: 7 .*must be 2 to 6"),
        (2, 0.9, 1, "imbalance: 0.9 .*must be 1 or more"),
        (2, float("nan"), 1, "imbalance: nan .*must be"),
        (2, 1.1, 4, "expert-groups: 4 do not divide 6 experts; it must be"),
    ):
        with pytest.raises(InputError, match=text):
            place_experts(routing, slots, imbalance, groups)


def test_tokens_gather_the_experts_of_a_topic() -> None:
    shape, draw = small_shape(None, "dgx-h100:4"), np.random.default_rng(4)
    topic = draw.permutation(64).reshape(8, 8)
    tokens, fresh = (
        np.stack([draw.permutation(topic[draw.integers(8)])[:4] for _ in range(400)])[None] for _ in range(2)
    )
    routing = routing_of_tokens(shape, tokens, 64, 7168.0, 7168.0)
    placed, again = place_experts(routing, 3, 1.2), place_experts(routing, 3, 1.2)
    assert np.array_equal(placed.experts, again.experts)
    blind = place_experts(ExpertRouting(shape, routing.copies, 7168.0, 7168.0), 3, 1.2)
    unseen = routing_of_tokens(shape, fresh, 64, 7168.0, 7168.0)
    gathered, scattered = (traffic_of_layer(unseen, 0, p.experts[0]).between_nodes for p in (placed, blind))
    assert gathered < 0.75 * scattered
    assert placed.layers[0].traffic.imbalance <= 1.2
    assert placed.bound_us <= placed.time_us


def test_small_samples_of_tokens_are_placed() -> None:
    for tokens in (1, 2, 3):
        placed = place_experts(token_routing(small_shape(), tokens, 6, 2, tokens), 2)
        assert placed.bound_us <= placed.time_us * (1 + 1e-9)


def test_nothing_crosses_where_each_node_holds_every_expert() -> None:
    draw = np.random.default_rng(0)
    tokens = np.stack([draw.permutation(16)[:2] for _ in range(400)])[None]
    routing = routing_of_tokens(small_shape(None, "dgx-h100:2"), tokens, 16, 7168.0, 7168.0)
    placed = place_experts(routing, 2)
    assert placed.layers[0].traffic.between_nodes == 0


def test_a_rank_makes_room_for_a_second_replica_elsewhere() -> None:
    """Check light replicas that come last, when only the rank of the heaviest expert has free slots."""
    placed = _packed(np.array([10.0, 1.0, 1.0, 1.0, 0.1]), np.array([1, 1, 1, 1, 2]), 2, 3)
    assert sorted(placed.reshape(-1).tolist()) == [0, 1, 2, 3, 4, 4]
    assert all(len(set(row)) == 3 for row in placed.tolist())
