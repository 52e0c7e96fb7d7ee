"""The engine `trees`: packed to the optimum, with enough rounds to come near it."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.bounds.cuts.worst_cut import worst_cuts
from synth.bounds.prove import prove
from synth.bounds.search import DEFAULT
from synth.engines.request import Candidate, Options, Request
from synth.engines.trees.pipeline import listed
from synth.engines.trees.rooted import RootedTrees
from synth.engines.trees.search import accepts, solve
from synth.engines.trees.tuning import TUNING
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.random_problems import random_topology
from tests.synth.engines.knowledge import BestTimes
from topologies.load import load

SIZE = 1 << 32


def answers(problem: Problem, size: int = SIZE, most_sends: int = 0) -> list[Algorithm]:
    """Return the algorithms that the engine yields, replayed, each faster than the earlier ones."""
    knowledge, algorithms = BestTimes(), []
    assert accepts(problem, Options()) == ""
    with Workers() as workers:
        request = Request(Options(), (size,), now() + 60, workers, knowledge, prove(problem), most_sends=most_sends)
        for outcome in solve(problem, request):
            if isinstance(outcome, Candidate):
                algorithms.append(Algorithm(outcome.problem, outcome.schedule, outcome.engine, size_bytes=size))
                knowledge.best[size] = min(knowledge.best_us(size), algorithms[-1].time_us(size))
    return algorithms


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("dgx1", "broadcast"),
        ("dgx1", "reduce"),
        ("dgx1", "allgather"),
        ("dgx1", "reducescatter"),
        ("hypercube:3", "broadcast"),
        ("dgx-a100", "allgather"),
        ("mesh:3x4", "allgather"),
        ("z52", "reducescatter"),
    ],
)
def test_large_messages_take_the_time_of_the_worst_cut(spec: str, name: str) -> None:
    problem = make_problem(load(spec), name)
    best = min(answer.time_us(SIZE) for answer in answers(problem, most_sends=120_000))
    assert best <= 1.005 * float(worst_cuts(problem, DEFAULT.max_flow_work).cuts[-1].us_per_byte) * SIZE


@pytest.mark.parametrize("spec", ["mesh:3x4", "dgx1", "hypercube:3"])
def test_an_all_reduce_takes_the_time_of_the_worst_partition(spec: str) -> None:
    """Check 2(k-1) sends of the message between k parts: as many trees as have room, each up and down."""
    problem = make_problem(load(spec), "allreduce")
    best = min(answer.time_us(SIZE) for answer in answers(problem, most_sends=60_000))
    assert best <= 1.02 * prove(problem).at(SIZE)[0]


@settings(max_examples=12, derandomize=True)
@given(st.integers(0, 10**6), st.sampled_from(["allgather", "reducescatter", "broadcast", "reduce"]))
def test_on_networks_of_any_shape(seed: int, name: str) -> None:
    """Check that answers replay, never beat the bound, and are near the optimum where enough sends are allowed."""
    topology = replace(random_topology(random.Random(seed), 5), limits=())
    assume(not topology.switches)
    topology = replace(topology, bandwidth_gbs=np.minimum(topology.bandwidth_gbs, 50.0) // 10 * 10 + 10)
    problem = make_problem(topology, name)
    algorithms = answers(problem, most_sends=5_000)
    optimum = worst_cuts(problem, DEFAULT.max_flow_work).cuts[-1].us_per_byte
    assert min(algorithm.time_us(SIZE) for algorithm in algorithms) <= 1.05 * float(optimum) * SIZE
    bound = prove(problem)
    for algorithm in algorithms:
        assert bound.at(SIZE)[0] <= algorithm.time_us(SIZE) * (1 + 1e-9)


def test_small_messages_are_cut_into_fewer_chunks() -> None:
    problem = make_problem(load("dgx1"), "broadcast")
    small, large = (min(answers(problem, size, 20_000), key=lambda a: a.time_us(size)) for size in (1 << 14, 1 << 30))
    assert small.problem.collective.chunks < large.problem.collective.chunks


def test_overlapped_rounds_lose_idle_time_once() -> None:
    """Check that two rounds overlap: the idle time of one round is lost once, not twice."""
    problem = make_problem(load("dgx1"), "broadcast")
    graph = RootedTrees(problem, worst_cuts(problem, DEFAULT.max_flow_work).cuts[-1].us_per_byte)
    packing = graph.packed(6, graph.least, np.inf)
    took = {r: listed(problem, packing, 6, r, r * SIZE, 0.0, 8, np.inf) for r in (1, 4, 16)}
    period_us = float(graph.least) * SIZE
    for rounds, (took_us, schedule) in took.items():
        assert len(schedule) == rounds * len(packing.link)
        assert took_us <= took[1][0] + (rounds - 1) * period_us * 1.01
        replayed = Algorithm(problem.with_chunks(6 * rounds), schedule, "trees", size_bytes=rounds * SIZE)
        assert replayed.time_us(rounds * SIZE) == pytest.approx(took_us)


@pytest.mark.parametrize(
    ("spec", "name", "relays", "why"),
    [
        ("dgx1", "alltoall", (), "trees packs trees for"),
        ("dgx-a100:2", "allreduce", (), "switches or limits"),
        ("mi250", "allgather", (9,), "steiner"),
    ],
)
def test_other_problems_are_refused(spec: str, name: str, relays: tuple[int, ...], why: str) -> None:
    topology = load(spec)
    group = [r for r in range(topology.nranks) if r not in relays]
    assert why in accepts(make_problem(topology, name, group, relays), Options())
    assert "pins no" in accepts(make_problem(load("dgx1"), "broadcast"), Options(chunks=4))


def test_an_all_reduce_over_one_way_links_is_refused() -> None:
    lopsided = load("ring:4")
    lopsided = replace(lopsided, bandwidth_gbs=np.where(lopsided.link_src == 0, 25.0, 50.0))
    assert "has a reverse" in accepts(make_problem(lopsided, "allreduce"), Options())
    assert accepts(make_problem(lopsided, "allgather"), Options()) == ""


def test_the_optimum_of_a_number_of_trees() -> None:
    """Check one tree for each rank on dgx1: it uses at most half of a narrow link's bandwidth, 9/7 of the optimum."""
    graph = RootedTrees(make_problem(load("dgx1"), "allgather"), Fraction(7, 1200000))
    assert [graph.least_time(k) / graph.least for k in (1, 2, 6)] == [Fraction(9, 7), Fraction(15, 14), 1]
    assert graph.counts(TUNING)[0] == 6
