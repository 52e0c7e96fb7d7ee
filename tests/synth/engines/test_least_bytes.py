"""Engines refine chunks no further than an executor can keep in flight."""

from __future__ import annotations

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.registry import ENGINES
from synth.engines.request import Candidate, Options, Request
from synth.model.problem import make_problem
from synth.solvers.workers import Workers
from tests.synth.engines.knowledge import BestTimes
from topologies.costed import with_costs, with_protocol
from topologies.load import load

SIZE = 1 << 20


@pytest.mark.parametrize(
    ("engine", "machine"), [("flow", "dgx1"), ("trees", "dgx1"), ("two-hops", "dgx-a100"), ("steiner", "dgx1")]
)
def test_engines_refine_no_further(engine: str, machine: str, workers: Workers) -> None:
    problem = make_problem(with_protocol(with_costs(load(machine)), "Simple"), "broadcast")
    smallest = []
    for least in (None, 1 << 17):
        options = Options(least_bytes=least, budget_s=1.0)
        request = Request(
            options, (SIZE,), np.inf, workers, BestTimes(), prove(problem, max_flow=False), most_sends=2000
        )
        candidates = [outcome for outcome in ENGINES[engine].solve(problem, request) if isinstance(outcome, Candidate)]
        sizes = (float(candidate.problem.collective.chunk_bytes(SIZE).max()) for candidate in candidates)
        smallest.append(min(sizes, default=np.inf))  # All chunks would be too small.
    assert smallest[0] < 1 << 17 <= smallest[1]
