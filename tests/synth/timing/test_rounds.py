"""Rounds of every step, interpreted and compiled, against a table of steps × resources."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.model.collective import Floats
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing import rounds
from synth.timing.simulate import ClockTuning
from tests.random_problems import answered, random_problem
from tests.synth.verify.against_oracles import shuffled


def step_loads(problem: Problem, schedule: Schedule) -> Floats:
    """Return the rounds that every resource and link is busy in every step, shape (steps, resources + links)."""
    net, collective = problem.network, problem.collective
    weight = collective.fraction / collective.fraction.min()
    shared, own = np.zeros((schedule.nsteps, net.nresources)), np.zeros((schedule.nsteps, net.nlinks))
    for step, link, chunk in zip(schedule.step, schedule.link, schedule.chunk, strict=True):
        own[step, link] += weight[chunk]
        for resource in net.uses_idx[net.uses_ptr[link] : net.uses_ptr[link + 1]]:
            shared[step, resource] += weight[chunk]
    unit = rounds.unit_gbs(problem)
    return np.concatenate([shared * (unit / net.capacity_gbs), own * (unit / net.bandwidth_gbs)], axis=1)


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32))
def test_rounds_of_every_step(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng)
    plan = shuffled(answered(problem, 1e6), rng)
    assume(len(plan))
    spread = replace(plan, step=plan.step * 3)  # Some steps have no sends.
    for schedule in (plan, spread):
        loads = step_loads(problem, schedule).max(axis=1)
        whole = int(np.maximum(np.ceil(loads - 1e-9), 1).sum())
        assert rounds.rounds(problem, schedule) == whole
        for compiled_from in (len(schedule) + 1, 0):
            peaks = rounds.step_peaks(problem, schedule, ClockTuning(compiled_from))
            assert peaks.tolist() == loads[np.unique(schedule.step)].tolist()
