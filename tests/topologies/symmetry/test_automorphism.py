"""Tests that symmetries keep the network and that the expected symmetries are found."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topologies.load import load
from topologies.network import Network, network
from topologies.symmetry.automorphism import automorphisms, free_subgroup
from topologies.symmetry.refinement import link_image
from topologies.topology import Limit, Topology


def network_of(spec: str) -> Network:
    t = load(spec)
    return network(t, range(t.nranks))


def keeps(net: Network, p: np.ndarray, image: np.ndarray) -> bool:
    """Check independently, with plain sets, that images of links and of resources (sets of links) are right."""
    if sorted(image.tolist()) != list(range(net.nlinks)):
        return False
    for link, image_link in enumerate(image.tolist()):
        if (p[net.src[link]], p[net.dst[link]]) != (net.src[image_link], net.dst[image_link]):
            return False
        if (net.alpha_us[link], net.bandwidth_gbs[link]) != (net.alpha_us[image_link], net.bandwidth_gbs[image_link]):
            return False
    members: list[set[int]] = [set() for _ in range(net.nresources)]
    for link in range(net.nlinks):
        for r in net.uses_idx[net.uses_ptr[link] : net.uses_ptr[link + 1]]:
            members[r].add(link)
    before = Counter((frozenset(m), c) for m, c in zip(members, net.capacity_gbs, strict=True))
    after = Counter((frozenset(image[list(m)].tolist()), c) for m, c in zip(members, net.capacity_gbs, strict=True))
    return before == after


def test_all_symmetries_hold(any_spec: str) -> None:
    net = network_of(any_spec)
    permutations = automorphisms(net, [range(net.nranks)], limit=60)
    assert np.array_equal(permutations[0], np.arange(net.nranks))
    assert len({p.tobytes() for p in permutations}) == len(permutations)
    step = max(1, len(permutations) * net.nlinks // 3000)
    for p in permutations[::step]:
        assert keeps(net, p, link_image(net, p))


def test_classes_are_kept() -> None:
    net = network_of("torus:4x4")
    for p in automorphisms(net, [[5], [0, 1, 2], range(8, 16)]):
        assert p[5] == 5
        assert set(p[:3].tolist()) == {0, 1, 2}
        assert set(p[8:].tolist()) == set(range(8, 16))


@pytest.mark.parametrize("spec", ["dgx1", "z52", "hypercube:3", "torus:2x4", "line:6", "mesh:2x3", "fattree:3x2x2"])
def test_group_against_brute_force(spec: str) -> None:
    net = network_of(spec)
    n = net.nranks
    colour = np.zeros((n, n))
    colour[net.src, net.dst] = net.bandwidth_gbs * 1000 + net.alpha_us
    perms = np.array(list(permutations(range(n))))
    good = np.ones(len(perms), dtype=bool)
    for a in range(n):
        for b in range(n):
            good &= colour[perms[:, a], perms[:, b]] == colour[a, b]
    true = set()
    for p in perms[good]:
        try:
            link_image(net, p)
        except ValueError:
            continue
        true.add(tuple(p.tolist()))
    assert {tuple(p.tolist()) for p in automorphisms(net, [range(n)], limit=5000)} == true


@pytest.mark.parametrize(
    ("spec", "order"),
    [
        ("ring:9", 9), ("star:12", 12), ("full:7", 7), ("torus:4x4", 16), ("torus:2x3x4", 24),
        ("hypercube:5", 32),
        ("dgx1", 4), ("dgx2", 16), ("dgx-a100", 8), ("dgx-a100:2", 16), ("dgx-h100:3", 24), ("z52", 8),
        ("mi250", 4),
        ("ndv2:3", 3), ("torus:8x8x4", 256), ("line:5", 1), ("line:6", 2), ("mesh:4x4", 4),
        ("gb200-nvl72", 72),
    ],
)  # fmt: skip
def test_free_subgroup(spec: str, order: int) -> None:
    net = network_of(spec)
    group = free_subgroup(automorphisms(net, [range(net.nranks)]), range(net.nranks))
    assert len(group) == order
    assert np.array_equal(group[0], np.arange(net.nranks))
    elements = {p.tobytes() for p in group}
    assert len(elements) == order
    for p in group:
        for q in group:
            assert p[q].tobytes() in elements
    for p in group[1:]:
        assert (p != np.arange(net.nranks)).all()
    link_image(net, group[-1])


def test_free_on_members_only() -> None:
    net = network_of("star:7")
    permutations = automorphisms(net, [[0, 2, 4], [1, 3, 5, 6]])
    group = free_subgroup(permutations, [0, 2, 4])
    assert len(group) == 3
    for p in group[1:]:
        assert all(p[m] != m for m in (0, 2, 4))


@pytest.mark.parametrize("root", range(4))
def test_root_keeps_its_place(root: int) -> None:
    net = network_of("ring:6")
    other_ranks = [r for r in range(6) if r != root]
    assert len(automorphisms(net, [[root], other_ranks])) == 2


def test_planted_wrong_permutations_are_refused() -> None:
    for spec in ("ring:6", "dgx1", "fattree:3x2x2", "ndv2:2", "line:4"):
        net = network_of(spec)
        p = np.arange(net.nranks)
        p[[0, 2]] = p[[2, 0]]
        with pytest.raises(ValueError, match="not an automorphism"):
            link_image(net, p)
    for bad in ([0, 0, 1], [0, 1], [0, 1, 3], [0.0, 1.0, 2.0]):
        with pytest.raises(ValueError, match="not a permutation"):
            link_image(network_of("ring:3"), np.array(bad))


def test_figures_and_capacities_break_symmetries() -> None:
    src, dst = np.array([0, 1, 2, 3]), np.array([1, 2, 3, 0])
    alpha, gbs = np.ones(4), np.full(4, 10.0)
    plain = network(Topology("x", 4, (), src, dst, alpha, gbs), range(4))
    assert len(automorphisms(plain, [])) == 4
    odd = network(Topology("x", 4, (), src, dst, np.array([1.0, 1, 1, 2]), gbs), range(4))
    assert len(automorphisms(odd, [])) == 1
    # Links 0 and 2 share, as do 1 and 3: only the quarter turn is lost where the capacities differ.
    for second, count in ((15.0, 4), (16.0, 2)):
        limits = (Limit("a", np.array([0, 2]), 15.0), Limit("b", np.array([1, 3]), second))
        shared = network(Topology("x", 4, (), src, dst, alpha, gbs, limits), range(4))
        assert len(automorphisms(shared, [])) == count
    uneven = network(Topology("x", 4, (), src, dst, alpha, gbs, (Limit("a", np.array([0, 1]), 15.0),)), range(4))
    with pytest.raises(ValueError, match="not an automorphism"):
        link_image(uneven, np.array([1, 2, 3, 0]))


def test_equal_ports_are_matched_consistently() -> None:
    ranks = np.arange(4)
    src = np.concatenate([ranks, ranks, np.full(4, 4), np.full(4, 5)])
    dst = np.concatenate([np.full(4, 4), np.full(4, 5), ranks, ranks])
    net = network(Topology("two", 4, ("a", "b"), src, dst, np.ones(16), np.full(16, 5.0)), range(4))
    assert net.nlinks == 24
    p = np.array([1, 2, 3, 0])
    assert keeps(net, p, link_image(net, p))
    assert len(automorphisms(net, [])) == 24


def test_work_budget_and_limit() -> None:
    net = network_of("star:8")
    assert len(automorphisms(net, [], limit=5)) == 5
    assert len(automorphisms(net, [], budget_s=0.0)) == 1
    assert automorphisms(network(load("star:8"), [3]), [])[0].tolist() == [0]


def test_list_reaches_every_image() -> None:
    net = network_of("gb200-nvl72")
    assert {int(p[0]) for p in automorphisms(net, [range(72)], limit=200)} == set(range(72))


@settings(max_examples=40)
@given(st.integers(2, 7), st.data())
def test_random_graphs(n: int, data: st.DataObject) -> None:
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    chosen = data.draw(st.lists(st.sampled_from(pairs), unique=True, min_size=1))
    rates = data.draw(st.lists(st.sampled_from([1.0, 2.0]), min_size=len(chosen), max_size=len(chosen)))
    src, dst = np.array([a for a, _ in chosen]), np.array([b for _, b in chosen])
    net = network(Topology("g", n, (), src, dst, np.ones(len(src)), np.array(rates)), range(n))
    permutations_found = automorphisms(net, [range(n)])
    shuffle = np.array(data.draw(st.permutations(range(n))))
    twin = network(Topology("g", n, (), shuffle[src], shuffle[dst], np.ones(len(src)), np.array(rates)), range(n))
    assert len(permutations_found) == len(automorphisms(twin, [range(n)]))
    for p in permutations_found[:10]:
        assert keeps(net, p, link_image(net, p))
    group = free_subgroup(permutations_found, range(n))
    assert n % len(group) == 0
