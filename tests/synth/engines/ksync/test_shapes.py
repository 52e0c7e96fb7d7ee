"""Pinned shapes: a shape that exists is shown, and a shape that is impossible is refuted by independent code."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from synth import synthesize
from synth.engines.ksync import encoding as ksync
from synth.engines.ksync.pareto import ShapeSearch
from synth.engines.ksync.step_bounds import check_step_bound
from synth.engines.request import Shape, StepBound
from synth.engines.route import quick_schedule
from synth.model.problem import SMALLEST, Problem, make_problem
from synth.solvers.workers import Workers
from synth.symmetry.relabelling import trivial
from synth.timing.rounds import rounds as rounds_of
from synth.verify.algorithm import Algorithm
from tests.combinations import every_other
from tests.oracles.sccl_encoding import refuted_by_sccl
from topologies.errors import BadWitness
from topologies.load import apply_costs, load
from topologies.text.reader import from_toml

PLACES = ("ring:4", "ring:5", "line:4", "mesh:2x3", "star:4", "full:3")


def _search(problem: Problem, workers: Workers) -> ShapeSearch:
    return ShapeSearch(workers, problem.with_chunks, deadline=time.monotonic() + 60)


@pytest.mark.parametrize(("topo", "collective"), every_other(PLACES, ["allgather", "alltoall", "broadcast", "gather"]))
def test_prices_prove_step_bounds_and_raised_ones_are_refused(workers: Workers, topo: str, collective: str) -> None:
    problem = make_problem(load(topo), collective)
    for steps in (1, 2, 3, 4):
        bound = _search(problem, workers).bound(steps)
        assert bound is not None
        if np.isinf(bound.ratio):
            continue
        assert check_step_bound(problem, bound) == pytest.approx(bound.ratio, rel=1e-5)
        raised = StepBound(bound.steps, bound.ratio * 1.01, bound.prices)
        with pytest.raises(BadWitness, match="prove"):
            check_step_bound(problem, raised)
        shaken = tuple({r: p * (1.5 if i % 2 else 0.5) for i, (r, p) in enumerate(ps.items())} for ps in bound.prices)
        if len(shaken[0]) > 1:
            proved = check_step_bound(problem, StepBound(steps, 0.0, shaken))
            assert proved <= bound.ratio * (1 + 1e-6)


@pytest.mark.parametrize(
    ("topo", "collective"),
    every_other(["ring:4", "line:3", "full:3", "star:3"], ["allgather", "alltoall", "broadcast"]),
)
def test_three_encodings_agree(workers: Workers, topo: str, collective: str) -> None:
    base = make_problem(load(topo), collective)
    search = _search(base, workers)
    for steps, rounds, chunks in ((1, 1, 1), (2, 2, 1), (3, 3, 1), (2, 3, 2)):
        problem = base.with_chunks(chunks)
        shape = Shape(steps, rounds, chunks)
        model = ksync.step_model(problem, steps, rounds, trivial(problem))
        statuses = {"infeasible"} if model.impossible else set()
        for solver in ("cpsat", "smt") if not statuses else ():
            result = workers.answer(time.monotonic() + 25, solver, model.constraints, 20, 0)
            assert result is not None
            statuses.add(result.status)
        assert len(statuses) == 1
        assert refuted_by_sccl(problem, shape, 20) is (statuses == {"infeasible"})
        # The symmetric search may claim only what holds without the symmetry.
        assert (search.decide(shape, 20).status == "unsat") is (statuses == {"infeasible"})


def test_a_shape_below_the_bound_is_called_impossible(workers: Workers) -> None:
    answer = synthesize("allgather", "dgx1", steps=2, rounds=7, chunks=6, costs="none", workers=workers)
    assert not answer.result.ranges
    assert "at least 1.5 rounds a chunk" in answer.result.impossible


@pytest.mark.parametrize(
    ("collective", "steps", "rounds", "chunks"),
    [
        ("allgather", 2, 3, 2),
        ("alltoall", 3, 3, 1),
        ("broadcast", 3, 3, 6),
        ("allreduce", 4, 4, 1),
        ("gather", 2, 3, 2),
    ],
)
def test_pinned_shapes_come_out_as_pinned(
    workers: Workers, collective: str, steps: int, rounds: int, chunks: int
) -> None:
    answer = synthesize(collective, "dgx1", steps=steps, rounds=rounds, chunks=chunks, costs="none", workers=workers)
    (row,) = answer.algorithms
    assert row["chunks"] == chunks
    assert row["steps"] <= steps
    assert row["rounds"] <= rounds


ODD = """
name = "odd"
ranks = 4
[[links]]
pairs = "0>1 1>2 2>3 3>0 0>2"
both = true
gbs = 23.7
alpha_us = 0.7
[[links]]
pairs = "1>3"
both = true
gbs = 50.1234567
alpha_us = 0.9
"""


@pytest.mark.parametrize("collective", ["allgather", "alltoall", "broadcast"])
def test_bandwidths_that_are_no_short_fractions(workers: Workers, collective: str) -> None:
    """Check that an answer has the stated rounds, and that a proof is for the true bandwidths."""
    problem = make_problem(from_toml(ODD, "odd"), collective)
    search = _search(problem, workers)
    for steps in (1, 2):
        bound = search.bound(steps)
        assert bound is not None
        check_step_bound(problem, bound)
        for rounds, chunks in ((steps, 1), (steps + 1, 2), (steps + 1, 3)):
            verdict = search.decide(Shape(steps, rounds, chunks), math.inf)
            if verdict.schedule is not None:
                copying = problem.with_chunks(chunks)
                assert rounds_of(copying, verdict.schedule) <= verdict.shape.rounds
                assert float(verdict.shape.ratio) >= bound.ratio * (1 - 1e-7)


def test_a_pinned_shape_has_the_times_of_the_same_shape_found_without_pins(workers: Workers) -> None:
    """Check that routing for large messages does not hide the schedule of the shape that small ones take."""
    pinned = synthesize("allgather", "dgx1", steps=2, rounds=2, chunks=1, costs="none", budget=2, workers=workers)
    problem = make_problem(apply_costs(load("dgx1"), "none"), "allgather")
    small = Algorithm(problem, quick_schedule(problem, SMALLEST, 1.0), "route")
    assert (small.steps, small.rounds, small.chunks) == (2, 2, 1)
    for size in (1 << 16, 1 << 18):
        assert pinned.algorithm(size).time_us(size) <= small.time_us(size) * (1 + 1e-9)
