"""Trees that meet at both ends of a link: as cheap and as fast as any that could be tried, and replayed."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from synth.engines.steiner.arborescences import BEYOND, Arborescences
from synth.engines.steiner.exchanges import Exchanges, sums_within
from synth.engines.steiner.over_time import OverTime
from synth.engines.steiner.packing import Packing, SteinerTrees, begins_us
from synth.engines.steiner.tuning import TUNING
from synth.engines.steiner.whole_trees import chunks_of_demands
from synth.model.deadline import now
from synth.model.pattern import read_pattern
from synth.model.problem import make_problem
from synth.solvers.workers import Workers
from tests.synth.engines.steiner.test_steiner import SLOWLY, steiner_algorithms, with_relays
from topologies.load import load


@pytest.mark.parametrize("seed", range(3))
def test_both_ranks_share_out_the_ends_as_cheaply_as_any_two_sets(seed: int) -> None:
    rng = random.Random(seed)
    net = with_relays("mesh:2x3", "allreduce", (0, 2, 4, 5)).network
    ends = [0, 1, 2, 3]
    table = Arborescences(net.nranks, net.src, net.dst, np.ones(net.nlinks, dtype=np.int64), ends, 5)
    table.find(SLOWLY, np.array([rng.choice((1.0, 2.0, 4.0)) for _ in range(net.nlinks)]))
    exchanges, every = Exchanges(net), table.set_of(ends)
    least = exchanges.least(table, every)
    assert len(exchanges) == net.nlinks // 2
    for level, number in itertools.product(range(5), range(len(exchanges))):
        u, v = int(net.src[exchanges.forth[number]]), int(net.dst[exchanges.forth[number]])
        tried = [
            table.cost[level, table.set_of(list(combination)), u]
            + table.cost[level, every - table.set_of(list(combination)), v]
            for count in (1, 2, 3)
            for combination in itertools.combinations(ends, count)
        ]
        assert min(least[level, number], 2 * BEYOND) == min(*tried, 2 * BEYOND)
        shares = exchanges.shares(table, every, number, level)
        assert sum(table.cost[level, subset, rank] for rank, subset in shares.items()) == min(tried)
        if least[level, number] < BEYOND:
            links = table.tree(shares, level)
            ends_of = [int(net.dst[link]) for link in links]
            assert len({u, v, *ends_of}) == 2 + len(links)  # No rank is in both.
            assert {u, v, *ends_of} >= {0, 1, 2, 3}


def test_trees_up_and_down_share_the_levels_best() -> None:
    rng = np.random.default_rng(0)
    rise, fall = rng.random((6, 3)), rng.random((6, 3))
    between = np.array([0, 1, 2])
    cost, first = sums_within(rise, fall, between)
    for h, at in itertools.product(range(5), range(3)):
        tried = {b: rise[b, at] + fall[h - between[at] - b, at] for b in range(h - between[at] + 1)}
        assert cost[h, at] == min(tried.values(), default=2 * BEYOND)
        assert not tried or tried[int(first[h, at])] == cost[h, at]
    assert (cost[-1] == rise[-1] + fall[-1]).all()


@pytest.mark.parametrize(
    ("spec", "group", "hops"),
    [
        ("mesh:1x4", (0, 1, 2, 3), 3),  # Up to a rank and down from it there are 4.
        ("mesh:1x4", (0, 3), 3),
        ("mesh:1x6", (0, 1, 4, 5), 5),
        ("hypercube:3", (0, 1, 3, 7), 3),
    ],
)
def test_an_all_reduce_has_no_more_consecutive_links_than_the_diameter(
    spec: str, group: tuple[int, ...], hops: int
) -> None:
    problem, size = with_relays(spec, "allreduce", group), 4 << 10
    alpha_us = float(problem.network.alpha_us.max())
    assert min(algorithm.time_us(size) for algorithm in steiner_algorithms(problem, size)) < (hops + 0.9) * alpha_us


def test_trees_of_an_exchange_begin_as_they_wait() -> None:
    problem = with_relays("mesh:1x4", "allreduce", (0, 1, 2, 3))
    net = problem.network
    link = {(int(u), int(v)): i for i, (u, v) in enumerate(zip(net.src, net.dst, strict=True))}
    trees = SteinerTrees(
        0, (1, 2), (link[0, 1], link[3, 2]), (link[1, 0], link[2, 3]), (link[1, 2], link[2, 1])
    )  # fmt: skip
    lasts_us = np.arange(1.0, net.nlinks + 1)
    begins = dict(zip(trees.links, begins_us(net, trees, lasts_us, (0.5, 0.0, 0.0, 0.25)).tolist(), strict=True))
    assert begins[link[0, 1]] == -0.5 - lasts_us[link[0, 1]]
    assert begins[link[1, 2]] == begins[link[2, 1]] == 0
    assert begins[link[1, 0]] == lasts_us[link[2, 1]]
    assert begins[link[2, 3]] == lasts_us[link[1, 2]] + 0.25


def test_an_end_without_senders_only_receives() -> None:
    """Check an end without senders, as where trees to both ends meet at an earlier rank, which sends all to one end."""
    problem = with_relays("mesh:1x4", "allreduce", (0, 1, 3))
    net = problem.network  # Local ranks: the group first, so the relay 2 is 3 here.
    link = {(int(u), int(v)): i for i, (u, v) in enumerate(zip(net.src, net.dst, strict=True))}
    forth, back = link[1, 3], link[3, 1]
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, TUNING)
        lonely = SteinerTrees(0, (1, 3), (link[0, 1],), (link[1, 0], link[3, 2]), (forth, back))
        assert packing.joined(lonely) == SteinerTrees(0, (1,), lonely.up, (forth, *lonely.down))
        met = SteinerTrees(0, (1, 3), (link[0, 1], link[2, 3]), (link[1, 0], link[3, 2]), (forth, back))
        assert packing.joined(met) is met
        ends_here = SteinerTrees(0, (1, 3), (link[0, 1], link[2, 3]), (link[1, 0], link[3, 2]), (forth, back))
        assert packing.joined(replace(ends_here, down=(link[1, 0],))) == SteinerTrees(
            0, (1,), (*ends_here.up, back), (link[1, 0],)
        )  # No rank wants it there.
        assert packing.joined(replace(lonely, down=(link[1, 0],))) == SteinerTrees(0, (1,), lonely.up, (link[1, 0],))


@pytest.mark.parametrize(("holders", "goals"), [([0, 1, 2, 3], [1, 2]), ([1, 2], [0, 1, 2, 3])])
def test_sums_that_only_the_ends_of_a_link_want_or_hold(holders: list[int], goals: list[int], tmp_path: Path) -> None:
    """Check two consecutive links, where a tree up to a rank and down from it needs three."""
    path = tmp_path / "sum.toml"
    chunk = f"[[chunk]]\nfrom = {holders}\nto = {goals}\nreduce = true\n"
    path.write_text('name = "mine"\nranks = 4\n' + chunk, encoding="utf-8")
    problem = make_problem(load("line:4"), read_pattern(path))
    alpha_us = float(problem.network.alpha_us.max())
    assert min(algorithm.time_us(4 << 10) for algorithm in steiner_algorithms(problem, 4 << 10)) < 2.5 * alpha_us


def test_trees_over_time_exchange_too() -> None:
    problem, size = with_relays("line:4", "allreduce", (0, 1, 2, 3)), 64 << 10
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, TUNING)
        packing.retime(np.asarray(problem.network.alpha_us))
        over_time = OverTime(packing, size)
        for _ in over_time.steps(packing.least_us(size, 1.0, now() + 60), 0.0, now() + 60):
            pass
        (numbers,), _ = over_time.begun(chunks_of_demands(packing, problem.with_chunks(32)))
    assert any(packing.trees[number].exchange for number in numbers.tolist())


def test_without_latency_nothing_is_exchanged() -> None:
    """Check that exchanges are not used without latency.

    An exchange costs as much as trees up to one rank and down, whose halves can be combined with any others.
    """
    problem = with_relays("mesh:2x3", "allreduce", (0, 2, 4))
    with Workers() as workers:
        packing = Packing(problem, SLOWLY, workers, TUNING, bulk=True)
        packing.retime(np.asarray(problem.network.alpha_us))
        packing.least_us(1 << 30, 1.0, now() + 60)
    assert packing.trees
    assert not any(trees.exchange for trees in packing.trees)
