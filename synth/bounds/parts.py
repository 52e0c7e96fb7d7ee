"""Partitions of the network between whose parts an allreduce must send much data.

The parts are nodes, ranks that wide links join, and what a local search finds. Between k parts a sum needs 2(k-1)
sends (`witnesses.parts`). Where links are as wide in both directions and nothing relays, the best partitions are
those of Tutte and Nash-Williams (1961), and spanning trees that attain them exist.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from synth.bounds.cuts.cut_candidates import node_sets
from synth.bounds.resource_cover import cover, single_uses
from synth.bounds.search import BoundSearch, with_gbs
from synth.bounds.witness import whole_network
from synth.bounds.witnesses.parts import Parts
from synth.model.collective import Collective, Floats, Ints, chunks_by_ends
from synth.model.deadline import check_deadline, checking_deadline
from synth.model.problem import Problem
from topologies.arrays import components

_KICKS = 12  # random moves; more found nothing on random networks of up to 16 ranks
_KICK_RANKS = 4  # ranks that one kick moves
_BETTER = 1 + 1e-9  # a smaller gain is rounding


def find_parts(search: BoundSearch) -> Iterator[Parts]:
    """Yield parts of an allreduce, or of more than one; a chunk needs 2(k-1) sends between the k parts with members.

    Nothing is yielded for other collectives.

    The parts are nodes, ranks that wide links join, and single ranks; in small networks also the steepest partition
    that a local search finds. For a quotient problem they are nodes only.

    Raises:
        TimeUp: The time of the work around is over.
    """
    problem, collective = search.problem, search.problem.collective
    yield from _large_parts(search)
    if problem.quotient is not None or not _is_allreduce(collective):
        return  # Other partitions of a quotient's many ranks take long, and link lengths prove as much.
    yield from _parts(search, [[rank] for rank in range(collective.nranks)])
    if (steepest := _Steepness(problem).steepest(search.tuning.parts_work)) is not None:
        yield from _parts(search, _ranks_by_part(steepest))


def find_parts_with_steps(search: BoundSearch) -> Iterator[Parts]:
    """Yield parts at `search.size_bytes`, where steps inside the parts count too, for the collectives of `find_parts`.

    The parts are nodes, or ranks that wide links join.
    """
    for witness in _large_parts(search):
        if any(len(part) > 1 for part in witness.parts):
            yield replace(witness, at_bytes=search.size_bytes, text=f"{witness.text}, with steps inside the parts")


def _large_parts(search: BoundSearch) -> Iterator[Parts]:
    """Yield the claims of nodes as parts and, for a problem that is no quotient, of ranks that wide links join."""
    problem = search.problem
    if _is_allreduce(problem.collective):
        yield from _parts(search, [np.flatnonzero(flags).tolist() for flags in node_sets(problem)])
        if problem.quotient is None:
            for parts in _joined_by_width(search):
                yield from _parts(search, parts)


def _is_allreduce(collective: Collective) -> bool:
    """Return True if every chunk is a sum that all its contributors want, of more than one rank."""
    same = collective.reduces.all() and np.array_equal(collective.pre, collective.post)
    return bool(same) and collective.nranks > 1


@dataclass(frozen=True, eq=False)
class _Steepness:
    """The µs per byte that many partitions of the ranks prove at once.

    A partition is a row: the part of every rank, named by one of the ranks of the part.

    Attributes:
        problem: The problem with an allreduce.
    """

    problem: Problem

    @cached_property
    def links(self) -> tuple[Ints, Ints, Ints, Floats]:
        """Return links sorted by one resource of each, and these resources' starts and capacities.

        The resource is the scarcest of the link's (`single_uses`).

        Returns:
            The source and the destination of every link, shape (nlinks,); where the links of each resource begin; and
            the capacity of each resource in GB/s.
        """
        net = self.problem.network
        single = single_uses(net)[0]
        order = np.argsort(single, kind="stable")
        used, begin = np.unique(single[order], return_index=True)
        return net.src[order], net.dst[order], begin, net.capacity_gbs[used]

    @cached_property
    def contributors(self) -> list[tuple[Ints, float]]:
        """Return the distinct sets of ranks that contribute to a sum, with the share of the message of each.

        A set is ascending positions; its share is the sum over all chunks with these contributors.
        """
        collective = self.problem.collective
        groups = chunks_by_ends(collective, np.arange(collective.nchunks))
        return [(holders, sum(collective.fraction[chunks].tolist())) for chunks, holders, _ in groups]

    @cached_property
    def neighbours(self) -> Ints:
        """Return the pairs of ranks that a link joins, each once, the lower rank first, sorted, shape (pairs, 2)."""
        net = self.problem.network
        return np.unique(np.sort(np.stack([net.src, net.dst], axis=1), axis=1), axis=0)

    def __call__(self, divisions: Ints) -> Floats:
        """Return the µs per byte that partitions would prove, times 1000, shape (rows,).

        Args:
            divisions: Partitions, shape (rows, nranks).
        """
        src, dst, begin, capacity = self.links
        crossing = divisions[:, src] != divisions[:, dst]
        gbs: Floats = np.logical_or.reduceat(crossing, begin, axis=1) @ capacity
        sends = np.zeros(len(divisions))
        for ranks, share in checking_deadline(self.contributors, every=16):
            ordered = np.sort(divisions[:, ranks], axis=1)
            sends += 2 * share * (ordered[:, 1:] != ordered[:, :-1]).sum(axis=1)
        proved: Floats = np.divide(sends, gbs, out=np.zeros_like(sends), where=gbs > 0)
        return proved

    def steepest(self, work: int) -> Ints | None:
        """Return the best partition that merging, moving and random kicks find, or None where that takes too much work.

        It is a row, shape (nranks,): the part of every rank. Every part has a member of the group.

        Pairs of parts are merged, the best first, down to two parts. Then ranks are moved as long as that helps. Then
        some ranks are moved at random and all are improved again, `_KICKS` times, with a fixed seed.

        Args:
            work: Largest links × neighbours × ranks for which the search runs.
        """
        net = self.problem.network
        if not net.nlinks or net.nlinks * len(self.neighbours) * net.nranks > work:
            return None
        division = best = np.arange(net.nranks)
        proved = 0.0
        while len(part_pairs := self._apart(division)) > 0:
            check_deadline()
            merged = np.where(division == part_pairs[:, 1:], part_pairs[:, :1], division)
            values = self(merged)
            division = merged[np.argmax(values)]
            if values.max() > proved:
                best, proved = division, float(values.max())
        best, proved = self._climb(best)
        draw = np.random.default_rng(0)
        for _ in range(_KICKS):
            kicked = best.copy()
            ends = self.neighbours[draw.integers(len(self.neighbours), size=_KICK_RANKS)]
            kicked[ends[:, 0]] = best[ends[:, 1]]
            division, value = self._climb(_renamed(kicked[None])[0])
            if value > proved * _BETTER:
                best, proved = division, value
        return self._with_members(best)

    def _climb(self, division: Ints) -> tuple[Ints, float]:
        """Apply the best single move (see `_moved`) while it helps; return the partition and what it proves.

        What it proves is in µs per byte, times 1000. The given partition is not changed.

        Raises:
            TimeUp: The time of the work around is over.
        """
        proved = float(self(division[None])[0])
        while len(moved := self._moved(division)) > 0 and (values := self(moved)).max() > proved * _BETTER:
            check_deadline()
            division, proved = moved[np.argmax(values)], float(values.max())
        return division, proved

    def _apart(self, division: Ints) -> Ints:
        """Return the pairs of parts that a link joins, each once, ascending, shape (pairs, 2)."""
        pairs = np.unique(np.sort(division[self.neighbours], axis=1), axis=0)
        return np.asarray(pairs[pairs[:, 0] != pairs[:, 1]])

    def _moved(self, division: Ints) -> Ints:
        """Return the partitions one move away, distinct from this one, shape (partitions, nranks).

        A move puts a rank into a neighbour's part or into its own, or merges two neighbouring parts.
        """
        nranks = len(division)
        ranks = np.concatenate([self.neighbours[:, 0], self.neighbours[:, 1]])
        targets = division[np.concatenate([self.neighbours[:, 1], self.neighbours[:, 0]])]
        ranks, targets = np.append(ranks, np.arange(nranks)), np.append(targets, nranks + np.arange(nranks))
        rows = np.tile(division, (len(ranks), 1))
        rows[np.arange(len(ranks)), ranks] = targets
        pairs = self._apart(division)
        rows = np.concatenate([rows, np.where(division == pairs[:, 1:], pairs[:, :1], division)])
        return _renamed(rows[(rows != division).any(axis=1)])

    def _with_members(self, division: Ints) -> Ints:
        """Return the partition without parts that have no member of the group.

        Each such part is merged into the part to which it has most links, the lowest of equals; without links to
        another part, into the first part with members.
        """
        members = np.unique(division[: self.problem.collective.nranks])
        net = self.problem.network
        while len(lone := np.setdiff1d(division, members)) > 0:
            ends = np.concatenate(
                [division[net.dst[division[net.src] == lone[0]]], division[net.src[division[net.dst] == lone[0]]]]
            )
            ends = ends[ends != lone[0]]
            targets = ends if len(ends) else members
            division = np.where(division == lone[0], np.bincount(targets).argmax(), division)
        return division


def _renamed(divisions: Ints) -> Ints:
    """Return partitions with each part named by its lowest rank, shape (rows, nranks); numbers are below 2 nranks."""
    nrows, nranks = divisions.shape
    rows = np.arange(nrows)
    lowest = np.zeros((nrows, 2 * nranks), dtype=divisions.dtype)
    for rank in reversed(range(nranks)):  # A lower rank overwrites a higher one.
        lowest[rows, divisions[:, rank]] = rank
    return np.asarray(np.take_along_axis(lowest, divisions, axis=1))


def _joined_by_width(search: BoundSearch) -> Iterator[list[list[int]]]:
    """Yield partitions into sets of ranks that links of at least a bandwidth join, one partition for each bandwidth.

    A partition is a list of each part's ranks. Bandwidths fall; of more than the tuning's `widths` only so many, evenly
    spread, count.
    """
    net = search.problem.network
    widths = np.unique(net.bandwidth_gbs)[::-1]
    if len(widths) > search.tuning.widths:
        widths = widths[np.linspace(0, len(widths) - 1, search.tuning.widths).astype(np.int64)]
    for width in widths:
        wide = net.bandwidth_gbs >= width
        yield _ranks_by_part(components(net.nranks, net.src[wide], net.dst[wide]))


def _ranks_by_part(division: Ints) -> list[list[int]]:
    """Return the ranks of each part, ascending, in the order of the parts' numbers."""
    return [np.flatnonzero(division == part).tolist() for part in np.unique(division)]


def _parts(search: BoundSearch, parts: list[list[int]]) -> Iterator[Parts]:
    """Yield the claim of a partition, or nothing where no chunk must go between two parts.

    Args:
        search: The search.
        parts: Local ranks of each part; it is not changed. Parts without a member of the group are dissolved, and every
            rank that is in no part joins the part of a member of its node, or else the first part.
    """
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
        return  # Each chunk stays in one part.
    resources = cover(net, np.flatnonzero(side[net.src] != side[net.dst]))
    few, many = int(sends.min()), int(sends.max())
    text = f"{len(parts)} parts, {many if few == many else f'{few} to {many}'} sends a byte"
    yield Parts(
        parts=tuple(tuple(sorted(part)) for part in parts),
        resources=tuple(resources.tolist()),
        text=with_gbs(text, net, resources),
    )
