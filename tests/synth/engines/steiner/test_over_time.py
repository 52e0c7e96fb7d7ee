"""Trees over time: the cheapest trees, their times, and the schedules made from them."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.request import Candidate, Options, Request
from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.engines.steiner.over_time import OverTime
from synth.engines.steiner.packing import Packing
from synth.engines.steiner.search import solve
from synth.engines.steiner.tuning import TUNING
from synth.engines.steiner.whole_trees import chunks_of_demands
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from topologies.load import load

SLOWLY = Runner(interpreted=True)
COARSE = replace(TUNING, slots=16, finer=2, over_steps=12)
LINKS = [(0, 1), (0, 2), (1, 2), (2, 1), (1, 3), (2, 3)]


def with_relays(spec: str, kind: str, group: tuple[int, ...]) -> Problem:
    topology = load(spec)
    return make_problem(topology, kind, group, [r for r in range(topology.nranks) if r not in group])


def least_by_all_times(length: np.ndarray, level: list[int], within: int) -> float:
    """Return the least cost from rank 0 to ranks 1 and 3, over all sets of links and the levels at which they start."""
    timed_links = [(h, link) for h in range(within, 0, -1) for link in range(len(LINKS)) if level[link] <= h]
    best = np.inf
    for count in range(1, 4):
        for chosen in itertools.combinations(timed_links, count):  # Combinations are in the order of time.
            came = {0: within}
            for h, link in chosen:
                u, v = LINKS[link]
                if came.get(u, -1) >= h:
                    came[v] = max(came.get(v, -1), h - level[link])
            if {1, 3} <= set(came):
                best = min(best, sum(length[h, link] for h, link in chosen))
    return best


@pytest.mark.parametrize("seed", range(3))
def test_cheapest_trees_over_time_are_the_cheapest_of_all(seed: int) -> None:
    rng = random.Random(seed)
    level = [rng.randint(1, 2) for _ in LINKS]
    length = np.array([[rng.choice((1.0, 2.0, 5.0)) for _ in LINKS] for _ in range(6)])
    src, dst = np.array(LINKS).T
    table = Arborescences(4, src, dst, np.array(level), [1, 3], 6)
    table.find(SLOWLY, length, endless=False)
    for within in range(1, 6):
        least = least_by_all_times(length, level, within)
        cost = table.cost[within, table.set_of([1, 3]), 0]
        assert cost == least or (cost > BEYOND and least == np.inf)
        if least < np.inf:
            links, waits = table.timed({0: table.set_of([1, 3])}, within)
            came, paid = {0: within}, 0.0
            for link, wait in zip(links, waits, strict=True):
                u, v = LINKS[link]
                remaining = came[u] - wait
                came[v] = remaining - level[link]
                paid += length[remaining, link]
            assert {1, 3} <= set(came)
            assert min(came.values()) >= 0
            assert paid <= least + 1e-9


@pytest.mark.parametrize(
    ("spec", "kind", "group", "gains"),
    [
        ("ring:7", "broadcast", (0, 2, 5, 6), 0.96),
        ("ring:7", "reduce", (0, 2, 5, 6), 0.96),
        ("ring:5", "allreduce", (0, 1, 3), 0.995),
        ("ring:5", "allgather", (0, 1, 3), 1.0),
    ],
)
def test_trees_over_time_use_slots_that_steady_trees_leave_idle(
    spec: str, kind: str, group: tuple[int, ...], gains: float
) -> None:
    """Check that no slot is fuller than the time allows, and that no link begins before its data is there."""
    problem, size, parts = with_relays(spec, kind, group), 1 << 20, 1_024
    net, least_us = problem.network, prove(problem).at(size)[0]
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, COARSE)
        packing.retime(np.asarray(net.alpha_us))
        steady_us = packing.least_us(size, least_us, now() + 60)
        over_time = OverTime(packing, size)
        for _ in over_time.steps(steady_us, least_us, now() + 60):
            pass
    time_us = over_time.time_us
    assert least_us * (1 - COARSE.fits) <= time_us <= steady_us * gains
    busy = np.zeros((net.nlinks, 4))
    chunks = chunks_of_demands(packing, problem.with_chunks(parts))
    for demand, numbers, starts in zip(packing.demands, *over_time.begun(chunks), strict=True):
        assert len(numbers) == len(demand.chunks) * parts
        for number, at_us in zip(numbers.tolist(), starts, strict=True):
            trees = packing.trees[number]
            came: dict[int, float] = {}
            for i, (link, at) in enumerate(zip(trees.links, at_us.tolist(), strict=True)):
                if i == len(trees.up):
                    rose = dict(came)  # An exchange waits for these: the data of both of its links.
                u, v = int(net.src[link]), int(net.dst[link])
                assert at >= (rose if link in trees.exchange else came).get(u, 0.0) - 1e-6
                came[v] = max(came.get(v, 0.0), at + float(net.alpha_us[link]))
                busy[link, min(3, int(at / time_us * 4))] += demand.amount / len(numbers)
            assert max(came.values()) <= time_us * (1 + 1e-6)
    room = net.bandwidth_gbs * 1e3 * time_us / 4 / size
    assert (busy <= room[:, None] * 1.1).all()


def test_schedules_follow_trees_over_time() -> None:
    """Check a broadcast over a ring that ends before any broadcast at a steady rate, whatever its number of chunks."""
    problem, size = with_relays("ring:7", "broadcast", (0, 2, 5, 6)), 1 << 20
    with Workers() as workers:
        bound = prove(problem)
        options = Options(size=size, budget_s=60.0)
        request = Request(options, (size,), now() + 60, workers, BestTimes({size: np.inf}), bound)
        tuning = replace(COARSE, counts=(256,))
        candidates = [c for c in solve(problem, request, tuning, SLOWLY) if isinstance(c, Candidate)]
        packing = Packing(problem, SLOWLY, workers, tuning)
        packing.retime(np.asarray(problem.network.alpha_us))
        steady_us = packing.least_us(size, bound.at(size)[0], now() + 60)
    times = [Algorithm(c.problem, c.schedule, c.engine, size_bytes=size).time_us(size) for c in candidates]
    assert bound.at(size)[0] <= min(times) < steady_us
