"""The worst of all cuts as a fraction: against every set, and against the flows of another library."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from synth.bounds.check import recompute
from synth.bounds.cuts.worst_cut import WorstCuts, decimal_fraction, worst_cuts
from synth.bounds.prove import prove
from synth.bounds.search import DEFAULT
from synth.bounds.traffic import Traffic, capacities_out
from synth.bounds.witnesses.cut import Cut
from synth.model.problem import Problem, make_problem
from synth.symmetry.quotient import quotient_problem
from tests.random_problems import random_topology
from tests.synth.bounds.cases import SEEDS
from topologies.load import load
from topologies.topology import Topology

MOST = DEFAULT.max_flow_work


def worst(problem: Problem) -> tuple[Fraction, WorstCuts]:
    cuts = worst_cuts(problem, MOST)
    return cuts.cuts[-1].us_per_byte, cuts


@pytest.mark.parametrize(
    ("spec", "name", "us_per_byte"),
    [
        ("dgx1", "allgather", "7/1200000"),  # 7/8 of the message enters a GPU over 150 GB/s.
        ("dgx1", "broadcast", "1/150000"),
        ("dgx-a100:2", "allgather", "3/1040000"),  # 15/16 over 325 GB/s.
        ("dgx-a100:4", "reducescatter", "3/800000"),  # 3/4 over the 200 GB/s out of a node.
        ("mi250", "allgather", "7/2400000"),  # 14/16 over the 300 GB/s into two dies; no single die is as narrow.
        ("ndv2:2", "broadcast", "1/12500"),  # A limit: the one NIC of a node.
        ("torus:4x4", "allgather", "3/640000"),
    ],
)
def test_the_optimum_of_known_networks(spec: str, name: str, us_per_byte: str) -> None:
    ratio, cuts = worst(make_problem(load(spec), name))
    assert ratio == Fraction(us_per_byte)
    assert cuts.exact


@settings(max_examples=40, derandomize=True)
@given(SEEDS, st.sampled_from(["allgather", "reducescatter", "broadcast", "gather", "scatter", "reduce"]))
def test_no_set_of_ranks_is_a_worse_cut(seed: int, name: str) -> None:
    """Check against every set of ranks, on networks without switches or limits, where resources are links."""
    rng = random.Random(seed)
    topology = replace(random_topology(rng, 7), limits=())
    assume(not topology.switches)
    problem = make_problem(topology, name)
    net, n = problem.network, problem.nranks
    subsets = np.array([[bits >> r & 1 for r in range(n)] for bits in range(1, 2**n - 1)], dtype=bool)
    ratios = Traffic(problem).leaving(subsets) / capacities_out(net, subsets) / 1e3
    ratio, cuts = worst(problem)
    assert cuts.exact
    assert float(ratio) == pytest.approx(float(ratios[np.isfinite(ratios)].max()), rel=1e-12)


def arrives(topology: Topology, target: int, rate_gbs: Fraction, forth: bool) -> bool:
    """Return True if a rank can get `rate_gbs` from every other rank, by NetworkX's flow over links and limits.

    If `forth` is set, the rank sends that much to each of the others instead.
    """
    graph = nx.DiGraph()
    for i in range(topology.nlinks):
        last: object = ("link", i)
        graph.add_edge(int(topology.link_src[i]), last, capacity=decimal_fraction(float(topology.bandwidth_gbs[i])))
        for number, limit in enumerate(topology.limits):
            if i in limit.links.tolist():
                graph.add_edge(last, ("into", number))
                graph.add_edge(("into", number), ("out of", number), capacity=decimal_fraction(limit.bandwidth_gbs))
                last = ("out of", number)
        graph.add_edge(last, int(topology.link_dst[i]))
    graph = graph.reverse() if forth else graph
    sources = [rank for rank in range(topology.nranks) if rank != target]
    graph.add_edges_from(("source", rank, {"capacity": rate_gbs}) for rank in sources)
    return bool(nx.maximum_flow_value(graph, "source", target) == rate_gbs * len(sources))


@settings(max_examples=12, derandomize=True)
@given(SEEDS, st.booleans())
def test_cuts_through_switches_and_limits_are_those_of_other_flows(seed: int, forth: bool) -> None:
    """Check that the optimum is called exact only if no link has several limits, and then arrives, and no more does."""
    topology = random_topology(random.Random(seed), 5)
    limits = tuple(replace(limit, bandwidth_gbs=round(limit.bandwidth_gbs, 3)) for limit in topology.limits)
    topology = replace(topology, limits=limits)
    assume(all(limit.bandwidth_gbs > 0 for limit in limits))
    problem = make_problem(topology, "reducescatter" if forth else "allgather")
    ends = zip(topology.link_src.tolist(), topology.link_dst.tolist(), strict=True)
    names = {f"{topology.vertex_name(u)}→{topology.vertex_name(v)}" for u, v in ends}
    assume(names <= set(problem.network.resource_names))  # no link is left out
    ratio, cuts = worst(problem)
    limits_of_link = Counter(link for limit in limits for link in limit.links.tolist())
    assert cuts.exact == all(number == 1 for number in limits_of_link.values())
    assume(cuts.exact)
    rate_gbs = 1 / ratio / 1000 / topology.nranks
    assert all(arrives(topology, target, rate_gbs, forth) for target in range(topology.nranks))
    more_gbs = rate_gbs * Fraction(1001, 1000)
    assert not all(arrives(topology, target, more_gbs, forth) for target in range(topology.nranks))


@settings(max_examples=20, derandomize=True)
@given(SEEDS, st.sampled_from(["allgather", "reducescatter", "broadcast", "reduce"]))
def test_the_witness_proves_the_fraction(seed: int, name: str) -> None:
    """Check that the checker, which sees only ranks and resources, proves at least what the flows state."""
    problem = make_problem(random_topology(random.Random(seed)), name)
    for cut in worst_cuts(problem, MOST).cuts:
        members, resources = np.flatnonzero(cut.inside), cut.resources
        proves = recompute(problem, Cut(ranks=tuple(members.tolist()), resources=tuple(resources.tolist())))
        assert proves[1] >= float(cut.us_per_byte) * (1 - 1e-12)
    assert prove(problem).per_byte_us >= float(worst(problem)[0]) * (1 - 1e-12)


@pytest.mark.parametrize("name", ["allgather", "reducescatter"])
@pytest.mark.parametrize("spec", ["torus:4x3", "dgx-a100:4", "ndv2:2", "star:4"])
def test_a_quotient_has_the_cuts_of_the_whole(spec: str, name: str) -> None:
    folded = quotient_problem(load(spec), name)
    assert folded is not None
    assert worst(folded)[0] == worst(make_problem(load(spec), name))[0]
    assert worst(folded)[1].exact


def test_a_cut_that_is_not_the_optimum_is_not_called_exact() -> None:
    """Check ranks with different goals, unfinished work, and bandwidths of too many digits."""
    assert not worst_cuts(make_problem(load("dgx1"), "alltoall"), MOST).exact
    assert not worst_cuts(make_problem(load("dgx1"), "allreduce"), MOST).exact
    assert not worst_cuts(make_problem(load("dgx1"), "allgather"), 60).exact
    plain = load("ring:4")
    odd = replace(plain, bandwidth_gbs=np.sqrt(10.0 + np.arange(plain.nlinks)))
    ratio, cuts = worst(make_problem(odd, "allgather"))
    into = min(odd.bandwidth_gbs[odd.link_dst == rank].sum() for rank in range(4))
    assert not cuts.exact
    assert float(ratio) == pytest.approx(0.75 / into / 1e3, rel=1e-6)
    assert float(ratio) <= 0.75 / into / 1e3  # It is rounded so that it holds.
