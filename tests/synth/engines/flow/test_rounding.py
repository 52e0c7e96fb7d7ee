"""Schedules stay right where latencies are so unequal that rounding makes different times equal."""

from __future__ import annotations

from synth.bounds.prove import prove
from synth.engines.registry import ENGINES
from synth.engines.request import Candidate, Options, Request
from synth.model.deadline import now
from synth.model.problem import make_problem
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from topologies.text.reader import from_toml

NETWORK = """
name = "unequal"
ranks = 5

[[links]]
pairs = "0>3"
gbs = 12.5
alpha_us = 0.2333333333333333

[[links]]
pairs = "0>4"
gbs = 1
alpha_us = 7e-10

[[links]]
pairs = "1>2"
gbs = 25
alpha_us = 7e-10

[[links]]
pairs = "2>0"
gbs = 50
alpha_us = 700000000

[[links]]
pairs = "3>0"
gbs = 10
alpha_us = 1000

[[links]]
pairs = "3>1"
gbs = 50
alpha_us = 1e-10

[[links]]
pairs = "3>2"
gbs = 1
alpha_us = 0

[[links]]
pairs = "4>3"
gbs = 12.5
alpha_us = 7000
"""


def test_sums_wait_for_their_data_even_if_times_are_rounded(workers: Workers) -> None:
    problem = make_problem(from_toml(NETWORK, "unequal.toml"), "reducescatter", (4, 0, 2, 1, 3))
    request = Request(Options(1, budget_s=5.0), (1,), now() + 5.0, workers, BestTimes({}), prove(problem))
    candidates = [answer for answer in ENGINES["flow"].solve(problem, request) if isinstance(answer, Candidate)]
    assert candidates
    for candidate in candidates:
        Algorithm(candidate.problem, candidate.schedule, candidate.engine)  # It replays the schedule.
