"""Link lengths: the slope of the dual, mirror ascent, and weak duality."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given, settings

from synth.bounds.check import check
from synth.bounds.lengths import Dual, ascend, from_loads, from_prices, sampled, shared_out
from synth.model.problem import make_problem
from synth.model.requirements import find_requirements
from synth.timing.simulate import resource_loads_us, timed
from tests.random_problems import answered, random_problem
from tests.synth.bounds.cases import ROUND_OFF, SEEDS, chunk_times
from topologies.load import load


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_the_slope_of_the_dual(seed: int) -> None:
    """Check that loads times weights are the value, and that they bound every other value for one-to-one chunks."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    need = find_requirements(problem.collective)
    assume(need.any)
    one_to_one = bool((need.nhold == 1).all() and (need.ngoal == 1).all())
    dual, count = Dual(problem), problem.network.nresources
    weights = [np.array([rng.uniform(0.01, 1.0) for _ in range(count)]) for _ in range(4)]
    weights = [w / w.sum() for w in weights]
    values = [dual.slope(w)[0] for w in weights]
    for weight in weights:
        value, load = dual.slope(weight)
        witness = from_prices(problem, weight / problem.network.capacity_gbs)
        assert value == pytest.approx(witness.per_byte_us)
        assert weight @ load == pytest.approx(value)
        for other_weight, at_other in zip(weights, values, strict=True):
            assert not one_to_one or at_other <= other_weight @ load * ROUND_OFF


@settings(max_examples=30, derandomize=True)
@given(SEEDS)
def test_mirror_ascent_and_loads_only_help(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng)
    count = problem.network.nresources
    plain = from_loads(problem, np.zeros(count))
    hinted = from_loads(problem, np.array([rng.random() for _ in range(count)]))
    climbed = from_loads(problem, np.zeros(count), rounds=15)
    for witness in (plain, hinted, climbed):
        check(problem, witness)
    assert hinted.per_byte_us >= plain.per_byte_us / ROUND_OFF
    assert climbed.per_byte_us >= plain.per_byte_us / ROUND_OFF


@settings(max_examples=40, derandomize=True)
@given(SEEDS)
def test_no_lengths_prove_more_than_a_schedules_busiest_resource_takes(seed: int) -> None:
    """Check weak duality, whatever hint the prices come from."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    busy = resource_loads_us(problem, timed(problem, answered(problem, 1e7), 1e7)) / 1e7
    witness = from_loads(problem, busy, rounds=rng.choice((0, 5)))
    check(problem, witness)
    assert witness.per_byte_us <= busy.max() * ROUND_OFF


def test_ascent_by_parts_finds_the_middle_of_a_mesh() -> None:
    problem = make_problem(load("mesh:12x12"), "alltoall")
    parts = shared_out(problem, 48)
    assert len(parts) == 3
    chunks = sum(p.collective.nchunks for p in parts)
    assert chunks == problem.collective.nchunks
    assert sum(p.collective.fraction.sum() for p in parts) == pytest.approx(problem.collective.fraction.sum())
    start = np.ones(problem.network.nresources)
    weight, busy = ascend(parts, start, 10)
    capacity = problem.network.capacity_gbs
    before, after = (from_prices(problem, w / capacity).per_byte_us for w in (start, weight))
    assert after > before * 1.1
    exact = 72 * 72 / 12
    assert 0.8 * exact <= chunk_times(problem, from_loads(problem, busy).per_byte_us) <= exact * ROUND_OFF
    witness = from_loads(problem, np.zeros(len(start)), rounds=12)
    assert 0.85 * exact <= chunk_times(problem, witness.per_byte_us) <= exact * ROUND_OFF
    few = sampled(problem, 20)
    assert 0 < few.collective.nchunks < problem.collective.nchunks / 4
    assert sampled(few, 20) is few
