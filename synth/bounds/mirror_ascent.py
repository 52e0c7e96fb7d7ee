"""Mirror ascent on the dual of a problem's flow: what should cost more, by the shortest paths under the prices."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from synth.bounds.metric import fewer_ends, lengths_at_ends, link_lengths, pairs, resource_loads
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import find_requirements, sum_by

_FLOOR = 1e-4  # of the average weight: what nothing costs never comes back
_STEP = 1.0


def ascend(parts: list[Problem], weight: Floats, rounds: int) -> tuple[Floats, Floats]:
    """Weights that prove more than those to begin with, and the loads of the paths that all steps found.

    On average over many steps these paths are a good routing: no resource is much busier than the value says.

    Args:
        parts: the problem's chunks, shared out at random into parts of about equal traffic; every step looks at
            one part and takes it for the whole.
        weight: one a resource, to begin with.
        rounds: how often every part is looked at.
    """
    least = _FLOOR / len(weight)
    weight = np.maximum(weight / weight.sum(), least)
    weight /= weight.sum()
    duals = [Dual(part) for part in parts]
    best, best_value, loads, late = weight, 0.0, np.zeros(len(weight)), np.zeros(len(weight))
    for step in range(rounds * len(parts)):
        value, load = duals[step % len(parts)].slope(weight)
        if value > best_value:
            best, best_value = weight, value
        if step // len(parts) >= rounds // 2:  # the first paths know little
            loads += load
            late += weight
        rate = _STEP / np.sqrt(step + 1.0) / max(float(load.max()), 1e-300)
        weight = np.maximum(weight * np.exp(rate * (load - value)), least)
        weight /= weight.sum()
    return best if len(parts) == 1 else late, loads


class Dual:
    """The value of weights w over resources (price = weight / capacity), and its slope.

    Value: µs a byte that the lengths prove, Σ required length / Σ w. Where every chunk goes from one rank to one, it
    is concave on weights of sum 1, and the loads of the paths chosen (µs a byte of every resource) are a
    supergradient. Of other chunks that limit counts which is the highest at w.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        net, self.listed = problem.network, pairs(problem.collective)
        self.need = find_requirements(problem.collective)
        self.key = net.src * net.nranks + net.dst
        self.order = np.argsort(self.key, kind="stable")
        self.first = np.flatnonzero(np.diff(self.key[self.order], prepend=-1))
        self.keys = self.key[self.order][self.first]
        self.forth = fewer_ends(problem.collective)[1]
        roots, ends = self.listed.holder, self.listed.goal
        self.root, self.end = (roots, ends) if self.forth else (ends, roots)
        self.roots, self.place = np.unique(self.root, return_inverse=True)
        self.share = problem.collective.fraction

    def slope(self, weight: Floats) -> tuple[float, Floats]:
        """Value, and load (µs a byte) of every resource, when chunks take the cheapest paths by what proves most."""
        net, collective = self.problem.network, self.problem.collective
        price = np.concatenate([weight / net.capacity_gbs, np.zeros(net.nlinks)])
        length = link_lengths(self.problem, price)
        links = self.order  # the shortest link of every pair in `keys`
        if len(self.keys) < net.nlinks:
            links = np.lexsort((length, self.key))[self.first]
        distance, parent = self._trees(length[links])
        row, required = self._furthest(distance)
        into, out = (_shortest(end, length, net.nranks) for end in (net.dst, net.src))
        ends = lengths_at_ends(collective, *(np.where(one >= 0, length[one], 0.0) for one in (into, out)))
        most = np.maximum.reduce([required, *ends])
        carried = np.zeros(net.nlinks)
        left = np.ones(collective.nchunks, dtype=bool)
        for number, value in enumerate(ends):
            these = left & (value >= most) & (value > required)
            left &= ~these
            if these.any():
                self._at_ends(number, these, into, out, length, carried)
        self._on_trees(row[left & (row >= 0)], parent, links, carried)
        return float(most @ self.share) / float(weight.sum()) / 1e3, resource_loads(net, carried) / 1e3

    def _trees(self, length: Floats) -> tuple[Floats, Ints]:
        """Distances from (or to) every root, and the rank before (after) each on its shortest path; -1 at roots."""
        n = self.problem.nranks
        src, dst = self.keys // n, self.keys % n
        ends = (src, dst) if self.forth else (dst, src)
        graph = csr_array((length, ends), shape=(n, n))
        distance, parent = dijkstra(graph, indices=self.roots, return_predecessors=True)
        return distance, np.maximum(parent, -1).astype(np.int64)

    def _furthest(self, distance: Floats) -> tuple[Ints, Floats]:
        """Of every chunk the pair (index into `listed`'s pairs, -1: none) whose path counts, and its length."""
        collective, listed = self.problem.collective, self.listed
        row, required = np.full(collective.nchunks, -1, dtype=np.int64), np.zeros(collective.nchunks)
        length = distance[self.place, self.end]
        index, chunk = np.arange(len(length)), listed.of_pairs(listed.chunk)
        if not listed.single:
            nearest = listed.of_pairs(np.minimum.reduceat(length, listed.start))
            kept = collective.reduces[chunk] | (length <= nearest)
            index, chunk, length = index[kept], chunk[kept], length[kept]
        np.maximum.at(required, chunk, length)
        best = np.flatnonzero(length >= required[chunk])
        row[chunk[best]] = index[best]
        return row, required

    def _at_ends(self, number: int, these: Bools, into: Ints, out: Ints, length: Floats, carried: Floats) -> None:
        """Carry the chunks flagged over the shortest links into their goals, out of their holders, or both."""
        collective, need = self.problem.collective, self.need
        hold, goal = collective.holders[1], collective.goals[1]
        comes = these[need.goal_chunk] & (need.arrive if number == 0 else number == 2)
        leaves = these[need.hold_chunk] & (need.depart if number == 1 else number == 2)
        for flags, rank, chunk, link in ((comes, goal, need.goal_chunk, into), (leaves, hold, need.hold_chunk, out)):
            at = np.flatnonzero(flags)
            at = at[link[rank[at]] >= 0]
            np.add.at(carried, link[rank[at]], self.share[chunk[at]])
        if number == 2:  # but the rank that has the sum first
            at = np.flatnonzero(comes)
            rank, held, chunk = goal[at], need.held[at], need.goal_chunk[at]
            cost = length[into[rank]] + length[out[rank]] * held
            by_chunk = np.lexsort((-cost, chunk))
            one = by_chunk[np.flatnonzero(np.diff(chunk[by_chunk], prepend=-1))]
            share = self.share[chunk[one]]
            np.add.at(carried, into[rank[one]], -share)
            np.add.at(carried, out[rank[one]], -share * held[one])

    def _on_trees(self, rows: Ints, parent: Ints, links: Ints, carried: Floats) -> None:
        """Carry the chunks of some pairs along the trees."""
        n, roots = self.problem.nranks, len(self.roots)
        shares = self.share[self.listed.of_pairs(self.listed.chunk)[rows]]
        flow = sum_by(self.place[rows] * n + self.end[rows], shares, roots * n)
        base = np.arange(roots)[:, None] * n
        above = np.where(parent >= 0, parent + base, np.arange(n) + base).ravel()
        depth = (parent >= 0).astype(np.int64).ravel()
        jump = above
        while True:
            more = depth[jump]
            if not more.any():
                break
            depth = depth + more
            jump = jump[jump]
        order = np.argsort(depth, kind="stable")
        cuts = np.searchsorted(depth[order], np.arange(1, int(depth.max(initial=0)) + 2))
        for low, high in zip(cuts[-2::-1], cuts[:0:-1], strict=True):
            nodes = order[low:high]
            np.add.at(flow, above[nodes], flow[nodes])
        used = np.flatnonzero((flow > 0) & (above != np.arange(len(above))))
        node, before = used % n, above[used] % n
        key = before * n + node if self.forth else node * n + before
        np.add.at(carried, links[np.searchsorted(self.keys, key)], flow[used])


def _shortest(end: Ints, length: Floats, nranks: int) -> Ints:
    """The shortest link at every rank's end, -1 where there is none."""
    order = np.lexsort((length, end))
    first = np.flatnonzero(np.diff(end[order], prepend=-1))
    found = np.full(nranks, -1, dtype=np.int64)
    found[end[order][first]] = order[first]
    return found
