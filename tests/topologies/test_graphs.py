"""Tests of conversion from and to networkx, and comparison with networkx's flows, cuts and isomorphisms."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from synth import InputError, synthesize
from synth.bounds.prove import prove
from synth.model.problem import make_problem
from topologies.graphs import FORMS, from_networkx, graph_text, read_graph
from topologies.load import load
from topologies.machines import machines
from topologies.network import network
from topologies.symmetry.automorphism import automorphisms
from topologies.text.writer import to_toml
from topologies.topology import Limit

SPECS = [*machines(), "dgx-a100:2", "ndv2:2", "fattree:4", "torus:3x3"]


@pytest.mark.parametrize("spec", SPECS)
def test_conversion_to_networkx_and_back(spec: str, tmp_path: Path) -> None:
    topology = replace(load(spec), costs=None, platform="p5.48xlarge")  # Graphs do not state costs.
    assert to_toml(from_networkx(topology.to_networkx())) == to_toml(topology)
    for form in FORMS if topology.nlinks < 500 else FORMS[:1]:
        (path := tmp_path / f"net.{form}").write_text(graph_text(topology, form))
        assert to_toml(load(path)) == to_toml(topology)


def test_a_foreign_graph() -> None:
    """Check undirected and parallel edges, ranks by `rank`, and limits by name."""
    graph = nx.MultiGraph(name="mine", limits={"nic": 10})
    graph.add_node("b", rank=1)
    graph.add_node("a", rank=0)
    graph.add_node("hub", kind="switch")
    graph.add_edge("a", "b", gbs=20, alpha_us=1)
    graph.add_edge("a", "b", gbs=5, alpha_us=2)
    graph.add_edge("b", "hub", gbs=50, alpha_us=0.5, limit="nic")
    topology = from_networkx(graph)
    assert (topology.nranks, topology.switches, topology.nlinks) == (2, ("hub",), 4)
    assert topology.bandwidth_gbs.tolist() == [25, 25, 50, 50]
    assert topology.alpha_us.tolist() == [2, 2, 0.5, 0.5]
    assert [(limit.name, limit.bandwidth_gbs, len(limit.links)) for limit in topology.limits] == [("nic", 10, 2)]
    answer = synthesize("allgather", nx.cycle_graph(5), size="1M", target="none")
    assert answer.gap < 1.1


@pytest.mark.parametrize(
    ("figures", "right"),
    [
        ({"bandwidth": 5}, "gbs (GB/s) or alpha_us (µs)"),
        ({"bandwidth": np.float32(5), "alpha_us": 1}, "gbs (GB/s)"),
        ({"gbs": 5, "latency": 1}, "alpha_us (µs)"),
        ({"gbs": 5, "alpha_us": 1, "weight": 3}, ""),
        ({"color": "red"}, ""),
    ],
)
def test_a_number_that_may_be_meant_as_a_missing_figure_is_refused(figures: dict[str, object], right: str) -> None:
    """Check that no figure is assumed for edges that have a number under an unknown name."""
    graph = nx.Graph()
    graph.add_edge(0, 1, **figures)
    if right:
        with pytest.raises(InputError, match=rf"is not known; it must be {re.escape(right)}$"):
            from_networkx(graph)
    else:
        assert from_networkx(graph).nlinks == 2


@pytest.mark.parametrize("kind", [int, float, np.int64, np.uint8, np.float32])
def test_numbers_of_numpy_are_numbers(kind: type) -> None:
    """Check that figures of links, limits and devices may be NumPy's, as those of arrays are, and bools may not."""
    graph = nx.Graph(name="mine", limits={"nic": kind(10)}, sms=kind(80))
    graph.add_edge(0, 1, gbs=kind(20), alpha_us=kind(1), limit="nic")
    topology = from_networkx(graph)
    assert (topology.bandwidth_gbs.tolist(), topology.alpha_us.tolist()) == ([20, 20], [1, 1])
    assert topology.limits[0].bandwidth_gbs == 10
    assert topology.sms == (80 if issubclass(kind, int | np.integer) else 0)
    graph.edges[0, 1]["gbs"] = np.bool_(True)
    with pytest.raises(InputError, match="must be a number"):
        from_networkx(graph)


def test_ranks_have_the_order_in_which_nodes_were_added() -> None:
    graph = nx.DiGraph([(2, 0)])
    topology = from_networkx(graph)
    assert (topology.link_src.tolist(), topology.link_dst.tolist()) == ([0], [1])


@pytest.mark.parametrize("value", ["Linux x86", "P5", 7, ["p5"]])
def test_foreign_values_of_our_attributes_are_ignored(value: object) -> None:
    graph = nx.path_graph(3)
    graph.graph |= {"platform": value, "gcn": value, "sms": str(value), "compute_capability": str(value)}
    topology = from_networkx(graph, "theirs")
    assert (topology.platform, topology.gcn, topology.sms, topology.compute_capability) == ("", "", 0, 0)
    graph.graph |= {"platform": "p5.48xlarge", "gcn": "gfx942"}
    topology = from_networkx(graph, "ours")
    assert (topology.platform, topology.gcn) == ("p5.48xlarge", "gfx942")


