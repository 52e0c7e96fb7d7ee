"""The engine `steiner`: cheapest trees, their fractional packing, and schedules of whole trees."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.request import Candidate, Options, Request
from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.engines.steiner.packing import Packing, demands
from synth.engines.steiner.search import accepts, solve
from synth.engines.steiner.tuning import TUNING
from synth.engines.steiner.whole_trees import chunks_of_demands, shared_out
from synth.model.collective import uneven
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from topologies.load import load

SLOWLY = Runner(interpreted=True)
FEW = replace(TUNING, counts=(8, 96))


def with_relays(spec: str, kind: str, group: tuple[int, ...]) -> Problem:
    topology = load(spec)
    return make_problem(topology, kind, group, [r for r in range(topology.nranks) if r not in group])


def steiner_algorithms(problem: Problem, size: int, known_us: float = np.inf) -> list[Algorithm]:
    """Return all algorithms that the engine yields for a size, replayed."""
    with Workers() as workers:
        request = Request(
            Options(size=size, budget_s=60.0),
            (size,),
            now() + 60,
            workers,
            BestTimes({size: known_us}),
            prove(problem),
        )
        candidates = [c for c in solve(problem, request, FEW, SLOWLY) if isinstance(c, Candidate)]
    return [Algorithm(c.problem, c.schedule, c.engine, size_bytes=c.size_bytes) for c in candidates]


def by_all_sets(n: int, links: list[tuple[int, int, int, float]], root: int, goals: set[int], levels: int) -> float:
    """Return the least cost over all sets of links that reach all goals within the levels."""
    best = np.inf
    for count in range(len(links) + 1):
        for chosen in itertools.combinations(links, count):
            far = [0 if v == root else 1 << 30 for v in range(n)]
            for _ in range(n):
                for u, v, level, _cost in chosen:
                    far[v] = min(far[v], far[u] + level)
            if all(far[g] <= levels for g in goals):
                best = min(best, sum(cost for *_, cost in chosen))
    return best


@pytest.mark.parametrize("seed", range(4))
def test_cheapest_trees_are_the_cheapest_of_all_sets_of_links(seed: int) -> None:
    rng = random.Random(seed)
    pairs = rng.sample([(u, v) for u in range(5) for v in range(5) if u != v], 9)
    links = [(u, v, rng.randint(1, 3), rng.choice((1.0, 2.0, 3.5))) for u, v in pairs]
    src, dst, level, cost = (np.array(column) for column in zip(*links, strict=True))
    trees = Arborescences(5, src, dst, level, [1, 3, 4], 9)
    trees.find(SLOWLY, cost)
    for root, within in itertools.product(range(5), (2, 4, 8)):
        goals = trees.set_of([1, 3, 4])
        allowed = within if within < 8 else 1 << 20  # The last level has no limit.
        least = by_all_sets(5, links, root, {1, 3, 4}, allowed)
        assert trees.cost[within, goals, root] == least or (
            trees.cost[within, goals, root] > BEYOND and least == np.inf
        )
        if least < np.inf:
            tree = trees.tree({root: goals}, within)
            reached = {root}
            for link in tree:
                assert src[link] in reached
                reached.add(int(dst[link]))
            assert {1, 3, 4} <= reached
            assert cost[list(tree)].sum() <= least + 1e-9


@pytest.mark.parametrize(
    ("spec", "kind", "group", "gbs"),
    [
        ("ring:5", "broadcast", (0, 1, 2, 3, 4), 100.0),  # In both directions.
        ("ring:6", "broadcast", (0, 3), 100.0),  # Through relays on both sides.
        ("hypercube:3", "reduce", (0, 7, 3), 150.0),  # All links into the root.
        ("ring:5", "allreduce", (0, 1, 2, 3, 4), 62.5),  # 8 sends of each byte over 10 links of 50 GB/s.
    ],
)
def test_fractional_packings_attain_the_known_optimum(spec: str, kind: str, group: tuple[int, ...], gbs: float) -> None:
    problem = with_relays(spec, kind, group)
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, TUNING, bulk=True)
        packing.retime(np.asarray(problem.network.alpha_us))
        time_us = packing.least_us(1 << 30, 1.0, now() + 60)
    assert time_us == pytest.approx((1 << 30) / gbs / 1e3, rel=0.01)
    parts = shared_out(packing, chunks_of_demands(packing, problem.with_chunks(7)), 10)
    assert [len(of) for of in parts] == [7 * len(d.chunks) for d in demands(problem)]


@pytest.mark.parametrize(
    ("spec", "kind", "group", "near"),
    [
        ("hypercube:3", "reduce", (0, 1, 3, 4), 1.1),
        ("ring:6", "broadcast", (0, 2, 3), 1.1),
        ("mesh:2x3", "allgather", (0, 2, 4), 1.1),
        ("mi250", "reducescatter", (0, 3, 5), 1.2),
        ("ring:5", "allreduce", (0, 1, 3), 1.1),
    ],
)
def test_schedules_come_near_the_bound_of_large_messages(
    spec: str, kind: str, group: tuple[int, ...], near: float
) -> None:
    problem, size = with_relays(spec, kind, group), 1 << 30
    least_us = prove(problem).at(size)[0]
    times = [algorithm.time_us(size) for algorithm in steiner_algorithms(problem, size)]
    assert least_us * (1 - 1e-9) <= min(times) <= near * least_us


@pytest.mark.parametrize("kind", ["allgatherv", "reducescatterv"])
def test_tiny_blocks_beside_large_ones_are_packed_too(kind: str) -> None:
    """Check a list as of one matrix and some vectors, of which the least is a millionth of the message."""
    problem, size = make_problem(load("ring:4"), uneven(kind, [1 << 30, 1 << 26, 1 << 10, 1 << 10])), 1 << 30
    times = [algorithm.time_us(size) for algorithm in steiner_algorithms(problem, size)]
    assert min(times) <= 1.1 * prove(problem).at(size)[0]


def test_middle_sizes_use_trees_of_less_latency() -> None:
    """Check a broadcast on a ring in both directions, since one direction would take most of the time for latency."""
    problem, size = with_relays("ring:5", "broadcast", tuple(range(5))), 64 << 10
    best = min(algorithm.time_us(size) for algorithm in steiner_algorithms(problem, size))
    assert best < 4 * 0.7 + size / 100e3


def test_nothing_slower_than_the_known_time_is_yielded() -> None:
    problem, size = with_relays("ring:6", "broadcast", (0, 2, 3)), 1 << 30
    assert steiner_algorithms(problem, size, known_us=prove(problem).at(size)[0] * 0.99) == []


@pytest.mark.parametrize("collective", ["broadcast", "alltoall"])
def test_a_transfer_between_two_ranks_uses_all_paths(collective: str) -> None:
    """Check two opposite GPUs of a DGX-1: all links of both are used, through any other ranks."""
    problem, size = with_relays("dgx1", collective, (0, 7)), 1 << 30
    assert (
        min(algorithm.time_us(size) for algorithm in steiner_algorithms(problem, size))
        < 1.1 * prove(problem).at(size)[0]
    )


@pytest.mark.parametrize(
    ("problem", "options", "why"),
    [
        (with_relays("hypercube:3", "alltoall", tuple(range(7))), Options(), "chunks with the same ends"),
        (with_relays("torus:4x4", "allgather", tuple(range(14))), Options(), "at most 12 ranks"),
        (with_relays("torus:6x6", "broadcast", (0, 1)), Options(), "at most 32 ranks"),
        (with_relays("ring:4", "broadcast", (0, 1)), Options(chunks=2), "leave --chunks"),
    ],
)
def test_refusals_have_a_reason(problem: Problem, options: Options, why: str) -> None:
    assert why in accepts(problem, options)


def test_trees_up_and_down_meet_at_the_same_ranks() -> None:
    """Check that a tree up to a rank and a tree down from it can be paired arbitrarily."""
    problem = with_relays("hypercube:3", "allreduce", (0, 1, 3, 6))
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, TUNING, bulk=True)
        packing.retime(np.asarray(problem.network.alpha_us))
        packing.least_us(1 << 30, 1.0, now() + 60)
    used = [packing.trees[i] for i in np.flatnonzero(packing.part > 1e-9).tolist()]
    assert used
    assert packing.part.sum() == pytest.approx(1.0)
    for trees in used:
        ends = [(int(problem.network.src[link]), int(problem.network.dst[link])) for link in trees.links]
        assert {u for u, _ in ends[: len(trees.up)]} | {*trees.roots} >= {0, 1, 2, 3}  # Local ranks: the group first.
        assert {v for _, v in ends[len(trees.up) :]} | {*trees.roots} >= {0, 1, 2, 3}
    loads = packing.part @ packing.loads
    assert loads.max() * (1 << 30) == pytest.approx(packing.filled * packing.time_us, rel=1e-6)


def test_without_time_for_a_packing_there_is_no_fault() -> None:
    """Check that a packing that a solver has not finished is left out."""
    problem = with_relays("hypercube:3", "allreduce", (0, 1, 3, 6))
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, TUNING, bulk=True)
        packing.retime(np.asarray(problem.network.alpha_us))
        workers.answer = lambda *_: None  # type: ignore[method-assign]
        assert packing.least_us(1 << 30, 1.0, now() - 1) == np.inf
        assert len(packing.part) == len(packing.trees)


@pytest.mark.parametrize("alpha_us", ["0", "0.000000000001", "1000000000"])
@pytest.mark.parametrize("kind", ["broadcast", "allreduce"])
def test_a_level_that_ends_just_before_the_time_overflows_nothing(kind: str, alpha_us: str) -> None:
    """Check a level without any tree, whose remaining time is tiny by rounding: BEYOND is not divided by it."""
    problem = make_problem(load(f"line:3,bw=1000000000,alpha={alpha_us}"), kind)
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, TUNING)
        packing.retime(problem.network.alpha_us + 1e-9)
        assert packing.levels > 2
        assert packing.solve(1.0, packing.unit_us * (packing.levels + 2), now() + 10)
        assert not packing.solve(1.0, float(np.nextafter(packing.unit_us, np.inf)), now() + 10)
