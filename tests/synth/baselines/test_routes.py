"""Routes are shortest, and direct sends along them are served first come, first served."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.baselines import baseline_named
from synth.baselines.algorithms.direct import direct_schedule, flows
from synth.baselines.fifo import fifo_order
from synth.baselines.routes import Routes
from synth.model.compiled import Runner
from synth.model.problem import Problem, hops, make_problem
from synth.model.schedule import Schedule
from synth.timing.simulate import time_us, timed
from tests.random_problems import random_problem
from topologies.errors import NoRoute
from topologies.load import load
from topologies.network import network

SEEDS = st.integers(0, 2**32)
MIB = float(1 << 20)


def problem_of(spec: str, name: str) -> Problem:
    return make_problem(load(spec), name)


def queued(problem: Problem, chunk_bytes: float = MIB, turns: bool = False) -> Schedule:
    return direct_schedule(problem, chunk_bytes, turns)


@settings(max_examples=80, derandomize=True)
@given(SEEDS)
def test_routes_are_shortest_and_the_fastest_of_these(seed: int) -> None:
    net = random_problem(random.Random(seed)).network
    every = np.arange(net.nranks)
    at, goal = (x.ravel() for x in np.meshgrid(every, every))
    tables = Routes(net, every)
    length = hops(net.nranks, net.src, net.dst)[at, goal]
    got = tables.hops(at, goal)
    assert got.tolist() == np.where(length < net.nranks, length, -1).tolist()
    # The least α in at most h hops, by relaxation.
    alpha = np.where(np.eye(net.nranks, dtype=bool), 0.0, np.inf)
    least = [alpha]
    for _ in range(int(got.max())):
        further = np.full_like(alpha, np.inf)
        np.minimum.at(further, net.src, net.alpha_us[:, None] + least[-1][net.dst])
        least.append(further)
    reached = np.flatnonzero(got > 0)
    message, link, hop = tables.expand(at[reached], goal[reached])
    assert (np.bincount(message) == got[reached]).all()
    summed = np.bincount(message, net.alpha_us[link])
    expected_us = [least[h][a, b] for h, a, b in zip(got[reached], at[reached], goal[reached], strict=True)]
    assert summed.tolist() == pytest.approx(expected_us)
    assert (net.src[link[hop == 0]] == at[reached]).all()
    onward = hop[1:] > 0
    assert (net.src[link[1:]] == net.dst[link[:-1]])[onward].all()
    assert (net.dst[link[np.append(~onward, True)]] == goal[reached]).all()


def test_routes_on_a_grid_take_one_dimension_after_the_other() -> None:
    net = network(load("mesh:4x5"), range(20))
    tables = Routes(net, np.arange(20))
    for at, goal in ((0, 19), (19, 0), (4, 15), (15, 4), (7, 16)):
        _, link, _ = tables.expand(np.array([at]), np.array([goal]))
        steps = np.abs(net.dst[link] - net.src[link]).tolist()
        assert steps == sorted(steps)  # Within the row first, then from row to row.


def test_a_missing_path_is_refused() -> None:
    net = network(load("ring:4"), [0, 1])
    one_way = replace(net, src=np.where(net.dst == 0, 0, net.src), dst=np.where(net.dst == 0, 1, net.dst))
    tables = Routes(one_way, np.arange(2))
    assert tables.hops(np.array([0, 1]), np.array([1, 0])).tolist() == [1, -1]
    with pytest.raises(NoRoute, match="rank 1 cannot reach rank 0"):
        tables.expand(np.array([0, 1]), np.array([1, 0]))


# Direct serves first come, first served.


def test_direct_by_hand() -> None:
    """Check an all-to-all on 0–1–2–3 with chunks that take 20 µs and α of 1 µs."""
    problem = make_problem(load("line:4,alpha=1"), "alltoall")
    schedule = timed(problem, queued(problem, 1e6), 4e6)
    got: dict[str, list[tuple[str, float]]] = {}
    for row in range(len(schedule)):
        pair = f"{schedule.chunk[row] // 4}{schedule.chunk[row] % 4}"
        got.setdefault(problem.link_name(int(schedule.link[row])), []).append((pair, schedule.start_us[row]))
    assert got == {
        "0→1": [("01", 0.0), ("02", 20.0), ("03", 40.0)],
        "1→2": [("12", 0.0), ("13", 20.0), ("02", 41.0), ("03", 61.0)],
        "2→3": [("23", 0.0), ("13", 41.0), ("03", 82.0)],
        "3→2": [("30", 0.0), ("31", 20.0), ("32", 40.0)],
        "2→1": [("20", 0.0), ("21", 20.0), ("30", 40.0), ("31", 60.0)],
        "1→0": [("10", 0.0), ("20", 21.0), ("30", 61.0)],
    }


def test_direct_through_a_switch_by_hand() -> None:
    """Check that three ranks that all send to 0 first wait for each other, and that staggered sends do not wait."""
    problem = make_problem(load("star:4,alpha=0"), "alltoall")
    aligned, turns = (timed(problem, queued(problem, 1e6, turns), 4e6) for turns in (False, True))
    starts = {(int(c) // 4, int(c) % 4): t / 20 for c, t in zip(aligned.chunk, aligned.start_us.tolist(), strict=True)}
    assert [starts[0, 1], starts[0, 2], starts[0, 3]] == [0, 1, 2]
    assert [starts[1, 0], starts[1, 2], starts[1, 3]] == [0, 2, 3]
    assert [starts[2, 0], starts[2, 1], starts[2, 3]] == [1, 2, 4]
    assert [starts[3, 0], starts[3, 1], starts[3, 2]] == [2, 3, 4]
    assert time_us(problem, turns) == pytest.approx(3 * 20)


def unserved(problem: Problem, schedule: Schedule) -> int:
    """Return the number of sends of an all-to-all that overtake on their link, or wait while their link is idle."""
    net = problem.network
    came: dict[int, float] = {}
    waits: dict[int, list[tuple[float, float, float]]] = {}
    for row in np.lexsort((schedule.step, schedule.chunk)).tolist():
        chunk, link = int(schedule.chunk[row]), int(schedule.link[row])
        ready = came.get(chunk, 0.0) if schedule.step[row] else 0.0
        came[chunk] = float(schedule.end_us[row] + net.alpha_us[link])
        waits.setdefault(link, []).append((float(schedule.start_us[row]), ready, float(schedule.end_us[row])))
    wrong = 0
    for sends in waits.values():
        sends.sort()
        last_ready, free = 0.0, 0.0
        for start, ready, end in sends:
            wrong += ready < last_ready - 1e-9 or start > max(ready, free) + 1e-9
            last_ready, free = ready, end
    return wrong


@pytest.mark.parametrize("spec", ["mesh:3x4", "torus:3x3", "line:6", "hypercube:3", "mesh:2x2x3,bw=25,alpha=9"])
@pytest.mark.parametrize("turns", [False, True])
def test_first_come_first_served_on_every_link(spec: str, turns: bool) -> None:
    problem = problem_of(spec, "alltoall")
    schedule = queued(problem, MIB, turns)
    size = MIB * problem.collective.nranks
    assert unserved(problem, timed(problem, schedule, size)) == 0
    # The check notices sends in a wrong order.
    rng = random.Random(1)
    shuffled_sends = schedule.take(np.lexsort(([rng.random() for _ in range(len(schedule))], schedule.step)))
    assert unserved(problem, timed(problem, shuffled_sends, size)) > 0


def test_every_goal_has_its_own_copy() -> None:
    schedule = queued(problem_of("line:4", "allgather"))
    count = np.bincount(schedule.link * 4 + schedule.chunk)
    assert count.max() == 3  # Rank 0's chunk leaves it three times.
    assert len(schedule) == 20  # Hops of all pairs.
    assert len(queued(problem_of("line:4", "reducescatter"))) == 4 * 3  # Sums are added on the path.


@settings(max_examples=60, derandomize=True)
@given(SEEDS)
def test_copies_come_from_the_nearest_holder(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    assume(not problem.collective.reducing)
    chunk, source, goal = flows(problem)
    holds, wants = problem.collective.holds, problem.collective.wants
    assert np.column_stack([chunk, goal]).tolist() == np.argwhere(wants & ~holds).tolist()
    distance = hops(problem.nranks, problem.network.src, problem.network.dst)
    for c, s, g in zip(chunk.tolist(), source.tolist(), goal.tolist(), strict=True):
        assert holds[c, s]
        assert distance[s, g] == distance[np.flatnonzero(holds[c]), g].min()


def test_the_order_is_that_of_the_size() -> None:
    problem = problem_of("torus:4x4", "alltoall")
    small, large = baseline_named(problem, "direct")
    assert small.time_us(1 << 14) != large.time_us(1 << 14)
    (same,) = baseline_named(problem, "direct", size_bytes=16 * MIB)
    assert same.schedule.link.tolist() == small.schedule.link.tolist()  # The first one is for chunks of 1 MiB.


@pytest.mark.parametrize("spec", ["mesh:4x5", "ndv2:2", "star:6"])
def test_queues_and_routes_are_equal_interpreted_and_compiled(spec: str) -> None:
    problem = problem_of(spec, "alltoall")
    chunk, source, goal = flows(problem)
    results = []
    for run in (Runner(interpreted=True), Runner(interpreted=False)):
        message, link, hop = Routes(problem.network, goal, run=run).expand(source, goal)
        before = np.flatnonzero(np.append(np.diff(message) == 0, False))
        order = fifo_order(problem, chunk[message], link, (before, before + 1), MIB, run)
        results.append([link.tolist(), hop.tolist(), order.tolist()])
    assert results[0] == results[1]
