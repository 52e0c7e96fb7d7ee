"""Tests of ranks with more peers than threadblocks: two peers share one, without loss of time for small messages."""

from __future__ import annotations

from emit.check.program import check
from emit.compiler.lower import lower
from emit.targets import LL_MOST_BYTES
from emit.timing.predict import Predictor
from synth.baselines import baseline_named
from synth.model.collective import named
from synth.model.problem import make_problem
from topologies.load import load


def test_small_messages_are_sent_before_waiting() -> None:
    """Check a direct all-reduce of 68 ranks, where two threadblocks for each peer would be too many."""
    topology = load("full:68")
    problem = make_problem(topology, named("allreduce", 68, 1), tuple(range(68)))
    direct = baseline_named(problem, "direct")[0]
    program, _ = lower(direct, "allreduce", "LL", min_bytes=1024, max_bytes=LL_MOST_BYTES)
    assert all(len(gpu.threadblocks) <= 128 for gpu in program.gpus)
    predictor = Predictor(program, topology)
    for size in (1024, 65536):
        assert predictor.time_us(size) <= 1.002 * direct.time_us(size)
    assert check(program).ok
