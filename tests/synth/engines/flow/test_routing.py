"""Routes under prices: paths that exist, trees that are trees, and loads that follow from the routes."""

from __future__ import annotations

import heapq
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.engines.flow.congestion_prices import Congestion, cost_of, set_prices
from synth.engines.flow.csr_network import CsrNetwork, csr_network, reverse_network
from synth.engines.flow.routes import (
    ChunkPaths,
    ExpectedTime,
    FlowRouter,
    RouteShape,
    Routing,
    hop_table,
    in_time,
    route_shortest,
)
from synth.engines.flow.search import best_of, routed
from synth.engines.flow.trees import find_parents, route_trees, tree_chunks
from synth.model.collective import Floats, Ints
from synth.model.compiled import Runner
from synth.model.problem import AllowedHolders, Problem, make_problem
from tests.random_problems import random_problem, random_topology
from topologies.errors import InputError
from topologies.load import load
from topologies.network import network
from topologies.topology import Topology

INTERPRETED = Runner(interpreted=True)
SEEDS = st.integers(0, 2**32)


def recomputed(router: FlowRouter, routing: Routing) -> Floats:
    """Return the µs that each resource is busy, from the routes only."""
    net = router.problem.network
    load_us = np.zeros(net.nresources)
    for ptr, links in (routing.gather, routing.spread):
        for chunk in range(len(ptr) - 1):
            for link in links[ptr[chunk] : ptr[chunk + 1]]:
                load_us[net.uses(link)] += router.work[chunk]
    return load_us / net.capacity_gbs


def check_tree(net: CsrNetwork, links: Ints, roots: set[int], wanted_ranks: set[int]) -> set[int]:
    """Check that links grow a tree from the roots in their order, reach no rank twice, and end only at wanted ranks.

    Returns:
        The ranks that the tree reaches, with the roots.
    """
    inside, inner = set(roots), set()
    for link in links:
        u, v = int(net.src[link]), int(net.dst[link])
        assert u in inside
        assert v not in inside
        inside.add(v)
        inner.add(u)
    assert wanted_ranks <= inside
    assert inside - inner - roots <= wanted_ranks
    return inside


def check_routing(router: FlowRouter, routing: Routing, allowed: AllowedHolders | None) -> None:
    collective = router.problem.collective
    holders, goals = (
        [set(ranks[ptr[c] : ptr[c + 1]].tolist()) for c in range(collective.nchunks)]
        for ptr, ranks in (collective.holders, collective.goals)
    )
    back = reverse_network(router.net)
    for chunk in range(collective.nchunks):
        gather, spread = (links[ptr[chunk] : ptr[chunk + 1]] for ptr, links in (routing.gather, routing.spread))
        if collective.reduces[chunk]:
            ends = router.owned[1][router.owned[0][chunk] : router.owned[0][chunk + 1]]
            (owner,) = ends.tolist()
            assert owner in goals[chunk]
            reached = check_tree(back, gather, {owner}, holders[chunk])
            reached |= check_tree(router.net, spread, {owner}, goals[chunk])
        else:
            assert not len(gather)
            reached = check_tree(router.net, spread, holders[chunk], goals[chunk])
        if allowed is not None:
            assert allowed.ranks[allowed.family[chunk]][list(reached)].all()
    assert routing.load_us == pytest.approx(recomputed(router, routing), rel=1e-6, abs=1e-6 * routing.busiest_us)


def some_allowed(rng: random.Random, problem: Problem) -> AllowedHolders:
    """Return random families of chunks and the ranks that may hold them.

    All ranks that hold or want a chunk may hold it; each other rank may with a probability of 0.7.
    """
    collective = problem.collective
    families = rng.randint(1, 3)
    family = np.array([rng.randrange(families) for _ in range(collective.nchunks)])
    ranks = np.array([[rng.random() < 0.7 for _ in range(problem.nranks)] for _ in range(families)])
    for rows in (collective.pre, collective.post):
        ranks[family[rows[:, 1]], rows[:, 0]] = True
    return AllowedHolders(family, ranks)


