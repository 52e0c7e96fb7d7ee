"""Tests of translations: they keep the network and fit its capacities, and no larger group of them exists."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.topologies.importers.simulators import rails
from topologies.importers.simulators.ns3 import read_ns3
from topologies.load import load
from topologies.network import Network, network
from topologies.symmetry import translations as module
from topologies.symmetry.refinement import link_image
from topologies.symmetry.translations import (
    Translations,
    element_of_rank,
    find_translations,
    orbits,
    representatives,
    translate,
    translate_links,
)
from topologies.topology import Limit, Topology


def network_of(spec: str | Topology) -> Network:
    t = load(spec) if isinstance(spec, str) else spec
    return network(t, range(t.nranks))


def products(translations: Translations) -> list[tuple[int, ...]]:
    return list(product(*(range(e) for _, e in translations)))


def order(translations: Translations) -> int:
    return prod(e for _, e in translations)


def plain(n: int, stride: int, extent: int) -> list[int]:
    """Return the translation as a permutation, computed digit by digit."""
    return [(r // (stride * extent) * extent + (r // stride + 1) % extent) * stride + r % stride for r in range(n)]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("ring:7", ((1, 7),)),
        ("ring:24", ((1, 24),)),
        ("torus:4x4", ((1, 4), (4, 4))),
        ("torus:3x5x4", ((1, 4), (4, 5), (20, 3))),
        ("torus:2x7", ((1, 7), (7, 2))),
        ("hypercube:4", ((1, 2), (2, 2), (4, 2), (8, 2))),
        ("full:12", ((1, 12),)),
        ("star:6", ((1, 6),)),
        ("dgx-h100:4", ((1, 8), (8, 4))),
        ("dgx-a100:3", ((1, 8), (8, 3))),
        ("ndv2:4", ((8, 4),)),
        ("mi250:3", ((8, 2), (16, 3))),
        ("gb200-nvl72", ((1, 72),)),
        ("line:6", ()),
        ("mesh:3x4", ()),
        ("mesh:5x2x3", ((3, 2),)),
        ("mesh:2x3", ((3, 2),)),
    ],
)
def test_expected_translations(spec: str, expected: Translations) -> None:
    assert find_translations(network_of(spec)) == expected


def test_translations_keep_the_network_and_its_capacities(any_spec: str) -> None:
    net = network_of(any_spec)
    translations = find_translations(net)
    ranks, links = np.arange(net.nranks), np.arange(net.nlinks)
    for position, (stride, extent) in enumerate(translations):
        shifts = [int(i == position) for i in range(len(translations))]
        p = translate(translations, ranks, shifts)
        assert p.tolist() == plain(net.nranks, stride, extent)
        assert sorted(translate_links(net, translations, links, shifts)) == links.tolist()
        link_image(net, p)  # Raises if p is no automorphism.
    if translations:
        assert_orbits(net, translations)


def assert_orbits(net: Network, translations: Translations) -> None:
    """Check the orbits against all translates of all links."""
    classes = orbits(net, translations)
    all_shifts = products(translations)
    all_shifts = (
        random.Random(0).sample(all_shifts, min(len(all_shifts), 24))
        if net.nlinks * len(all_shifts) > 50_000
        else all_shifts
    )
    translates = np.array([translate_links(net, translations, np.arange(net.nlinks), shifts) for shifts in all_shifts])
    assert (classes.link_class[translates] == classes.link_class).all()
    assert (np.bincount(classes.link_class) == order(translations)).all()
    assert len({tuple(column) for column in translates.T.tolist()}) == net.nlinks  # No two links have the same images.
    base = set(representatives(translations, net.nranks).tolist())
    assert set(net.src[classes.link_first].tolist()) <= base
    assert (classes.link_class[classes.link_first] == np.arange(len(classes.link_first))).all()

    uses = {tuple(row) for row in classes.uses.tolist()}
    kinds_seen = set()
    for resource in range(net.nresources):
        kind = int(classes.resource_class[resource])
        users = net.link_of_use[net.uses_idx == resource]
        counts = Counter(classes.link_class[users].tolist())
        assert set(counts.values()) == {int(classes.times[kind])}
        assert {c for c, k in uses if k == kind} == set(counts)
        assert net.capacity_gbs[classes.resource_first[kind]] == net.capacity_gbs[resource]
        room = net.capacity_gbs[resource] * (1 + 1e-9) / classes.times[kind]
        assert (net.bandwidth_gbs[users] <= room).all()
        kinds_seen.add(kind)
        if resource > 40:  # Forty resources suffice.
            break
    if net.nresources <= 40:
        assert kinds_seen == set(range(len(classes.resource_first)))


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32))
def test_translations_of_digits_act_freely_and_commute(seed: int) -> None:
    rng = random.Random(seed)
    parts = [rng.choice((1, 2, 3, 4)) for _ in range(rng.choice((1, 3, 5)))]
    strides = np.cumprod([1, *parts]).tolist()
    n = strides[-1]
    translations = tuple((s, e) for s, e in zip(strides, parts, strict=False) if e > 1 and rng.random() < 0.7)
    ranks = np.arange(n)
    translates = np.array([translate(translations, ranks, shifts) for shifts in products(translations)])
    assert all(len(set(row.tolist())) == n for row in translates)
    assert all(len(set(column.tolist())) == order(translations) for column in translates.T)
    base = representatives(translations, n)
    assert len(base) * order(translations) == n
    assert set(base.tolist()) == set(translates.min(axis=0).tolist())
    number = element_of_rank(translations, ranks)
    for rank in ranks.tolist():
        shifts, remainder = [], int(number[rank])
        for _, e in translations:
            remainder, digit = divmod(remainder, e)
            shifts.append(digit)
        assert translate(translations, np.array([rank]), [-d for d in shifts])[0] in base
        there_and_back = translate(
            translations, translate(translations, np.array([rank]), shifts), [-d for d in shifts]
        )
        assert there_and_back[0] == rank


def circulant(rng: random.Random) -> Topology:
    """Return random links on up to 16 ranks that some translations keep, sometimes with shared limits or a fault."""
    n = rng.choice((4, 6, 8, 9, 12, 16))
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    chosen = []
    span = 1
    while span < n and rng.random() < 0.8:
        s = rng.choice([d for d in divisors if d % span == 0])
        if s < n:
            e = rng.choice([d for d in divisors if d > 1 and n % (s * d) == 0])
            chosen.append((s, e))
            span = s * e
    translations = tuple(chosen)
    rates = {}
    limits: list[tuple[set[tuple[int, int]], float]] = []
    for _ in range(rng.randint(1, 4)):
        u, v = rng.sample(range(n), 2)
        orbit = [tuple(translate(translations, np.array([u, v]), shifts).tolist()) for shifts in products(translations)]
        rates.update(dict.fromkeys(orbit, rng.choice((10.0, 20.0))))
        if rng.random() < 0.4:
            limited_pairs = orbit if rng.random() < 0.7 else orbit[: rng.randint(1, len(orbit))]
            limits.append((set(limited_pairs), rng.choice((10.0, 20.0, 40.0, 1000.0))))
    if rng.random() < 0.3:  # A missing link.
        rates.pop(rng.choice(sorted(rates)))
    if not rates:
        rates = {(0, 1): 10.0}
    pairs = sorted(rates)
    src, dst = np.array(pairs).T
    shared = [(np.array([i for i, p in enumerate(pairs) if p in members]), gbs) for members, gbs in limits]
    return Topology(
        "circulant", n, (), src, dst, np.ones(len(pairs)), np.array([rates[p] for p in pairs]),
        tuple(Limit(f"l{i}", links, gbs) for i, (links, gbs) in enumerate(shared) if len(links)),
        nodes=np.zeros(n, dtype=np.int64),
    )  # fmt: skip


def keeps(net: Network, p: list[int]) -> bool:
    """Return whether a permutation keeps the network, by plain sets; these networks have one link a pair."""
    links = {(u, v): i for i, (u, v) in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True))}
    image_links = [links.get((p[u], p[v]), -1) for u, v in links]
    if -1 in image_links or any(net.bandwidth_gbs[i] != net.bandwidth_gbs[j] for i, j in enumerate(image_links)):
        return False
    members: list[set[int]] = [set() for _ in range(net.nresources)]
    for link in range(net.nlinks):
        for r in net.uses(link).tolist():
            members[r].add(link)
    before = Counter((frozenset(m), c) for m, c in zip(members, net.capacity_gbs, strict=True))
    return before == Counter(
        (frozenset(image_links[i] for i in m), c) for m, c in zip(members, net.capacity_gbs, strict=True)
    )


def has_room(net: Network, translations: Translations) -> bool:
    """Return whether each link class uses each resource evenly and within its capacity, from all translates."""
    kind = np.min(
        [translate_links(net, translations, np.arange(net.nlinks), shifts) for shifts in products(translations)], axis=0
    )
    for r in range(net.nresources):
        users = [link for link in range(net.nlinks) if r in net.uses(link)]
        counts = Counter(kind[users].tolist())
        if len(set(counts.values())) != 1:
            return False
        if any(counts[k] * net.bandwidth_gbs[k] > net.capacity_gbs[r] for k in counts):
            return False
    return True


@settings(max_examples=80, derandomize=True)
@given(st.integers(0, 2**32))
def test_no_chain_of_translations_is_larger(seed: int) -> None:
    net = network_of(circulant(random.Random(seed)))
    n = net.nranks
    translations = find_translations(net)
    assert all(keeps(net, plain(n, s, e)) for s, e in translations)
    assert not translations or has_room(net, translations)
    ends = [1, *(s * e for s, e in translations)]
    assert all(s % end == 0 for (s, _), end in zip(translations, ends, strict=False))
    divisors = [d for d in range(1, n + 1) if n % d == 0]
    edges = [(s, e) for s in divisors for e in divisors if e > 1 and n % (s * e) == 0]
    good = [edge for edge in edges if keeps(net, plain(n, *edge)) and has_room(net, (edge,))]
    chains: list[Translations] = [()]
    for chain in chains:
        span = chain[-1][0] * chain[-1][1] if chain else 1
        chains += [(*chain, edge) for edge in good if edge[0] % span == 0]
    assert order(translations) == max(order(chain) for chain in chains if not chain or has_room(net, chain))


def altered(spec: str, link: int, **figures: float) -> Topology:
    """Return a topology with other figures for one link, or without the link if no figures are given."""
    t = load(spec)
    columns = {c: getattr(t, c).copy() for c in ("link_src", "link_dst", "alpha_us", "bandwidth_gbs")}
    for name, figure in figures.items():
        columns[name][link] = figure
    if not figures:
        columns = {name: np.delete(column, link) for name, column in columns.items()}
    return replace(t, **columns)


@pytest.mark.parametrize("spec", ["ring:8", "torus:4x4", "hypercube:3", "full:6", "star:5"])
@pytest.mark.parametrize("figures", [{}, {"bandwidth_gbs": 49.0}, {"alpha_us": 0.8}])
def test_an_altered_link_breaks_all_translations(spec: str, figures: dict[str, float]) -> None:
    """Check groups that move every link, so that an altered link leaves no translation."""
    assert find_translations(network_of(altered(spec, 3, **figures))) == ()


def test_a_slower_dimension_leaves_the_others() -> None:
    t = load("torus:4x5")
    gbs = t.bandwidth_gbs.copy()
    row = (t.link_src // 5 == 0) & (t.link_dst // 5 == 0)
    gbs[row] = 10.0  # The links of one row, which leaves only translations along the rows.
    assert find_translations(network_of(replace(t, bandwidth_gbs=gbs))) == ((1, 5),)


def nic_of_two(spec: str, capacity: float) -> Topology:
    """Return a topology in which ranks 2i and 2i+1 leave their pair through one NIC."""
    t = load(spec)
    leaves = t.link_src // 2 != t.link_dst // 2
    limits = [Limit(f"nic{i}", np.flatnonzero(leaves & (t.link_src // 2 == i)), capacity) for i in range(t.nranks // 2)]
    return replace(t, limits=tuple(limits))


@pytest.mark.parametrize(
    ("capacity", "expected", "times"),
    [(50.0, 4, {1}), (75.0, 4, {1}), (100.0, 8, {1, 2}), (125.0, 8, {1, 2})],
)
def test_copies_of_a_send_fit_a_shared_nic(capacity: float, expected: int, times: set[int]) -> None:
    net = network_of(nic_of_two("full:8", capacity))
    translations = find_translations(net)
    assert order(translations) == expected
    assert set(orbits(net, translations).times.tolist()) == times
    if expected == 4:
        with pytest.raises(ValueError, match="crowd"):
            orbits(net, ((1, 2), (2, 4)))


def test_a_fitting_group_is_found_among_many_that_do_not_fit() -> None:
    """Check a network with 32 groups of order 128 that exchange ranks behind one NIC."""
    assert order(find_translations(network_of(nic_of_two("full:128", 50.0)))) == 64


def test_nodes_below_an_oversubscribed_spine_are_translated_in_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check 16 servers on two rails of 400 GB/s, whose leaves have 300 GB/s to the spine: 12 of 16 fit.

    The look at a few links refuses all groups of all servers, so the limit on exact refusals is not met.
    """
    topology = read_ns3(rails(16, 2, 1, 16, 6), "fabric").topology
    monkeypatch.setattr(module, "TUNING", replace(module.TUNING, crowded_groups=1))
    net = network_of(topology)
    assert order(find_translations(net)) == 2 * 8
    monkeypatch.setattr(module._Candidates, "refuses_sample", lambda *_: False)
    assert find_translations(net) == ()
    monkeypatch.setattr(module, "TUNING", replace(module.TUNING, crowded_groups=1000))
    assert order(find_translations(net)) == 2 * 8


