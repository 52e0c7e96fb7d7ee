"""Cuts: resource covers, estimates by which sets are chosen, and the worst of all sets."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings

from synth.bounds.check import check, recompute
from synth.bounds.cuts.cut_candidates import candidates
from synth.bounds.prove import prove
from synth.bounds.resource_cover import cover
from synth.bounds.search import DEFAULT
from synth.bounds.traffic import Traffic, capacities_out, sweep_capacities
from synth.bounds.witnesses.cut import Cut
from synth.model.problem import make_problem
from tests.random_problems import random_problem
from tests.synth.bounds.cases import LARGE, SEEDS
from topologies.errors import BadWitness
from topologies.load import load
from topologies.network import Network


def flags(rng: random.Random, n: int) -> np.ndarray:
    return np.array([rng.random() < 0.5 for _ in range(n)])


def uses_one(net: Network, ways: np.ndarray, resources: np.ndarray) -> bool:
    return all(set(net.uses(int(w)).tolist()) & set(resources.tolist()) for w in ways)


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_resource_covers_are_minimal(seed: int) -> None:
    rng = random.Random(seed)
    net = random_problem(rng).network
    ways = np.flatnonzero(flags(rng, net.nlinks))
    assume(len(ways))
    resources = cover(net, ways)
    assert uses_one(net, ways, resources)
    for r in resources.tolist():
        assert not uses_one(net, ways, resources[resources != r])


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_estimates_of_cuts(seed: int) -> None:
    """Check that the bytes that leave a set are those of its witness, and that its capacity is that of a cover."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    net, traffic = problem.network, Traffic(problem)
    order = list(range(net.nranks))
    rng.shuffle(order)
    place = np.argsort(np.array(order))
    prefixes = np.array([place <= i for i in range(net.nranks - 1)]).reshape(-1, net.nranks)
    leaving, capacity = traffic.leaving(prefixes), capacities_out(net, prefixes)
    np.testing.assert_allclose(traffic.sweep(place)[:-1], leaving, atol=1e-12)
    np.testing.assert_allclose(sweep_capacities(net, place)[:-1], capacity)
    everything = tuple(range(net.nresources))
    for inside, amount, gbs in zip(prefixes, leaving, capacity, strict=True):
        ways = np.flatnonzero(inside[net.src] & ~inside[net.dst])
        if not len(ways):
            continue
        members = tuple(np.flatnonzero(inside).tolist())
        claim = Cut(ranks=members, resources=everything, text="drawn")
        assert recompute(problem, claim)[1] * net.capacity_gbs.sum() * 1e3 == pytest.approx(amount)
        best = net.capacity_gbs[cover(net, ways)].sum()
        assert gbs >= best * 0.5  # Greedy covers and quick ones differ, but not by much with so few links.
    for rank in range(problem.collective.nranks):
        single = np.arange(net.nranks) == rank
        np.testing.assert_allclose(traffic.leaving(single[None])[0], traffic.leaves[rank], atol=1e-12)
        np.testing.assert_allclose(traffic.leaving(~single[None])[0], traffic.comes[rank], atol=1e-12)


def test_candidates_are_sets() -> None:
    for problem in LARGE.values():
        subsets = candidates(problem, Traffic(problem), DEFAULT)
        assert all(subset.any() and not subset.all() for subset in subsets)
        assert len({subset.tobytes() for subset in subsets}) == len(subsets)


@pytest.mark.parametrize(("name", "bytes_us"), [("allreduce", 1.0), ("allgather", 0.25), ("alltoall", 0.25)])
def test_chunks_with_a_long_path_cross_before_the_end(name: str, bytes_us: float) -> None:
    """Check a path along a line from end to end: three times α, and all bytes over one link in the remaining time."""
    problem = make_problem(load("line:4,bw=100,alpha=0.7"), name)
    late = [w for w in prove(problem).witnesses if w.times]
    best = max(late, key=lambda w: w.at(1e5))
    assert best.at(1e5) == pytest.approx(2.1 + bytes_us)
    for wrong in (replace(best, base_us=best.base_us * 1.01), replace(best, times=(0.8, 2.2))):
        with pytest.raises(BadWitness, match="claims"):
            check(problem, wrong)
    with pytest.raises(BadWitness, match="it must be two"):
        check(problem, replace(best, times=(0.0,)))