@settings(max_examples=50, derandomize=True)
@given(SEEDS)
def test_routes_lead_from_holders_to_goals_and_loads_are_theirs(tmp_path_factory: object, seed: int) -> None:
    rng = random.Random(seed)
    folder: Path = tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    problem = random_problem(rng, folder)
    allowed = some_allowed(rng, problem) if rng.random() < 0.4 else None
    problem = replace(problem, allowed_holders=allowed)
    router = FlowRouter(
        problem,
        rng.choice((1.0, 1e4, 1e9)),
        INTERPRETED,
        RouteShape(rng.choice((0.0, 0.1, 0.5, 1.0))),
        ExpectedTime(rng.choice((0.0, 10.0)), rng.choice((0.0, 3.0))),
    )
    assert router.narrow or router.wide
    for _ in range(rng.choice((1, 3, 12))):
        try:
            routing = router.improve()
        except InputError:
            assert allowed is not None
            return
        check_routing(router, routing, allowed)
        assert routing.busiest_us == routing.load_us.max(initial=0.0)


def test_the_check_of_trees_notices_errors() -> None:
    net = csr_network(network(load("ring:5"), range(5)))
    link_of_pair = {(u, v): i for i, (u, v) in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True))}

    def grown(*ranks: tuple[int, int]) -> set[int]:
        return check_tree(net, np.array([link_of_pair[pair] for pair in ranks]), {0}, {2, 3})

    assert grown((0, 1), (1, 2), (0, 4), (4, 3)) == {0, 1, 2, 3, 4}
    for wrong in (
        ((0, 1), (1, 2), (4, 3), (0, 4)),  # Not in the order of growth.
        ((0, 1), (1, 2), (2, 3), (0, 4), (4, 3)),  # 3 is reached twice.
        ((0, 1), (1, 2)),  # 3 is not reached.
        ((0, 1), (1, 2), (2, 3), (0, 4)),  # 4 is reached for nothing.
        ((0, 1), (1, 0), (1, 2), (2, 3)),  # Back to the root.
    ):
        with pytest.raises(AssertionError):
            grown(*wrong)


def test_only_ranks_that_may_hold_a_chunk_carry_it() -> None:
    problem = make_problem(load("ring:6"), "broadcast", [0, 2], [1, 3, 4, 5])
    for blocked, hops in (((), 2), ((2,), 4), ((3,), 2), ((4,), 2)):
        ranks = np.ones((1, 6), dtype=bool)
        ranks[0, list(blocked)] = False  # Local ranks from 2 are the relays.
        allowed = AllowedHolders(np.zeros(1, dtype=np.int64), ranks)
        answer = best_of(replace(problem, allowed_holders=allowed), 1e6)
        assert len(answer.schedule) == hops
        assert ranks[0][problem.network.dst[answer.schedule.link]].all()
    ranks = np.array([[True, True, False, False, True, True]])
    with pytest.raises(InputError, match=r"broadcast: 1 chunks cannot reach their goals"):
        best_of(replace(problem, allowed_holders=AllowedHolders(np.zeros(1, dtype=np.int64), ranks)), 1e6)


def random_congestion(rng: random.Random, net: CsrNetwork) -> Congestion:
    """Return random loads and biases, with the prices that follow."""
    nres = len(net.capacity_gbs)
    load_us = np.array([rng.choice((0.0, 1.0, 5.0, rng.random())) for _ in range(nres)])
    bias = np.array([rng.random() * 1e-2 for _ in range(net.nbundles)])
    knobs = np.array([rng.choice((1.0, 8.0, 40.0)), 4.0])
    congestion = Congestion(load_us, np.zeros(nres), bias, np.zeros(net.nbundles), knobs)
    set_prices(net, congestion)
    return congestion


