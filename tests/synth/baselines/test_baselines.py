"""Baselines are right, and have the shape and the time of the textbook."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.baselines import BASELINES, baseline, baseline_named
from synth.baselines.algorithms.direct import direct_schedule
from synth.baselines.algorithms.ring import Cycle, find_cycles, routed_cycle
from synth.baselines.algorithms.spreading import first_copies
from synth.bounds.prove import prove
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule, untimed
from synth.symmetry.quotient import quotient_problem
from synth.timing.simulate import timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from tests.random_problems import random_problem
from topologies.errors import InputError, ScheduleRefused, TooManySends
from topologies.load import load
from topologies.network import Network

SEEDS = st.integers(0, 2**32)
MIB = float(1 << 20)
GATHERING = ("allgather", "reducescatter", "allreduce")
ALPHA, GBS = 0.7, 50.0  # Of every family.


def problem_of(spec: str, name: str, group: list[int] | None = None, relays: tuple[int, ...] = ()) -> Problem:
    return make_problem(load(spec), name, group, relays)


def queued(problem: Problem, chunk_bytes: float = MIB, turns: bool = False) -> Schedule:
    return direct_schedule(problem, chunk_bytes, turns)


def by_step(spec: str, name: str, engine: str) -> Algorithm:
    """Return the baseline's algorithm whose sends are in the order of their steps."""
    return baseline_named(problem_of(spec, name), engine)[-1]


def fastest(spec: str, name: str, engine: str, size: float) -> float:
    return min(a.time_us(size) for a in baseline_named(problem_of(spec, name), engine))


# All of them are right.


@settings(max_examples=25, derandomize=True)
@given(SEEDS)
def test_every_baseline_replays_at_every_size_and_none_beats_the_bound(seed: int) -> None:
    problem = random_problem(random.Random(seed))
    assume(problem.collective.chunks == 1)
    bound = prove(problem, max_flow=False)
    for name in BASELINES:
        for algorithm in baseline_named(problem, name):
            assert algorithm.engine == name or (name == "ring" and algorithm.engine.endswith("rings"))
            for size in (1.0, 4096.0, 1e9):
                replay(algorithm.problem, timed(algorithm.problem, algorithm.schedule, size))
                assert algorithm.time_us(size) >= bound.at(size)[0] * (1 - 1e-9)


@pytest.mark.parametrize("name", GATHERING)
@pytest.mark.parametrize(
    ("spec", "group", "relays"),
    [
        ("mesh:3x3", None, ()), ("dgx1", [0, 7, 2, 5], (3, 4, 1, 6)), ("ndv2:2", None, ()), ("fattree:4", None, ()),
        ("line:5", [4, 0, 2, 1], (3,)), ("mi250", None, ()),
        ("torus:3x3", [0, 4, 8, 2], (1, 3, 5, 6, 7)),
    ],
)  # fmt: skip
def test_gathering_baselines_where_paths_are_shared(
    spec: str, group: list[int] | None, relays: tuple[int, ...], name: str
) -> None:
    algorithms = baseline(problem_of(spec, name, group, relays))
    labels = {a.engine for a in algorithms}
    assert {"direct", "direct in turns"} <= labels
    k = algorithms[0].problem.collective.nranks
    assert ("recursive doubling" in labels) == (k & (k - 1) == 0)
    assert ("two-level" in labels) == (spec in ("ndv2:2", "fattree:4"))


@pytest.mark.parametrize(
    ("spec", "name", "group", "first"),
    [
        ("dgx1", "allreduce", None, "6 rings"), ("dgx-a100", "allreduce", [0, 2, 4, 6], "ring"),
        ("ring:8", "broadcast", None, "2 rings"), ("torus:3x3", "reducescatter", None, "4 rings"),
        ("dgx-a100:2", "allgather", None, "8 rings"), ("mesh:3x3", "reduce", None, "ring"),
        ("dgx1", "alltoall", None, "direct"), ("dgx1", "gather", None, "direct"),
        ("line:4", "sendrecv", None, "direct"),
    ],
)  # fmt: skip
def test_the_order_of_baselines_is_that_of_the_tables(
    spec: str, name: str, group: list[int] | None, first: str
) -> None:
    assert baseline(problem_of(spec, name, group))[0].engine == first


def test_uneven_sums_have_the_direct_algorithms_of_uneven_copies() -> None:
    blocks = (3 << 20, 1 << 20, 0, 2 << 20)
    sums, copies = (
        baseline(make_problem(load("full:4"), name, sizes=blocks)) for name in ("reducescatterv", "allgatherv")
    )
    assert {algorithm.engine for algorithm in sums} == {algorithm.engine for algorithm in copies}
    size = sum(blocks)
    assert min(a.time_us(size) for a in sums) == pytest.approx(min(a.time_us(size) for a in copies), rel=0.01)


