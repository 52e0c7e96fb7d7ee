"""Bounds by windows of time are searched while engines work: the largest gap first, each size once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace

import pytest

from synth.bounds.check import check
from synth.bounds.prove import Bound, prove, refute
from synth.bounds.search import DEFAULT
from synth.model.deadline import TimeUp, limited, now
from synth.model.problem import Problem, make_problem
from synth.search.budget import Budget
from synth.search.result import SearchResult
from synth.search.run.windows import Windows
from synth.solvers.workers import Workers
from topologies.load import apply_costs, load


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


def _far_search(workers: Workers) -> tuple[_Asking, int]:
    """Return a search that has reached 1.4 of its bound at a size, and the size."""
    problem, size = make_problem(load("dgx1"), "broadcast"), 65536
    result = SearchResult(problem, bound=prove(problem))
    return _Asking(problem, workers, result, {size: 1.4 * result.bound.at(size)[0]}), size


def test_bounds_rise_in_a_thread_beside_other_work(workers: Workers) -> None:
    asking, size = _far_search(workers)
    before_us = asking.result.bound.at(size)[0]
    until = now() + 600
    with Windows(asking, (size,), 1.02).beside(until, 0.0):
        threads = threading.active_count()
        while now() < until and asking.result.bound.at(size)[0] < 1.02 * before_us:
            time.sleep(0.01)
    assert threads > threading.active_count()
    assert asking.result.bound.at(size)[0] > 1.02 * before_us
    check(asking.problem, asking.result.bound.at(size)[1])


def test_an_interrupt_of_the_work_ends_the_thread(workers: Workers) -> None:
    asking, size = _far_search(workers)
    threads = threading.active_count()
    windows = Windows(asking, (size,), 1.02)
    with pytest.raises(KeyboardInterrupt), windows.beside(now() + 600, 0.0):
        raise KeyboardInterrupt
    assert threading.active_count() == threads


def test_windows_that_were_cut_off_are_tried_again(workers: Workers) -> None:
    asking, size = _far_search(workers)
    windows = Windows(asking, (size,), 1.02)
    with pytest.raises(TimeUp):
        limited(now() + 0.05, lambda: windows.finish(now() + 600, 0.0))
    before_us = asking.result.bound.at(size)[0]
    windows.finish(now() + 600, 0.0)
    assert asking.result.bound.at(size)[0] > before_us


def test_only_the_protocol_with_the_least_bound_is_raised(workers: Workers) -> None:
    problem, size = make_problem(apply_costs(load("mi250"), "machine"), "broadcast"), 16 << 20
    bound = prove(problem)
    proved_us = {name: bound_of(bound, name, size) for name in problem.protocols}
    least = min(proved_us, key=lambda name: proved_us[name])
    assert max(proved_us.values()) > 1.5 * proved_us[least]
    tuning = replace(DEFAULT, window_slots=(9,))
    *_, raised = bound, *refute(problem, bound, size, 1.2 * proved_us[least], workers, now() + 600, tuning)
    assert {w.protocol for w in raised.witnesses[len(bound.witnesses) :]} <= {least}


def bound_of(bound: Bound, protocol: str, size: int) -> float:
    """Return what is proved of a protocol at a size, in µs."""
    return max(witness.at(size) for witness in bound.witnesses if witness.protocol == protocol)