def cheapest(net: CsrNetwork, price: Floats, source: int, goal: int, tall: bool) -> float:
    """Return the least sum of prices from a rank to another; if `tall`, only over paths with the fewest links."""
    best = {source: (0, 0.0)}
    heap = [(0, 0.0, source)]
    while heap:
        links, cost, u = heapq.heappop(heap)
        if u == goal:
            return cost
        for link in np.flatnonzero(net.src == u):
            v = int(net.dst[link])
            key = (links + tall, cost + price[link])
            if v not in best or key < best[v]:
                best[v] = key
                heapq.heappush(heap, (*key, v))
    raise AssertionError("no way")


@settings(max_examples=100, derandomize=True)
@given(SEEDS)
def test_a_chunk_takes_the_cheapest_path_at_the_current_prices(seed: int) -> None:
    rng, run = random.Random(seed), INTERPRETED
    topology = random_topology(rng, 8)
    net = csr_network(network(topology, range(topology.nranks)))
    source, goal = rng.sample(range(topology.nranks), 2)
    ends = np.array([source]), np.array([goal])
    work, first = np.array([rng.choice((0.5, 20.0))]), np.zeros(1, dtype=np.int64)
    hops = hop_table(run, net, ends[0])
    path_ptr, path = np.array([0, hops[0, goal]]), np.zeros(hops[0, goal], dtype=np.int64)
    chunks = ChunkPaths(first, *ends, work, first, hops.ravel(), path_ptr)
    congestion = random_congestion(rng, net)
    before = congestion.load.copy()
    price = np.array([cost_of(net, congestion, bundle) for bundle in net.bundle])
    for again in (False, True):  # When a chunk is routed again, its own load is subtracted first.
        path = route_shortest(run, net, congestion, chunks, path, not again)
        assert sum(price[path]) == pytest.approx(cheapest(net, price, source, goal, True))
        check_tree(net, path, {source}, {goal})
    congestion.load[:] = before
    set_prices(net, congestion)
    tree = np.zeros(2, dtype=np.int64), np.zeros(0, dtype=np.int64)
    pair_index = np.array([0, 1])
    all_may = AllowedHolders(first, np.ones((1, topology.nranks), dtype=bool))
    chunks_of_trees = tree_chunks(first, (pair_index, ends[0]), (pair_index, ends[1]), work, all_may)
    for _ in range(2):
        tree, missed = route_trees(run, net, congestion, chunks_of_trees, 1.0, tree)
        assert missed == 0
        assert sum(price[tree[1]]) == pytest.approx(cheapest(net, price, source, goal, False))
        check_tree(net, tree[1], {source}, {goal})


@settings(max_examples=20, derandomize=True)
@given(SEEDS)
def test_interpreted_and_compiled_loops_give_the_same_answers(tmp_path_factory: object, seed: int) -> None:
    """Check that both give the same bits, so that no answer depends on whether Numba is already loaded."""
    rng = random.Random(seed)
    folder: Path = tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    problem, size = random_problem(rng, folder), rng.choice((1.0, 1e6, 1e9))
    narrow = rng.random() < 0.5
    interpreted_answer, two = (
        best_of(problem, size, shape=RouteShape(narrow=narrow), run=Runner(interpreted))
        for interpreted in (True, False)
    )
    assert interpreted_answer.took_us == two.took_us
    assert interpreted_answer.load_us.tolist() == two.load_us.tolist()
    for name in ("chunk", "link", "step", "reduces"):
        assert getattr(interpreted_answer.schedule, name).tolist() == getattr(two.schedule, name).tolist()


@pytest.mark.parametrize("spec", ["torus:3x4", "mi250", "ndv2", "dragonfly:3x2x2", "dgx1"])
def test_small_messages_take_the_shortest_paths(spec: str) -> None:
    """Check a broadcast where only latency counts and trees may be deep: it takes the latency of the longest path."""
    problem = make_problem(load(spec), "broadcast")
    net = problem.network
    least = max(cheapest(csr_network(net), net.alpha_us, 0, goal, False) for goal in range(1, problem.nranks))
    router = FlowRouter(problem, 1.0, INTERPRETED, RouteShape(1.0), ExpectedTime(latency_us=least))
    took, _ = routed(router, router.improve()).ordered(0.0)
    assert took == pytest.approx(least, rel=0.01)


