"""The trees of an all-reduce: packed into links that run both ways, taken as edges."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from synth.bounds.cuts.worst_cut import decimal_fraction
from synth.engines.flow.tree_sends import Sends
from synth.engines.trees.packing import TooLate, Tree, depths
from synth.engines.trees.pipeline import one_round
from synth.engines.trees.spanning import pack_spanning, rooted
from synth.engines.trees.tuning import TreesTuning
from synth.model.collective import Ints
from synth.model.compiled import Runner, choose_runner
from synth.model.deadline import now
from synth.model.problem import Problem, hops
from synth.phases.reversal import mirror_links

_STEP_S = 2e-6  # seconds a step in the interpreter


class MirroredTrees:
    """Spanning trees: sums go up each tree over the reversed links, and results go down it.

    A tree sends its part of the message over each of its edges once in each direction. Every link of the problem must
    have an equal reverse.

    Attributes:
        least: The bound in µs a byte, rounded.
        forth: Links from lower to higher ranks, the first direction of each edge.
        back: The reverse of each link of `forth`.
        orders: Random orders of ranks and edges, one for each packing.
        middle: Rank with the smallest distance to the farthest rank.
    """

    def __init__(self, problem: Problem, least_us_per_byte: float, tuning: TreesTuning) -> None:
        net, mirror = problem.network, mirror_links(problem.network)
        assert mirror is not None
        self.net, self.mirror, self.n, self.tuning = net, mirror, problem.nranks, tuning
        self.forth = np.flatnonzero(net.src < net.dst)
        self.back = mirror[self.forth]
        self.ends = net.src[self.forth], net.dst[self.forth]
        self.gbs = [decimal_fraction(value) for value in net.bandwidth_gbs[self.forth].tolist()]
        self.least = Fraction(least_us_per_byte).limit_denominator(10**15)
        self.run: Runner = choose_runner(_STEP_S * tuning.restarts * 16 * self.n * (self.n + len(self.forth)))
        npackings = max(1, tuning.restarts * tuning.restart_ranks // max(tuning.restart_ranks, self.n))
        rng = np.random.default_rng(0)
        self.orders = [(rng.permutation(self.n), rng.permutation(len(self.forth))) for _ in range(npackings)]
        self.middle = int(hops(self.n, net.src, net.dst).max(axis=1).argmin())

    def counts(self, tuning: TreesTuning) -> list[int]:
        """Return numbers of trees to try: for each factor in `losses` the fewest trees within it, then one tree.

        The factors count from the least time of all numbers of trees. Times are estimates from the room of edges and
        ranks, without packing.
        """
        most = min(tuning.most_trees, max(1, tuning.round_sends // (2 * self.n)))
        time_of = [self._room(k) for k in range(1, most + 1)]
        least = min(time_of)
        return [*dict.fromkeys(next(k + 1 for k, t in enumerate(time_of) if t <= least * x) for x in tuning.losses), 1]

    def capacity(self, k: int, us_per_byte: Fraction) -> Ints:
        """Return the number of k trees that each edge may be in, in a time of `us_per_byte`; shape (edges,)."""
        capacity_of = {gbs: math.floor(us_per_byte * 1000 * gbs * k) for gbs in set(self.gbs)}
        return np.array([min(k, capacity_of[gbs]) for gbs in self.gbs], dtype=np.int64)

    def _times(self, k: int) -> list[Fraction]:
        """Return the times in µs a byte, from the bound on, at which some edge may be in one more of k trees."""
        low = self.least * (1 - Fraction(1, 10**9))
        counts = range(1, k + 1)
        steps = {count / (1000 * gbs * k) for gbs in set(self.gbs) for count in counts}
        return sorted(step for step in steps if step >= low)

    def _room(self, k: int) -> Fraction:
        """Return the first of `_times` at which all edges, and the edges of each rank, have room for k trees.

        It is 10⁹ where there is none.
        """
        for time in self._times(k):
            capacity = self.capacity(k, time)
            room_of_rank = np.bincount(np.concatenate(self.ends), np.concatenate([capacity, capacity]), self.n)
            if capacity.sum() >= k * (self.n - 1) and room_of_rank.min() >= k:
                return time
        return Fraction(10**9)

    def least_time(self, k: int) -> Fraction | None:
        """Return the least time in µs a byte in which k trees can be packed; None if a few trials do not find it."""
        first = self._room(k)
        for time in [step for step in self._times(k) if step >= first][: self.tuning.waits]:
            if self._pack(k, time, *self.orders[0]) is not None:
                return time
        return None

    def _pack(self, k: int, us_per_byte: Fraction, ranks: Ints, edges: Ints) -> list[Ints] | None:
        """Return the edges of k trees, packed with renumbered ranks and edges; None if they do not fit in the time.

        Args:
            k: Number of trees.
            us_per_byte: The time in µs a byte.
            ranks: New number of each rank.
            edges: The edges in their new order.

        Returns:
            For each tree the numbers of its edges, ascending.
        """
        ends = ranks[self.ends[0][edges]], ranks[self.ends[1][edges]]
        capacity = self.capacity(k, us_per_byte)[edges]
        packed = pack_spanning(self.run, self.n, ends, capacity, k, int(ranks[self.middle]))
        return None if packed is None else [np.sort(edges[tree]) for tree in packed]

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Sends:
        """Return a round of k trees, the shallowest of some packings.

        Raises:
            TooLate: If no packing is found by the deadline, or at all in a time of `us_per_byte`.
        """
        best: list[Tree] = []
        least = np.inf
        for order in self.orders:
            if now() >= deadline:
                break
            edges = self._pack(k, us_per_byte, *order)
            if edges is None:
                continue
            trees = [rooted(self.n, self.ends, tree, (self.forth, self.back)) for tree in edges]
            depth = max(max(depths(tree, self.net.src, self.net.dst).values()) for tree in trees)
            if depth < least:
                best, least = trees, depth
        if not best:
            raise TooLate
        return one_round(self.net, best, self.mirror)
