"""Rows of answers: the message sizes at which a program is timed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from synth.baselines import baseline
from synth.bounds.prove import prove
from synth.model.problem import LARGEST, SMALLEST, make_problem
from synth.search.offer import Offer
from synth.search.result import SearchResult
from synth.search.statement import row
from tests.synth.search.test_pool import Slower
from topologies.load import load

SIZE = 1 << 20


@dataclass(frozen=True)
class Noting(Slower):
    """A program that notes the sizes at which it is timed."""

    sizes: set[float] = field(default_factory=set)

    def time_us(self, size_bytes: float) -> float:
        self.sizes.add(size_bytes)
        return super().time_us(size_bytes)


@pytest.mark.parametrize(("spec", "is_long"), [("full:4", False), ("full:72", True)])
def test_only_a_long_program_for_one_size_is_timed_at_that_size_alone(spec: str, is_long: bool) -> None:
    """Check that commands for large clusters do not spend their last seconds on sizes that nobody asked for."""
    problem = make_problem(load(spec), "allgather")
    result = SearchResult(problem, bound=prove(problem, max_flow=False))
    algorithm = baseline(problem)[0]
    for one_size in (False, True):
        program = Noting(algorithm, 1.5)
        served = Offer(algorithm, program, low=SMALLEST, high=LARGEST, shown=SIZE)
        statement = row(result, served.at_size(SIZE) if one_size else served)
        is_timed_once = one_size and is_long
        assert (program.sizes == {SIZE}) == is_timed_once
        assert bool(statement["curve"]) != is_timed_once