def test_baselines_that_do_not_exist() -> None:
    for name in GATHERING:
        assert not baseline_named(problem_of("ring:6", name), "recursive doubling")
        assert not baseline_named(problem_of("dgx1", name), "two-level")
        # Two ranks are in one node and one in the other.
        assert not baseline_named(problem_of("fattree:4", name, [0, 1, 2]), "two-level")
        assert not baseline_named(problem_of("fattree:4", name, [0, 2]), "two-level")
    assert not baseline_named(problem_of("ring:4", "alltoall"), "ring")
    assert not baseline_named(problem_of("ring:4", "broadcast"), "recursive doubling")
    with pytest.raises(InputError, match=r"'rings' is not known; did you mean ring or swing\? It is one of: direct, "):
        baseline_named(problem_of("ring:4", "allgather"), "rings")
    for problem in (
        problem_of("ring:4", "allgather").with_chunks(2),
        quotient_problem(load("ring:4"), "allgather"),
    ):
        assert problem is not None
        with pytest.raises(InputError, match=r"2 chunks a block|is a quotient"):
            baseline(problem)
    with pytest.raises(TooManySends, match="has 20 sends over fixed routes, 19 at most"):
        direct_schedule(problem_of("line:4", "alltoall"), MIB, most=19)


# The textbook.


@pytest.mark.parametrize(
    ("spec", "name", "engine", "steps"),
    [
        ("ring:7", "allgather", "ring", 6), ("ring:7", "allreduce", "ring", 12), ("star:9", "reducescatter", "ring", 8),
        ("hypercube:4", "allgather", "recursive doubling", 4),
        ("hypercube:4", "reducescatter", "recursive doubling", 4),
        ("dgx-a100:4", "allgather", "two-level", 4), ("dgx-a100:4", "reducescatter", "two-level", 4),
        ("dgx-a100:4", "allreduce", "two-level", 8), ("fattree:4", "alltoall", "two-level", 2),
        ("full:6", "allgather", "direct", 1), ("full:6", "allreduce", "direct", 2),
        ("mesh:3x4", "alltoall", "direct", 5), ("mesh:3x4", "reducescatter", "direct", 5),
        ("line:5", "allgather", "ring", 7),
    ],
)  # fmt: skip
def test_steps(spec: str, name: str, engine: str, steps: int) -> None:
    assert {a.steps for a in baseline_named(problem_of(spec, name), engine)} == {steps}


def test_allreduce_by_doubling_has_two_kinds() -> None:
    algorithms = baseline_named(problem_of("hypercube:3", "allreduce"), "recursive doubling")
    halving, whole = algorithms[0], algorithms[-1]
    assert (halving.steps, halving.chunks, len(halving.schedule)) == (6, 8, 2 * 8 * 7)
    assert (whole.steps, whole.chunks, len(whole.schedule)) == (3, 1, 8 * 3)
    assert whole.time_us(1e6) == pytest.approx(3 * (ALPHA + 1e6 / (GBS * 1e3)))
    # Ranks 0 and 4 are no neighbours.
    algorithms = baseline_named(problem_of("ring:8", "allreduce"), "recursive doubling")
    assert {a.chunks for a in algorithms} == {8}


@pytest.mark.parametrize("size", [1.0, 64e3, 1e9])
def test_time_of_a_ring(size: int) -> None:
    k, alpha = 8, 2 * ALPHA  # Through the switch.
    share = size / k / (GBS * 1e3)
    once, twice = (k - 1) * (alpha + share), 2 * (k - 1) * (alpha + share)
    assert fastest("star:8", "allgather", "ring", size) == pytest.approx(once)
    assert fastest("star:8", "allreduce", "ring", size) == pytest.approx(twice)
    # A ring of links has bandwidth in both directions: each direction carries half.
    both_directions_us = fastest("ring:8", "allreduce", "ring", size)
    assert both_directions_us == pytest.approx(2 * (k - 1) * (ALPHA + share / 2))


@pytest.mark.parametrize("name", GATHERING)
def test_time_of_recursive_doubling(name: str) -> None:
    """Check log k (2 log k) α and (k − 1) / k (twice that) of the message; overlapping phases are no slower."""
    k, phases, halves = 16, 4, 2 if name == "allreduce" else 1

    def textbook(alpha: float, size: float) -> float:
        return halves * (phases * alpha + (k - 1) / k * size / (GBS * 1e3))

    cube, star = (
        next(a for a in baseline_named(problem_of(spec, name), "recursive doubling") if a.steps == halves * phases)
        for spec in ("hypercube:4", "star:16")
    )
    assert cube.time_us(1e-6) == pytest.approx(textbook(ALPHA, 0.0))
    assert star.time_us(1e-6) == pytest.approx(textbook(2 * ALPHA, 0.0))
    assert star.time_us(1e12) == pytest.approx(textbook(0.0, 1e12), rel=1e-6)
    for size in (1e3, 1e6, 1e9):
        assert cube.time_us(size) <= textbook(ALPHA, size) * (1 + 1e-9)
        assert star.time_us(size) <= textbook(2 * ALPHA, size) * (1 + 1e-9)


