"""Tests of bounds against small problems solved exactly: bounds that are too high are reported, and times are exact."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from results.scripts import bounds_exact
from synth.bounds.witness import Limit
from synth.bounds.witnesses.cut import Cut
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.oracles.exact_times import NotWhole, exact
from tests.oracles.exhaustive import fastest
from tests.oracles.tree_packing import packed_us_per_byte
from topologies.load import load

FEW = (2, 5, 9, 11, 15, 17, 20, 21)  # Problems that take milliseconds.


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    with Workers() as pool:
        yield pool


def counted(workers: Workers, planted: str = "") -> bounds_exact.Count:
    total = bounds_exact.Count()
    for number in FEW:
        total.add(bounds_exact.solved(3, number, workers, planted))
    return total


def test_no_claim_is_refuted(workers: Workers) -> None:
    total = counted(workers)
    assert total.refuted == []
    assert sum(total.sorts.values()) + total.skipped == len(FEW)
    assert total.seen["cut"] > 0
    assert total.slopes_met > 0
    assert "No claim refuted" in bounds_exact.text(total, 3)


def test_a_bound_that_is_one_per_cent_too_high_is_reported(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    true_limit = Cut.limit

    def too_high(cut: Cut, problem: Problem) -> Limit:
        base, per_byte, cap = true_limit(cut, problem)
        return base * 1.01, per_byte * 1.01, cap

    monkeypatch.setattr(Cut, "limit", too_high)
    refuted = counted(workers).refuted
    assert any("cut claims" in line for line in refuted)
    assert any("a byte claimed" in line for line in refuted)


@pytest.mark.parametrize(("spec", "name"), [("full:3,bw=2,alpha=1", "broadcast"), ("line:3,bw=1,alpha=2", "allgather")])
def test_exact_times_equal_those_of_exhaustive_search(spec: str, name: str) -> None:
    problem = make_problem(load(spec), name)
    size = 12e3 / float(problem.collective.fraction.min())
    best = exact(problem, size)
    assert best is not None
    assert best.proved
    assert best.time_us == pytest.approx(fastest(problem, size, 6))
    assert Algorithm(problem, best.schedule, "exact").time_us(size) == pytest.approx(best.time_us)


def test_tree_packing_of_a_ring() -> None:
    problem = make_problem(load("ring:4,bw=2"), "allgather")
    assert packed_us_per_byte(problem) == pytest.approx(0.75 * 1e-3 / 4)
    assert packed_us_per_byte(make_problem(load("star:4"), "allgather")) is None


def test_times_that_are_not_whole_are_refused() -> None:
    with pytest.raises(NotWhole, match="no whole number"):
        exact(make_problem(load("ring:4,bw=7"), "allgather"), 1000.0)
