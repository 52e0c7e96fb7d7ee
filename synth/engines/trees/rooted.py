"""What trees from roots are packed into: how many, in what time, and a round of them."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np

from synth.bounds.max_flow import max_flow, residual
from synth.bounds.worst_cut import written
from synth.engines.trees.packing import pack
from synth.engines.trees.pipeline import Round, one_round
from synth.engines.trees.tuning import Tuning
from synth.model.collective import Ints
from synth.model.compiled import Runner, choose_runner
from synth.model.problem import Problem


def unshared(problem: Problem) -> Ints:
    """Links of which no two share a resource: all, or of those that meet in switches and limits a few.

    From port to port of a switch the nearest ranks above, so that they make rings; between nodes first those at the
    same place in their nodes. That is one way to split a switch (Bérczi and Frank), at the rate of its ports.
    """
    net, node = problem.network, problem.topology.nodes[np.array(problem.ranks)]
    if len(np.unique(net.uses_idx)) == len(net.uses_idx):
        return np.arange(net.nlinks)
    number = np.unique(node, return_inverse=True)[1].ravel()
    place = np.array([int((number[:rank] == number[rank]).sum()) for rank in range(problem.nranks)])
    nodes, wide = int(number.max()) + 1, int(place.max()) + 1
    away = (number[net.dst] - number[net.src] - 1) % nodes  # the next node first, its own last
    order = np.lexsort(((place[net.dst] - place[net.src]) % wide, away))
    taken = np.zeros(net.nresources, dtype=bool)
    kept = []
    for link in order.tolist():
        uses = net.uses(link)
        if not taken[uses].any():
            taken[uses] = True
            kept.append(link)
    return np.array(sorted(kept), dtype=np.int64)


class RootedTrees:
    """Out-trees from the ranks that hold chunks, each to all ranks; of a copying problem.

    Attributes:
        nroots: of the ranks from which chunks go to all others.
        least: the optimum: µs a byte.
    """

    def __init__(self, problem: Problem, least: Fraction, links: Ints | None = None) -> None:
        """Prepare trees of a copying problem.

        Args:
            least: The time that the worst cut takes, in µs a byte.
            links: The links that trees may use; None for those of `unshared`.
        """
        net, self.least = problem.network, least
        self.links = kept = unshared(problem) if links is None else links
        collective = problem.collective
        self.n, self.src, self.dst = problem.nranks, net.src[kept], net.dst[kept]
        self.roots = collective.pre[np.argsort(collective.pre[:, 1]), 0].tolist()
        self.gbs = [written(value) for value in net.bandwidth_gbs[kept].tolist()]
        self.nroots = len(self.roots)
        self.share = written(float(collective.fraction[0]))
        self.run: Runner = choose_runner(2e-5 * len(kept) * self.n * len(self.roots))
        ends = np.concatenate([np.full(self.n, self.n), self.src]), np.concatenate([np.arange(self.n), self.dst])
        self.flow = residual(self.run, self.n + 1, *ends)

    def counts(self, tuning: Tuning) -> list[int]:
        """Numbers of trees a root, in the order in which they are tried."""
        exact = math.lcm(*(self._trees(self.least, gbs).denominator for gbs in set(self.gbs)))
        each = (self.n - 1) * len(self.roots)
        most = max(1, tuning.round_sends // each)
        some = [k for k in tuning.counts if k <= min(most, exact)]
        # rounds of very many trees are long: fewer first, which come near
        first = some[-1:] if exact > 2 * max(tuning.counts) else []
        return [*dict.fromkeys([*first, min(exact, most), *some[::-1]])]

    def _trees(self, us_per_byte: Fraction, gbs: Fraction) -> Fraction:
        """How many times a root's whole data a link carries in the time."""
        return us_per_byte * 1000 * gbs / self.share

    def capacity(self, k: int, us_per_byte: Fraction) -> Ints:
        """Return the number of trees that each link may be in, at most all trees.

        A link may be wider than others by more than an integer holds.
        """
        most = k * self.nroots
        each = {gbs: min(math.floor(self._trees(us_per_byte, gbs) * k), most) for gbs in set(self.gbs)}
        return np.array([each[gbs] for gbs in self.gbs], dtype=np.int64)

    def _suffices(self, k: int, capacity: Ints) -> bool:
        """Whether k trees a root can be packed."""
        supply = np.zeros(self.n, dtype=np.int64)
        np.add.at(supply, self.roots, k)
        enough = int(supply.sum())
        for target in range(self.n):
            whole = np.concatenate([np.where(np.arange(self.n) < target, enough, supply), capacity])
            if max_flow(self.run, self.flow, whole, self.n, target, enough)[0] < enough:
                return False
        return True

    def least_time(self, k: int) -> Fraction:
        """The least µs a byte in which k trees a root can be packed."""
        low, high = self.least, self.least
        widths = sorted(set(self.gbs))
        while not self._suffices(k, self.capacity(k, high)):
            low, high = high, high * 2
        # times at which some link may be in one more tree, up to all of them
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
        most = min(math.floor(self._trees(high, gbs) * k), k * self.nroots)
        return range(math.floor(self._trees(low, gbs) * k), most + 1)

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Round:
        """A round of k trees a root.

        Raises TooLate.
        """
        capacity = self.capacity(k, us_per_byte)
        trees = pack(self.run, self.n, self.src, self.dst, capacity, dict.fromkeys(self.roots, k), deadline)
        trees.sort(key=lambda tree: self.roots.index(tree.root))
        one = one_round(trees, self.src, self.dst, None)
        return replace(one, link=self.links[one.link])
