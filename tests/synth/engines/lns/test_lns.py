"""Large neighbourhood search: calendars against a list of bookings, plans against the clock."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.lns.calendars import BEFORE, book, calendars, earliest, entries_of_calendars, latest
from synth.engines.lns.insertion import draw_roots
from synth.engines.lns.search import LnsTuning, _PlanSearch, accepts, solve
from synth.engines.request import Candidate, Options, Request
from synth.model.compiled import Runner
from synth.model.problem import Problem, make_problem
from synth.phases.split import Phase
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.random_problems import random_topology
from tests.synth.engines.knowledge import BestTimes
from topologies.load import load
from topologies.network import Network
from topologies.topology import Limit, Topology

INTERPRETED = Runner(interpreted=True)
SMALL = LnsTuning(counts=(1, 3), starts=2, rate=2e3, rounds=1)


def _fits(net: Network, booked: list[tuple[int, float, float]], link: int, start: float, busy: float) -> bool:
    """Return True if a send fits with those booked (link, start, busy), checked whenever a send begins."""
    for r in net.uses(link).tolist():
        users = [(booked_link, s, b) for booked_link, s, b in booked if r in net.uses(booked_link).tolist()]
        for when in [start, *(s for _, s, _ in users if start <= s < start + busy - 1e-9)]:
            used = sum(net.bandwidth_gbs[booked_link] for booked_link, s, b in users if s <= when + 1e-9 < s + b)
            if used + net.bandwidth_gbs[link] > net.capacity_gbs[r] * (1 + 1e-6):
                return False
    return all(s + b <= start + 1e-9 or s >= start + busy - 1e-9 for booked_link, s, b in booked if booked_link == link)


@pytest.mark.parametrize("seed", range(6))
def test_calendars_give_the_first_and_the_last_time_that_fits(seed: int) -> None:
    rng = random.Random(seed)
    net = make_problem(load("dgx-h100" if seed % 2 else "mi250"), "allgather", (0, 1, 4, 5, 6), (2, 3, 7)).network
    table, booked = calendars(net, 40), []
    for _ in range(30):
        link, ready, busy = rng.randrange(net.nlinks), rng.choice((0.0, 1.0, 2.5)), rng.choice((0.5, 1.0, 2.0))
        start = earliest(table, link, ready, busy)
        assert start >= ready
        assert _fits(net, booked, link, start, busy)
        sooner = [ready, *(s + b for _, s, b in booked if ready < s + b < start - 1e-6)]
        assert start == ready or not any(_fits(net, booked, link, when, busy) for when in sooner if when < start - 1e-6)
        before = latest(table, link, 6.0, busy)
        assert before <= 6.0
        assert _fits(net, booked, link, before, busy)
        later = [6.0, *(s - busy for _, s, _ in booked if before + 1e-6 < s - busy < 6.0)]
        assert before == 6.0 or not any(_fits(net, booked, link, when, busy) for when in later if when > before + 1e-6)
        book(table, link, start, busy)
        booked.append((link, start, busy))
    assert (np.diff(table.at[0, : table.count[0]]) > 0).all()
    assert table.at[0, 0] == BEFORE


def _request(problem: Problem, size: int, workers: Workers) -> Request:
    return Request(Options(size=size), (size,), np.inf, workers, BestTimes(), prove(problem), work_s=1.0)


@pytest.mark.parametrize("name", ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast", "reduce"])
def test_schedules_are_right_and_no_faster_than_the_bound(name: str, workers: Workers) -> None:
    rng = random.Random(name)
    topology = random_topology(rng, 5)
    group = sorted(rng.sample(range(topology.nranks), max(2, topology.nranks - 1)))
    problem = make_problem(topology, name, group, [r for r in range(topology.nranks) if r not in group])
    request = _request(problem, 1 << 18, workers)
    candidates = [outcome for outcome in solve(problem, request, SMALL, INTERPRETED) if isinstance(outcome, Candidate)]
    times = [
        Algorithm(candidate.problem, candidate.schedule, candidate.engine).time_us(1 << 18) for candidate in candidates
    ]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= request.bound.at(1 << 18)[0] * (1 - 1e-9)


def test_ranks_that_only_relay_count() -> None:
    """Check that few ranks of six nodes with all others as relays are taken, and those of nine nodes are not."""
    for nodes, is_taken in ((6, True), (9, False)):
        group = tuple(range(0, 8 * nodes, 8))
        relays = tuple(rank for rank in range(8 * nodes) if rank % 8)
        problem = make_problem(load(f"ndv2:{nodes}"), "broadcast", group, relays)
        assert (accepts(problem, Options()) == "") == is_taken


def test_plans_that_need_too_much_memory_are_left_out(workers: Workers) -> None:
    """Check the limit on a network of 64 ranks, whose calendars for an all-to-all would have 20 GB."""
    problem = make_problem(load("dgx2:4"), "alltoall")
    assert not accepts(problem, Options())
    assert not list(solve(problem, _request(problem, 1 << 18, workers), LnsTuning(), INTERPRETED))
    small = make_problem(load("ring:4"), "alltoall")
    table = calendars(small.network, 16 * 4)
    entries = entries_of_calendars(small.network, 16 * 4)
    assert entries == table.at.size + table.used.size
    request = _request(small, 1 << 18, workers)
    one_chunk = replace(SMALL, counts=(1,))
    assert not list(solve(small, request, replace(one_chunk, most_entries=entries - 1), INTERPRETED))
    assert list(solve(small, request, replace(one_chunk, most_entries=entries), INTERPRETED))


def test_a_pipeline_along_a_line(workers: Workers) -> None:
    problem = make_problem(load("line:4"), "broadcast")
    request = _request(problem, 1 << 18, workers)
    *_, last = (outcome for outcome in solve(problem, request, SMALL, INTERPRETED) if isinstance(outcome, Candidate))
    hold_us, alpha_us = (1 << 18) / 3 * 1e-3 / 50, 0.7
    assert last.problem.collective.chunks == 3
    assert Algorithm(last.problem, last.schedule, "").time_us(1 << 18) == pytest.approx(5 * hold_us + 3 * alpha_us)


@pytest.mark.parametrize(("spec", "roots", "hops"), [("line:4", 2, 3), ("full:4", 4, 1)])
def test_sums_are_exchanged_between_roots(spec: str, roots: int, hops: int, workers: Workers) -> None:
    """Check that small sums take as many hops as the diameter; reducing to one rank and broadcasting takes more."""
    problem = make_problem(load(spec), "allreduce")
    request = _request(problem, 64, workers)
    *_, last = (
        outcome
        for outcome in solve(problem, request, replace(SMALL, rate=2e4), INTERPRETED)
        if isinstance(outcome, Candidate)
    )
    algorithm = Algorithm(last.problem, last.schedule, last.engine)
    assert algorithm.steps == hops
    assert algorithm.time_us(64) == pytest.approx(0.7 * hops, rel=0.02)
    meet = last.schedule.step == hops // 2
    assert len(set(problem.network.dst[last.schedule.link[meet]].tolist())) >= roots


def test_roots_are_linked_in_both_directions_and_reachable() -> None:
    topology = load("dgx1")
    problem = make_problem(topology, "allreduce", (0, 1, 2, 5), (3, 4, 6))
    planned = _PlanSearch(Phase(problem), 2, 1 << 10, INTERPRETED, 1)
    assert planned.start(2, 1.0)
    net = problem.network
    linked = set(zip(net.src.tolist(), net.dst.tolist(), strict=True))
    counts = set()
    for number in range(60):
        draw_roots(planned._tables, planned._now, number % 2, 1 + number % 4)
        roots = planned._now.roots[number % 2, : planned._now.nroots[number % 2]].tolist()
        counts.add(len(roots))
        assert 1 <= len(roots) == len(set(roots)) <= 1 + number % 4
        assert all((u, v) in linked for u in roots for v in roots if u != v)
    assert {1, 2, 3} <= counts


def test_starts_that_are_rounded_beside_a_huge_latency_keep_their_order(workers: Workers) -> None:
    """Check a relay that sends on what it gets within 0.04 µs, beside links with a latency of minutes."""
    links = {(0, 4): (0.0, 300.0), (1, 0): (7e8, 10.0), (1, 4): (0.7, 12.5), (2, 1): (0.1, 50.0), (3, 2): (7e8, 300.0),
             (4, 1): (30.0, 300.0), (4, 3): (7e-4, 50.0)}  # fmt: skip
    src, dst = np.array(list(links)).T
    alpha_us, gbs = np.array(list(links.values())).T
    limits = (("all", [0, 1, 2, 3], 74.5), ("out", [4, 5], 600.0), ("in", [1, 3, 5], 180.0))
    topology = replace(
        Topology("minutes", 5, (), src, dst, alpha_us, gbs),
        limits=tuple(Limit(name, np.array(members), width) for name, members, width in limits),
    )
    problem = make_problem(topology, "allreduce", (3, 0), (1, 2, 4))
    request = _request(problem, 1, workers)
    answers = [outcome for outcome in solve(problem, request, LnsTuning(rounds=1)) if isinstance(outcome, Candidate)]
    assert [Algorithm(answer.problem, answer.schedule, "test") for answer in answers]
