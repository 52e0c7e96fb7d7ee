"""Tests of large networks through switches, of which only some paths are links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.topologies.few_paths import bypassed, fabrics, few_paths, numbers_in
from tests.topologies.importers.simulators import rails
from tests.topologies.importers.test_importers import read
from topologies.arrays import flags_of, strongly_connected
from topologies.load import load
from topologies.network import Network, network, subnetwork
from topologies.paths import MOST_PATHS, Paths
from topologies.topology import Topology

FABRICS = fabrics()


def both_networks(topology: Topology, paths: Paths = Paths.LEVELS) -> tuple[Network, Network]:
    """Return the network with a link for each path, and that with a link for some."""
    whole = network(replace(topology), range(topology.nranks))
    with few_paths():
        return whole, network(replace(topology), range(topology.nranks), paths=paths)


def described(net: Network) -> list[tuple[object, ...]]:
    """Return each link as its ends, figures and the names of its resources."""
    return [
        (a, b, us, gbs, tuple(sorted(net.resource_names[i] for i in net.uses(link))))
        for link, (a, b, us, gbs) in enumerate(
            zip(net.src.tolist(), net.dst.tolist(), net.alpha_us.tolist(), net.bandwidth_gbs.tolist(), strict=True)
        )
    ]


@pytest.mark.parametrize("name", FABRICS)
@pytest.mark.parametrize("paths", [Paths.LEVELS, Paths.NODES])
def test_some_paths_are_links_and_join_all_ranks(name: str, paths: Paths) -> None:
    whole, part = both_networks(FABRICS[name], paths)
    assert whole.switch_graph is None
    assert part.switch_graph is not None
    assert 0 < part.nlinks < whole.nlinks
    assert set(described(part)) <= set(described(whole))
    assert strongly_connected(part.nranks, part.src, part.dst)


@pytest.mark.parametrize("name", FABRICS)
def test_links_stay_in_a_node_or_join_the_same_place(name: str) -> None:
    topology = FABRICS[name]
    _, part = both_networks(topology, Paths.NODES)
    size = int((topology.nodes == 0).sum())
    a, b = part.src, part.dst
    assert ((topology.nodes[a] == topology.nodes[b]) | (a % size == b % size)).all()
    _, fewer = both_networks(topology)
    assert set(described(fewer)) <= set(described(part))


@pytest.mark.parametrize("name", FABRICS)
def test_the_graph_has_every_path(name: str) -> None:
    """Check sets of ranks and resources drawn at random: what parts no path in the graph parts no link of the whole."""
    whole, part = both_networks(FABRICS[name])
    graph = part.switch_graph
    assert graph is not None
    number, rng = numbers_in(whole, part), np.random.default_rng(0)
    used = np.zeros((whole.nlinks, whole.nresources), dtype=bool)
    used[whole.link_of_use, whole.uses_idx] = True
    parted = 0
    for trial in range(300):
        group = rng.integers(0, rng.integers(2, 5), whole.nranks) if trial % 2 else (FABRICS[name].nodes % 2)
        chosen = rng.random(part.nresources) < rng.choice([0.5, 0.8, 1.0])
        crossing = group[whole.src] != group[whole.dst]
        covered = used[:, number[chosen]].any(axis=1)
        if not graph.joins(group, graph.using(chosen)):
            parted += crossing.any()
            assert covered[crossing].all()
            least_us = graph.least_alpha_us(graph.using(chosen))
            assert not crossing.any() or least_us <= whole.alpha_us[crossing].min()
    assert parted


def test_a_path_beside_the_links_is_seen() -> None:
    """Check two nodes: the links between them use 20 GB/s, and other paths 200 GB/s more."""
    whole, part = both_networks(bypassed())
    graph = part.switch_graph
    assert graph is not None
    out = part.src < 2
    narrow = flags_of(part.nresources, [part.resource_names.index(name) for name in ("0→r", "1→s")])
    crossing = out & (part.dst >= 2)
    assert all(narrow[part.uses(link)].any() for link in np.flatnonzero(crossing).tolist())
    nodes = np.array([0, 0, 1, 1])
    assert graph.joins(nodes, graph.using(narrow))
    assert graph.joins(np.array([0, 0, -1, -1]), graph.using(narrow))
    assert not graph.joins(nodes, flags_of(len(graph.src), np.flatnonzero(graph.dst >= 4 + 2)))
    assert whole.nlinks == part.nlinks + 4


def test_direct_links_stay_beside_better_paths() -> None:
    """Check two nodes whose ranks have a switch and a slower link: the graph has no direct links, so they stay."""
    topology = FABRICS["planes"]
    slow = replace(
        topology,
        link_src=np.append(topology.link_src, [0, 1]),
        link_dst=np.append(topology.link_dst, [1, 0]),
        alpha_us=np.append(topology.alpha_us, [9.0, 9.0]),
        bandwidth_gbs=np.append(topology.bandwidth_gbs, [1.0, 1.0]),
        link_kind=np.append(topology.link_kind, topology.link_kind[:2]),
    )
    _, part = both_networks(slow)
    assert {"0→1", "1→0"} <= set(part.resource_names)


def test_small_networks_are_built_once() -> None:
    topology = load("dgx-a100")
    held = network(topology, range(8))
    assert all(network(topology, range(8), paths=paths) is held for paths in Paths)


@pytest.mark.parametrize("name", FABRICS)
def test_ranks_of_a_larger_network(name: str) -> None:
    """Check that a smaller network has the paths among its ranks, in another order of these, and no others."""
    topology = FABRICS[name]
    _, part = both_networks(topology)
    chosen = np.random.default_rng(1).permutation(topology.nranks)[: topology.nranks - 1]
    smaller, links = subnetwork(part, chosen)
    graph, larger = smaller.switch_graph, part.switch_graph
    assert graph is not None
    assert larger is not None
    assert np.array_equal(smaller.alpha_us, part.alpha_us[links])
    rows = {
        (a, b, tuple(smaller.resource_names[i] for i in graph.uses_idx[graph.uses_ptr[e] : graph.uses_ptr[e + 1]]))
        for e, (a, b) in enumerate(zip(graph.src.tolist(), graph.dst.tolist(), strict=True))
    }
    vertex = dict(zip([*chosen.tolist(), *range(larger.nranks, larger.nvertices)], range(graph.nvertices), strict=True))
    expected = {
        (
            vertex[a],
            vertex[b],
            tuple(
                part.resource_names[i]
                for i in larger.uses_idx[larger.uses_ptr[e] : larger.uses_ptr[e + 1]]
                if part.resource_names[i] in smaller.resource_names
            ),
        )
        for e, (a, b) in enumerate(zip(larger.src.tolist(), larger.dst.tolist(), strict=True))
        if a in vertex and b in vertex
    }
    assert rows == expected


def test_small_and_irregular_networks_have_all_paths() -> None:
    topology = load("dgx-h100:4")
    assert network(topology, range(32), paths=Paths.LEVELS).switch_graph is None
    with few_paths():
        assert network(load("dgx-a100"), range(8), paths=Paths.LEVELS).switch_graph is None  # One level.
        apart = [0, 1, 2, 5]  # Nodes of two, and of one each at different places, which links would not join.
        assert network(replace(FABRICS["planes"]), [0, 3], paths=Paths.LEVELS).switch_graph is None
        assert network(replace(FABRICS["planes"]), apart, paths=Paths.LEVELS).switch_graph is not None
        # Places of all pairs that paths join differ in one level.
        assert network(load("dgx-h100:2"), range(16), paths=Paths.LEVELS).switch_graph is None


def test_a_large_fabric_lists_few_paths() -> None:
    """Check links of a GPU: to 7 of its server, to its rail, and in a larger fabric to its rail's segment only."""
    topology = read(rails(128, segment=32)).topology
    assert network(topology, range(1024), paths=Paths.LEVELS).nlinks == 1024 * (7 + 127) < MOST_PATHS
    assert network(topology, range(0, 1024, 8), paths=Paths.LEVELS).switch_graph is None
    larger = read(rails(256, segment=32)).topology
    assert network(larger, range(2048), paths=Paths.LEVELS).nlinks == 2048 * (7 + 31 + 7)
    assert network(larger, range(2048), paths=Paths.NODES).nlinks == 2048 * (7 + 255)
