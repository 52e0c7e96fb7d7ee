"""Cuts: what must leave a set of ranks over the capacity of its links, the worst of them by max-flow; and parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np

from synth.bounds.cut_candidates import blocks, candidates, node_sets
from synth.bounds.metric import crossing_times
from synth.bounds.resource_cover import cover
from synth.bounds.search import Search
from synth.bounds.witness import Witness, must_leave, whole_network
from synth.bounds.worst_cut import worst_cuts
from synth.model.collective import Bools, Floats, Ints
from topologies.arrays import marked, segment_sums

_SAME_US = 1e-8
_MORE = 1 + 1e-9  # a limit that is steeper by rounding only is not another


def find_cuts(search: Search) -> Iterator[Witness]:
    """Single ranks and nodes, and the best of many other sets by an estimate."""
    if search.problem.quotient is not None:
        sets = blocks(search.problem, search.tuning)
    else:
        sets = candidates(search.problem, search.traffic, search.tuning)
    for inside in sets:
        yield from _cut(search, inside)
    if search.problem.quotient is None and search.problem.nranks <= search.tuning.timed_ranks:
        yield from _late(search, sets)


def _late(search: Search, sets: list[Bools]) -> Iterator[Witness]:
    """Of these cuts what comes there late or has far to go then: the most latency for every amount, and conversely."""
    net, fraction = search.problem.network, search.problem.collective.fraction
    found = []
    for inside in sets:
        counts, crossed = must_leave(search.problem.collective, inside), inside[net.pairs.src] & ~inside[net.pairs.dst]
        links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
        if not (counts.any() and len(links)):
            continue
        gbs = float(net.capacity_gbs[cover(net, links)].sum())
        begins, takes = (times[counts] for times in crossing_times(search.problem, inside, crossed))
        for since, last in product(_distinct(begins), _distinct(takes)):
            late = (begins >= since - _SAME_US) & (takes >= last - _SAME_US)
            if late.any():
                times = float(begins[late].min()), float(takes[late].min())
                found.append((sum(times), float(fraction[counts][late].sum()) / gbs, times, inside))
    steepest = 0.0
    for _, per_byte, times, inside in sorted(found, key=lambda one: one[:2], reverse=True):
        if per_byte > steepest * _MORE:
            steepest = per_byte
            for claim in _cut(search, inside):
                text = f"{claim.text}, after {times[0]:.4g} µs, {times[1]:.4g} µs before the end"
                yield replace(claim, times=times, text=text)


def _distinct(us: Floats) -> list[float]:
    """Times that are not the same but for rounding."""
    return [float(one) for one in np.unique(np.round(us[np.isfinite(us)], 9))]


def find_worst_cuts(search: Search) -> Iterator[Witness]:
    """The worst of all sets by max-flow (ForestColl, section 4), each worse than the one before."""
    for one in worst_cuts(search.problem, search.tuning.max_flow_work).found:
        yield from _cut(search, one.inside, one.resources)


def _cut(search: Search, inside: Bools, crossed: Ints | None = None) -> Iterator[Witness]:
    """The cut around a set of ranks. `crossed`: resources of which all links out of it may be known to use one."""
    net = whole_network(search.problem)
    links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
    if not len(links):
        return
    resources = cover(net, links)
    if crossed is not None and segment_sums(marked(net.nresources, crossed)[net.uses_idx], net.uses_ptr)[links].all():
        resources = min(resources, crossed, key=lambda r: float(net.capacity_gbs[r].sum()))
    inward = 2 * int(inside.sum()) > net.nranks
    smaller = search.name_ranks(np.flatnonzero(~inside if inward else inside))
    text = f"cut {smaller}{' inward' if inward else ''}"
    yield search.claim("cut", text, resources, np.flatnonzero(inside))


def find_parts(search: Search) -> Iterator[Witness]:
    """Of an allreduce, or several, which needs 2(k-1) sends of a chunk between the k parts that it is in.

    Parts are nodes, what wide links join, ranks.
    """
    problem, collective = search.problem, search.problem.collective
    same = collective.reduces.all() and np.array_equal(collective.pre, collective.post)
    if not (same and collective.nranks > 1):
        return
    nodes = [np.flatnonzero(flags).tolist() for flags in node_sets(problem)]
    singles = [[rank] for rank in range(collective.nranks)]
    for parts in (nodes, *_joined_by_width(search), singles):
        yield from _parts(search, parts)


def _joined_by_width(search: Search) -> Iterator[list[list[int]]]:
    """Ranks that wide links join, for every bandwidth that links have: what is between the parts is narrow."""
    net = search.problem.network
    widths = np.unique(net.bandwidth_gbs)[::-1]
    if len(widths) > search.tuning.widths:
        widths = widths[np.linspace(0, len(widths) - 1, search.tuning.widths).astype(np.int64)]
    for width in widths:
        part = np.arange(net.nranks)
        wide = net.bandwidth_gbs >= width
        while True:
            low = part.copy()
            np.minimum.at(low, net.dst[wide], part[net.src[wide]])
            np.minimum.at(low, net.src[wide], part[net.dst[wide]])
            if np.array_equal(low, part):
                break
            part = low
        order = np.argsort(part, kind="stable")
        yield [p.tolist() for p in np.split(order, np.flatnonzero(np.diff(part[order])) + 1)]


def _parts(search: Search, parts: list[list[int]]) -> Iterator[Witness]:
    """The claim of some parts; relays join the part of a member of their node, or the first."""
    problem, net = search.problem, search.problem.network
    parts = [list(part) for part in parts if min(part) < problem.collective.nranks]
    if len(parts) < 2:
        return
    node = problem.topology.nodes[np.array(problem.ranks)]
    for rank in sorted(set(range(net.nranks)) - {r for part in parts for r in part}):
        home = next((p for p in parts if node[p[0]] == node[rank]), parts[0])
        home.append(rank)
    side = np.empty(net.nranks, dtype=np.int64)
    for i, part in enumerate(parts):
        side[part] = i
    pre = problem.collective.pre
    places = np.unique(pre[:, 1] * len(parts) + side[pre[:, 0]]) // len(parts)
    sends = 2 * (np.bincount(places) - 1)
    if not sends.any():
        return  # each chunk stays in a part
    resources = cover(net, np.flatnonzero(side[net.src] != side[net.dst]))
    few, many = int(sends.min()), int(sends.max())
    text = f"{len(parts)} parts, {many if few == many else f'{few} to {many}'} sends a byte"
    yield search.claim("parts", text, resources, parts=tuple(tuple(sorted(part)) for part in parts))
