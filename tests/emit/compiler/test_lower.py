"""Tests that schedules of every kind become right programs that run with the available slots."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from emit.check.program import check
from emit.compiler.lower import Lowering, lower
from emit.program import SENDS
from emit.targets import TARGETS, target_named
from emit.timing.predict import Predictor
from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.app.synthesis import synthesize
from synth.baselines import baseline, baseline_named
from synth.model.problem import LARGEST, make_problem
from tests.combinations import every_other
from topologies.costed import with_costs, with_protocol
from topologies.errors import InputError
from topologies.load import load


@pytest.mark.parametrize(
    ("collective", "topo", "target"),
    every_other(["allgather", "allreduce", "alltoall"], ["ring:8", "dgx1", "line:4"], ["executor-nccl", "rccl"]),
)
def test_baselines_are_lowered(collective: str, topo: str, target: str) -> None:
    """Check all baselines, among them recursive doubling, which sends more at once than two slots hold on a ring."""
    problem = make_question(QuestionArguments(collective, topo)).problem
    protocol = {"executor-nccl": "LL", "rccl": "Simple"}[target]
    for algorithm in baseline(problem):
        program, goal = lower(algorithm, "x", protocol, min_bytes=1 << 20, limits=target_named(target).limits)
        assert check(program, goal, target=target).ok
        bare = algorithm.problem.network.alpha_us.min()
        assert Predictor(program, problem.topology, problem.ranks).time_us(1 << 20) > bare


def test_explicit_limits() -> None:
    """Check that a program keeps explicit limits in place of its target's, or is refused."""
    (algorithm, *_) = baseline(make_question(QuestionArguments("allgather", "dgx1", costs="none")).problem)
    program, _ = lower(algorithm, "x")
    blocks = max(len(gpu.threadblocks) for gpu in program.gpus)
    least = replace(TARGETS["executor-nccl"].limits, tbs_per_gpu=blocks - 1)
    with pytest.raises(InputError, match=f"threadblocks {blocks}; executor-nccl takes at most {blocks - 1}"):
        lower(algorithm, "x", limits=least)


def test_lowering_without_time_keeps_limits() -> None:
    """Check that a variant of fewer threadblocks is tried if the plain one, which is tried first, does not fit."""
    (algorithm, *_) = baseline(make_question(QuestionArguments("allgather", "dgx1", costs="none")).problem)
    program, _ = lower(algorithm, "x")
    blocks = max(len(gpu.threadblocks) for gpu in program.gpus)
    tight = replace(TARGETS["executor-nccl"].limits, tbs_per_gpu=blocks)
    hasty = Lowering(algorithm, "x", tight).program(until=-math.inf)
    assert max(len(gpu.threadblocks) for gpu in hasty.gpus) == blocks


def test_lowering_without_time() -> None:
    """Check that lowering without time gives a right program, even if it is slower."""
    slower = 0
    for spec in ("ring:8", "dgx1", "torus:2x4"):
        for algorithm in baseline(make_question(QuestionArguments("allgather", spec)).problem):
            hasty, patient = (Lowering(algorithm, "x") for _ in range(2))
            first, best = hasty.program(min_bytes=1 << 20, until=-math.inf), patient.program(min_bytes=1 << 20)
            assert check(first, hasty.goal).ok
            first_us, best_us = (
                Predictor(program, algorithm.problem.topology).time_us(1 << 30) for program in (first, best)
            )
            assert max(first_us, algorithm.time_us(1 << 30)) >= 0.99 * best_us  # Nothing is gained below that time.
            slower += first != best
    assert slower


@pytest.mark.parametrize("spec", ["line:3", "line:4", "ring:6"])
def test_small_chunks_get_channels_enough(spec: str) -> None:
    """Check that programs of many small chunks do not wait for slots, even where there is time for a first one only."""
    algorithms = baseline(make_problem(load(spec), "broadcast"))
    pipelines = [algorithm for algorithm in algorithms if algorithm.problem.collective.chunks >= 64]
    assert pipelines
    size = 1 << 16
    for algorithm in pipelines:
        for until in (-math.inf, math.inf):
            program = Lowering(algorithm, "x").program("Simple", min_bytes=size, max_bytes=size, until=until)
            time_us = Predictor(program, algorithm.problem.topology).time_us(size)
            assert time_us <= 1.1 * algorithm.time_us(size)


def test_relayed_blocks_to_one_rank_become_one_message() -> None:
    """Check that the blocks that a GPU relays to one rank of another node become few messages."""
    topology = with_protocol(with_costs(load("dgx-a100:2")), "LL")
    (algorithm,) = baseline_named(make_problem(topology, "alltoall"), "two-level", 1 << 12)
    program, goal = lower(algorithm, "x", "LL", min_bytes=1 << 12, limits=target_named("msccl").limits)
    assert check(program, goal, target="msccl").ok
    counts = [
        step.count
        for rank, gpu in enumerate(program.gpus)
        for block in gpu.threadblocks
        for step in block.steps
        if step.op in SENDS and topology.nodes[block.send] != topology.nodes[rank]
    ]
    net = algorithm.problem.network
    across = topology.nodes[net.src] != topology.nodes[net.dst]
    assert sum(counts) == int(across[algorithm.schedule.link].sum())
    assert len(counts) <= sum(counts) / 2
    assert Predictor(program, topology).time_us(1 << 12) < 0.9 * algorithm.time_us(1 << 12)


@pytest.mark.parametrize(("collective", "topo"), [("alltoall", "line:4"), ("alltoall", "mesh:2x3")])
def test_scratch_is_limited_at_the_price_of_waits(collective: str, topo: str) -> None:
    """Check that a program gets by with less scratch where its instructions may wait, and that it is still right."""
    answer = synthesize(collective, topo, engine="flow", chunks=4, target="none")
    algorithm = answer.result.fastest(LARGEST).algorithm
    plain, goal = lower(algorithm, "x")

    def scratch_within(most: int) -> int:
        """Return the scratch chunks of a rank of a program that is limited to `most` where possible."""
        program = Lowering(algorithm, "x", most_scratch=most).program()
        assert check(program, goal, target="executor-nccl").ok
        return max(gpu.s_chunks for gpu in program.gpus)

    scratch = max(gpu.s_chunks for gpu in plain.gpus)
    least = scratch_within(0)
    assert least < scratch
    for most in (least, (least + scratch) // 2, scratch):
        assert scratch_within(most) <= most
