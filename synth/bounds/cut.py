"""Cuts: what must leave a set of ranks over the capacity of all links out of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.cut_candidates import candidates
from synth.bounds.kind import Search
from synth.bounds.resource_cover import cover
from synth.bounds.witness import Witness
from synth.model.collective import Bools, Ints
from topologies.arrays import segment_sums
from topologies.network import Network


def find_cuts(search: Search) -> Iterator[Witness]:
    """Single ranks and nodes, and the best of many other sets by an estimate."""
    for inside in candidates(search.problem, search.traffic, search.tuning):
        yield from _cut(search, inside)


def find_worst_cuts(search: Search) -> Iterator[Witness]:
    """The worst of all sets by max-flow (ForestColl, section 4), each worse than the one before."""
    from synth.bounds.max_flow import worst_cuts  # brings SciPy, which starts slowly

    start = max((w.per_byte_us for w in search.found if w.kind == "cut"), default=0.0)
    for inside, crossed in worst_cuts(search.problem, start, search.tuning.max_flow_work):
        yield from _cut(search, inside, crossed)


def _cut(search: Search, inside: Bools, crossed: Ints | None = None) -> Iterator[Witness]:
    """The cut around a set of ranks. `crossed`: resources of which all links out of it may be known to use one."""
    net = search.problem.network
    links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
    if not len(links):
        return
    resources = cover(net, links)
    if crossed is not None and _covers(net, links, crossed):
        resources = min(resources, crossed, key=lambda r: float(net.capacity_gbs[r].sum()))
    inward = 2 * int(inside.sum()) > net.nranks
    smaller = search.name_ranks(np.flatnonzero(~inside if inward else inside))
    text = f"cut {smaller}{' inward' if inward else ''}, {search.capacity_text(resources)}"
    ranks = tuple(np.flatnonzero(inside).tolist())
    yield Witness("cut", ranks, resources=tuple(resources.tolist()), text=text)


def _covers(net: Network, links: Ints, resources: Ints) -> bool:
    """Whether every one of the links uses some of the resources."""
    flags = np.zeros(net.nresources, dtype=bool)
    flags[resources] = True
    return bool(len(resources)) and bool((segment_sums(flags[net.uses_idx], net.uses_ptr)[links] > 0).all())
