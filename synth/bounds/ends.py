"""Arrivals and departures: what must come to, or leave, several ranks at once."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.cut_candidates import node_sets, worst
from synth.bounds.resource_cover import cover, gbs_by_end
from synth.bounds.search import Search
from synth.bounds.witness import Witness
from synth.model.collective import Bools, Floats, Ints
from synth.model.requirements import sum_by
from topologies.arrays import marked

_Sets = list[tuple[Bools, int | None]]  # flags of ranks, and the one resource that all their links use, if any


def find_arrivals(search: Search) -> Iterator[Witness]:
    """What must come to all ranks that want anything, and to the worst of those that share a resource or a node."""
    return _find(search, "arrivals", search.traffic.comes, search.problem.network.dst)


def find_departures(search: Search) -> Iterator[Witness]:
    """The same of what must leave."""
    return _find(search, "departures", search.traffic.leaves, search.problem.network.src)


def _find(search: Search, kind: str, amount: Floats, end: Ints) -> Iterator[Witness]:
    problem, net = search.problem, search.problem.network
    needy = np.zeros(net.nranks)
    needy[: len(amount)] = amount
    if not (needy > 0).any():
        return
    sets: _Sets = [(np.ones(net.nranks, dtype=bool), None)]
    if problem.quotient is None:
        sets = [(needy > 0, None), *_sharing_a_resource(search, needy, end), *_sharing_a_node(search, needy, end)]
    for flags, resource in sets:
        links = np.flatnonzero(flags[end])
        if not len(links):
            continue
        resources = cover(net, links) if resource is None else np.array([resource])
        ranks = np.flatnonzero(flags)
        yield search.claim(kind, f"{kind} at {search.name_ranks(ranks)}", resources, ranks)


def _sharing_a_resource(search: Search, needy: Floats, end: Ints) -> _Sets:
    """Ranks whose links all use the same resource: the few sets with most need a GB/s."""
    net = search.problem.network
    key, count = np.unique(end[net.link_of_use] * net.nresources + net.uses_idx, return_counts=True)
    every = count == np.bincount(end, minlength=net.nranks)[key // net.nresources]  # of the links with this end there
    rank, resource = np.divmod(key[every], net.nresources)
    amount = sum_by(resource, needy[rank], net.nresources)
    amount[np.bincount(resource, minlength=net.nresources) < 2] = 0.0
    best = worst(amount, net.capacity_gbs, search.tuning.few)
    return [(marked(net.nranks, rank[resource == r]) & (needy > 0), r) for r in best]


def _sharing_a_node(search: Search, needy: Floats, end: Ints) -> _Sets:
    """Nodes: the few with most need a GB/s."""
    nodes = node_sets(search.problem)
    if len(nodes) < 2:
        return []
    index = np.argmax(nodes, axis=0)
    gbs = gbs_by_end(search.problem.network, index[end], len(nodes))
    best = worst(sum_by(index, needy, len(nodes)), gbs, search.tuning.few)
    return [(nodes[i] & (needy > 0), None) for i in best]
