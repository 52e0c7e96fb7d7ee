"""Tests that a program takes no longer than its schedule where its slots suffice, since links keep one order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.columns import Columns
from emit.compiler.compile import Compiler, compile_instructions
from emit.compiler.lower import lanes_of, lower, lower_to_instructions
from emit.program import Program
from emit.targets import LL_MOST_BYTES, TARGETS
from emit.timing.predict import Predictor
from synth.app.arguments import QuestionArguments
from synth.app.question import make_question
from synth.baselines import baseline
from synth.engines.messages.nodes import nodes_of
from synth.engines.messages.plans import MessagesForm, spreading
from synth.model.problem import LARGEST, make_problem
from synth.verify.algorithm import Algorithm
from tests.random_problems import answered, random_problem, shares_nothing
from topologies.costed import with_costs, without_costs
from topologies.families import family
from topologies.load import load

SEEDS = st.integers(0, 10**9)
MANY = 10_000  # FIFO slots.
LARGE = 1 << 28


def _random_algorithm(seed: int) -> Algorithm:
    """Return a small random algorithm on links that share nothing, with chunks of one size."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    assume(shares_nothing(problem) and np.ptp(problem.collective.fraction) < 1e-12)
    problem = problem.with_chunks(rng.choice((1, 2, 4, 8)))
    algorithm = Algorithm(problem, answered(problem, LARGE), "route", size_bytes=LARGE)
    assume(len(algorithm.schedule) < 300)
    return algorithm


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_programs_keep_the_schedules_order_on_links(seed: int) -> None:
    """Check that a program with a threadblock a connection and enough slots takes the schedule's time."""
    algorithm = _random_algorithm(seed)
    problem = algorithm.problem
    ir = lower_to_instructions(algorithm, "x")
    program = compile_instructions(ir, without=("aggregate", "fuse", "pairing")).program
    assert check(program, ir.goal).ok
    times = Predictor(program, problem.topology, problem.ranks, MANY)
    for size in (LARGE, LARGEST):
        assert times.time_us(size) <= 1.001 * algorithm.time_us(size)


@settings(max_examples=20, derandomize=True)
@given(SEEDS)
def test_short_threadblocks_on_many_channels_keep_the_order(seed: int) -> None:
    """Check that threadblocks of three steps keep the order of messages over several channels."""
    algorithm = _random_algorithm(seed)
    problem = algorithm.problem
    limits = replace(TARGETS["executor-nccl"].limits, steps_per_tb=3, channels=200, dep_tb=10_000)
    ir = lower_to_instructions(algorithm, "x")
    schedule_us = algorithm.time_us(LARGEST)

    def timer(program: Program, columns: Columns | None = None) -> Iterator[float]:
        yield Predictor(program, problem.topology, problem.ranks, MANY, columns=columns).time_us(LARGEST)

    without = ("aggregate", "fuse", "pairing", "more-channels")
    compiled = Compiler(ir, limits, without).best(timer, (schedule_us,)).program
    assert check(compiled, ir.goal, target=limits).ok
    assert next(timer(compiled)) <= 1.002 * schedule_us


def test_local_copies_are_joined() -> None:
    """Check that a broadcast's local copies are joined up to the target's count of chunks."""
    problem = make_question(QuestionArguments("broadcast", "ring:3")).problem.with_chunks(200)
    algorithm = Algorithm(problem, answered(problem, LARGE), "route", size_bytes=LARGE)
    program, goal = lower(algorithm, "x", inplace=False)
    copies = [step.count for _, _, _, step in program.steps() if step.op == "cpy"]
    assert copies == [71, 71, 58]
    assert check(program, goal, target="executor-nccl").ok


@settings(max_examples=30, derandomize=True)
@given(SEEDS)
def test_the_chosen_program_takes_the_schedules_time(seed: int) -> None:
    """Check that the chosen variant takes the schedule's time, which many variants do not."""
    algorithm = _random_algorithm(seed)
    problem = algorithm.problem
    program, goal = lower(algorithm, "x", "Simple", min_bytes=LL_MOST_BYTES)
    assert check(program, goal).ok
    times = Predictor(program, problem.topology, problem.ranks)
    for size in (LARGE, LARGEST):
        assert times.time_us(size) <= 1.02 * algorithm.time_us(size)


def test_threadblocks_are_shared_where_limits_require_it() -> None:
    """Check an all-reduce whose threadblocks for each direction and peer exceed the limits."""
    algorithm, *_ = baseline(make_question(QuestionArguments("allreduce", "full:6")).problem)
    usual = TARGETS["executor-nccl"].limits
    for limits in (replace(usual, dep_tb=5), replace(usual, tbs_per_gpu=5)):
        program, goal = lower(algorithm, "x", limits=limits)
        assert check(program, goal, target=limits).ok


def test_one_threadblock_serves_a_peer_in_both_directions() -> None:
    """Check that both directions of a peer have one channel, even with more peers than a channel takes."""
    algorithm = next(
        candidate
        for candidate in baseline(make_question(QuestionArguments("allgather", "full:8")).problem)
        if candidate.engine == "direct"
    )
    limits = replace(TARGETS["executor-nccl"].limits, tbs_per_gpu=7, tbs_per_channel=4)
    program, goal = lower(algorithm, "x", limits=limits)
    assert check(program, goal, target=limits).ok
    assert program.nchannels > 1
    assert all(tb.send == tb.recv for gpu in program.gpus for tb in gpu.threadblocks)


def test_messages_over_one_nic_leave_in_turn() -> None:
    """Check parts that go over trees of their own, whose order at every NIC counts."""
    size = 4096
    problem = make_problem(with_costs(family("star:8,bw=1,alpha=2,gap_us=2")), "broadcast").under("Simple")
    whole = problem.with_chunks(4)
    nodes = nodes_of(whole.network)
    assert nodes is not None
    plan = spreading(nodes, whole.collective, MessagesForm(2, 1, trees=4, lag=2.0))
    algorithm = Algorithm(whole, plan.schedule(1), "test", size_bytes=size)
    times = [
        Predictor(program, problem.topology, problem.ranks).time_us(size)
        for program in (
            lower(algorithm, "x", "Simple", min_bytes=size, max_bytes=size)[0],
            compile_instructions(lower_to_instructions(algorithm, "x"), without=("in-turn",)).program,
        )
    ]
    assert times[0] <= 1.02 * algorithm.time_us(size)
    assert times[1] > 1.1 * times[0]


def test_lanes_are_the_resources_that_most_messages_share() -> None:
    """Check two GPUs at each NIC, whose messages to any other node are of one lane."""
    net = make_problem(with_costs(load("dgx2:3")), "allgather").under("LL").network
    lanes = lanes_of(net)
    node = np.arange(48) // 16
    assert set(lanes) == {(rank, peer) for rank in range(48) for peer in range(48) if node[rank] != node[peer]}
    of_rank = [{lanes[rank, peer] for peer in range(48) if (rank, peer) in lanes} for rank in range(48)]
    assert all(len(numbers) == 1 for numbers in of_rank)
    assert len(set.union(*of_rank)) == 3 * 8
    assert not lanes_of(make_problem(without_costs(load("dgx2:3")), "allgather").network)
