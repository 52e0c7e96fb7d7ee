"""Tests of large chunks with costs, which move in slices, so that pipelines fill sooner."""

from __future__ import annotations

import math

import pytest

from emit.compiler.lower import lower
from emit.program import FREE_SLOTS, Program
from emit.timing.predict import Predictor
from emit.timing.slices import MOST_SLICES, SLICE_BYTES, slices_of
from synth.baselines import baseline_named
from synth.model.problem import make_problem
from topologies.costed import with_costs, with_protocol, without_costs
from topologies.load import load
from topologies.topology import Topology


def chain(topology: Topology) -> Program:
    """Return a broadcast of one chunk along a chain of all ranks."""
    problem = make_problem(topology, "broadcast")
    ring = min(baseline_named(problem, "ring", 1 << 20), key=lambda a: len(a.schedule))
    return lower(ring, "chain", protocol="Simple")[0]


COSTED = with_protocol(with_costs(load("dgx-a100")), "Simple")
assert COSTED.costs is not None
SIMPLE = COSTED.costs.protocols["Simple"]
LINK_GBS = 300 * SIMPLE.efficiency["nvlink"]
THREADBLOCK_GBS = LINK_GBS / math.ceil(LINK_GBS / 24)  # A link is divided among whole threadblocks.
STEP_US, START_US = SIMPLE.latency_us["nvlink"], SIMPLE.start_us


@pytest.mark.parametrize("protocol", sorted(SLICE_BYTES))
def test_slices_of_a_chunk(protocol: str) -> None:
    unit = SLICE_BYTES[protocol]
    assert [slices_of(protocol, size) for size in (0.5, unit, 1.5 * unit, 2 * unit, 5 * unit)] == [1, 1, 2, 2, 4]
    assert slices_of(protocol, 1e12) == MOST_SLICES


def test_a_chain_with_one_large_chunk_is_a_pipeline_of_slices() -> None:
    size = 256 << 20
    predictor = Predictor(chain(COSTED), COSTED)
    assert predictor.program.nchunks_per_loop == 1
    whole_us = size / THREADBLOCK_GBS * 1e-3
    latency_us = 7 * STEP_US + START_US
    expected_us = latency_us + whole_us * (1 + 6 / MOST_SLICES)
    assert predictor.time_us(size) == pytest.approx(expected_us, rel=1e-3)


def test_small_chunks_and_topologies_without_costs_have_no_slices() -> None:
    plain = without_costs(load("dgx-a100"))
    predictor = Predictor(chain(plain), plain)
    assert predictor.time_us(256 << 20) == pytest.approx(7 * ((256 << 20) / 300 * 1e-3 + 0.7))
    costed = Predictor(chain(COSTED), COSTED)
    assert costed.time_us(1 << 20) == pytest.approx(7 * ((1 << 20) / THREADBLOCK_GBS * 1e-3 + STEP_US) + START_US)


def test_programs_of_plans_move_each_chunk_at_once() -> None:
    """Check that a program without a FIFO has no slices, however large its chunks are."""
    size = 256 << 20
    predictor = Predictor(chain(COSTED), COSTED, fifo_depth=FREE_SLOTS)
    expected_us = 7 * (size / THREADBLOCK_GBS * 1e-3 + STEP_US) + START_US
    assert predictor.time_us(size) == pytest.approx(expected_us, rel=1e-3)


def test_transfers_are_slices_and_end_when_the_program_does() -> None:
    size = 64 << 20
    predictor = Predictor(chain(COSTED), COSTED)
    transfers = predictor.transfers(size)
    assert len(transfers) == 7 * MOST_SLICES
    assert transfers.bytes.sum() == pytest.approx(7 * size)
    assert transfers.arrive_us.max() == pytest.approx(predictor.time_us(size))
    assert (transfers.start_us[1:] >= transfers.start_us[:-1]).all()
    for source in range(7):  # Every rank sends a slice only after its arrival.
        sent, got = transfers.start_us[transfers.src == source + 1], transfers.arrive_us[transfers.src == source]
        assert (sent >= got[: len(sent)] - 1e-6).all()