@pytest.mark.parametrize("spec", ["torus:4x4", "ring:24", "mesh:3x4", "dgx1", "dgx-h100:4", "fattree:4", "hypercube:4"])
def test_the_look_at_a_few_links_refuses_what_the_exact_check_refuses(spec: str) -> None:
    """Check all chains of one or two translations, on the network and on one with a NIC for every two ranks."""
    for topology in (load(spec), nic_of_two(spec, 50.0)):
        net = network_of(topology)
        candidates = module._Candidates(module._TranslatedPairs(net))
        singles = module.single_translations(net.nranks)
        chains = [(edge,) for edge in singles]
        chains += [(a, b) for a in singles for b in singles if b[0] % (a[0] * a[1]) == 0]
        refused = [chain for chain in chains if candidates.refuses_sample(chain)]
        assert not any(module.are_kept(net, chain) for chain in refused)
        assert len(refused) < len(chains) or not any(module.are_kept(net, chain) for chain in chains)


def test_unequal_use_of_a_resource_breaks_translations() -> None:
    """Check a limit over four links of one class and two of another."""
    t = load("ring:4")
    ahead = (t.link_dst - t.link_src) % 4 == 1
    limits = [Limit(f"l{i}", np.flatnonzero(ahead | (t.link_src % 2 == i)), 1000.0) for i in range(2)]
    assert find_translations(network_of(replace(t, limits=tuple(limits)))) == ((2, 2),)


