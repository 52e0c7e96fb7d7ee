"""Tests of threadblocks that end when all ranks have started, for ranks connected in many ways."""

from __future__ import annotations

from itertools import combinations

import pytest

from emit.mscclpp.building.meeting import add_meeting
from emit.mscclpp.format import check_plan
from emit.mscclpp.plan import MAX_OPS, ExecutionPlan, PlanGpu
from emit.mscclpp.timing import PlanPredictor
from topologies.load import load

Pairs = list[tuple[int, int]]
CONNECTED: dict[str, tuple[Pairs, list[int]]] = {
    "pair": ([(0, 1)], [0, 0]),
    "star of more than a threadblock has channels for": ([(3, rank) for rank in range(40) if rank != 3], [0] * 40),
    "long path": ([(rank, rank + 1) for rank in range(29)], [rank // 8 for rank in range(30)]),
    "ring": ([(rank, (rank + 1) % 12) for rank in range(12)], [0] * 12),
    "tree over nodes": (
        [(rank - rank % 4, rank) for rank in range(16) if rank % 4] + [(0, 4), (4, 8), (8, 12)],
        [0, 1] * 8,
    ),
    "all": (list(combinations(range(9), 2)), [0] * 9),
}


def meeting(pairs: Pairs, nodes: list[int], linked: Pairs) -> ExecutionPlan:
    """Return a plan in which the ranks only wait for each other's start."""
    gpus = [PlanGpu(1, 1, 1, peers={"memory": [], "port": []}) for _ in nodes]
    add_meeting(gpus, pairs, nodes, linked)
    return ExecutionPlan("meeting", "meeting", "LL", False, gpus, double=True, max_bytes=1 << 20)


@pytest.mark.parametrize("name", CONNECTED)
def test_all_ranks_wait_for_all(name: str) -> None:
    pairs, nodes = CONNECTED[name]
    plan = meeting(pairs, nodes, [])
    report = check_plan(plan)
    assert not report.findings
    assert all("hears nothing" not in note for note in report.notes)
    assert all(len(block.ops) <= MAX_OPS for gpu in plan.gpus for block in gpu.blocks)


def test_unconnected_ranks_get_channels() -> None:
    pairs, nodes = [(rank, rank + 1) for rank in range(0, 20, 2)], [0] * 20
    assert any("hears nothing" in note for note in check_plan(meeting(pairs, nodes, [])).notes)
    joined = meeting(pairs, nodes, list(combinations(range(20), 2)))
    assert all("hears nothing" not in note for note in check_plan(joined).notes)
    assert sum(len(peers) for gpu in joined.gpus for peers in gpu.peers.values()) == 2 * 19


@pytest.mark.parametrize(("name", "hops"), [("pair", 1), ("ring", 6), ("all", 1)])
def test_a_meeting_takes_the_longest_path(name: str, hops: int) -> None:
    pairs, nodes = CONNECTED[name]
    topology = load(f"full:{len(nodes)}")
    assert PlanPredictor(meeting(pairs, nodes, []), topology).time_us(0) == pytest.approx(hops * topology.alpha_us[0])


@pytest.mark.parametrize(
    "name", ["pair", "star of more than a threadblock has channels for", "long path", "tree over nodes"]
)
def test_each_channel_of_a_tree_has_one_signal_each_way(name: str) -> None:
    for gpu in meeting(*CONNECTED[name], []).gpus:
        signals = [op.channels for block in gpu.blocks for op in block.ops if op.name == "signal"]
        assert sum(map(len, signals)) == sum(map(len, gpu.peers.values()))


def test_nodes_hear_of_each_other_directly() -> None:
    """Check that ranks of a broadcast between eight nodes do not meet by way of the root's node."""
    nodes = [rank // 4 for rank in range(32)]
    pairs = [(0, rank) for rank in range(4, 32, 4)] + [(rank - rank % 4, rank) for rank in range(32) if rank % 4]
    linked = [(u, v) for u, v in combinations(range(32), 2) if u // 4 == v // 4 or u % 4 == v % 4]
    topology = load("full:32")
    for pairs_linked, hops in (([], 4), (linked, 3)):
        plan = meeting(pairs, nodes, pairs_linked)
        assert not check_plan(plan).findings
        assert PlanPredictor(plan, topology).time_us(0) == pytest.approx(hops * topology.alpha_us[0])
