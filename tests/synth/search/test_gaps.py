"""Where the budget goes: to the size with the largest gap; engines are then asked for that size only."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.request import Options
from synth.model.problem import make_problem
from synth.search.frontier import POWERS
from synth.search.gaps import LargestGap
from synth.search.plans import SearchPlan, Stage
from synth.search.result import SearchResult
from synth.search.search import search
from synth.solvers.workers import Workers
from topologies.load import load

FEW = SearchPlan((Stage("route"), Stage("baseline", always=True)), rest=False, windows=0)
AGAIN = replace(FEW, retries=((Stage("trees", gap=1.02),),), retry_gap=1.5)


@dataclass
class _Reached:
    result: SearchResult
    us: dict[int, float]

    def scheduled_us(self, size_bytes: float) -> float:
        return self.us.get(int(size_bytes), np.inf)


def test_the_largest_gap_comes_first_and_again_where_it_fell() -> None:
    problem = make_problem(load("ring:4"), "broadcast")
    result = SearchResult(problem, bound=prove(problem))
    least = {size: result.bound.at(size)[0] for size in (1 << 10, 1 << 20, 1 << 30)}
    low, middle, high = least
    reached = _Reached(result, {low: 1.01 * least[low], middle: 1.1 * least[middle], high: 1.2 * least[high]})
    farthest = LargestGap(reached, (*least, 1 << 25), 1.02)
    assert farthest.size() == high
    farthest.mark_tried(high)
    assert farthest.size() == middle
    farthest.mark_tried(middle, for_good=True)
    assert farthest.size() is None  # The other sizes are near the bound, or nothing is known of them.
    reached.us[high] *= 0.99
    assert farthest.size() is None
    reached.us[high], reached.us[middle] = 1.15 * least[high], 1.05 * least[middle]
    assert farthest.size() == high
    farthest.mark_tried(high)
    farthest.restart()
    assert farthest.size() == high


def test_engines_are_asked_for_the_worst_size_only(workers: Workers) -> None:
    problem = make_problem(load("line:4"), "allreduce")
    before, after, same = (
        search(problem, Options(budget_s=600), workers, plan=tuning) for tuning in (FEW, AGAIN, AGAIN)
    )
    gaps, closer = (
        {size: result.fastest(size).time_us(size) / result.bound.at(size)[0] for size in POWERS}
        for result in (before, after)
    )
    assert (before.retried_sizes, before.stop_reason, after.stop_reason) == (set(), "", "")
    worst = max(gaps, key=lambda size: (gaps[size], -size))
    assert worst in after.retried_sizes
    assert gaps[worst] > AGAIN.retry_gap
    assert closer[worst] < gaps[worst]
    assert all(gap <= AGAIN.retry_gap or size in after.retried_sizes for size, gap in closer.items())
    assert after.retried_sizes == same.retried_sizes
    times = [[result.fastest(size).time_us(size) for size in POWERS] for result in (after, same)]
    assert times[0] == times[1]


@pytest.mark.parametrize("options", [Options(chunks=2), Options(engine="route")])
def test_no_engine_is_asked_again_where_more_than_the_fastest_is_requested(workers: Workers, options: Options) -> None:
    problem = make_problem(load("line:4"), "allreduce")
    assert search(problem, replace(options, budget_s=600), workers, plan=AGAIN).retried_sizes == set()


def test_for_one_size_only_the_last_engines_are_asked_again(workers: Workers) -> None:
    problem = make_problem(load("line:4"), "allreduce")
    rounds = ((Stage("flow", gap=1.0),), *AGAIN.retries)
    options = Options(size=1 << 16, budget_s=600)
    result = search(problem, options, workers, plan=replace(AGAIN, retries=rounds, retry_gap=1.02))
    by = {served.algorithm.engine for served in result.ranges} | {offer.algorithm.engine for offer in result.unused}
    assert (result.retried_sizes, "trees" in by, "flow" in by) == ({1 << 16}, True, False)
