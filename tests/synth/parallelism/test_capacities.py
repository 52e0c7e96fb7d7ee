"""Capacities: every call fits one of them, more of them lose less, and a capacity that is too small is found."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.bounds.borders import Borders, borders_of
from synth.model.collective import MOST_CELLS, Ints, uneven
from synth.model.common_chunk import common_chunk
from synth.model.problem import make_problem
from synth.parallelism.capacities import Capacity, ClusterTuning, choose_capacities, even_capacity, padded_us
from topologies.load import load

SEEDS = st.integers(0, 2**32)


def routed(calls: int, k: int, kinds: int, seed: int, exponent: float = 1.0) -> Ints:
    """Return a trace of calls of some kinds: in each kind other experts are popular, and tokens are drawn by that."""
    draw = np.random.default_rng(seed)
    popularity = np.stack([draw.permutation(1 / np.arange(1, 4 * k + 1) ** exponent) for _ in range(kinds)])
    share = popularity.reshape(kinds, k, 4).sum(axis=2)
    share /= share.sum(axis=1, keepdims=True)
    trace = np.stack([draw.multinomial(2000, share[call % kinds], size=k) * 1024 for call in range(calls)])
    trace[:, np.arange(k), np.arange(k)] = 0
    return trace.astype(np.int64)


@cache
def borders(spec: str = "dgx1") -> Borders:
    topology = load(spec)
    k = topology.nranks
    problem = make_problem(topology, "alltoallv", range(k), sizes=1e6 * (1 - np.eye(k)))
    return borders_of(problem, [problem])


def test_every_call_fits_and_none_is_faster_than_its_bound() -> None:
    trace = routed(24, 8, 3, seed=0)
    capacities = choose_capacities(trace, 3, borders())
    own_us = borders().bound_us(trace.astype(np.float64))
    times_us = np.stack([padded_us(capacity, trace, borders()) for capacity in capacities])
    fits = np.stack([(capacity.blocks >= trace).all(axis=(1, 2)) for capacity in capacities])
    assert fits[times_us.argmin(axis=0), np.arange(len(trace))].all()
    assert (times_us.min(axis=0) >= own_us * (1 - 1e-9)).all()
    for capacity in capacities:
        assert capacity.cell_bytes % 16 == 0
        whole = uneven("alltoallv", capacity.blocks.astype(np.float64))
        assert common_chunk(whole).padding == 0  # No file pads it further.
        assert common_chunk(whole).count.max() == capacity.cells.max()


def test_capacities_of_its_kinds_lose_little() -> None:
    trace = routed(24, 8, 3, seed=1)
    own_us = borders().bound_us(trace.astype(np.float64)).mean()

    def mean_us(count: int) -> float:
        capacities = choose_capacities(trace, count, borders())
        assert len(capacities) <= count
        return float(np.min([padded_us(capacity, trace, borders()) for capacity in capacities], axis=0).mean())

    even_us = padded_us(even_capacity(trace), trace, borders()).mean()
    assert mean_us(3) < 1.15 * own_us < mean_us(1) < even_us * 1.1
    assert even_us > 1.5 * own_us


def test_equal_calls_need_one_capacity_without_padding_to_speak_of() -> None:
    trace = np.repeat(routed(1, 8, 1, seed=2), 5, axis=0) * np.arange(1, 6)[:, None, None]
    [capacity] = choose_capacities(trace, 4, borders())
    assert padded_us(capacity, trace, borders()).sum() < 1.03 * borders().bound_us(trace.astype(np.float64)).sum()


@settings(max_examples=20)
@given(seed=SEEDS, count=st.integers(1, 4))
def test_any_trace_has_capacities_and_the_same_again(seed: int, count: int) -> None:
    draw = np.random.default_rng(seed)
    trace = draw.zipf(1.2, (int(draw.integers(1, 9)), 8, 8)).clip(max=1 << 36) * (draw.random((8, 8)) < 0.5)
    trace[:, np.arange(8), np.arange(8)] = 0
    trace[:, 0, 1] += 1
    capacities = choose_capacities(trace, count, borders(), seed=seed % 7)
    assert 1 <= len(capacities) <= count
    assert np.any([(capacity.blocks >= trace).all(axis=(1, 2)) for capacity in capacities], axis=0).all()
    assert all(capacity.cells.sum(axis=1).max() <= MOST_CELLS for capacity in capacities)
    again = choose_capacities(trace, count, borders(), seed=seed % 7)
    assert [(c.cells.tolist(), c.cell_bytes) for c in again] == [(c.cells.tolist(), c.cell_bytes) for c in capacities]


def test_a_capacity_a_byte_too_small_does_not_hold_its_calls() -> None:
    trace = routed(6, 8, 2, seed=3)
    for capacity in choose_capacities(trace, 2, borders()):
        needed = capacity.cell_bytes_for(trace)
        for call, cell_bytes in zip(trace, needed.tolist(), strict=True):
            assert (Capacity(capacity.cells, cell_bytes).blocks >= call).all()
            assert (Capacity(capacity.cells, cell_bytes - 1).blocks < call).any()


def test_a_block_that_no_call_used_never_fits() -> None:
    trace = routed(4, 8, 1, seed=4)
    trace[:, 2, 5] = 0
    [capacity] = choose_capacities(trace, 1, borders())
    other = trace[:1].copy()
    other[0, 2, 5] = 1
    assert capacity.cell_bytes_for(np.concatenate([trace[:1], other])).tolist()[1] == -1
    assert padded_us(capacity, other, borders()).tolist() == [np.inf]


def test_larger_buffers_are_counted_by_the_fuller_side() -> None:
    capacity = Capacity(np.array([[0, 1, 1], [4, 0, 1], [4, 1, 0]]), 32)
    assert capacity.buffer_bytes == 256


@pytest.mark.parametrize("spec", ["dgx-h100:2", "torus:4x4"])
def test_other_networks(spec: str) -> None:
    trace = routed(12, 16, 2, seed=5)
    capacities = choose_capacities(trace, 2, borders(spec))
    own_us = borders(spec).bound_us(trace.astype(np.float64))
    times_us = np.min([padded_us(capacity, trace, borders(spec)) for capacity in capacities], axis=0)
    assert 1 - 1e-9 <= (times_us / own_us).min() <= (times_us / own_us).mean() < 1.3


def test_a_sample_of_a_long_trace_has_all_its_kinds() -> None:
    trace = routed(64, 8, 4, seed=6)
    sampled = choose_capacities(trace, 4, borders(), tuning=ClusterTuning(most_sizes=24 * 64))
    assert np.any([(capacity.blocks >= trace).all(axis=(1, 2)) for capacity in sampled], axis=0).all()
    times_us = np.min([padded_us(capacity, trace, borders()) for capacity in sampled], axis=0)
    assert times_us.mean() < 1.2 * borders().bound_us(trace.astype(np.float64)).mean()
