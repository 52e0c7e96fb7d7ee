"""What a problem refuses, in one line that names the rank, and what it takes over from its parts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.model.collective import Collective, named, uneven
from synth.model.problem import Problem, hops, least_latency, make_problem, parse_ranks
from tests.random_problems import random_problem
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

LINE = load("line:5")
ISLANDS = Topology("islands", 4, (), np.array([0, 1, 2, 3]), np.array([1, 0, 3, 2]), np.full(4, 0.7), np.full(4, 50.0))
HALVES = Topology(  # Two rings of 300 ranks.
    "halves", 600, (), at := np.arange(600), (at + 1) % 300 + at // 300 * 300, np.full(600, 0.7), np.full(600, 50.0)
)
ONE_WAY = Topology("oneway", 3, (), np.array([0, 1]), np.array([1, 2]), np.full(2, 0.7), np.full(2, 50.0))


@pytest.mark.parametrize(
    ("ask", "fragments"),
    [
        (lambda: make_problem(LINE, "allreduce", [0, 5]), ["group", "rank 5", "0 to 4"]),
        (lambda: make_problem(LINE, "allreduce", [0, -1]), ["group", "rank -1"]),
        (lambda: make_problem(LINE, "allreduce", [0, 1, 0]), ["group", "rank 0", "twice"]),
        (lambda: make_problem(LINE, "allreduce", [3]), ["group", "1 rank", "at least 2"]),
        (lambda: make_problem(LINE, "allreduce", []), ["group", "0 rank", "at least 2"]),
        (lambda: make_problem(LINE, "allreduce", [0, 1], [5]), ["relay", "rank 5"]),
        (lambda: make_problem(LINE, "allreduce", [0, 1], [3, 3]), ["relay", "rank 3", "twice"]),
        (lambda: make_problem(LINE, "allreduce", [0, 1], [1]), ["relay", "rank 1", "in the group"]),
        (lambda: make_problem(LINE, "broadcast", [0, 1], root=2), ["root", "rank 2", "0,1"]),
        (lambda: make_problem(LINE, "broadcast", [0, 1], root=-1), ["root", "rank -1"]),
        (lambda: make_problem(LINE, "allreduce", [0, 1], chunks=0), ["chunks", "0"]),
        (lambda: make_problem(LINE, "allredcue", [0, 1]), ["allreduce"]),
        (lambda: make_problem(LINE, named("allreduce", 3, 1), [0, 1]), ["2 ranks", "stated for 3"]),
        (lambda: make_problem(LINE, "allgather", [0, 2]), ["rank 2 cannot reach rank 0", "--relay 1 "]),
        (lambda: make_problem(LINE, "allgather", [4, 1]), ["cannot reach", "--relay 2,3 "]),
        (lambda: make_problem(LINE, "allgather", [0, 4], [2]), ["cannot reach", "--relay 1,3 "]),
        (lambda: make_problem(ISLANDS, "allgather"), ["rank 0", "islands is disconnected"]),
        (lambda: make_problem(load("line:600"), "allgather", [0, 7]), ["rank 7", "--relay all"]),
        (lambda: make_problem(load("line:5000"), "allgather", range(0, 5000, 1000)), ["rank 0", "--relay all"]),
        (lambda: make_problem(HALVES, "allgather"), ["rank 300 ", "halves is disconnected"]),
        (lambda: make_problem(ONE_WAY, "allgather"), ["cannot reach", "oneway"]),
        (lambda: make_problem(ONE_WAY, "reduce", root=0), ["cannot reach", "oneway"]),
    ],
)
def test_refusals(ask: Callable[[], Problem], fragments: list[str]) -> None:
    with pytest.raises(InputError) as error:
        ask()
    assert len(str(error.value).splitlines()) == 1
    for word in fragments:
        assert word in str(error.value), str(error.value)


def test_named_relays_are_enough() -> None:
    """Check that a problem becomes possible with the relays that the message names."""
    problem = make_problem(load("ring:7"), "alltonext", [0, 1, 6])
    assert problem.relays == ()
    with pytest.raises(InputError) as error:
        make_problem(load("ring:7"), "sendrecv", [0, 1, 3])
    relays = str(error.value).split("--relay ")[1].split(" ")[0]
    make_problem(load("ring:7"), "sendrecv", [0, 1, 3], parse_ranks(relays, "relay", 7))


def test_only_chunks_that_move_need_a_path() -> None:
    assert make_problem(ONE_WAY, "broadcast", root=0).nranks == 3
    assert make_problem(ONE_WAY, "reduce", root=2).nranks == 3
    assert make_problem(ISLANDS, uneven("alltoallv", [[0, 1, 0, 0], [0] * 4, [0] * 4, [0, 0, 3, 0]])).nranks == 4


def test_a_sum_needs_all_its_paths_though_a_plain_chunk_has_the_same_ends() -> None:
    pre = np.array([[0, 0], [0, 1], [2, 0], [2, 1]])
    plain_and_sum = Collective(
        "both", 3, 1, 2, np.array([False, True]), np.full(2, 0.5), pre, np.array([[1, 0], [1, 1]]),
        np.array([0, 1, 0, 1]), np.array([0, 1]),
    )  # fmt: skip
    with pytest.raises(InputError, match="rank 2 cannot reach rank 1"):
        make_problem(ONE_WAY, plain_and_sum)
    assert make_problem(ONE_WAY, replace(plain_and_sum, reduces=np.array([False, False]))).nranks == 3


def test_positions_follow_the_group() -> None:
    problem = make_problem(load("full:5"), "broadcast", [4, 1, 3], [2, 0], root=3)
    assert problem.collective.root == 2
    assert problem.ranks == (4, 1, 3, 0, 2)
    link = next(i for i in range(problem.network.nlinks) if problem.link_name(i) == "4→2")
    assert (problem.network.src[link], problem.network.dst[link]) == (0, 4)


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("0,2,4-7", (0, 2, 4, 5, 6, 7)),
        ("3", (3,)),
        ("7-7", (7,)),
        (" 1 , 0 ", (1, 0)),
        ("0-7", tuple(range(8))),
    ],
)
def test_rank_lists(text: str, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text, "group", 8) == ranks


@pytest.mark.parametrize(
    "text", ["", ",", "8", "0-8", "5-3", "0,0", "0-3,2", "-1", "1-2-3", "a", "1.5", "0-999999999", "1" * 5000]
)
def test_bad_rank_lists(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_ranks(text, "--group", 8)
    assert str(error.value).startswith("--group: ")
    assert len(str(error.value).splitlines()) == 1


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32))
def test_distances(seed: int) -> None:
    net = random_problem(random.Random(seed)).network
    n = net.nranks
    steps = [[0 if u == v else n for v in range(n)] for u in range(n)]
    away = [[0.0 if u == v else np.inf for v in range(n)] for u in range(n)]
    for _ in range(n):
        for u, v, alpha in zip(net.src.tolist(), net.dst.tolist(), net.alpha_us.tolist(), strict=True):
            for s in range(n):
                steps[s][v] = min(steps[s][v], steps[s][u] + 1)
                away[s][v] = min(away[s][v], away[s][u] + alpha)
    assert hops(n, net.src, net.dst).tolist() == steps
    np.testing.assert_allclose(least_latency(n, net.src, net.dst, net.alpha_us), away)
