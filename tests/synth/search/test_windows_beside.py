"""Bounds by windows of time are searched while engines work: the largest gap first, each size once."""

from __future__ import annotations

from dataclasses import dataclass, field

from synth.bounds.check import check
from synth.bounds.prove import prove
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.search.budget import Budget
from synth.search.result import SearchResult
from synth.search.run.windows import Windows
from synth.solvers.workers import Workers
from topologies.load import load


@dataclass
class _Asking:
    problem: Problem
    workers: Workers
    result: SearchResult
    reached_us: dict[int, float]
    budget: Budget = field(default_factory=Budget)

    def scheduled_us(self, size_bytes: float) -> float:
        return self.reached_us[int(size_bytes)]


def test_bounds_rise_where_they_are_far(workers: Workers) -> None:
    problem = make_problem(load("dgx1"), "broadcast")
    result = SearchResult(problem, bound=prove(problem))
    before = result.bound
    far, near = 65536, 1 << 30
    asking = _Asking(problem, workers, result, {near: 1.005 * before.at(near)[0], far: 1.4 * before.at(far)[0]})
    windows, until = Windows(asking, (near, far), 1.02), now() + 600
    while windows.step():
        assert now() < until
    assert result.bound.at(far)[0] > 1.02 * before.at(far)[0]
    assert result.bound.at(near) == before.at(near)
    assert result.bound_s[result.bound.at(far)[1]] >= 0
    check(problem, result.bound.at(far)[1])
    assert not windows.step()  # Nothing is asked twice.
    asking.reached_us[far] *= 0.99
    assert not windows.step()
    asking.reached_us[far] *= 0.95
    assert windows.step()  # It is asked again where a much better time is reached.
