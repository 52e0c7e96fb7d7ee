"""The metric bound: how much of given link lengths a collective must use up, the dual of the multi-commodity flow.

Every byte on a link uses up the link's length (Shahrokhi and Matula, 1990). A chunk uses at least what each of its
needs would use without the others; the largest of these counts. A price belongs to a resource's capacity. Lengths are
sums of prices, so all of them have the same unit, whichever it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from synth.bounds.distances import Distances
from synth.model.collective import Bools, Collective, Floats, Ints, chunks_by_ends
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by
from topologies.arrays import flags_of, index_among, ranges, row_of_entry
from topologies.network import Network

# Pairs of holders and goals of one chunk. Chunks with more are computed as sets, without a list of pairs.
LISTED_BELOW = 1 << 16
_CELLS = 1 << 25  # cells of a table of distances in memory at a time
_SAMPLE_WORK = 1 << 19  # ranks × holders from which distances of a sum that many ranks want are measured


@lru_cache(maxsize=4)
def latencies(net: Network) -> Distances:
    """Return the least sums of α between ranks, in µs, over links and hyperlinks; four networks are cached.

    Where links are only some of the paths through switches, the distances go over all paths, and the vertices of
    `Network.switch_graph` count as ranks behind the local ranks.
    """
    if (graph := net.switch_graph) is None:
        return _distances(net, net.carriers.alpha_us)
    _, src, dst = net.pairs
    ends = np.append(src, graph.src), np.append(dst, graph.dst)
    alpha = net.carriers.alpha_us[row_of_entry(net.pairs.ptr)]
    return Distances(graph.nvertices, *ends, np.append(alpha, graph.alpha_us))


def _distances(net: Network, length: Floats) -> Distances:
    """Return distances by a length of every link and hyperlink; a hyperlink joins each of its pairs by its length."""
    ptr, src, dst = net.pairs
    return Distances(net.nranks, src, dst, length if net.hyperlinks is None else np.repeat(length, np.diff(ptr)))


def crossing_times(problem: Problem, inside: Bools, crossed: Bools) -> tuple[Floats, Floats]:
    """Return the earliest time at which each chunk can cross out of a set of ranks, and its least time after.

    The second time runs from when the chunk begins to cross until it is at all goals outside; its bytes do not count. A
    plain chunk may come from the nearest holder; of a sum the furthest contribution has to cross.

    Args:
        problem: The problem.
        inside: Flags of the set, shape (nranks,).
        crossed: Flags of the pairs of `Network.pairs` that leave the set, at least one.

    Returns:
        Two arrays of µs, shape (nchunks,) each; inf where there is no route. The first is 0 for a sum without holders
        in the set, the second for a chunk without goals outside.
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
    """Return the length of every link, shape (nlinks,): the sum of the prices of its resources.

    Args:
        problem: The problem.
        price: Shape (nresources + nlinks,); prices after the network's resources are for each link's own bandwidth.
    """
    net = problem.network
    return np.asarray(price[net.nresources :] + sum_by(_link_of_use(net), price[net.uses_idx], net.nlinks))


def carrier_lengths(problem: Problem, price: Floats) -> Floats:
    """Return `link_lengths`, followed by the cost of what each hyperlink takes of its resources, shape (ncarriers,)."""
    length, hyperlinks = link_lengths(problem, price), problem.network.hyperlinks
    if hyperlinks is None:
        return length
    used = sum_by(row_of_entry(hyperlinks.uses_ptr), price[hyperlinks.uses_idx], len(hyperlinks))
    return np.append(length, used * (hyperlinks.takes_gbs / hyperlinks.bandwidth_gbs))


def resource_loads(net: Network, carried: Floats) -> Floats:
    """Return the sum of what the links of each resource carry, divided by its GB/s, shape (nresources,).

    Args:
        net: The network.
        carried: What each link carries, in any unit, shape (nlinks,).
    """
    return sum_by(net.uses_idx, carried[_link_of_use(net)], net.nresources) / net.capacity_gbs


@lru_cache(maxsize=4)
def _link_of_use(net: Network) -> Ints:
    """Return the link of every use of a resource, in the order of `uses_idx`; four networks are cached."""
    return net.link_of_use


def required_lengths(problem: Problem, length: Floats) -> Floats:
    """Return the least length that a byte of every chunk uses up in any algorithm, shape (nchunks,).

    It is the largest of the longest distance that the chunk must be carried (`required_distances`) and of what its
    first and last links use up (`lengths_at_ends`). A multicast brings a byte to q ranks at once, so each of them needs
    a q-th of its length; so does each of the q ranks from which a reduction takes a byte.

    Args:
        problem: The problem.
        length: Length of every link, then of every hyperlink, shape (ncarriers,).
    """
    net = problem.network
    required = required_distances(problem.collective, _distances(net, length))
    into, out = (np.full(net.nranks, np.inf) for _ in range(2))
    ptr, src, dst = net.pairs
    entering = leaving = length
    if net.hyperlinks is not None:
        count, forth = np.diff(ptr), np.append(np.ones(net.nlinks, dtype=bool), net.hyperlinks.multicast)
        entering, leaving = np.repeat(length, count), np.repeat(length / count, count)
        forth = np.repeat(forth, count)
        entering, leaving = np.where(forth, leaving, entering), np.where(forth, entering, leaving)
    np.minimum.at(into, dst, entering)
    np.minimum.at(out, src, leaving)
    # A rank without incoming links never receives, and one without outgoing links never sends: they need nothing.
    into[np.isinf(into)] = out[np.isinf(out)] = 0.0
    for ends in lengths_at_ends(problem.collective, into, out):
        np.maximum(required, ends, out=required)
    return required


