"""Trees for the parts of a root's buffer: every node gets every part, within doors, and soon; or one peer a door."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import ceil, log2

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from synth.engines.messages.nodes import nodes_of
from synth.engines.messages.plans import MessagesForm, spreading
from synth.engines.messages.trees import Hand, one_peer_a_door, rarest_first
from synth.model.problem import make_problem
from synth.phases.prune import prune_copies
from synth.verify.algorithm import Algorithm
from tests.synth.engines.messages.answers import answers
from topologies.costed import with_costs
from topologies.costs import Costs, Protocol
from topologies.load import load


def check_arrivals(hands: Sequence[Hand], count: int, parts: int, lag: float, end: float) -> None:
    """Check that every node gets every part once, from a node that has it by then, and the last one at the end."""
    comes = {(0, part): (0.0, 0) for part in range(parts)}
    for hand in hands:
        since, depth = comes[hand.source, hand.part]
        assert hand.start >= since
        assert hand.depth == depth
        assert (hand.goal, hand.part) not in comes
        comes[hand.goal, hand.part] = hand.start + lag, depth + 1
    assert len(comes) == count * parts
    assert end == max(time for time, _ in comes.values())


@given(
    count=st.integers(2, 12),
    parts=st.integers(1, 8),
    lag=st.integers(8, 40).map(lambda eighths: eighths / 8),
)
def test_every_node_gets_every_part_once(count: int, parts: int, lag: float) -> None:
    end, hands = rarest_first(count, parts, lag)
    check_arrivals(hands, count, parts, lag, end)
    starts = defaultdict(list)
    for hand in hands:
        starts[hand.source, "sends"].append(hand.start)
        starts[hand.goal, "gets"].append(hand.start)
    assert all(later >= earlier + 1 for times in starts.values() for earlier, later in pairwise(times))


@pytest.mark.parametrize(("count", "parts"), [(8, 1), (8, 4), (16, 8), (4, 32)])
def test_parts_follow_each_other(count: int, parts: int) -> None:
    """Check against doubling for the first part, and a slot or two for every further one."""
    end, _ = rarest_first(count, parts, 1.0)
    assert end <= ceil(log2(count)) + 2 * (parts - 1)


@given(
    count=st.integers(2, 12),
    doors=st.integers(1, 8),
    waves=st.integers(1, 4),
    lag=st.integers(8, 40).map(lambda eighths: eighths / 8),
)
def test_each_door_has_one_peer(count: int, doors: int, waves: int, lag: float) -> None:
    """Check that every node gets every part once, after its sender, and what each door sends and gets."""
    end, hands = one_peer_a_door(count, doors, waves, lag)
    check_arrivals(hands, count, doors * waves, lag, end)
    sends, gets = defaultdict(set), defaultdict(set)
    for hand in hands:
        sends[hand.source, hand.door].add((hand.goal, hand.part % doors))
        gets[hand.goal, hand.door].add((hand.source, hand.part % doors))
    # Where the greedy choice runs out of doors, some serve two trees.
    shared = [door for ends in (sends, gets) for door in ends.values() if len(door) > 1]
    assert len(shared) <= doors


@pytest.mark.parametrize(
    ("count", "doors", "depth"), [(4, 8, 2), (6, 8, 2), (12, 8, 3), (16, 8, 3), (5, 4, 2), (9, 1, 8)]
)
def test_trees_apart_are_flat(count: int, doors: int, depth: int) -> None:
    """Check that no door is shared, and how deep the trees are."""
    _, hands = one_peer_a_door(count, doors, 1, 1.0)
    assert max(hand.depth for hand in hands) < depth
    for ends in ("source", "goal"):
        used = [(getattr(hand, ends), hand.door) for hand in hands]
        assert len(used) == len(set(used))


@pytest.mark.parametrize(("machine", "doors"), [("dgx-h100:3", 8), ("dgx2:2", 8), ("p4d.24xlarge:2", 4), ("ndv2:3", 1)])
def test_doors_are_nics(machine: str, doors: int) -> None:
    """Check that there are as many doors as NICs, and that no resource serves two of them."""
    topology = load(machine)
    nodes = nodes_of(make_problem(with_costs(topology), "broadcast").under("LL").network)
    assert nodes is not None
    assert len(nodes.doors) == doors
    used = [{r for link in door.values() for r in nodes.net.uses(link).tolist()} for door in nodes.doors]
    assert sum(map(len, used)) == len(set().union(*used))
    assert all(set(door) == set(nodes.between) for door in nodes.doors)


@pytest.mark.parametrize(
    ("machine", "stride", "form"),
    [
        ("dgx-h100:4", 1, MessagesForm(2, 1, trees=16, doors=8, lag=1.5)),
        ("dgx-a100:5", 2, MessagesForm(2, 1, trees=8, doors=4, lag=2.25)),
        ("dgx-h100:4", 1, MessagesForm(2, 8, trees=2, lag=1.5)),
        ("dgx-a100:5", 2, MessagesForm(2, 4, trees=3, lag=2.25)),
        ("dgx2:3", 4, MessagesForm(2, 1, trees=4, lag=3.0)),
        ("ndv2:3", 8, MessagesForm(2, 1, trees=4, lag=1.0)),  # Only relays have a NIC.
    ],
)
def test_plans_of_trees_are_right(machine: str, stride: int, form: MessagesForm) -> None:
    topology = load(machine)
    group = range(0, topology.nranks, stride)
    relays = [rank for rank in range(topology.nranks) if rank not in group] if machine.startswith("ndv2") else []
    problem = make_problem(with_costs(topology), "broadcast", group, relays, root=stride).under("LL")
    whole = problem.with_chunks(form.trees * form.carriers)
    nodes = nodes_of(whole.network)
    assert nodes is not None
    plan = spreading(nodes, whole.collective, form)
    schedule = prune_copies(whole, plan.schedule(1))
    Algorithm(whole, schedule, "test")
    between = nodes.node_of[whole.network.src[schedule.link]] != nodes.node_of[whole.network.dst[schedule.link]]
    assert between.sum() == (len(nodes) - 1) * form.trees * form.carriers
    if form.doors:  # Each rank with a door sends to one node, and gets from one.
        links = np.unique(schedule.link[between])
        for ends in (whole.network.src[links], whole.network.dst[links]):
            assert len(np.unique(ends)) == len(ends)
    if not relays:
        assert len(schedule) == len(plan.chunk)
    assert plan.turn is not None
    assert plan.turn.min() == 0 <= plan.turn.max() < 1


def test_trees_are_faster_where_latencies_and_data_both_count() -> None:
    """Check sixteen nodes with a rank each: a scatter and an exchange take 86 µs, of which the last part 36."""
    latency_us, efficiency = {"nvlink": 1.9, "network": 4.0}, {"nvlink": 0.736, "network": 0.8832}
    ll128 = Protocol(14.0, 20.0, latency_us, efficiency, {"network": 1.0})
    topology = with_costs(load("dgx-a100:16"), Costs({"LL128": ll128}))
    problem = make_problem(topology, "broadcast", range(0, 128, 8)).under("LL128")
    assert min(algorithm.time_us(512 << 10) for algorithm in answers(problem, 512 << 10)) < 75


@pytest.mark.parametrize("collective", ["allgather", "reducescatter", "allreduce", "broadcast", "reduce", "alltoall"])
def test_relays_get_only_what_they_pass_on(collective: str) -> None:
    """Check nodes where the ranks of the group have no NIC."""
    topology = with_costs(load("ndv2:3"))
    group = [1, 2, 8, 10, 17, 18]
    problem = make_problem(topology, collective, group, [r for r in range(24) if r not in group]).under("LL")
    best = min(answers(problem, 1 << 16), key=lambda algorithm: algorithm.time_us(1 << 16))
    sends = best.schedule
    if collective in ("allgather", "broadcast"):
        ends = zip(sends.chunk.tolist(), best.problem.network.src[sends.link].tolist(), strict=True)
        from_relays = {(chunk, rank) for chunk, rank in ends if rank >= len(group)}
        ends = zip(sends.chunk.tolist(), best.problem.network.dst[sends.link].tolist(), strict=True)
        assert {(chunk, rank) for chunk, rank in ends if rank >= len(group)} == from_relays
