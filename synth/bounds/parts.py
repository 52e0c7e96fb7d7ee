"""Parts of the network between which an allreduce must send much: nodes, what wide links join, and by local search.

Between k parts a sum needs 2(k-1) sends (`witness.parts_limit`). Where links are as wide both ways and nothing
relays, the best parts are those of Tutte and Nash-Williams (1961), and spanning trees that attain them exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from synth.bounds.cut_candidates import node_sets
from synth.bounds.resource_cover import cover, single_uses
from synth.bounds.search import Search
from synth.bounds.witness import Witness, whole_network
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from topologies.arrays import components

_KICKS = 12  # of a good division; more found nothing on random networks of up to 16 ranks
_KICKED = 4  # ranks that one of these moves
_BETTER = 1 + 1e-9


def find_parts(search: Search) -> Iterator[Witness]:
    """Of an allreduce, or several, which needs 2(k-1) sends of a chunk between the k parts that it is in.

    Parts are nodes, what wide links join, ranks; and the steepest that merging and moving finds in small networks.
    """
    problem, collective = search.problem, search.problem.collective
    same = collective.reduces.all() and np.array_equal(collective.pre, collective.post)
    if not (same and collective.nranks > 1):
        return
    nodes = [np.flatnonzero(flags).tolist() for flags in node_sets(problem)]
    if problem.quotient is not None:  # so many ranks that other divisions take long, and link lengths say the rest
        yield from _parts(search, nodes)
        return
    singles = [[rank] for rank in range(collective.nranks)]
    for parts in (nodes, *_joined_by_width(search), singles):
        yield from _parts(search, parts)
    if (steepest := _Steepness(problem).steepest(search.tuning.parts_work)) is not None:
        yield from _parts(search, _ranks_by_part(steepest))


@dataclass(frozen=True, eq=False)
class _Steepness:
    """What must be sent between parts over the capacity there, of many divisions into parts at once.

    A division is a row: every rank's part, named by one of the ranks.
    """

    problem: Problem

    @cached_property
    def links(self) -> tuple[Ints, Ints, Ints, Floats]:
        """(src, dst) of links in the order of one resource of each; where a resource's begin; its capacity."""
        net = self.problem.network
        single = single_uses(net)[0]
        order = np.argsort(single, kind="stable")
        used, begin = np.unique(single[order], return_index=True)
        return net.src[order], net.dst[order], begin, net.capacity_gbs[used]

    @cached_property
    def contributors(self) -> list[tuple[Ints, float]]:
        """Distinct sets of ranks whose sums are wanted, and the part of the message that each sums."""
        collective = self.problem.collective
        shares: dict[tuple[int, ...], float] = {}
        order = np.lexsort((collective.pre[:, 0], collective.pre[:, 1]))
        chunks, begin = np.unique(collective.pre[order, 1], return_index=True)
        for chunk, ranks in zip(chunks, np.split(collective.pre[order, 0], begin[1:]), strict=True):
            key = tuple(ranks.tolist())
            shares[key] = shares.get(key, 0.0) + float(collective.fraction[chunk])
        return [(np.array(ranks), share) for ranks, share in shares.items()]

    @cached_property
    def neighbours(self) -> Ints:
        """Pairs of ranks that a link joins, each once: shape (pairs, 2)."""
        net = self.problem.network
        return np.unique(np.sort(np.stack([net.src, net.dst], axis=1), axis=1), axis=0)

    def __call__(self, divisions: Ints) -> Floats:
        """µs a byte that each row of `divisions` would prove, times 1000; shape (rows,)."""
        src, dst, begin, capacity = self.links
        crossing = divisions[:, src] != divisions[:, dst]
        gbs: Floats = np.logical_or.reduceat(crossing, begin, axis=1) @ capacity
        sends = np.zeros(len(divisions))
        for ranks, share in self.contributors:
            ordered = np.sort(divisions[:, ranks], axis=1)
            sends += 2 * share * (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
        proved: Floats = np.divide(sends, gbs, out=np.zeros_like(sends), where=gbs > 0)
        return proved

    def steepest(self, work: int) -> Ints | None:
        """The best division that is found: parts merged pair by pair down to two, then ranks moved while it helps.

        Then some ranks are moved at random, and again all while it helps: at most `_KICKS` times, always the same.

        work: links × neighbours × ranks up to which it is looked for.
        """
        net = self.problem.network
        if not net.nlinks or net.nlinks * len(self.neighbours) * net.nranks > work:
            return None
        division = best = np.arange(net.nranks)
        proved = 0.0
        while len(pairs := self._apart(division)) > 0:
            merged = np.where(division == pairs[:, 1:], pairs[:, :1], division)
            values = self(merged)
            division = merged[np.argmax(values)]
            if values.max() > proved:
                best, proved = division, float(values.max())
        best, proved = self._climb(best)
        draw = np.random.default_rng(0)
        for _ in range(_KICKS):
            kicked = best.copy()
            ends = self.neighbours[draw.integers(len(self.neighbours), size=_KICKED)]
            kicked[ends[:, 0]] = best[ends[:, 1]]
            division, value = self._climb(_renamed(kicked))
            if value > proved * _BETTER:
                best, proved = division, value
        return self._with_members(best)

    def _climb(self, division: Ints) -> tuple[Ints, float]:
        """Single moves, the best first, while they help; and what is proved in the end."""
        proved = float(self(division[None])[0])
        while len(moved := self._moved(division)) > 0 and (values := self(moved)).max() > proved * _BETTER:
            division, proved = moved[np.argmax(values)], float(values.max())
        return division, proved

    def _apart(self, division: Ints) -> Ints:
        """Pairs of neighbouring parts."""
        pairs = np.unique(np.sort(division[self.neighbours], axis=1), axis=0)
        return np.asarray(pairs[pairs[:, 0] != pairs[:, 1]])

    def _moved(self, division: Ints) -> Ints:
        """Each rank in each neighbour's part, or in a part of its own; and each two neighbouring parts merged."""
        nranks = len(division)
        ranks = np.concatenate([self.neighbours[:, 0], self.neighbours[:, 1]])
        homes = division[np.concatenate([self.neighbours[:, 1], self.neighbours[:, 0]])]
        ranks, homes = np.append(ranks, np.arange(nranks)), np.append(homes, nranks + np.arange(nranks))
        rows = np.tile(division, (len(ranks), 1))
        rows[np.arange(len(ranks)), ranks] = homes
        pairs = self._apart(division)
        rows = np.concatenate([rows, np.where(division == pairs[:, 1:], pairs[:, :1], division)])
        return np.array([_renamed(row) for row in rows[(rows != division).any(axis=1)]])

    def _with_members(self, division: Ints) -> Ints:
        """Parts without a member of the group join the part to which they have most links."""
        members = np.unique(division[: self.problem.collective.nranks])
        net = self.problem.network
        while len(lone := np.setdiff1d(division, members)) > 0:
            ends = np.concatenate(
                [division[net.dst[division[net.src] == lone[0]]], division[net.src[division[net.dst] == lone[0]]]]
            )
            ends = ends[ends != lone[0]]
            homes = ends if len(ends) else members
            division = np.where(division == lone[0], np.bincount(homes).argmax(), division)
        return division


def _renamed(division: Ints) -> Ints:
    """Each part by the lowest of its ranks."""
    _, first, part = np.unique(division, return_index=True, return_inverse=True)
    return np.asarray(first[part])


def _joined_by_width(search: Search) -> Iterator[list[list[int]]]:
    """Ranks that wide links join, for every bandwidth that links have: what is between the parts is narrow."""
    net = search.problem.network
    widths = np.unique(net.bandwidth_gbs)[::-1]
    if len(widths) > search.tuning.widths:
        widths = widths[np.linspace(0, len(widths) - 1, search.tuning.widths).astype(np.int64)]
    for width in widths:
        wide = net.bandwidth_gbs >= width
        yield _ranks_by_part(components(net.nranks, net.src[wide], net.dst[wide]))


def _ranks_by_part(division: Ints) -> list[list[int]]:
    """The ranks of each part, given each rank's."""
    return [np.flatnonzero(division == part).tolist() for part in np.unique(division)]


def _parts(search: Search, parts: list[list[int]]) -> Iterator[Witness]:
    """The claim of some parts; relays join the part of a member of their node, or the first."""
    problem, net = search.problem, whole_network(search.problem)
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
