"""Machine files say what the published figures say."""

from __future__ import annotations

import numpy as np
import pytest

from topologies.load import load, machines
from topologies.network import network
from topologies.text.reader import from_toml
from topologies.text.writer import to_toml
from topologies.topology import Topology


def same(a: Topology, b: Topology) -> bool:
    words = ("name", "nranks", "switches", "alpha_assumed", "summary", "source")
    columns = ("link_src", "link_dst", "alpha_us", "bandwidth_gbs", "nodes")
    return (
        all(getattr(a, w) == getattr(b, w) for w in words)
        and all(np.array_equal(getattr(a, c), getattr(b, c)) for c in columns)
        and [(x.name, x.links.tolist(), x.bandwidth_gbs) for x in a.limits]
        == [(x.name, x.links.tolist(), x.bandwidth_gbs) for x in b.limits]
    )


def test_text_round_trip(any_spec: str) -> None:
    topology = load(any_spec)
    text = to_toml(topology)
    again = from_toml(text, "again")
    assert same(topology, again)
    assert to_toml(again) == text


def test_loading_is_repeatable(any_spec: str) -> None:
    assert same(load(any_spec), load(any_spec))
    assert load(any_spec).name == any_spec


@pytest.mark.parametrize(
    ("machine", "ranks", "gbs"),
    [
        ("dgx1", 8, 150), ("ndv2", 8, 150), ("dgx2", 16, 125), ("dgx-a100", 8, 300), ("dgx-h100", 8, 450),
        ("dgx-h200", 8, 450), ("gb200-nvl72", 72, 900), ("mi300x", 8, 448), ("gaudi3", 8, 525),
        ("z52", 8, 64),
    ],
)  # fmt: skip
def test_bandwidth_per_gpu(machine: str, ranks: int, gbs: float) -> None:
    t = load(machine)
    assert t.nranks == ranks
    out = np.bincount(t.link_src, t.bandwidth_gbs, t.nvertices)
    into = np.bincount(t.link_dst, t.bandwidth_gbs, t.nvertices)
    np.testing.assert_allclose(out[:ranks], gbs)
    np.testing.assert_allclose(into[:ranks], gbs)
    assert not t.nodes.any()


def test_mi250_links() -> None:
    t = load("mi250")
    out = np.bincount(t.link_src, t.bandwidth_gbs) / 50
    # ForestColl's table, links per die.
    assert out.tolist() == [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]
    assert t.nlinks == 56
    assert np.array_equal(out, np.bincount(t.link_dst, t.bandwidth_gbs) / 50)


def test_dgx1_is_the_published_matrix() -> None:
    t = load("dgx1")
    links = np.zeros((8, 8), dtype=int)
    links[t.link_src, t.link_dst] = t.bandwidth_gbs / 25
    assert links[0].tolist() == [0, 2, 1, 1, 2, 0, 0, 0]
    assert links[5].tolist() == [0, 1, 0, 0, 2, 0, 1, 2]
    assert np.array_equal(links, links.T)
    assert (t.alpha_us == 0.7).all()
    assert not t.alpha_assumed


def test_every_machine_says_where_from() -> None:
    for name in machines():
        t = load(name)
        assert t.summary, name
        assert t.source, name
    for name in ("dgx-a100", "dgx-h100", "gb200-nvl72", "mi300x", "gaudi3", "mi250", "z52"):
        assert load(name).alpha_assumed, name


def test_ndv2_pair_is_te_ccls() -> None:
    t = load("ndv2:2")
    between = t.nodes[t.link_src] != t.nodes[t.link_dst]
    found = list(zip(t.link_src[between], t.link_dst[between], strict=True))
    assert found == [(0, 9), (8, 1)]
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
