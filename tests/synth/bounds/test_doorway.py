"""Bounds by a node's doors: by hand, against random schedules and baselines, and with planted faults."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings

from synth.baselines import baseline
from synth.bounds.check import check, proved
from synth.bounds.prove import prove
from synth.bounds.search import BoundSearch
from synth.bounds.searches.messages import find_entering, find_leaving
from synth.bounds.witnesses.doorway import Entering, Leaving, Passage
from synth.model.problem import Problem, make_problem
from synth.timing.simulate import predict_us
from tests.synth.bounds.cases import SEEDS, never_beaten
from tests.synth.bounds.gossip import random_cluster, random_schedules
from topologies.costed import with_costs
from topologies.costs import Costs, Protocol
from topologies.errors import BadWitness
from topologies.load import load
from topologies.text.reader import from_toml


def _witnesses(problem: Problem, size: float) -> list[Passage]:
    """Return the witnesses that the searches find at a size, with the numbers that they prove."""
    search = BoundSearch(problem, size_bytes=size)
    return [proved(problem, witness) for find in (find_entering, find_leaving) for witness in find(search)]


def _two_nodes(collective: str, relays: Sequence[int] = ()) -> Problem:
    """Return a problem on two nodes of two ranks: 1 GB/s everywhere, α 1 µs inside, 10 µs and a gap of 2 µs outside."""
    group = [rank for rank in range(4) if rank not in relays]
    topology = from_toml(
        """
        name = "two-nodes"
        ranks = 4
        [[links]]
        pairs = "0>1 2>3"
        both = true
        gbs = 1
        alpha_us = 1
        [[links]]
        pairs = "0>2 1>3"
        both = true
        gbs = 1
        alpha_us = 10
        kind = "network"
        """,
        "two nodes",
    )
    topology = with_costs(topology, Costs({"Simple": Protocol(gap_us={"network": 2.0})}))
    return make_problem(replace(topology, protocol="Simple"), collective, group, relays)


@pytest.mark.parametrize(("collective", "witness_class"), [("allgather", Entering), ("reducescatter", Leaving)])
def test_one_time_by_hand(collective: str, witness_class: type[Passage]) -> None:
    """Check one inequality: both ranks want 2 KB, each of two doors brings 1 KB in a µs, copies go at 2 KB in a µs.

    A door's message counts twice if it comes by T - δ, before copies of δ - 1 µs, or else once, by T.
    """
    problem = _two_nodes(collective)
    (searched,) = (witness for witness in _witnesses(problem, 4000.0) if isinstance(witness, witness_class))
    by_hand = []
    for before_us in (1.0, 1.5, 2.0):
        witness = proved(problem, replace(searched, times=(before_us,), prices=((0, 1.0),)))
        each_door = (4.0 - 2.0 * (before_us - 1.0)) / 2
        by_hand.append(10 + min(each_door / 2 + before_us, each_door))
        assert witness.at(4000.0) == pytest.approx(by_hand[-1])
    # With δ = 4 there is time for another message after the gap: 1 KB by T - 1, or 2 KB by T.
    witness = proved(problem, replace(searched, times=(1.0, 4.0), prices=((0, 0.9), (1, 0.1))))
    each_door = (4.0 - 0.1 * 2.0 * 3.0) / 2
    early, late = 1.9, 2.0  # what a byte counts that comes by T - 1, or by T - 4
    after = max(early * (4.0 - 1.0 - 2.0), 4.0 - 2.0)
    first = [each_door, each_door / early + 1.0, max(0.0, each_door - after) / late + 4.0]
    assert witness.at(4000.0) == pytest.approx(10 + min(first))
    assert searched.at(4000.0) >= max(by_hand) * 0.99


def test_a_byte_for_one_rank_of_a_node_is_brought_by_its_message_or_a_copy_not_both() -> None:
    """Check a node whose other rank is a relay: its two doors bring 8 KB, and no message counts twice."""
    problem = _two_nodes("allgather", relays=(1, 3))
    (searched,) = (witness for witness in _witnesses(problem, 16000.0) if isinstance(witness, Entering))
    witness = proved(problem, replace(searched, times=(1.0,), prices=((0, 1.0),)))
    assert witness.at(16000.0) == pytest.approx(10 + 8 / 2)


@settings(max_examples=20, derandomize=True)
@given(SEEDS)
def test_no_schedule_is_faster_whatever_the_weights(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_cluster(rng)
    size = rng.choice((16.0, 1e4, 1e6))
    searched = _witnesses(problem, size)
    limits = [*searched]
    for witness in searched:
        for _ in range(4):
            place = np.array(sorted(rng.uniform(0, 2) for _ in range(rng.randint(1, 6))))
            times = witness.times[0] + (witness.times[-1] - witness.times[0]) * place
            prices = tuple((number, rng.random()) for number in range(len(times)))
            limits.append(proved(problem, replace(witness, times=tuple(times.tolist()), prices=prices)))
    assert not searched or max(limit.at(size) for limit in limits) == max(limit.at(size) for limit in searched)
    for schedule in random_schedules(rng, problem):
        time_us = predict_us(problem, schedule, size)
        for limit in limits:
            never_beaten(limit.at(size), time_us)
            never_beaten(limit.at(size / 3), predict_us(problem, schedule, size / 3))
    for algorithm in baseline(problem):
        never_beaten(max((limit.at(size) for limit in limits), default=0.0), algorithm.time_us(size))


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "broadcast", "reduce"])
def test_a_bound_at_a_middle_size_has_a_node_s_doors(collective: str) -> None:
    size = 4 << 20
    problem = make_problem(with_costs(load("mi300x:2")), collective).under("Simple")
    bound = prove(problem, max_flow=False, size_bytes=size)
    for witness in bound.witnesses:
        check(problem, witness)
    assert bound.at(size)[1].kind in ("entering", "leaving")


def test_wrong_witnesses_are_refused() -> None:
    problem = make_problem(with_costs(load("mi300x:2")), "allgather").under("Simple")
    (witness,) = _witnesses(problem, 1e6)
    check(problem, witness)
    for wrong, message in (
        (replace(witness, per_byte_us=witness.per_byte_us * 1.01), "claims"),
        (replace(witness, cap_us=witness.cap_us * 1.01), "claims"),
        (replace(witness, at_bytes=witness.at_bytes / 2), "claims"),
        (replace(witness, ranks=witness.ranks[1:]), "claims"),
        (replace(witness, ranks=tuple(range(16))), "claims"),
        (replace(witness, ranks=(99,)), "does not exist"),
        (replace(witness, resources=witness.resources[1:]), "uses none of its resources"),
        (replace(witness, times=witness.times[::-1]), "must rise"),
        (replace(witness, times=(0.0, *witness.times[1:])), "must rise"),
        (replace(witness, times=()), "0 times"),
        (replace(witness, times=(*witness.times[:-1], float("inf"))), "all finite"),
        (replace(witness, prices=((0, -1.0),)), "weight -1"),
        (replace(witness, prices=((len(witness.times), 1.0),)), "of one of the times"),
        (replace(witness, prices=((0, float("nan")),)), "weight nan"),
        (replace(witness, prices=((0, 1e308), (1, 1e308))), "weight 1e\\+308"),  # whose sum is infinite
        (replace(witness, at_bytes=0.0), "the size is 0 bytes"),
        (replace(witness, at_bytes=1e300), "the size is 1e\\+300 bytes"),
    ):
        with pytest.raises(BadWitness, match=message):
            check(problem, wrong)


def test_nodes_without_a_gap_between_them_have_no_doors() -> None:
    problem = make_problem(with_costs(load("dgx-h100:2")), "allgather").under("LL")
    half_a_node = Entering(ranks=(0, 1, 2, 3), times=(9.0,), prices=((0, 1.0),), at_bytes=1e4)
    assert proved(problem, half_a_node).claims == (0.0, 0.0, np.inf)
    assert not _witnesses(make_problem(load("dgx-h100:2"), "allgather"), 1e4)