def lengths_at_ends(collective: Collective, into: Floats, out: Floats) -> list[Floats]:
    """Return what the first and the last links of all routes of a chunk use up: three limits at most.

    Args:
        collective: The collective.
        into: Least length that a byte uses up on a link into every rank, shape (nranks,).
        out: Least length that a byte uses up on a link out of every rank, shape (nranks,).

    Returns:
        Limits of shape (nchunks,): what comes to all goals; where some sum has more than one holder, also what leaves
        all holders, and both for such sums (0 for other chunks). For the last, take the first rank that has all of a
        sum: every other holder has sent by then, every other goal has still to receive, and these are different sends.
        The list is empty if no chunk has more than one holder or goal.
    """
    need = find_requirements(collective)
    if not ((need.nhold > 1) | (need.ngoal > 1)).any():
        return []
    nchunks, hold, goal = collective.nchunks, collective.holders[1], collective.goals[1]
    comes = sum_by(need.goal_chunk, into[goal] * need.arrive, nchunks)
    limits = [comes]
    sums = collective.reduces & (need.nhold > 1)
    if sums.any():
        limits.append(sum_by(need.hold_chunk, out[hold] * need.depart, nchunks))
        total = sum_by(need.hold_chunk, out[hold], nchunks) + sum_by(need.goal_chunk, into[goal], nchunks)
        first = np.zeros(nchunks)
        np.maximum.at(first, need.goal_chunk, into[goal] + out[goal] * need.goal_is_holder)
        limits.append(np.where(sums & (need.ngoal > 0), total - first, 0.0))
    return limits


@dataclass(frozen=True, eq=False)
class DistancePairs:
    """The pairs of holders and goals of the chunks that have few of them.

    Attributes:
        chunk: The chunk of every row; a row is one goal of one chunk.
        start: Index of each row's first pair; a row's pairs are contiguous.
        holder: Holder of each pair.
        goal: Goal of each pair.
        unlisted: Chunks that have too many pairs to be listed.
    """

    chunk: Ints
    start: Ints
    holder: Ints
    goal: Ints
    unlisted: Ints

    @property
    def single(self) -> bool:
        """Return True if every row has one pair."""
        return len(self.holder) == len(self.chunk)

    def of_pairs(self, of_rows: NDArray[Any]) -> NDArray[Any]:
        """Return for every pair the value of its row.

        Args:
            of_rows: A value of every row, shape (rows,).
        """
        return of_rows if self.single else np.repeat(of_rows, np.diff(self.start, append=len(self.holder)))


@lru_cache(maxsize=2)
def pairs(collective: Collective, listed_below: int = LISTED_BELOW) -> DistancePairs:
    """Return all pairs of holders and goals of the chunks with fewer than `listed_below` pairs.

    Rows are by chunk, then goal, and a row's pairs by holder, ascending. A goal that holds its chunk makes pairs too.
    Chunks without holders or goals have none. The last two results are cached.
    """
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
    return DistancePairs(chunk, start, holder, goals, np.flatnonzero(many))


def required_distances(collective: Collective, distances: Distances, listed_below: int = LISTED_BELOW) -> Floats:
    """Return the longest distance that each chunk must be carried in any algorithm, shape (nchunks,).

    A plain chunk may come from the nearest holder; of a sum the furthest contribution has to come. Of a sum with very
    many pairs only the first holders are measured, which may give less. A chunk without holders or goals has 0, and one
    without a route inf.

    Args:
        collective: The collective.
        distances: Distances between local ranks.
        listed_below: Number of pairs from which a chunk's are not listed, but computed as sets.
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
    for chunks, holders, goals in chunks_by_ends(collective, listed.unlisted):
        if collective.reduces[chunks[0]]:
            sample = holders[: max(8, _SAMPLE_WORK // distances.nranks)]
            blocks = (sample[i : i + 64] for i in range(0, len(sample), 64))
            required[chunks] = max(float(distances.rows(block)[:, goals].max()) for block in blocks)
        else:
            required[chunks] = distances.nearest(holders)[goals].max()
    return required


def fewer_ends(collective: Collective) -> tuple[tuple[Ints, Ints], bool]:
    """Return the chunks' holders or their goals, as (ptr, ranks), and True if these are the holders.

    Those that are fewer distinct ranks over all chunks are returned, the holders if they are as many. Chunk c has the
    ranks ranks[ptr[c]:ptr[c+1]].
    """
    holders, goals = collective.holders, collective.goals
    forth = len(_distinct(holders[1], collective.nranks)) <= len(_distinct(goals[1], collective.nranks))
    return (holders if forth else goals), forth


def pair_distances(distances: Distances, sources: Ints, targets: Ints) -> Floats:
    """Return the distance from sources[i] to targets[i], shape (pairs,); inf where there is no route.

    Raises:
        TimeUp: The time of the work around is over.
    """
    result = np.empty(len(sources))
    distinct_sources, distinct_targets = _distinct(sources, distances.nranks), _distinct(targets, distances.nranks)
    forth = len(distinct_sources) <= len(distinct_targets)
    roots, root, end = (distinct_sources, sources, targets) if forth else (distinct_targets, targets, sources)
    block = max(1, _CELLS // distances.nranks)
    for low in range(0, len(roots), block):
        block_roots = roots[low : low + block]
        place = index_among(distances.nranks, block_roots)
        table = distances.rows(block_roots, to=not forth)
        if len(roots) <= block:
            return np.asarray(table[place[root], end], dtype=np.float64)
        inside = place[root] >= 0
        result[inside] = table[place[root[inside]], end[inside]]
    return result


def _distinct(ranks: Ints, nranks: int) -> Ints:
    """Return the distinct ranks, ascending."""
    return np.flatnonzero(flags_of(nranks, ranks))
