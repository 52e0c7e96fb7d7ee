"""The engine `levels`: right on all its collectives, near the bound where levels are a cluster's, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.levels import search as levels_search
from synth.engines.levels.plan import Levels, Shape, matched
from synth.engines.levels.search import NAME, accepts
from synth.engines.levels.tuning import TUNING
from synth.engines.request import Candidate, Options, Progress, Request
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.symmetry.quotient import expand
from synth.verify.algorithm import Algorithm
from tests.synth.engines.known import Known
from topologies.load import load

KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")


def _best(problem: Problem, size: int, workers: Workers, doublings: int) -> tuple[Algorithm, float]:
    """What the engine finds, replayed whole, and its time over the bound."""
    assert not accepts(problem, Options())
    bound = prove(problem, max_flow=False)
    tuning = replace(TUNING, doublings=doublings, orders=2, passes=2, variants=2)
    request = Request(Options(size=size), (size,), np.inf, workers, Known(), bound)
    found = [one for one in levels_search.solve(problem, request, tuning) if isinstance(one, Candidate)][-1]
    folded = found.problem.quotient is not None
    whole, schedule = expand(found.problem, found.schedule) if folded else (found.problem, found.schedule)
    made = Algorithm(whole, schedule, NAME)  # replayed
    return made, made.time_us(size) / bound.at(size)[0]


@pytest.mark.parametrize(
    ("topo", "group", "collective"),
    [
        *(("dgx-a100:3", [0, 3, 9, 10, 16, 19], kind) for kind in KINDS),
        *(("fattree:2x2x2", None, kind) for kind in KINDS),
        ("mi250:2", None, "reducescatter"),  # inside a node not all are linked
    ],
)
def test_it_is_right(workers: Workers, collective: str, topo: str, group: list[int] | None) -> None:
    problem = make_problem(load(topo), collective, group=group)
    _best(problem, 1 << 20, workers, 3)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_levels_overlap_so_that_the_nics_of_a_cluster_never_wait(workers: Workers, collective: str) -> None:
    made, gap = _best(make_problem(load("dgx-a100:4"), collective), 1 << 30, workers, 9)
    assert gap < 1.01
    assert made.problem.collective.chunks >= 8


def test_more_nodes_are_folded_by_their_symmetry() -> None:
    for nodes in (2, 16):
        topology = load(f"dgx-a100:{nodes}")
        problem = make_problem(topology, "allgather")
        folded = levels_search.quotient_of(problem)
        assert folded is not None
        plan = Levels(folded, levels_search._members(topology, problem.group), TUNING).plan(Shape("star"), 4)
        assert plan is not None
        assert len(plan.chunk) == 4 * (8 * nodes - 1)  # one rank's chunks


def test_of_a_grid_it_makes_nothing(workers: Workers) -> None:
    problem = make_problem(load("mesh:3x3"), "allgather")
    request = Request(Options(), (1 << 20,), np.inf, workers, Known(), prove(problem, max_flow=False))
    (said,) = levels_search.solve(problem, request)
    assert isinstance(said, Progress)
    assert "must be linked" in said.text


def test_places_are_put_where_links_across_are() -> None:
    able = np.array([[0, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=bool)
    assert able[np.arange(3), matched(able)].all()
    assert matched(np.eye(3, dtype=bool)).tolist() == matched(np.ones((3, 3), dtype=bool)).tolist() == [0, 1, 2]
    assert sorted(matched(np.zeros((3, 3), dtype=bool)).tolist()) == [0, 1, 2]  # none can be: still each once


def test_it_is_for_groups_that_lie_alike_in_parts_of_the_network() -> None:
    assert "equal shares" in accepts(make_problem(load("dgx-a100"), "allgather"), Options())
    assert "equal shares" in accepts(make_problem(load("dgx-a100:2"), "allgather", group=[0, 1, 8]), Options())
    assert "alltoall" not in accepts(make_problem(load("dgx-a100:2"), "alltoall"), Options())
    assert "allgather" in accepts(make_problem(load("dgx-a100:2"), "alltoall"), Options())
    assert "--steps" in accepts(make_problem(load("dgx-a100:2"), "allgather"), Options(steps=2))
