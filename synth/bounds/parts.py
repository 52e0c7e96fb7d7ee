"""Parts: an allreduce over k parts of the ranks needs 2(k-1) sends of every chunk between the parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.cut_candidates import node_sets
from synth.bounds.kind import Search
from synth.bounds.resource_cover import cover
from synth.bounds.witness import Witness
from synth.model.problem import Problem


def is_allreduce(problem: Problem) -> bool:
    """Whether every rank contributes to every chunk and wants all of it."""
    collective = problem.collective
    cells = collective.nchunks * collective.nranks
    everywhere = len(collective.pre) == len(collective.post) == cells
    return bool(collective.reduces.all()) and everywhere and collective.nranks > 1


def find_parts(search: Search) -> Iterator[Witness]:
    """Nodes, ranks that wide links join, and single ranks as parts."""
    problem = search.problem
    nodes = [np.flatnonzero(flags).tolist() for flags in node_sets(problem)]
    singles = [[rank] for rank in range(problem.collective.nranks)]
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
    resources = cover(net, np.flatnonzero(side[net.src] != side[net.dst]))
    text = f"{len(parts)} parts, {2 * (len(parts) - 1)} sends a byte, {search.capacity_text(resources)}"
    rows = tuple(tuple(sorted(part)) for part in parts)
    yield Witness("parts", parts=rows, resources=tuple(resources.tolist()), text=text)
