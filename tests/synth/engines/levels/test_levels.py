"""The engine `levels`: right on all its collectives, near the bound on clusters, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.bounds.prove import prove
from synth.engines.levels import search as levels_search
from synth.engines.levels.plan import Levels, LevelsShape, matched
from synth.engines.levels.search import NAME, accepts
from synth.engines.levels.tuning import TUNING
from synth.engines.request import Candidate, Options, Progress, Request
from synth.model.collective import uneven
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.symmetry.quotient import expand
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from tests.topologies.importers.simulators import racks
from tests.topologies.importers.test_importers import read
from topologies.load import load

KINDS = ("allgather", "reducescatter", "allreduce", "broadcast", "reduce")


def _best(problem: Problem, size: int, workers: Workers, doublings: int) -> tuple[Algorithm, float]:
    """Return the last algorithm that the engine yields, expanded and replayed, and its time over the bound."""
    assert not accepts(problem, Options())
    bound = prove(problem, max_flow=False)
    tuning = replace(TUNING, doublings=doublings, orders=2, passes=2, variants=2)
    request = Request(Options(size=size), (size,), np.inf, workers, BestTimes(), bound)
    best = [outcome for outcome in levels_search.solve(problem, request, tuning) if isinstance(outcome, Candidate)][-1]
    folded = best.problem.quotient is not None
    whole, schedule = expand(best.problem, best.schedule) if folded else (best.problem, best.schedule)
    algorithm = Algorithm(whole, schedule, NAME)  # The constructor replays the schedule.
    return algorithm, algorithm.time_us(size) / bound.at(size)[0]


@pytest.mark.parametrize(
    ("topo", "group", "collective"),
    [
        *(("dgx-a100:3", [0, 3, 9, 10, 16, 19], kind) for kind in KINDS),
        *(("fattree:2x2x2", None, kind) for kind in KINDS),
        ("mi250:2", None, "reducescatter"),  # Inside a node not all ranks are linked.
    ],
)
def test_it_is_right(workers: Workers, collective: str, topo: str, group: list[int] | None) -> None:
    problem = make_problem(load(topo), collective, group=group)
    _best(problem, 1 << 20, workers, 3)


@pytest.mark.parametrize("collective", ["allgather", "reducescatter"])
def test_levels_overlap_so_that_the_nics_of_a_cluster_never_wait(workers: Workers, collective: str) -> None:
    algorithm, gap = _best(make_problem(load("dgx-a100:4"), collective), 1 << 30, workers, 9)
    assert gap < 1.01
    assert algorithm.problem.collective.chunks >= 8


def test_in_each_turn_every_rank_sends_to_one_rank_of_another_node_and_receives_from_one() -> None:
    problem = make_problem(load("dgx-a100:4"), "allgather")
    levels = Levels(problem, np.arange(32).reshape(4, 8), TUNING)
    net = problem.network
    same_place = (net.src % 8 == net.dst % 8) & (net.src // 8 != net.dst // 8)
    links = np.flatnonzero(same_place)
    turns = levels.turns(links)
    assert len(np.unique(turns)) == 3
    for turn in np.unique(turns):
        chosen = links[turns == turn]
        assert sorted(set(net.src[chosen].tolist())) == sorted(set(net.dst[chosen].tolist())) == list(range(32))
        assert len({(int(net.src[link]), int(net.dst[link])) for link in chosen}) == 32


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_with_two_nodes_too_all_ranks_help_a_root(workers: Workers, collective: str) -> None:
    """Check that the NICs are what limits: a root that fed its node by itself would take 1.17 times as long."""
    _, gap = _best(make_problem(load("dgx-a100:2"), collective), 1 << 30, workers, 10)
    assert gap < 1.05


# Bytes of the blocks of a group of nodes with four ranks each.
LISTS = {
    "even": [1 << 20] * 12,
    "of one node": [7 << 20, 1 << 20, 0, 3 << 20, *[0] * 8],
    "of one rank a node": [5 << 20, 0, 0, 0] * 3,
    "of all": [1 << 20, 3, 9 << 20, 2 << 20, 5 << 20, 0, 1 << 10, 4 << 20, 6 << 20, 6 << 20, 0, 1],
}


@pytest.mark.parametrize("collective", ["allgatherv", "reducescatterv"])
@pytest.mark.parametrize("kind", LISTS)
def test_blocks_of_any_sizes_load_all_nics_equally(workers: Workers, collective: str, kind: str) -> None:
    """Check lists that one place of a node, or one node, would carry nearly alone: up to four times the bound."""
    group = [rank for node in range(3) for rank in range(8 * node, 8 * node + 8, 2)]
    problem = make_problem(load("dgx-a100:3"), uneven(collective, LISTS[kind]), group=group)
    _, gap = _best(problem, 1 << 30, workers, 7)
    assert gap < 1.2


@pytest.mark.parametrize("collective", ["allgather", "allreduce"])
def test_two_levels_are_one_where_that_saves_a_latency(workers: Workers, collective: str) -> None:
    """Check 4 racks of 2 servers: tiny data cross the spines once, and do not go on by a rack's switch."""
    problem = make_problem(read(racks(8, 2, 2, 2)).topology, collective)
    assert levels_search._members(problem.topology, problem.group).shape == (4, 2, 2)
    algorithm, _ = _best(problem, 64, workers, 3)
    assert algorithm.time_us(64) == pytest.approx(2.0 + 0.05, rel=0.02)  # A spine is 2 µs away.


