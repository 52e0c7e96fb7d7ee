"""Time slots: the dual bound holds for schedules of other engines, and the schedules are right."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from synth.engines.route import quick_schedule
from synth.engines.time_slots import SlotModel, read_schedule, slot_model
from synth.model.problem import Problem, make_problem
from synth.solvers.result import Result
from synth.solvers.workers import Workers
from synth.timing.simulate import predict_us
from synth.verify.algorithm import Algorithm
from topologies.load import load
from topologies.text.reader import from_toml

BOX = """
name = "box"
ranks = 4
switches = ["pcie"]
[[links]]
pairs = "0>1 2>3"
both = true
gbs = 50
alpha_us = 0.7
[[links]]
from = "0-3"
to = "pcie"
both = true
gbs = 12
alpha_us = 1.0
"""


def _problems() -> list[Problem]:
    box = from_toml(BOX, "box")
    return [
        make_problem(box, "allgather"),
        make_problem(box, "alltoall", [0, 2, 3]),
        make_problem(box, "broadcast", chunks=2),
        make_problem(load("line:3"), "allgather"),
        make_problem(load("ring:4"), "gather"),
    ]


@pytest.mark.parametrize("problem", _problems(), ids=lambda p: f"{p.topology.name}-{p.collective.name}")
@pytest.mark.parametrize("size", [1 << 12, 1 << 20])
def test_no_schedule_of_these_chunks_beats_the_dual_bound(workers: Workers, problem: Problem, size: int) -> None:
    schedules = [quick_schedule(problem, size, depth) for depth in (0.0, 0.5, 1.0)]
    ceiling = min(predict_us(problem, s, size) for s in schedules)
    model = slot_model(problem, size, ceiling * 1.2, 8)
    result = _solved(workers, model)
    assert result.solution is not None
    schedule = read_schedule(problem, model, np.flatnonzero(result.solution.values[:-1] > 0.5))
    best = Algorithm(problem, schedule, "milp")
    assert 0 < result.dual_bound <= min(ceiling, best.time_us(size)) * (1 + 1e-6)


def _solved(workers: Workers, model: SlotModel) -> Result:
    result = workers.answer(time.monotonic() + 40, "linear", model.program, 20.0)
    assert result is not None
    return result


def test_a_program_that_is_solved_in_full_has_the_time_of_its_bound(workers: Workers) -> None:
    problem = make_problem(load("line:3"), "allgather")
    size = 1 << 20
    ceiling = predict_us(problem, quick_schedule(problem, size), size)
    result = _solved(workers, slot_model(problem, size, ceiling, 8))
    assert result.solution is not None
    assert result.solution.values[-1] == pytest.approx(result.dual_bound, rel=1e-4)


def test_a_program_of_too_many_terms_is_not_built() -> None:
    """Check a network whose latencies are far apart: its few sends are in a billion windows, which took gigabytes."""
    line = load("line:3")
    alpha_us = np.where(np.arange(len(line.alpha_us)) % 2, 3.0, 3e-3)
    for topology, is_built in ((line, True), (replace(line, alpha_us=alpha_us), False)):
        problem = make_problem(topology, "allgather")
        ceiling = predict_us(problem, quick_schedule(problem, 1 << 10), 1 << 10)
        assert (slot_model(problem, 1 << 10, ceiling, 16, 4000) is not None) == is_built