def test_gml_of_other_programs() -> None:
    """Check repeated labels, repeated edges and missing rates."""
    text = (
        'Creator "someone"\ngraph [\n  node [ id 0 label "x" ]\n  node [ id 1 label "x" ]\n'
        "  edge [ source 0 target 1 ]\n  edge [ source 0 target 1 ]\n]\n"
    )
    machine = read_graph(text, "zoo.gml")
    assert machine.topology.bandwidth_gbs.tolist() == [100, 100]
    assert len(machine.remarks) == 2
    assert machine.topology.alpha_assumed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph [ node [ id 0 ", "it must be GraphML"),
        ('{"nodes": [{"id": 0}], "links": [{"source": 0}]}', "it must be GraphML"),
        ('{"nodes": [], "links": []}', "no rank"),
        ('{"nodes": [{"id": 0, "kind": "router"}], "links": []}', "rank or switch"),
        ("<!DOCTYPE x><graphml/>", "document type"),
        ("<graphml", "it must be GraphML"),
        (json.dumps(nx.node_link_data(nx.Graph([(0, 1, {"gbs": "x"})]), edges="links")), "gbs 'x'"),
        (json.dumps(nx.node_link_data(nx.Graph([(0, 1, {"gbs": float("inf")})]), edges="links")), "must be a number"),
        (json.dumps(nx.node_link_data(nx.Graph([(0, 1, {"limit": "n"})]), edges="links")), "limits: n None"),
    ],
)
def test_graphs_that_are_no_topologies_are_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_graph(text, "net")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_limits_whose_names_contain_commas_survive_a_graph() -> None:
    names = ('["c"]', "a,b", "nic")
    limits = tuple(Limit(name, np.arange(links), 10.0) for links, name in enumerate(names, 1))
    topology = replace(load("ring:3"), limits=limits)
    assert to_toml(from_networkx(topology.to_networkx())) == to_toml(topology)
    assert [limit.name for limit in read_graph(graph_text(topology, "graphml"), "net").topology.limits] == list(names)


@pytest.mark.parametrize("limit", ['["a", 1]', '["a"'])
def test_wrong_lists_of_limits_are_refused(limit: str) -> None:
    with pytest.raises(InputError, match=r"edge 0 to 1: .* list of (limits' )?names"):
        from_networkx(nx.Graph([(0, 1, {"limit": limit})]))


@pytest.mark.parametrize("seed", range(6))
def test_bounds_by_cuts_equal_max_flow(seed: int) -> None:
    """Check the bound of a large broadcast against the smallest maximal flow from its root."""
    rng = np.random.default_rng(seed)
    graph = nx.gnm_random_graph(7, 14, seed=seed)
    graph.add_edges_from(nx.path_graph(7).edges)
    for a, b in graph.edges:
        graph.edges[a, b].update(gbs=float(rng.choice([10, 25, 50])), alpha_us=0.5)
    topology = from_networkx(graph)
    flow = min(nx.maximum_flow_value(topology.to_networkx(), 0, sink, capacity="gbs") for sink in range(1, 7))
    problem = make_problem(topology, "broadcast", list(range(7)), [], root=0)
    size = 1 << 40
    us = size / flow / 1000
    bound_us = prove(problem, max_flow=True).at(size)[0]
    assert bound_us == pytest.approx(us, rel=1e-6)


@pytest.mark.parametrize("spec", ["dgx1", "mesh:2x3", "hypercube:3", "mi250"])
def test_symmetries_are_isomorphisms(spec: str) -> None:
    """Check that the generators' orbits equal those of networkx's isomorphisms."""
    topology = load(spec)
    graph, ranks = topology.to_networkx(), range(topology.nranks)
    reached = nx.Graph()
    reached.add_nodes_from(ranks)
    for carried in automorphisms(network(topology, ranks), []):
        renamed = nx.relabel_nodes(graph, dict(enumerate(carried.tolist())))
        assert {(a, b): graph.edges[a, b]["gbs"] for a, b in graph.edges} == {
            (a, b): renamed.edges[a, b]["gbs"] for a, b in renamed.edges
        }
        reached.add_edges_from(enumerate(carried.tolist()))
    orbits = {frozenset(part) for part in nx.connected_components(reached)}

    def carries(a: int, b: int) -> bool:
        marked = [nx.relabel_nodes(graph, {}) for _ in range(2)]
        for copy, rank in zip(marked, (a, b), strict=True):
            nx.set_node_attributes(copy, {node: node == rank for node in copy}, "mark")
        return bool(
            nx.isomorphism.DiGraphMatcher(
                *marked, lambda x, y: x["mark"] == y["mark"], lambda x, y: x["gbs"] == y["gbs"]
            ).is_isomorphic()
        )

    first = {rank: next(candidate for candidate in ranks if carries(candidate, rank)) for rank in ranks}
    assert orbits == {frozenset(r for r in ranks if first[r] == first[rank]) for rank in ranks}


def test_edges_that_are_no_links_are_refused_with_what_is_wrong() -> None:
    for edges, message in (
        ([(0, 1, {}), (1, 1, {})], "graph: edge 1 to 1: leads to its own node"),
        ([(0, 1, {"alpha_us": 1}), (1, 2, {})], "graph: edge 1 to 2: has no alpha_us, which other edges have"),
    ):
        with pytest.raises(InputError, match=message):
            from_networkx(nx.Graph(edges))


def test_an_assumed_bandwidth_stands_in_the_summary() -> None:
    assert from_networkx(nx.cycle_graph(5)).summary == "5 ranks, 50 GB/s a link assumed"
    assert from_networkx(nx.Graph([(0, 1, {"gbs": 9})])).summary == ""
