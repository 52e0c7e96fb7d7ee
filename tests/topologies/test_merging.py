"""Tests that switches that stand for each other become one, and that this keeps the capacity between any ranks."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

from topologies.arrays import Ints
from topologies.load import load
from topologies.merging import has_choice_of_paths, merge_switches
from topologies.topology import Limit, SwitchOps, Topology


def fabric(pairs: list[tuple[int, int, float]], nranks: int, nswitches: int) -> Topology:
    """Return the topology of links that go both ways (first vertex, second vertex, GB/s)."""
    src, dst, gbs = (np.array(column) for column in zip(*pairs, strict=True))
    return Topology(
        "fabric",
        nranks,
        tuple(f"s{i}" for i in range(nswitches)),
        np.append(src, dst),
        np.append(dst, src),
        np.full(2 * len(pairs), 0.5),
        np.append(gbs, gbs).astype(np.float64),
    )


def clos(leaves: int, below: int, spines: int, gbs: list[int]) -> Topology:
    """Return leaves with `below` ranks each of 10 GB/s, whose link to spine j has gbs[j]."""
    ranks = leaves * below
    pairs = [(rank, ranks + rank // below, 10.0) for rank in range(ranks)]
    pairs += [(ranks + i, ranks + leaves + j, float(gbs[j])) for i in range(leaves) for j in range(spines)]
    return fabric(pairs, ranks, leaves + spines)


def cut(topology: Topology, senders: list[int], receivers: list[int]) -> int:
    """Return the most GB/s that reach some ranks from others through switches only (bandwidths are whole)."""
    n, size = topology.nranks, topology.nvertices
    inner = ~((topology.link_src < n) & (topology.link_dst < n))
    src, dst = topology.link_src[inner], topology.link_dst[inner]
    gbs = np.rint(topology.bandwidth_gbs[inner]).astype(np.int32)
    # A rank sends or receives here; it never forwards.
    keep = ~((dst < n) & ~np.isin(dst, receivers)) & ~((src < n) & ~np.isin(src, senders))
    large = np.int32(10**6)
    src = np.concatenate([src[keep], np.full(len(senders), size), receivers])
    dst = np.concatenate([dst[keep], senders, np.full(len(receivers), size + 1)])
    gbs = np.concatenate([gbs[keep], np.full(len(senders) + len(receivers), large)])
    graph = csr_array((gbs, (src, dst)), shape=(size + 2, size + 2), dtype=np.int32)
    return int(maximum_flow(graph, size, size + 1).flow_value)


@pytest.mark.parametrize("spec", ["fattree:4", "fattree:6", "fattree:4x3x5", "dragonfly:4x2x1", "star:4"])
def test_merging_keeps_the_capacity_between_any_ranks(spec: str) -> None:
    stated = load(f"{spec},bw=10")
    merged = merge_switches(stated)
    assert (len(merged.switches) < len(stated.switches)) == ("tree" in spec)
    assert has_choice_of_paths(merged) <= ("dragonfly" in spec)
    chance = random.Random(7)
    for _ in range(12):
        ranks = chance.sample(range(stated.nranks), k=chance.randint(2, stated.nranks))
        at = chance.randint(1, len(ranks) - 1)
        assert cut(stated, ranks[:at], ranks[at:]) == cut(merged, ranks[:at], ranks[at:])


def test_a_merged_fabric_has_the_sum_of_its_links() -> None:
    merged = merge_switches(clos(3, 2, 4, [5, 5, 5, 5]))
    assert merged.switches == ("s0", "s1", "s2", "s3.x4")
    assert merged.bandwidth_gbs[merged.link_src == 9].tolist() == [20.0, 20.0, 20.0]
    assert set(merged.alpha_us.tolist()) == {0.5}
    assert not has_choice_of_paths(merged)


def test_switches_that_differ_stay_apart() -> None:
    assert merge_switches(clos(3, 2, 2, [5, 6])).switches == clos(3, 2, 2, [5, 6]).switches
    stated = clos(3, 2, 3, [5, 5, 5])
    broken = np.flatnonzero((stated.link_src == 6) & (stated.link_dst == 9))  # One direction of one uplink.
    keep = np.delete(np.arange(stated.nlinks), broken)
    columns = ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "link_kind")
    damaged = replace(stated, **{column: getattr(stated, column)[keep] for column in columns})
    merged = merge_switches(damaged)
    assert merged.switches == ("s0", "s1", "s2", "s3", "s4.x2")
    assert has_choice_of_paths(merged)


def test_what_cannot_be_merged_is_returned_as_it_is() -> None:
    stated = clos(2, 2, 2, [5, 5])
    limited = replace(stated, limits=(Limit("trunk", links_between(stated, 4, 6), 1.0),))
    multicast = replace(stated, switch_ops=(SwitchOps("s2"),))
    # A cycle of four leaves and spines whose α alternate: two classes with two kinds of links between them.
    alternating = replace(stated, alpha_us=np.where((stated.link_src + stated.link_dst) % 2, 0.1, 0.2))
    for topology in (limited, multicast, load("ring:4"), load("dgx1"), load("star:3")):
        assert merge_switches(topology) is topology
    assert len(merge_switches(alternating).switches) == 4


def links_between(topology: Topology, source: int, target: int) -> Ints:
    """Return the links from a vertex to another."""
    return np.flatnonzero((topology.link_src == source) & (topology.link_dst == target))


def test_limits_and_operations_beside_merged_switches_stay() -> None:
    stated = clos(2, 2, 2, [5, 5])
    nic, uplinks = links_between(stated, 0, 4), np.append(links_between(stated, 4, 6), links_between(stated, 4, 7))
    limits = (Limit("nic", nic, 3.0), Limit("uplinks", np.sort(uplinks), 7.0))
    merged = merge_switches(replace(stated, limits=limits, switch_ops=(SwitchOps("s0"),)))
    assert merged.switches == ("s0", "s1", "s2.x2")
    assert [(limit.name, limit.bandwidth_gbs) for limit in merged.limits] == [("nic", 3.0), ("uplinks", 7.0)]
    assert merged.limits[0].links.tolist() == links_between(merged, 0, 4).tolist()
    assert merged.limits[1].links.tolist() == links_between(merged, 4, 6).tolist()


def test_only_the_switches_that_may_are_merged() -> None:
    stated = clos(2, 2, 4, [5, 5, 5, 5])
    merged = merge_switches(stated, np.array([True, True, True, False, True, True]))
    assert merged.switches == ("s0", "s1", "s2.x3", "s3")
    assert merge_switches(stated, np.zeros(6, dtype=bool)) is stated


def test_a_long_chain_of_switches_ends_soon() -> None:
    """Check that the number of rounds is bounded: a chain of 2,000 switches needs 1,000 of them."""
    count = 2000
    pairs = [(0, 2, 1.0), (1, 1 + count, 1.0), *((2 + i, 3 + i, 1.0) for i in range(count - 1))]
    chain = fabric(pairs, 2, count)
    assert merge_switches(chain) is chain
