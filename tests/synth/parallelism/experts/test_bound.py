"""Bounds on placements of experts: true for all placements of tiny cases, met by some, and refused when forged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from synth.model.deadline import now
from synth.parallelism.experts.bound import _program, even_prices, prove
from synth.parallelism.experts.parts import NODES, RANKS, parts_of
from synth.parallelism.experts.placement import place_experts
from synth.parallelism.experts.traffic import ExpertRouting, traffic_of_layer
from synth.parallelism.experts.witness import Prices
from synth.solvers.workers import Workers
from tests.synth.parallelism.experts.routings import (
    THREE_BY_ONE,
    TWO_BY_TWO,
    UNEVEN,
    all_placements,
    random_routing,
    small_shape,
    token_routing,
)
from topologies.errors import BadWitness

CASES = [
    (group, slots, experts, by_source, seed)
    for group, slots, experts in ((TWO_BY_TWO, 2, 3), (TWO_BY_TWO, 1, 3), (THREE_BY_ONE, 2, 4), (UNEVEN, 2, 4))
    for by_source in (False, True)
    for seed in range(3)
]


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers() as pool:
        yield pool


def all_traffic(routing: ExpertRouting, slots: int) -> list[tuple[float, float]]:
    """Return the largest load and the time of every placement of a small layer."""
    _, nranks, experts = routing.copies.shape
    placements = all_placements(nranks, slots, experts)
    traffic = [traffic_of_layer(routing, 0, placement) for placement in placements]
    return [(float(sent.load.max()), sent.time_us) for sent in traffic]


def test_no_placement_is_faster_and_a_higher_bound_is_found(workers: Workers) -> None:
    met = 0
    for group, slots, experts, by_source, seed in CASES:
        routing = random_routing(small_shape(group), 1, experts, seed, by_source)
        traffic = all_traffic(routing, slots)
        loads = sorted({load for load, _ in traffic})
        for rank_load in (loads[0], loads[len(loads) // 2], np.inf):
            best = min(time for load, time in traffic if load <= rank_load)
            bound = prove(routing, 0, slots, rank_load, workers)
            assert bound.time_us <= best * (1 + 1e-9), (group, slots, experts, by_source, seed, rank_load)
            assert bound.prices is None or bound.prices.limit(bound.parts) == bound.time_us
            met += bound.time_us * 1.01 > best
    assert met >= len(CASES) / 2  # A bound that is 1 % too high would be refuted here so often.


def test_no_placement_is_faster_where_a_token_goes_once_to_a_node(workers: Workers) -> None:
    met = 0
    for group, slots, experts in ((TWO_BY_TWO, 1, 3), (THREE_BY_ONE, 2, 4), (UNEVEN, 2, 4)):
        for chosen, seed in product((1, 2, 3), range(2)):
            routing = token_routing(small_shape(group), 12, experts, chosen, seed)
            traffic = all_traffic(routing, slots)
            for rank_load in (sorted(load for load, _ in traffic)[len(traffic) // 3], np.inf):
                best = min(time for load, time in traffic if load <= rank_load)
                bound = prove(routing, 0, slots, rank_load, workers)
                assert bound.time_us <= best * (1 + 1e-9), (group, slots, experts, chosen, seed, rank_load)
                assert bound.prices is None or bound.prices.limit(bound.parts) == bound.time_us
                met += bound.time_us * 3.5 > best
    assert met >= 12  # Of 36; such a bound, 3.5 times too high, would be refuted so often.


@pytest.mark.parametrize("of", [NODES, RANKS])
def test_any_prices_prove_a_true_bound(of: str) -> None:
    draw = np.random.default_rng(5)
    for group, slots, experts, by_source, seed in CASES[::2]:
        routing = random_routing(small_shape(group), 1, experts, seed, by_source)
        (parts,) = parts_of(routing, 0, slots, of)
        best = min(time for _, time in all_traffic(routing, slots))
        for _ in range(5):
            weight = draw.dirichlet(np.ones(len(parts.ranks)))
            price = draw.exponential(float(parts.copies.mean() * parts.out_us.max()), experts)
            assert Prices(weight, price, np.inf).limit(parts) <= best * (1 + 1e-9)


def test_forged_prices_are_refused() -> None:
    (parts,) = parts_of(random_routing(small_shape(), 1, 4, 0, by_source=True), 0, 1, NODES)
    right = even_prices(parts, np.inf)
    assert right.limit(parts) > 0
    for forged in (
        replace(right, weight=right.weight * 2),
        replace(right, weight=np.array([2.0, -1.0])),
        replace(right, weight=np.array([np.nan, 1.0])),
        replace(right, weight=np.ones(3) / 3),
        replace(right, price=right.price - 1.0),
        replace(right, price=np.full(4, np.inf)),
        replace(right, price=right.price[1:]),
        replace(right, rank_load=0.0),
        replace(right, rank_load=np.nan),
    ):
        with pytest.raises(BadWitness, match=r"prices: .*; .*must be"):
            forged.limit(parts)


def test_more_slots_or_more_load_never_raise_the_bound(workers: Workers) -> None:
    for by_source in (False, True):
        routing = random_routing(small_shape(None, "dgx-h100:2"), 1, 24, 7, by_source)
        by_slots = [prove(routing, 0, slots, np.inf, workers).time_us for slots in (2, 3, 5, 8)]
        assert by_slots == sorted(by_slots, reverse=True)
        assert by_slots[0] > by_slots[-1]
        mean = float(routing.copies.sum()) / 16
        by_load = [prove(routing, 0, 3, factor * mean, workers).time_us for factor in (1.5, 2.0, 4.0, np.inf)]
        assert by_load == sorted(by_load, reverse=True)


def test_equal_parts_need_no_linear_program(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    routing = random_routing(small_shape(None, "dgx-h100:3"), 1, 40, 2, by_source=False)
    mean = float(routing.copies.sum()) / 24
    plain = [prove(routing, 0, 3, factor * mean, workers).time_us for factor in (2.0, np.inf)]
    monkeypatch.setattr("synth.parallelism.experts.bound._are_equal", lambda _: False)
    solved = [prove(routing, 0, 3, factor * mean, workers).time_us for factor in (2.0, np.inf)]
    assert plain == pytest.approx(solved, rel=1e-6)


def test_whole_experts_prove_a_placement_optimal(workers: Workers) -> None:
    # With x in {0, 1} the program of the bound is exact but for what enters nodes, so that it can prove optimality.
    proved = 0
    for seed in range(3):
        routing = random_routing(small_shape(), 1, 6, seed, by_source=True)
        placed = place_experts(routing, 2, 10.0)
        rank_load = placed.layers[0].bound.rank_load
        (parts,) = parts_of(routing, 0, 2, NODES)
        program, _, _ = _program(parts, rank_load)
        whole = replace(program, binary=(program.high == 1.0) & (program.cost == 0.0))
        reply = workers.answer(now() + 60, "linear", whole, 60.0)
        assert reply is not None
        assert reply.dual_bound is not None
        unit = float((parts.out_us * parts.copies.sum(axis=1)).max())
        all_bytes = routing.dispatch_bytes + routing.combine_bytes
        least_us = reply.dual_bound * unit * all_bytes + 2 * float(parts.alpha_us.min())
        assert placed.bound_us <= least_us * (1 + 1e-6)
        assert least_us <= placed.time_us * (1 + 1e-6)
        proved += placed.time_us <= least_us * (1 + 1e-6)
    assert proved
