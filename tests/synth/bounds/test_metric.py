"""Distances between ranks, and what a collective requires of them."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings

from synth.bounds.distances import Distances
from synth.bounds.metric import pair_distances, required_distances
from synth.bounds.prove import prove
from synth.bounds.witnesses.hops import direct_loads
from synth.model.problem import make_problem
from tests.oracles.bellman_ford import bellman_ford
from tests.random_problems import random_problem
from tests.synth.bounds.cases import SEEDS
from topologies.load import load


@settings(max_examples=30, derandomize=True)
@given(SEEDS)
def test_distances(seed: int) -> None:
    """Check distances against Bellman-Ford, with zero lengths, parallel links and pairs without a route."""
    rng = np.random.default_rng(seed)
    n = int(rng.choice((5, 40, 97, 120)))
    count = int(n * rng.choice((0.5, 1.2, 3.0)))
    src, dst = rng.integers(0, n, count), rng.integers(0, n, count)
    src, dst = src[src != dst], dst[src != dst]
    length = rng.choice((0.0, 0.0, 0.25, 1.0, 3.0), len(src))
    expected = bellman_ford(n, src, dst, length)
    far = Distances(n, src, dst, length)
    ranks = rng.choice(n, int(rng.integers(1, n)), replace=False)
    np.testing.assert_allclose(far.rows(ranks), expected[ranks])
    np.testing.assert_allclose(far.rows(ranks, to=True), expected[:, ranks].T)
    np.testing.assert_allclose(far.nearest(ranks), expected[ranks].min(axis=0))
    np.testing.assert_allclose(far.nearest(ranks, to=True), expected[:, ranks].min(axis=1))
    sources, targets = rng.integers(0, n, 50), rng.integers(0, n // 2 + 1, 50)
    np.testing.assert_allclose(pair_distances(far, sources, targets), expected[sources, targets])
    np.testing.assert_allclose(pair_distances(far, targets, sources), expected[targets, sources])


def flags(rng: random.Random, n: int) -> np.ndarray:
    return np.array([rng.random() < 0.5 for _ in range(n)])


@settings(max_examples=60, derandomize=True)
@given(SEEDS)
def test_chunks_of_many_pairs_are_no_special_case(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """Check that results from sets of holders and goals equal results from their pairs."""
    rng = random.Random(seed)
    problem = random_problem(rng, tmp_path_factory.getbasetemp(), name=rng.choice((None, None, "allreduce")))
    net, collective = problem.network, problem.collective
    lengths = np.array([rng.choice((0.0, 1.0, 3.0)) for _ in range(net.nlinks)])
    distances = Distances(net.nranks, net.src, net.dst, lengths)
    assert (required_distances(collective, distances, 1) == required_distances(collective, distances)).all()
    forced = np.array([flags(rng, collective.nranks) for _ in range(collective.nranks)])
    assert (direct_loads(problem, forced, 1) == direct_loads(problem, forced)).all()


def test_the_longest_path_among_sets_of_many_pairs() -> None:
    """Check 256 · 256 pairs for each chunk: half around a ring, and 255 over one link where all go in one hop."""
    ring = make_problem(load("ring:256"), "allreduce")
    assert prove(ring, max_flow=False).at(1.0)[0] == pytest.approx(128 * 0.7, rel=1e-3)
    star = make_problem(load("star:256"), "allreduce")
    direct = next(w for w in prove(star, max_flow=False).witnesses if w.kind == "direct")
    assert direct.per_byte_us == pytest.approx(255 / 50e3)
