"""Trees from roots: how many can be packed, in what time, and a round of them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from synth.bounds.cuts.max_flow import max_flow, residual
from synth.bounds.cuts.worst_cut import decimal_fraction
from synth.engines.flow.tree_sends import Sends
from synth.engines.trees.packing import pack
from synth.engines.trees.pipeline import one_round
from synth.engines.trees.tuning import TreesTuning
from synth.model.collective import Ints
from synth.model.compiled import Runner, choose_runner
from synth.model.problem import Problem


def unshared(problem: Problem) -> Ints:
    """Return links of which no two share a resource, ascending: all, or some of those that meet in switches and limits.

    From port to port of a switch it takes the next ranks above first, so that the links make rings. Between nodes it
    takes ranks at the same place of their nodes first. That is one way to split a switch (Bérczi and Frank), at the
    rate of its ports.
    """
    net, node = problem.network, problem.topology.nodes[np.array(problem.ranks)]
    if len(np.unique(net.uses_idx)) == len(net.uses_idx):
        return np.arange(net.nlinks)
    number = np.unique(node, return_inverse=True)[1].ravel()
    place = np.array([int((number[:rank] == number[rank]).sum()) for rank in range(problem.nranks)])
    nodes, wide = int(number.max()) + 1, int(place.max()) + 1
    next_node_first = (
        number[net.dst] - number[net.src] - 1
    ) % nodes  # The next node comes first, and the own node last.
    order = np.lexsort(((place[net.dst] - place[net.src]) % wide, next_node_first))
    is_used = np.zeros(net.nresources, dtype=bool)
    links = []
    for link in order.tolist():
        uses = net.uses(link)
        if not is_used[uses].any():
            is_used[uses] = True
            links.append(link)
    return np.array(sorted(links), dtype=np.int64)


class RootedTrees:
    """Out-trees of a copying problem, from each rank that holds chunks to all ranks.

    Attributes:
        least: The optimum in µs a byte.
        links: The links that trees may use.
        src: Source rank of each of these links.
        dst: Destination rank of each of these links.
        roots: Root of each chunk.
        share: Part of the message that a root holds.
    """

    def __init__(self, problem: Problem, least: Fraction, links: Ints | None = None) -> None:
        """Build the arrays for trees of a copying problem.

        Args:
            problem: A copying problem.
            least: The time that the worst cut takes, in µs a byte.
            links: The links that trees may use; None for those of `unshared`.
        """
        self.net = net = problem.network
        self.least = least
        self.links = tree_links = unshared(problem) if links is None else links
        collective = problem.collective
        self.n, self.src, self.dst = problem.nranks, net.src[tree_links], net.dst[tree_links]
        self.roots = collective.pre[np.argsort(collective.pre[:, 1]), 0].tolist()
        self.gbs = [decimal_fraction(value) for value in net.bandwidth_gbs[tree_links].tolist()]
        self.share = decimal_fraction(float(collective.fraction[0]))
        self.run: Runner = choose_runner(2e-5 * len(tree_links) * self.n * len(self.roots))
        ends = np.concatenate([np.full(self.n, self.n), self.src]), np.concatenate([np.arange(self.n), self.dst])
        self.flow = residual(self.run, self.n + 1, *ends)

    def counts(self, tuning: TreesTuning) -> list[int]:
        """Return numbers of trees a root, in the order in which they are tried.

        The number that attains the optimum exactly, or the most that a round may have, comes before smaller ones; where
        it is very large, the largest smaller one comes first.
        """
        exact = math.lcm(*(self._trees(self.least, gbs).denominator for gbs in set(self.gbs)))
        sends_of_round = (self.n - 1) * len(self.roots)
        most = max(1, tuning.round_sends // sends_of_round)
        smaller = [k for k in tuning.counts if k <= min(most, exact)]
        # Rounds of very many trees are long, so a smaller number that comes near is tried first.
        first = smaller[-1:] if exact > 2 * max(tuning.counts) else []
        return [*dict.fromkeys([*first, min(exact, most), *smaller[::-1]])]

    def _trees(self, us_per_byte: Fraction, gbs: Fraction) -> Fraction:
        """Return how many times a link carries a root's whole data in a time of `us_per_byte`."""
        return us_per_byte * 1000 * gbs / self.share

    def capacity(self, k: int, us_per_byte: Fraction) -> Ints:
        """Return the number of trees that each link may be in, at most all trees; shape (links that trees may use,).

        The limit is needed because a link may be wider than others by more than an integer holds.
        """
        most = k * len(self.roots)
        capacity_of = {gbs: min(math.floor(self._trees(us_per_byte, gbs) * k), most) for gbs in set(self.gbs)}
        return np.array([capacity_of[gbs] for gbs in self.gbs], dtype=np.int64)

    def _suffices(self, k: int, capacity: Ints) -> bool:
        """Return True if k trees a root can be packed into the capacities, by a maximum flow to every rank."""
        supply = np.zeros(self.n, dtype=np.int64)
        np.add.at(supply, self.roots, k)
        enough = int(supply.sum())
        for target in range(self.n):
            capacity_to_target = np.concatenate([np.where(np.arange(self.n) < target, enough, supply), capacity])
            if max_flow(self.run, self.flow, capacity_to_target, self.n, target, enough)[0] < enough:
                return False
        return True

    def least_time(self, k: int) -> Fraction:
        """Return the least time in µs a byte in which k trees a root can be packed."""
        low, high = self.least, self.least
        widths = sorted(set(self.gbs))
        while not self._suffices(k, self.capacity(k, high)):
            low, high = high, high * 2
        # The times at which some link may be in one more tree, up to all trees.
        steps = sorted(
            {
                time
                for gbs in widths
                for count in self._counts_between(k, gbs, low, high)
                if low <= (time := count * self.share / (1000 * gbs * k)) <= high
            }
            | {high}
        )
        first, last = 0, len(steps) - 1
        while first < last:
            middle = (first + last) // 2
            if self._suffices(k, self.capacity(k, steps[middle])):
                last = middle
            else:
                first = middle + 1
        return steps[last]

    def _counts_between(self, k: int, gbs: Fraction, low: Fraction, high: Fraction) -> range:
        """Return the numbers of trees that a link may be in between two times."""
        most = min(math.floor(self._trees(high, gbs) * k), k * len(self.roots))
        return range(math.floor(self._trees(low, gbs) * k), most + 1)

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Sends:
        """Return a round of k trees a root.

        Raises:
            TooLate: If the packing is not done by the deadline.
            ValueError: If they cannot be packed in a time of `us_per_byte`; see `least_time`.
        """
        capacity = self.capacity(k, us_per_byte)
        trees = pack(self.run, self.n, self.src, self.dst, capacity, dict.fromkeys(self.roots, k), deadline)
        trees.sort(key=lambda tree: self.roots.index(tree.root))
        trees = [replace(tree, arcs=tuple(self.links[list(tree.arcs)].tolist())) for tree in trees]
        return one_round(self.net, trees, None)
