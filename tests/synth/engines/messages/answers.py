"""What the engine `messages` answers, for tests."""

from __future__ import annotations

import numpy as np

from synth.bounds.prove import prove
from synth.engines.messages.search import solve
from synth.engines.request import Candidate, Options, Request
from synth.model.problem import Problem
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes


def answers(problem: Problem, size: int, least_bytes: int | None = None) -> list[Algorithm]:
    """Return the engine's algorithms for a message size in bytes, each replayed and compared with the bound.

    `least_bytes` is the option of that name.
    """
    bound = prove(problem, max_flow=False)
    request = Request(Options(size=size, least_bytes=least_bytes), (size,), np.inf, None, BestTimes(), bound)  # type: ignore[arg-type]
    outcomes = [outcome for outcome in solve(problem, request) if isinstance(outcome, Candidate)]
    algorithms = [Algorithm(answer.problem, answer.schedule, answer.engine) for answer in outcomes]
    assert all(algorithm.time_us(size) >= bound.at(size)[0] * (1 - 1e-9) for algorithm in algorithms)
    return algorithms
