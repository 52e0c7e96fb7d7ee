"""The worst cut by max-flow (ForestColl, section 4.2), as sets of local ranks."""

from __future__ import annotations

import numpy as np

from synth.collective import Floats
from synth.problem import Problem

_MOST_FLOWS = 400


def worst_cut(problem: Problem, start_us_per_byte: float) -> list[list[int]]:
    """Sets of ranks whose outward cut needs more µs per byte than `start_us_per_byte`, worst last.

    For each rank v: the bytes that v wants of each other rank are to flow to v in time t; if they cannot, the
    minimum cut is a worse one and gives the next t (Dinkelbach's iteration), until every rank is served.
    A reduction is the same on the reversed network: what a rank contributes must flow away from it.
    """
    import networkx as nx

    found: list[list[int]] = []
    us_per_byte = max(start_us_per_byte, 1e-12)
    flows = 0
    for inward in (True, False):
        wanted = _supplies(problem, inward)
        targets = np.flatnonzero(wanted.sum(axis=0) > 0)
        graph = _graph(problem, inward)
        nodes = range(problem.nranks)
        for target in targets.tolist():
            while flows < _MOST_FLOWS:
                flows += 1
                supply = wanted[:, target]
                for rank, need in enumerate(supply.tolist()):
                    graph.add_edge("all", rank, capacity=need)
                for _, _, data in graph.edges(data=True):
                    if "gbs" in data:
                        data["capacity"] = data["gbs"] * us_per_byte * 1e3
                value, (near, _) = nx.minimum_cut(graph, "all", target)
                if value >= supply.sum() * (1 - 1e-9):
                    break
                side = sorted(r for r in nodes if r in near)
                out = sum(
                    data["gbs"]
                    for u, v, data in graph.edges(data=True)
                    if "gbs" in data and u in near and v not in near
                )
                sent = float(sum(supply[r] for r in side if r < len(supply)))
                if not out or sent / out / 1e3 <= us_per_byte * (1 + 1e-12):
                    break
                us_per_byte = sent / out / 1e3
                found.append(side if inward else sorted(set(nodes) - set(side)))
    return found


def _supplies(problem: Problem, inward: bool) -> Floats:
    """Share of the message that must get from rank i to rank j (inward), or whose sum must get from j to i."""
    collective = problem.collective
    holds, wants = collective.holds.astype(np.float64), collective.wants.astype(np.float64)
    weight = collective.fraction[:, None]
    if inward:
        plain = ~collective.reduces & (collective.holds.sum(axis=1) == 1)
        table: Floats = (holds[plain] * weight[plain]).T @ wants[plain]
    else:
        these = collective.reduces & (collective.wants.sum(axis=1) == 1)
        table = (wants[these] * weight[these]).T @ holds[these]
    np.fill_diagonal(table, 0.0)
    return table


def _graph(problem: Problem, inward: bool):  # type: ignore[no-untyped-def]
    """Physical links among the ranks at hand and the switches, as a networkx graph."""
    import networkx as nx

    topology = problem.topology
    local = {rank: i for i, rank in enumerate(problem.ranks)}
    graph = nx.DiGraph()
    graph.add_nodes_from(range(problem.nranks))
    links = zip(
        topology.link_src.tolist(), topology.link_dst.tolist(), topology.bandwidth_gbs.tolist(), strict=True
    )
    for u, v, gbs in links:
        if (u < topology.nranks and u not in local) or (v < topology.nranks and v not in local):
            continue
        a = local[u] if u < topology.nranks else ("switch", u)
        b = local[v] if v < topology.nranks else ("switch", v)
        graph.add_edge(*((a, b) if inward else (b, a)), gbs=gbs)
    return graph
