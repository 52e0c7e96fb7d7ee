"""Tests that nodes are joined by their NICs as published."""

from __future__ import annotations

import numpy as np

from tests.topologies.topology_texts import same
from topologies.load import load
from topologies.network import network


def test_two_ndv2_are_joined_as_in_te_ccl() -> None:
    t = load("ndv2:2")
    between = t.nodes[t.link_src] != t.nodes[t.link_dst]
    links_between = list(zip(t.link_src[between], t.link_dst[between], strict=True))
    assert links_between == [(0, 9), (8, 1)]
    assert t.bandwidth_gbs[between].tolist() == [12.5, 12.5]
    assert t.alpha_us[between].tolist() == [1.3, 1.3]
    assert t.limits == ()


def test_three_ndv2_share_their_nics() -> None:
    n = network(load("ndv2:3"), range(24))
    nics = [i for i, name in enumerate(n.resource_names) if name.startswith("nic")]
    assert len(nics) == 6
    for r in nics:
        assert (n.uses_idx == r).sum() == 2
        assert n.capacity_gbs[r] == 12.5


def test_dgx2_pairs_share_a_nic() -> None:
    n = network(load("dgx2:2"), range(32))
    far = (n.src < 16) != (n.dst < 16)
    assert (n.bandwidth_gbs[far] == 12.5).all()
    assert (n.alpha_us[far] == 2.6).all()
    assert sum(name.startswith("nic") for name in n.resource_names) == 32
    out = n.resource_names.index("nic3.1 out")
    users = np.repeat(np.arange(n.nlinks), np.diff(n.uses_ptr))[n.uses_idx == out]
    assert set(n.src[users].tolist()) == {22, 23}


def test_a100_fabrics() -> None:
    t = load("dgx-a100:4")
    assert t.switches == ("nvswitch.0", "nvswitch.1", "nvswitch.2", "nvswitch.3", "fabric0", "fabric1")
    assert t.nodes.tolist() == [i // 8 for i in range(32)]
    nic = t.link_dst >= t.nranks + 4
    assert (t.link_dst[nic] - t.nranks - 4 == t.link_src[nic] % 2).all()
    assert (t.bandwidth_gbs[nic] == 25).all()


def test_h100_rails() -> None:
    t = load("dgx-h100:3")
    assert [s for s in t.switches if s.startswith("rail")] == [f"rail{i}" for i in range(8)]
    n = network(t, range(24))
    far = t.nodes[n.src] != t.nodes[n.dst]
    assert (n.src[far] % 8 == n.dst[far] % 8).all()
    assert (n.bandwidth_gbs[far] == 50).all()


def test_one_node_is_the_machine() -> None:
    assert same(load("dgx-a100:1"), load("dgx-a100"))