def test_more_nodes_become_a_quotient_by_their_symmetry() -> None:
    for nodes in (2, 16):
        topology = load(f"dgx-a100:{nodes}")
        problem = make_problem(topology, "allgather")
        folded = levels_search.quotient_of(problem)
        assert folded is not None
        plan = Levels(folded, levels_search._members(topology, problem.group), TUNING).plan(LevelsShape("star"), 4)
        assert plan is not None
        assert len(plan[1]) == 4 * (8 * nodes - 1)  # The chunks of one rank.


@pytest.mark.parametrize("form", ["scatter", "chain"])
@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
def test_a_root_moves_each_chunk_once_inside_its_node(collective: str, form: str) -> None:
    problem = make_problem(load("dgx-a100:3"), collective, root=11)
    levels = Levels(problem, levels_search._members(problem.topology, problem.group), TUNING)
    plan = levels.plan(LevelsShape(form), 16)
    assert plan is not None
    problem_of_chunks, sends = plan
    net = problem.network
    root_end, other_end = (net.src, net.dst) if collective == "broadcast" else (net.dst, net.src)
    in_node = (root_end[sends.link] == 11) & (other_end[sends.link] // 8 == 1)
    assert sorted(sends.chunk[in_node].tolist()) == list(range(problem_of_chunks.collective.nchunks))


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce"])
@pytest.mark.parametrize(("form", "nodes_ahead"), [("ring", {1}), ("doubling", {1, 2})])
def test_an_executor_also_gets_few_peers(workers: Workers, collective: str, form: str, nodes_ahead: set[int]) -> None:
    """Check that each rank sends only to its place in a few nodes ahead, for sums in those before."""
    problem = make_problem(load("dgx-a100:4"), collective)
    request = Request(
        Options(size=1 << 20), (1 << 20,), np.inf, workers, BestTimes(), prove(problem, max_flow=False),
        most_sends=100_000,
    )  # fmt: skip
    candidates = [
        outcome for outcome in levels_search.solve(problem, request, replace(TUNING, doublings=2, orders=2))
        if isinstance(outcome, Candidate) and outcome.engine == f"levels, {form}"
    ]  # fmt: skip
    assert candidates
    for candidate in candidates:
        assert candidate.problem.quotient is not None
        whole, schedule = expand(candidate.problem, candidate.schedule)
        Algorithm(whole, schedule, NAME)  # The constructor replays the schedule.
        src, dst = whole.network.src[schedule.link], whole.network.dst[schedule.link]
        between = src // 8 != dst // 8
        offsets = set(((dst[between] - src[between]) % whole.nranks).tolist())
        ahead = {8 * number for number in nodes_ahead}
        back = {whole.nranks - offset for offset in ahead}
        assert offsets == {"allgather": ahead, "reducescatter": back, "allreduce": ahead | back}[collective]


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(("form", "most"), [("trees", 3), ("chain", 2)])
def test_a_root_and_an_executor_also_get_few_peers(workers: Workers, collective: str, form: str, most: int) -> None:
    """Check to how many other nodes a rank sends (from how many it gets sums), the root's node not counted."""
    problem = make_problem(load("dgx-a100:12"), collective)
    request = Request(
        Options(size=1 << 24), (1 << 24,), np.inf, workers, BestTimes(), prove(problem, max_flow=False),
        most_sends=100_000,
    )  # fmt: skip
    tuning = replace(TUNING, doublings=6, orders=1)
    candidates = [
        outcome for outcome in levels_search.solve(problem, request, tuning)
        if isinstance(outcome, Candidate) and outcome.engine == f"levels, {form}"
    ]  # fmt: skip
    best = candidates[-1]
    algorithm = Algorithm(best.problem, best.schedule, NAME)  # The constructor replays the schedule.
    net, link = algorithm.problem.network, algorithm.schedule.link
    near, far = (net.src, net.dst) if collective == "broadcast" else (net.dst, net.src)
    between = (near[link] // 8 != far[link] // 8) & (near[link] // 8 != 0)
    peers = np.unique(near[link[between]] * net.nranks + far[link[between]])
    assert np.bincount(peers // net.nranks).max() <= most


def test_a_grid_is_refused(workers: Workers) -> None:
    problem = make_problem(load("mesh:3x3"), "allgather")
    request = Request(Options(), (1 << 20,), np.inf, workers, BestTimes(), prove(problem, max_flow=False))
    (refusal,) = levels_search.solve(problem, request)
    assert isinstance(refusal, Progress)
    assert "must be linked" in refusal.text


def test_places_are_assigned_to_ranks_with_links_to_other_nodes() -> None:
    able = np.array([[0, 1, 0], [0, 1, 1], [1, 0, 1]], dtype=bool)
    assert able[np.arange(3), matched(able)].all()
    assert matched(np.eye(3, dtype=bool)).tolist() == matched(np.ones((3, 3), dtype=bool)).tolist() == [0, 1, 2]
    # None is possible: each place is still used once.
    assert sorted(matched(np.zeros((3, 3), dtype=bool)).tolist()) == [0, 1, 2]


def test_it_is_for_groups_with_equal_shares_of_the_parts() -> None:
    assert "equal shares" in accepts(make_problem(load("dgx-a100"), "allgather"), Options())
    assert "equal shares" in accepts(make_problem(load("dgx-a100:2"), "allgather", group=[0, 1, 8]), Options())
    assert "alltoall" not in accepts(make_problem(load("dgx-a100:2"), "alltoall"), Options())
    assert "allgather" in accepts(make_problem(load("dgx-a100:2"), "alltoall"), Options())
    assert "--steps" in accepts(make_problem(load("dgx-a100:2"), "allgather"), Options(steps=2))
