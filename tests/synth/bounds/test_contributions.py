"""The bound by contributions: by hand, never above a schedule, higher than other bounds, and hostile witnesses."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from results.scripts.census import random_network
from synth.baselines import baseline
from synth.bounds.check import check, proved, recompute
from synth.bounds.prove import prove
from synth.bounds.registry import BOUND_KINDS
from synth.bounds.search import BoundCost, BoundSearch
from synth.bounds.witnesses.contributions import Contributions
from synth.model.problem import Problem, make_problem
from tests.combinations import every_other
from tests.synth.bounds.cases import never_beaten
from topologies.costed import with_costs
from topologies.errors import BadWitness
from topologies.load import load

SIZES = (1 << 10, 1 << 16, 1 << 22)


def witnesses(problem: Problem, size_bytes: float) -> list[Contributions]:
    """Return the witnesses that the search finds at a size, with the numbers that they prove."""
    found = BOUND_KINDS["contributions"].find(BoundSearch(problem, size_bytes=size_bytes), BoundCost.SIZE)
    return [proved(problem, witness) for witness in found if isinstance(witness, Contributions)]


@pytest.mark.parametrize("size", [64.0, 1e3, 1e6, 1e9])
def test_the_end_of_a_line_waits_for_what_the_middle_has(size: float) -> None:
    """Check rank 2 of a line: rank 1 sends its own contribution from 0 on, and both together from α on."""
    problem = make_problem(load("line:3"), "reduce", root=2)
    net = problem.network
    rank = problem.collective.root
    alpha_us, byte_us = float(net.alpha_us[0]), 1e-3 / float(net.bandwidth_gbs[0])
    (into,) = np.flatnonzero(net.dst == rank).tolist()
    resource = int(net.uses_idx[net.uses_ptr[into]])
    claim = Contributions(ranks=(rank,), parts=((rank,),), at_bytes=size, resources=(resource,))
    both_us = 2 * size * byte_us
    by_hand = alpha_us + both_us if both_us <= alpha_us else 2 * alpha_us + (both_us - alpha_us) / 2
    base_us, per_byte_us, least_us = recompute(problem, claim)
    assert least_us == pytest.approx(by_hand)
    assert (base_us, per_byte_us * size) == (0.0, least_us)


@pytest.mark.parametrize(("collective", "seed"), every_other(["allreduce", "reduce", "reducescatter"], range(6)))
def test_no_schedule_is_faster(collective: str, seed: int) -> None:
    """Check rings, trees and direct exchanges of random groups on random networks, tori, fat trees and clusters."""
    rng = random.Random(seed)
    topology = [random_network(7, seed), load("torus:3x3"), load("fattree:4"), load("hypercube:3")][seed % 4]
    group = sorted(rng.sample(range(topology.nranks), min(6, topology.nranks)))
    relays = [rank for rank in range(topology.nranks) if rank not in group]
    problem = make_problem(topology, collective, group, relays)
    for size in SIZES:
        least_us = max(witness.at(size) for witness in witnesses(problem, size))
        assert least_us > 0
        for algorithm in baseline(problem):
            never_beaten(least_us, algorithm.time_us(size))


def test_no_schedule_with_costs_is_faster() -> None:
    problem = make_problem(with_costs(load("dgx-a100")), "allreduce", (0, 1, 4, 6)).under("LL")
    for size in SIZES:
        least_us = max(witness.at(size) for witness in witnesses(problem, size))
        for algorithm in baseline(problem):
            never_beaten(least_us, algorithm.time_us(size))


def test_few_ranks_of_a_fat_tree_have_a_higher_bound_than_their_cuts_say() -> None:
    group = (2, 8, 11, 13, 14)
    relays = [rank for rank in range(16) if rank not in group]
    problem = make_problem(load("fattree:4"), "allreduce", group, relays)
    bound = prove(problem, size_bytes=1 << 16)
    limit_us, decisive = bound.at(1 << 16)
    assert decisive.kind == "contributions"
    assert limit_us > 1.2 * max(w.at(1 << 16) for w in bound.witnesses if w.kind != "contributions")
    check(problem, decisive)


def test_hostile_witnesses_prove_nothing() -> None:
    problem = make_problem(load("torus:3x3"), "allreduce")
    witness = max(witnesses(problem, 1 << 16), key=lambda w: w.at(1 << 16))
    check(problem, witness)
    for wrong in (
        replace(witness, per_byte_us=witness.per_byte_us * 1.01),
        replace(witness, cap_us=witness.cap_us * 1.01),
        replace(witness, at_bytes=float("nan")),
        replace(witness, ranks=()),
        replace(witness, ranks=(99,)),
        replace(witness, parts=()),
        replace(witness, parts=((99,),)),
        replace(witness, parts=tuple((rank,) for rank in range(9))),
        replace(witness, resources=witness.resources[1:]),
    ):
        with pytest.raises(BadWitness, match="contributions"):
            check(problem, wrong)
    plain = make_problem(load("torus:3x3"), "allgather")
    assert recompute(plain, witness) == (0.0, 0.0, np.inf)
    assert not witnesses(plain, 1 << 16)
