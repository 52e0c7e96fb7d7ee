"""A program takes no longer than its schedule where its slots do not bind: links serve one order."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.columns import Columns
from emit.compiler.compile import compile_instructions
from emit.compiler.lower import lower, lower_to_instructions
from emit.program import Program
from emit.targets import LL_MOST_BYTES, TARGETS
from emit.timing.predict import Predictor
from synth.app.synthesis import ask
from synth.baselines import baseline
from synth.model.problem import LARGEST
from synth.verify.algorithm import Algorithm
from tests.random_problems import answered, random_problem, shares_nothing

SEEDS = st.integers(0, 10**9)
MANY = 10_000  # slots
LARGE = 1 << 28


def _random_algorithm(seed: int) -> Algorithm:
    """Small, on links that share nothing, of chunks of one size."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    assume(shares_nothing(problem) and np.ptp(problem.collective.fraction) < 1e-12)
    problem = problem.with_chunks(rng.choice((1, 2, 4, 8)))
    algorithm = Algorithm(problem, answered(problem, LARGE), "route", size_bytes=LARGE)
    assume(len(algorithm.schedule) < 300)
    return algorithm


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS)
def test_messages_keep_the_schedules_order_on_their_links(seed: int) -> None:
    """With a block for each connection, and slots enough, the schedule's time."""
    algorithm = _random_algorithm(seed)
    problem = algorithm.problem
    ir = lower_to_instructions(algorithm, "x")
    program = compile_instructions(ir, without=("aggregate", "fuse", "pair")).program
    assert check(program, ir.goal).ok
    times = Predictor(program, problem.topology, problem.ranks, MANY)
    for size in (LARGE, LARGEST):
        assert times.time_us(size) <= 1.001 * algorithm.time_us(size)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(SEEDS)
def test_they_keep_it_on_as_many_channels_as_short_threadblocks_need(seed: int) -> None:
    """Of three steps each: on channels one after another, for dealt out in turn they would overtake each other."""
    algorithm = _random_algorithm(seed)
    problem = algorithm.problem
    limits = replace(TARGETS["executor-nccl"].limits, steps_per_tb=3, channels=200, dep_tb=10_000)
    ir = lower_to_instructions(algorithm, "x")
    schedule_us = algorithm.time_us(LARGEST)

    def timer(program: Program, columns: Columns | None = None) -> Iterator[float]:
        yield Predictor(program, problem.topology, problem.ranks, MANY, columns=columns).time_us(LARGEST)

    without = ("aggregate", "fuse", "pair", "deal")
    made = compile_instructions(ir, limits=limits, timer=timer, enough=(schedule_us,), without=without).program
    assert check(made, ir.goal, target=limits).ok
    assert next(timer(made)) <= 1.002 * schedule_us


def test_copies_that_nobody_waits_for_are_one() -> None:
    """The root's, of a broadcast of many chunks; as many chunks at once as the target takes."""
    problem = ask("broadcast", "ring:3").problem.with_chunks(200)
    algorithm = Algorithm(problem, answered(problem, LARGE), "route", size_bytes=LARGE)
    program, goal = lower(algorithm, "x", inplace=False)
    copies = [step.count for _, _, _, step in program.steps() if step.op == "cpy"]
    assert copies == [71, 71, 58]
    assert check(program, goal, target="executor-nccl").ok


@settings(max_examples=30, deadline=None, derandomize=True)
@given(SEEDS)
def test_the_program_that_is_chosen_takes_the_schedules_time(seed: int) -> None:
    """Many variants do not: they wait for one of two slots, or for what another message holds up."""
    algorithm = _random_algorithm(seed)
    problem = algorithm.problem
    program, goal = lower(algorithm, "x", "Simple", min_bytes=LL_MOST_BYTES)
    assert check(program, goal).ok
    times = Predictor(program, problem.topology, problem.ranks)
    for size in (LARGE, LARGEST):
        assert times.time_us(size) <= 1.02 * algorithm.time_us(size)


def test_threadblocks_are_shared_where_a_limit_asks_for_it() -> None:
    """Of an all-reduce among all: a threadblock for each direction and peer is more than these limits allow."""
    algorithm, *_ = baseline(ask("allreduce", "full:6").problem)
    usual = TARGETS["executor-nccl"].limits
    for limits in (replace(usual, dep_tb=5), replace(usual, tbs_per_gpu=5)):
        program, goal = lower(algorithm, "x", limits=limits)
        assert check(program, goal, target=limits).ok


def test_one_threadblock_serves_a_peer_in_both_directions() -> None:
    """Also where a rank has more peers than a channel: what it sends them and receives from them has one channel."""
    algorithm = next(made for made in baseline(ask("allgather", "full:8").problem) if made.engine == "direct")
    limits = replace(TARGETS["executor-nccl"].limits, tbs_per_gpu=7, tbs_per_channel=4)
    program, goal = lower(algorithm, "x", limits=limits)
    assert check(program, goal, target=limits).ok
    assert program.nchannels > 1
    assert all(tb.send == tb.recv for gpu in program.gpus for tb in gpu.threadblocks)
