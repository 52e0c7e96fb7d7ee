"""Tests of paths through switches and of the resources that they share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.errors import InputError
from topologies.load import load
from topologies.network import Network, network
from topologies.topology import Limit, Topology


def uses(n: Network, link: int) -> list[str]:
    return [n.resource_names[r] for r in n.uses_idx[n.uses_ptr[link] : n.uses_ptr[link + 1]]]


def build(nranks: int, switches: str, links: str, limits: tuple[Limit, ...] = ()) -> Topology:
    """Return a topology of links "0>s0 50 0.7, ..." (GB/s, µs)."""
    names = tuple(switches.split())
    rows = [x.split() for x in links.split(",")]
    vertex = {str(i): i for i in range(nranks)} | {s: nranks + j for j, s in enumerate(names)}
    ends = [r[0].split(">") for r in rows]
    return Topology(
        "built", nranks, names,
        np.array([vertex[a] for a, _ in ends]), np.array([vertex[b] for _, b in ends]),
        np.array([float(r[2]) for r in rows]), np.array([float(r[1]) for r in rows]), limits,
    )  # fmt: skip


def test_switch_links_are_rank_to_rank() -> None:
    n = network(load("dgx-a100"), range(8))
    assert (n.nlinks, n.nresources) == (56, 16)
    assert set(n.bandwidth_gbs.tolist()) == {300.0}
    assert set(n.alpha_us.tolist()) == {0.7}
    assert uses(n, 0) == ["0→nvswitch", "nvswitch→1"]


def test_a_direct_link_is_a_resource_of_its_own() -> None:
    n = network(load("ring:4"), range(4))
    assert n.resource_names[0] == "0→1"
    assert np.array_equal(n.uses_idx, np.arange(8))
    assert np.array_equal(n.capacity_gbs, n.bandwidth_gbs)


def test_group_order_and_absent_ranks() -> None:
    n = network(load("ring:6"), [3, 2, 5])
    assert n.ranks.tolist() == [3, 2, 5]
    assert list(zip(n.src.tolist(), n.dst.tolist(), strict=True)) == [(0, 1), (1, 0)]
    assert n.resource_names == ("2→3", "3→2")


def test_paths_minimize_alpha_then_bandwidth_then_hops() -> None:
    t = build(2, "a b c d", "0>a 50 0.1,a>b 50 0.1,a>c 40 0.1,b>1 50 0.1,c>1 50 0.1,a>d 90 0.5,d>1 90 0.5")
    n = network(t, [0, 1])
    assert n.nlinks == 1
    assert uses(n, 0) == ["0→a", "a→b", "b→1"]
    assert n.alpha_us[0] == 0.3
    t = build(2, "a b c", "0>a 50 0.1,a>b 50 0,b>1 50 0.1,a>c 50 0,c>b 50 0")
    assert uses(network(t, [0, 1]), 0) == ["0→a", "a→b", "b→1"]


def test_zero_alpha_loops_end() -> None:
    t = build(2, "a b c", "0>a 50 0,a>b 50 0,b>a 50 0,b>c 50 0,c>a 50 0,c>1 50 0")
    assert uses(network(t, [0, 1]), 0) == ["0→a", "a→b", "b→c", "c→1"]


def test_each_port_is_a_link_and_direct_comes_first() -> None:
    t = build(2, "a b", "0>1 10 1,0>a 20 1,a>1 20 1,0>b 30 1,b>1 30 1")
    n = network(t, [0, 1])
    assert n.src.tolist() == [0, 0, 0]
    assert [uses(n, i)[0] for i in range(3)] == ["0→1", "0→a", "0→b"]
    assert n.bandwidth_gbs.tolist() == [10, 20, 30]


def test_limits_are_shared_and_cap_the_link() -> None:
    t = build(3, "s", "0>s 50 1,1>s 50 1,s>2 50 1", (Limit("root", np.array([0, 1]), 20.0),))
    n = network(t, [0, 1, 2])
    assert [uses(n, i) for i in range(2)] == [["0→s", "s→2", "root"], ["1→s", "s→2", "root"]]
    assert n.bandwidth_gbs.tolist() == [20, 20]
    assert network(t, [2]).resource_names == ()


def test_spines_fill_evenly() -> None:
    n = network(load("fattree:4"), range(16))
    core = [i for i, name in enumerate(n.resource_names) if name.endswith("→core0") or "→core" in name]
    load_of = np.bincount(n.uses_idx, minlength=n.nresources)[core]
    assert len(core) == 16
    assert load_of.min() == load_of.max()


def test_a_group_keeps_the_routes_of_the_full_network() -> None:
    t = load("fattree:4")
    full_network, group_network = network(t, range(16)), network(t, [1, 6, 11, 12])
    for link in range(group_network.nlinks):
        a, b = group_network.ranks[group_network.src[link]], group_network.ranks[group_network.dst[link]]
        twin = int(np.flatnonzero((full_network.src == a) & (full_network.dst == b))[0])
        assert uses(group_network, link) == uses(full_network, twin)


def test_columns_are_consistent(any_spec: str) -> None:
    t = load(any_spec)
    n = network(t, range(t.nranks))
    order = np.lexsort((n.dst, n.src))
    assert np.array_equal(order, np.arange(n.nlinks))
    assert (n.src != n.dst).all()
    assert n.uses_ptr[0] == 0
    assert n.uses_ptr[-1] == len(n.uses_idx)
    assert set(n.uses_idx.tolist()) == set(range(n.nresources))
    assert len(set(n.resource_names)) == n.nresources
    for link in range(0, n.nlinks, 7):
        resources = n.uses_idx[n.uses_ptr[link] : n.uses_ptr[link + 1]]
        assert (np.diff(resources) > 0).all()
        assert n.bandwidth_gbs[link] == n.capacity_gbs[resources].min()


def reference_ways(t: Topology, start: int) -> dict[int, tuple[float, float]]:
    """Return the best (α in ps, -GB/s) from a switch to each rank, by plain label correcting."""
    edges = list(zip(t.link_src.tolist(), t.link_dst.tolist(), t.alpha_us, t.bandwidth_gbs, strict=True))
    best: dict[int, tuple[float, float]] = {start: (0.0, -np.inf)}
    for _ in range(t.nvertices):
        for a, b, alpha, gbs in edges:
            if a in best and a >= t.nranks:
                label = (best[a][0] + round(alpha * 1e6), max(best[a][1], -gbs))
                if b not in best or label < best[b]:
                    best[b] = label
    return {v: label for v, label in best.items() if v < t.nranks}


@st.composite
def switched(draw: st.DrawFn) -> Topology:
    nranks, nswitches = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    v = nranks + nswitches
    pairs = [(a, b) for a in range(v) for b in range(v) if a != b and max(a, b) >= nranks]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1))
    figures = [(draw(st.sampled_from([0.0, 0.1, 0.2, 0.3])), draw(st.sampled_from([1, 2, 5]))) for _ in chosen]
    return Topology(
        "drawn", nranks, tuple(f"s{i}" for i in range(nswitches)),
        np.array([a for a, _ in chosen]), np.array([b for _, b in chosen]),
        np.array([f[0] for f in figures]), np.array([float(f[1]) for f in figures]),
    )  # fmt: skip


@settings(max_examples=50)
@given(switched())
def test_paths_are_best(t: Topology) -> None:
    n = network(t, range(t.nranks))
    expected = {}
    for port in range(t.nlinks):
        a, s = int(t.link_src[port]), int(t.link_dst[port])
        if a >= t.nranks or s < t.nranks:
            continue
        for rank, (picos, minus) in reference_ways(t, s).items():
            if rank != a:
                total = picos + round(t.alpha_us[port] * 1e6)
                expected[a, rank, t.vertex_name(s)] = (total, min(-minus, t.bandwidth_gbs[port]))
    actual = {}
    for link in range(n.nlinks):
        first = next(x for x in uses(n, link) if x.startswith(f"{n.src[link]}→"))
        key = (int(n.src[link]), int(n.dst[link]), first.split("→")[1])
        actual[key] = (round(n.alpha_us[link] * 1e6), n.bandwidth_gbs[link])
    assert actual == expected


def test_too_many_pairs_are_refused_before_they_take_memory() -> None:
    with pytest.raises(InputError, match=r"switches join 8997000 pairs of 3000 ranks; it must be at most 8400000"):
        network(load("star:3000"), range(3000))
    assert network(load("star:3000"), range(30)).nlinks == 30 * 29


def test_many_ranks_have_every_pair() -> None:
    assert network(load("star:128"), range(128)).nlinks == 128 * 127


@pytest.mark.parametrize("ranks", [[], [0, 0], [-1], [8], [0.5], [[0]], ["a"]])
def test_bad_groups(ranks: list[int]) -> None:
    with pytest.raises(InputError) as error:
        network(load("ring:8"), ranks)
    assert "\n" not in str(error.value)