def test_parents_and_depths() -> None:
    net = csr_network(network(load("full:5"), range(5)))
    link_of_pair = {(u, v): i for i, (u, v) in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True))}
    trees = [[(0, 1), (1, 2), (1, 3), (3, 4)], [], [(2, 1), (4, 3), (3, 0)], [(1, 2)]]
    links = np.array([link_of_pair[pair] for tree in trees for pair in tree])
    ptr = np.array([0, 4, 4, 7, 8])
    parent, depth = find_parents(INTERPRETED, net, (ptr, links))
    assert parent.tolist() == [-1, 0, 0, 2, -1, -1, 5, -1]
    assert depth.tolist() == [0, 1, 1, 2, 0, 0, 1, 0]


def two_way(nranks: int, pairs: list[tuple[int, int]], gbs: list[float]) -> Topology:
    """Build links in both directions, with a latency of 0.7 µs."""
    ends = [
        (u, v, rate) for (a, b), rate in zip(pairs, gbs, strict=True) for u, v, rate in ((a, b, rate), (b, a, rate))
    ]
    src, dst, rates = (np.array(column) for column in zip(*sorted(ends), strict=True))
    return Topology(
        "odd", nranks, (), src, dst, np.full(len(src), 0.7), rates, (), nodes=np.zeros(nranks, dtype=np.int64)
    )


def test_load_is_shared_in_proportion_to_bandwidth() -> None:
    """Check a thin direct link beside a wide path of two links: of 22 chunks, 2 take the link and 20 the path."""
    thin = two_way(3, [(0, 1), (0, 2), (1, 2)], [10.0, 100.0, 100.0])
    router = FlowRouter(make_problem(thin, "broadcast", [0, 1], [2], 22), 1e9, INTERPRETED)
    for _ in range(3):
        assert router.improve().busiest_us == pytest.approx(1e6 / 110)


def test_routes_for_a_time_count_only_data_that_arrives_in_time() -> None:
    """Check that routes for a time load NICs by the data that arrives in it, and that loads follow from the routes."""
    problem = make_problem(load("dgx-a100:2"), "allgather", [0, 1, 2, 8, 9, 10], [3, 11]).with_chunks(4)
    net = csr_network(problem.network)
    late_us = float(net.alpha_us.max() - net.alpha_us.min())
    assert sorted(set(in_time(net, 10 * late_us).round(9).tolist())) == [0.9, 1.0]
    assert (in_time(net, 0.0) == 1).all()
    assert (in_time(csr_network(make_problem(load("torus:3x3"), "allgather").network), 1.0) == 1).all()
    plain, timed = (
        FlowRouter(problem, 1 << 20, INTERPRETED, expected=ExpectedTime(us, us and 3.3)) for us in (0.0, 3.0)
    )
    for router in (plain, timed):
        for _ in range(3):
            routing = router.improve()
        check_routing(router, routing, None)
    assert (timed.in_time < 1).any()


def test_late_routes_carry_less() -> None:
    """Check two routes of the same bandwidth, one direct and late: it carries less where the time is short."""
    wide = two_way(3, [(0, 1), (0, 2), (1, 2)], [50.0, 50.0, 50.0])
    late = ((wide.link_src == 0) & (wide.link_dst == 1)) | ((wide.link_src == 1) & (wide.link_dst == 0))
    problem = make_problem(replace(wide, alpha_us=np.where(late, 4.0, 0.7)), "broadcast", [0, 1], [2], 22)
    (direct,) = np.flatnonzero((problem.network.src == 0) & (problem.network.dst == 1))
    loads = []
    for us in (0.0, 10.0):
        router = FlowRouter(problem, 1e6, INTERPRETED, expected=ExpectedTime(us, us and 4.0))
        for _ in range(3):
            routing = router.improve()
        loads.append(routing.load_us[direct])
    assert loads[1] < 0.9 * loads[0]
