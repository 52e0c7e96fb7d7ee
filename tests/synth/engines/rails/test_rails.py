"""The engine `rails`: right and near the bound where nodes are not alike, loads by the rates of doors, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from synth.app.synthesis import synthesize
from synth.bounds.prove import prove
from synth.engines.rails.doors import apportioned, balanced, find_doors
from synth.engines.rails.search import NAME, _owner_choices, accepts, solve
from synth.engines.rails.tuning import TUNING
from synth.engines.request import Candidate, Options, Request
from synth.model.problem import Problem, make_problem
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from tests.synth.engines.knowledge import BestTimes
from tests.topologies.importers.simulators import rails
from tests.topologies.importers.test_importers import read
from topologies.costed import with_costs
from topologies.faults.apply import apply_faults
from topologies.load import load
from topologies.topology import Topology

KINDS = ("allgather", "reducescatter", "allreduce", "alltoall")
SIZE = 1 << 26
SERVERS, GPUS = 6, 4
LEAF = f"switch{SERVERS * GPUS + SERVERS + 1}.x2"  # Both planes' leaves of rail 1.


def _fabric(fault: str) -> Topology:
    """Return a fabric of 6 servers of 4 GPUs whose GPU 5 has a slow or a dead port, or one without a fault."""
    fabric = read(rails(SERVERS, GPUS, segment=SERVERS, spines=8)).topology
    part = f"link:5-{LEAF}"
    return apply_faults(fabric, [part] if fault == "dead" else [], [f"{part}=50%"] if fault == "slow" else [])


def _best(problem: Problem, workers: Workers) -> float:
    """Return time / bound of the last algorithm that the engine yields, after it was replayed."""
    assert not accepts(problem, Options())
    bound = prove(problem, max_flow=False)
    request = Request(Options(size=SIZE), (SIZE,), np.inf, workers, BestTimes(), bound)
    tuning = replace(TUNING, parts=(1, 4))
    best = [outcome for outcome in solve(problem, request, tuning) if isinstance(outcome, Candidate)][-1]
    return Algorithm(best.problem, best.schedule, NAME).time_us(SIZE) / bound.at(SIZE)[0]


@pytest.mark.parametrize("collective", KINDS)
@pytest.mark.parametrize("fault", ["slow", "dead", "lost"])
def test_it_is_near_the_bound_where_a_node_is_not_like_the_others(
    workers: Workers, collective: str, fault: str
) -> None:
    group = [rank for rank in range(SERVERS * GPUS) if rank != 5] if fault == "lost" else None
    # A slow node makes both phases of a sum longer.
    most = 1.7 if collective == "allreduce" else 1.25
    assert _best(make_problem(_fabric(fault), collective, group=group), workers) <= most


@pytest.mark.parametrize("collective", KINDS)
def test_it_is_right_for_groups_with_other_shares_of_the_nodes(workers: Workers, collective: str) -> None:
    assert _best(make_problem(load("dgx-h100:3"), collective, group=[0, 1, 2, 8, 9, 17]), workers) < np.inf


def test_messages_are_shared_out_by_the_rates_of_the_doors() -> None:
    random = np.random.default_rng(3)
    for _ in range(50):
        rates = random.integers(0, 4, size=5) + np.array([1.0, 0, 0, 0, 0])
        rail = random.integers(0, 5, size=int(random.integers(1, 200)))
        moved = balanced(rail, rates)
        load_of_rail, quota = np.bincount(moved, minlength=5), len(rail) * rates / rates.sum()
        assert (load_of_rail <= np.maximum(quota + 2, 1.01 * quota)).all()
        assert (rates[moved] > 0).all()
        assert (np.bincount(moved[moved == rail], minlength=5) <= np.bincount(rail, minlength=5)).all()
    assert apportioned(7, np.array([1.0, 1.0, 5.0])).tolist() == [1, 1, 5]


def test_a_slow_door_gets_its_share_and_a_dead_one_nothing() -> None:
    source, goal = (axis.ravel() for axis in np.indices((SERVERS, SERVERS)))
    source, goal = np.tile(source[source != goal], 24), np.tile(goal[source != goal], 24)
    wished = np.repeat(np.arange(24) % GPUS, SERVERS * (SERVERS - 1))
    for fault, share in (("slow", 1 / 7), ("dead", 0.0), ("none", 1 / 4)):
        doors = find_doors(make_problem(_fabric(fault), "allgather"))
        rail = doors.choose_rails(source, goal, wished)
        assert (doors.door[source, rail] >= 0).all()
        assert (doors.door[goal, rail] >= 0).all()
        own = int(doors.rail[5])
        for ends in (source, goal):
            assert np.mean(rail[ends == 1] == own) == pytest.approx(share, abs=0.02)
        assert (rail == wished).all() == (fault == "none")


def test_with_few_nodes_a_node_owns_sums_by_its_bandwidth() -> None:
    """Check four nodes of which one lost a GPU: if it owned none, the others would be busy for 8 % longer."""
    topology = with_costs(load("dgx-h100:4"))
    problem = make_problem(topology, "allreduce", range(31)).under("Simple")
    none, some = _owner_choices(find_doors(problem))
    assert sorted(none.tolist()) == list(range(24))
    nodes = np.bincount(some // 8)
    assert 0 < nodes[3] < nodes[0] == nodes[1] == nodes[2]
    share = nodes / nodes.sum()
    busy = (1 + 2 * share) / np.array([8, 8, 8, 7])
    assert busy.max() < 1.03 * busy.mean() < (1 + 2 / 3) / 8


def test_it_refuses_nodes_that_are_alike_and_nodes_without_rails() -> None:
    assert "not alike; these are" in accepts(make_problem(_fabric("none"), "allgather"), Options())
    assert "two nodes" in accepts(make_problem(load("ring:4"), "allgather"), Options())
    assert "--steps" in accepts(make_problem(_fabric("dead"), "allgather"), Options(steps=2))
    assert "allreduce" in accepts(make_problem(_fabric("dead"), "broadcast"), Options())


def test_nodes_without_a_common_rail_are_refused_before_the_search() -> None:
    """Check three nodes of which two meet only by way of the third: other engines answer."""
    problem = make_problem(load("dgx-h100:3"), "allgather", (0, 8, 9, 17))
    assert "common" in accepts(problem, Options())
    answer = synthesize("allgather", "dgx-h100:3", [0, 8, 9, 17], size=1 << 20, budget=0.5, target="none")
    assert answer.result.ranges
