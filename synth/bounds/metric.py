"""The metric bound: how much of given link lengths a collective must use up, the dual of the multi-commodity flow.

Every byte on a link uses up the link's length (Shahrokhi and Matula, 1990). A chunk uses at least what one of its
needs by itself would use; of these the largest counts. A price is one of a resource's capacity; lengths are sums of
prices, so all of them have one unit, whichever it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.bounds.distances import Distances
from synth.model.collective import Bools, Collective, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by
from topologies.arrays import index_among, marked, ranges, row_of_entry
from topologies.network import Network

# pairs of holders and goals of one chunk; those of a chunk with more are not listed but worked out as sets
LISTED_BELOW = 1 << 16
_CELLS = 1 << 25  # of a table of distances held at a time
_FROM = 1 << 19  # ranks × holders from which the distances of a sum that many want are measured


@lru_cache(maxsize=4)
def latencies(net: Network) -> Distances:
    """Least sums of α between ranks, in µs."""
    return _distances(net, net.carriers.alpha_us)


def _distances(net: Network, length: Floats) -> Distances:
    """By a length of every link and hyperlink, which is one way from each of its sources to each of its goals."""
    ptr, src, dst = net.pairs
    return Distances(net.nranks, src, dst, length if net.hyperlinks is None else np.repeat(length, np.diff(ptr)))


def crossing_times(problem: Problem, inside: Bools, crossed: Bools) -> tuple[Floats, Floats]:
    """When a chunk that must leave a set of ranks can cross at the earliest, in µs, shape (nchunks,); and how long it
    takes at least from when it begins to cross, its bytes apart, until it is wherever it is wanted outside.

    A plain chunk may come from the nearest holder; of a sum the furthest contribution has to cross.

    Args:
        inside: the set, shape (nranks,). crossed: of `Network.pairs`, those that leave it.
    """
    net, collective = problem.network, problem.collective
    need, distances = find_requirements(collective), latencies(net)
    src, dst = net.pairs.src[crossed], net.pairs.dst[crossed]
    first = distances.nearest(src, to=True)
    enters, row = np.unique(dst, return_inverse=True)
    alpha = np.full(len(enters), np.inf)
    np.minimum.at(alpha, row, net.carriers.alpha_us[row_of_entry(net.pairs.ptr)[crossed]])
    then = (alpha[:, None] + distances.rows(enters)).min(axis=0)
    (_, hold), (_, goal) = collective.holders, collective.goals
    sums = collective.reduces[need.hold_chunk]
    begins = np.where(collective.reduces, 0.0, np.inf)
    np.maximum.at(begins, need.hold_chunk[sums], np.where(inside, first, 0.0)[hold[sums]])
    np.minimum.at(begins, need.hold_chunk[~sums], first[hold[~sums]])
    takes = np.zeros(collective.nchunks)
    np.maximum.at(takes, need.goal_chunk, np.where(inside, 0.0, then)[goal])
    return begins, takes


def link_lengths(problem: Problem, price: Floats) -> Floats:
    """Length of every link: what the resources that it uses cost together.

    price: shape (nresources + nlinks,); those after the network's resources are of each link's own bandwidth.
    """
    net = problem.network
    return np.asarray(price[net.nresources :] + sum_by(_link_of_use(net), price[net.uses_idx], net.nlinks))


def carrier_lengths(problem: Problem, price: Floats) -> Floats:
    """`link_lengths`, and after these what that which every hyperlink takes of its resources costs together."""
    length, h = link_lengths(problem, price), problem.network.hyperlinks
    if h is None:
        return length
    used = sum_by(row_of_entry(h.uses_ptr), price[h.uses_idx], len(h))
    return np.append(length, used * (h.takes_gbs / h.bandwidth_gbs))


def resource_loads(net: Network, carried: Floats) -> Floats:
    """What every link carries (any unit), summed by resource and divided by its GB/s: shape (nresources,)."""
    return sum_by(net.uses_idx, carried[_link_of_use(net)], net.nresources) / net.capacity_gbs


@lru_cache(maxsize=4)
def _link_of_use(net: Network) -> Ints:
    return net.link_of_use


def required_lengths(problem: Problem, length: Floats) -> Floats:
    """At least how much length a byte of every chunk uses up in any algorithm, shape (nchunks,).

    length: of every link, then of every hyperlink. What a multicast brings to q ranks at once each of them needs a q-th
    of, and likewise of a reduction what takes something away from q ranks.
    """
    net = problem.network
    required = required_distances(problem.collective, _distances(net, length))
    into, out = (np.full(net.nranks, np.inf) for _ in range(2))
    ptr, src, dst = net.pairs
    whole = each = length
    if net.hyperlinks is not None:
        count, forth = np.diff(ptr), np.append(np.ones(net.nlinks, dtype=bool), net.hyperlinks.multicast)
        whole, each = np.repeat(length, count), np.repeat(length / count, count)
        forth = np.repeat(forth, count)
        whole, each = np.where(forth, each, whole), np.where(forth, whole, each)
    np.minimum.at(into, dst, whole)
    np.minimum.at(out, src, each)
    # a rank without links in sends and never receives: it asks for nothing
    into[np.isinf(into)] = out[np.isinf(out)] = 0.0
    for ends in lengths_at_ends(problem.collective, into, out):
        np.maximum(required, ends, out=required)
    return required


def lengths_at_ends(collective: Collective, into: Floats, out: Floats) -> list[Floats]:
    """What the first and last links of all routes of a chunk use up, where there are several: up to three limits.

    into, out: how much a byte uses up at least on the link into and out of every rank.
    Returns, shape (nchunks,) each: all that comes to goals; all that leaves holders; and of sums both. Of a sum,
    take the first rank f that has all of it: every other holder has sent by then, every other goal has still to
    receive, and these are different sends.
    """
    need = find_requirements(collective)
    if not ((need.nhold > 1) | (need.ngoal > 1)).any():
        return []
    nchunks, hold, goal = collective.nchunks, collective.holders[1], collective.goals[1]
    comes = sum_by(need.goal_chunk, into[goal] * need.arrive, nchunks)
    found = [comes]
    sums = collective.reduces & (need.nhold > 1)
    if sums.any():
        found.append(sum_by(need.hold_chunk, out[hold] * need.depart, nchunks))
        both = sum_by(need.hold_chunk, out[hold], nchunks) + sum_by(need.goal_chunk, into[goal], nchunks)
        first = np.zeros(nchunks)
        np.maximum.at(first, need.goal_chunk, into[goal] + out[goal] * need.held)
        found.append(np.where(sums & (need.ngoal > 0), both - first, 0.0))
    return found


@dataclass(frozen=True, eq=False)
class Pairs:
    """Who has to hear from whom, of the chunks that few hold or few want.

    chunk: the chunk of every row; a row is one goal of one chunk.
    holder, goal: the row's pairs; they stand together, from start[row] on.
    others: chunks with more pairs than are listed.
    """

    chunk: Ints
    start: Ints
    holder: Ints
    goal: Ints
    others: Ints

    @property
    def single(self) -> bool:
        """Whether every row has one pair."""
        return len(self.holder) == len(self.chunk)

    def of_pairs(self, of_rows: NDArray[Any]) -> NDArray[Any]:
        """What is known of every row, for every pair."""
        return of_rows if self.single else np.repeat(of_rows, np.diff(self.start, append=len(self.holder)))


@lru_cache(maxsize=2)
def pairs(collective: Collective, listed_below: int = LISTED_BELOW) -> Pairs:
    """All pairs of holders and goals; chunks with `listed_below` and more of them stand aside."""
    need = find_requirements(collective)
    (hold_ptr, hold), (_, goal) = collective.holders, collective.goals
    many = need.nhold * need.ngoal >= listed_below
    rows = np.flatnonzero(~many[need.goal_chunk] & (need.nhold[need.goal_chunk] > 0))
    chunk = need.goal_chunk[rows]
    counts = need.nhold[chunk]
    start = np.cumsum(counts) - counts
    if len(counts) and counts.max() == 1:
        holder, goals = hold[hold_ptr[chunk]], goal[rows]
    else:
        holder, goals = hold[ranges(hold_ptr[chunk], counts)], np.repeat(goal[rows], counts)
    return Pairs(chunk, start, holder, goals, np.flatnonzero(many))


def chunks_by_ends(collective: Collective, chunks: Ints) -> list[tuple[Ints, Ints, Ints]]:
    """The given chunks together where they have the same holders and goals: (chunks, holders, goals)."""
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    found: dict[tuple[bool, bytes, bytes], list[int]] = {}
    for c in chunks.tolist():
        held, wanted = hold[hold_ptr[c] : hold_ptr[c + 1]], goal[goal_ptr[c] : goal_ptr[c + 1]]
        found.setdefault((bool(collective.reduces[c]), held.tobytes(), wanted.tobytes()), []).append(c)
    return [
        (np.array(same), np.frombuffer(held, dtype=np.int64), np.frombuffer(wanted, dtype=np.int64))
        for (_, held, wanted), same in found.items()
    ]


def required_distances(collective: Collective, distances: Distances, listed_below: int = LISTED_BELOW) -> Floats:
    """The longest distance that a chunk must be carried in any algorithm, shape (nchunks,).

    A plain chunk may come from the nearest holder; of a sum the furthest contribution has to come.
    """
    required = np.zeros(collective.nchunks)
    listed = pairs(collective, listed_below)
    distance = pair_distances(distances, listed.holder, listed.goal)
    if len(listed.chunk):
        if not listed.single:
            least = np.minimum.reduceat(distance, listed.start)
            most = np.maximum.reduceat(distance, listed.start)
            distance = np.where(collective.reduces[listed.chunk], most, least)
        np.maximum.at(required, listed.chunk, distance)
    for same, holders, goals in chunks_by_ends(collective, listed.others):
        if collective.reduces[same[0]]:
            some = holders[: max(8, _FROM // distances.nranks)]
            parts = (some[i : i + 64] for i in range(0, len(some), 64))
            required[same] = max(float(distances.rows(part)[:, goals].max()) for part in parts)
        else:
            required[same] = distances.nearest(holders)[goals].max()
    return required


def fewer_ends(collective: Collective) -> tuple[tuple[Ints, Ints], bool]:
    """The chunks' holders, or their goals, whichever are fewer ranks; and whether these are the holders."""
    holders, goals = collective.holders, collective.goals
    forth = len(_distinct(holders[1], collective.nranks)) <= len(_distinct(goals[1], collective.nranks))
    return (holders if forth else goals), forth


def pair_distances(distances: Distances, one: Ints, other: Ints) -> Floats:
    """The distance from one[i] to other[i], shape (pairs,)."""
    found = np.empty(len(one))
    ones, others = _distinct(one, distances.nranks), _distinct(other, distances.nranks)
    forth = len(ones) <= len(others)
    roots, root, end = (ones, one, other) if forth else (others, other, one)
    block = max(1, _CELLS // distances.nranks)
    for low in range(0, len(roots), block):
        these = roots[low : low + block]
        place = index_among(distances.nranks, these)
        table = distances.rows(these, to=not forth)
        if len(roots) <= block:
            return np.asarray(table[place[root], end], dtype=np.float64)
        inside = place[root] >= 0
        found[inside] = table[place[root[inside]], end[inside]]
    return found


def _distinct(ranks: Ints, nranks: int) -> Ints:
    return np.flatnonzero(marked(nranks, ranks))