def test_time_of_two_levels() -> None:
    """Check 4 nodes of 8 ranks with a NIC each: 2 · 3/4 of an eighth over the NIC, 2 · 7/8 inside a node."""
    nodes, places, size, nic, nvlink = 4, 8, 1e9, 50e3, 450e3  # In B/µs.
    across = 2 * (nodes - 1) / nodes * size / places / nic
    inside = 2 * (places - 1) / places * size / nvlink
    got = fastest("dgx-h100:4", "allreduce", "two-level", size)
    assert max(across, inside) < got < (across + inside) * 1.001
    latency = 2 * (0.7 + (nodes - 1) * 2.6)
    assert fastest("dgx-h100:4", "allreduce", "two-level", 1e-6) == pytest.approx(latency)


# Rings.


def closed(net: Network, cycle: Cycle) -> None:
    assert (net.dst[cycle.links] == net.src[np.roll(cycle.links, -1)]).all()
    assert net.src[cycle.links[cycle.stops]].tolist() == cycle.members.tolist()
    assert cycle.stops[0] == 0
    assert (np.diff(cycle.stops) > 0).all()


@pytest.mark.parametrize(
    ("spec", "count"),
    [("mesh:4x4x4", 2), ("torus:16x4x4", 2), ("mesh:3x3", 0), ("dgx1", 6), ("star:12", 1), ("mesh:10x10", 2)],
)
def test_cycles(spec: str, count: int) -> None:
    net = problem_of(spec, "broadcast").network
    members = np.arange(net.nranks)
    cycles = find_cycles(net, members)
    assert len(cycles) == count
    load = np.zeros(net.nresources)
    for cycle in cycles or [routed_cycle(net, members)]:
        closed(net, cycle)
        closed(net.reversed(), cycle.backward())
        assert sorted(cycle.members.tolist()) == members.tolist()
        for link in cycle.links.tolist():
            load[net.uses(link)] += 1
    if spec != "mesh:3x3" and spec != "dgx1":  # These two have links of two bandwidths.
        assert load.max() == 1


def test_unneeded_copies_are_dropped() -> None:
    """Check chunk 0 from rank 0 to rank 1, directly and through the relay, whose own copy is not used."""
    problem = make_problem(load("full:3"), "broadcast", [0, 1], [2])
    net = problem.network
    name = [problem.link_name(i) for i in range(net.nlinks)]
    path_links = [name.index(x) for x in ("0→1", "0→2", "2→1", "1→0")]
    sends = untimed(np.zeros(4), np.array(path_links), np.array([0, 0, 1, 1]))
    kept_sends = first_copies(problem, net, sends, np.array([0]))
    assert kept_sends.link.tolist() == path_links[:1]
    late = replace(sends, step=np.array([2, 0, 1, 3])).take(np.array([1, 2, 0]))
    assert first_copies(problem, net, late, np.array([0])).link.tolist() == path_links[1:3]


def test_a_wrong_baseline_is_refused() -> None:
    """Check that a ring without one of its sends is no Algorithm, since its replay fails."""
    ring = by_step("ring:5", "allreduce", "ring")
    for row in (0, len(ring.schedule) // 2, len(ring.schedule) - 1):
        with pytest.raises(ScheduleRefused):
            Algorithm(ring.problem, ring.schedule.take(np.arange(len(ring.schedule)) != row), "ring")


@pytest.mark.parametrize("nodes", [2, 3, 4, 8])
def test_trees_cross_between_nodes_along_two_binary_trees(nodes: int) -> None:
    """Check the two trees: each has half of the data.

    A node has one parent, except the root, and at most two children. Both trees together give no node more than its
    share.
    """
    problem = make_problem(load(f"dgx2:{nodes}"), "allreduce", [16 * i + j for i in range(nodes) for j in range(4)])
    algorithm = baseline_named(problem, "tree", float(1 << 20))[-1]
    net, schedule = algorithm.problem.network, algorithm.schedule
    node = problem.topology.nodes[np.array(problem.group)]
    src, dst = node[net.src[schedule.link]], node[net.dst[schedule.link]]
    across = src != dst
    pieces = algorithm.problem.collective.nchunks // 2
    for tree in (0, 1):
        own = across & (schedule.chunk % 2 == tree)
        up = {(a, b) for a, b in zip(src[own & schedule.reduces], dst[own & schedule.reduces], strict=True)}
        down = {(a, b) for a, b in zip(src[own & ~schedule.reduces], dst[own & ~schedule.reduces], strict=True)}
        assert {(b, a) for a, b in up} == down
        assert len(up) == len({a for a, _ in up}) == nodes - 1
        assert max(np.bincount([b for _, b in up])) <= 2
        assert own.sum() == 2 * pieces * (nodes - 1)