def test_a_limit_over_everything_is_shared_by_all_copies() -> None:
    t = load("ring:6,bw=10")
    net = network_of(replace(t, limits=(Limit("power", np.arange(t.nlinks), 60.0),)))
    assert find_translations(net) == ((1, 6),)
    classes = orbits(net, ((1, 6),))
    limit = classes.resource_class[net.resource_names.index("power")]
    assert classes.times[limit] == 6
    net = network_of(replace(t, limits=(Limit("power", np.arange(t.nlinks), 20.0),)))
    assert find_translations(net) == ((3, 2),)  # There is room for two copies of a send.


def test_translations_that_do_not_hold_have_no_orbits() -> None:
    net = network_of("mesh:3x4")
    with pytest.raises(ValueError, match="do not keep"):
        orbits(net, ((1, 4),))
    with pytest.raises(ValueError, match="do not keep"):
        translate_links(net, ((1, 4),), np.arange(net.nlinks), (1,))


def test_ranks_without_links_have_no_translations() -> None:
    t = load("ring:8")
    assert find_translations(network(t, [0, 4])) == ()
    assert find_translations(network(t, [3])) == ()


def test_translations_follow_the_order_of_the_group() -> None:
    t = load("torus:4x4")
    assert find_translations(network(t, [4, 5, 6, 7])) == ((1, 4),)
    assert find_translations(network(t, [4, 6, 5, 7])) == ((1, 2), (2, 2))  # The ring is now 0, 2, 1, 3.
    t = load("ring:5")
    assert find_translations(network(t, [0, 2, 4, 1, 3])) == ((1, 5),)
    assert find_translations(network(t, [0, 2, 1, 3, 4])) == ()
