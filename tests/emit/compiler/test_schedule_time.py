"""A program takes no longer than its schedule where its slots do not bind: links serve one order."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emit.check.program import check
from emit.compiler.compile import compile_instructions
from emit.compiler.lower import lower_to_instructions
from emit.timing.predict import Predictor
from synth.model.problem import LARGEST
from synth.verify.algorithm import Algorithm
from tests.random_problems import answered, random_problem, shares_nothing

SEEDS = st.integers(0, 10**9)
MANY = 10_000  # slots
LARGE = 1 << 28


@settings(max_examples=60, deadline=None, derandomize=True)
@given(SEEDS)
def test_messages_keep_the_schedules_order_on_their_links(seed: int) -> None:
    """With a block for each connection, and slots enough, the schedule's time."""
    rng = random.Random(seed)
    problem = random_problem(rng)
    assume(shares_nothing(problem) and np.ptp(problem.collective.fraction) < 1e-12)
    problem = problem.with_chunks(rng.choice((1, 2, 4, 8)))
    algorithm = Algorithm(problem, answered(problem, LARGE), "route", size_bytes=LARGE)
    assume(len(algorithm.schedule) < 300)
    ir = lower_to_instructions(algorithm, "x")
    program = compile_instructions(ir, without=("aggregate", "fuse", "pair")).program
    assert check(program, ir.goal).ok
    times = Predictor(program, problem.topology, problem.ranks, MANY)
    for size in (LARGE, LARGEST):
        assert times.time_us(size) <= 1.001 * algorithm.time_us(size)
