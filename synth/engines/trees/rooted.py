"""What trees from roots are packed into: how many, in what time, and a round of them."""

from __future__ import annotations

import math
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


class RootedTrees:
    """Out-trees from the ranks that hold chunks, each to all ranks; of a copying problem.

    Attributes:
        nroots: of the ranks from which chunks go to all others.
        least: the optimum: µs a byte.
    """

    def __init__(self, problem: Problem, least: Fraction) -> None:
        """Of a copying problem. least: µs a byte that the worst cut takes."""
        net, self.least = problem.network, least
        collective = problem.collective
        self.n, self.src, self.dst = problem.nranks, net.src, net.dst
        self.roots = collective.pre[np.argsort(collective.pre[:, 1]), 0].tolist()
        self.gbs = [written(value) for value in net.bandwidth_gbs.tolist()]
        self.nroots = len(self.roots)
        self.share = written(float(collective.fraction[0]))
        self.run: Runner = choose_runner(2e-5 * net.nlinks * self.n * len(self.roots))
        ends = np.concatenate([np.full(self.n, self.n), self.src]), np.concatenate([np.arange(self.n), self.dst])
        self.flow = residual(self.run, self.n + 1, *ends)

    def counts(self, tuning: Tuning) -> list[int]:
        """Numbers of trees a root, in the order in which they are tried."""
        exact = math.lcm(*(self._trees(self.least, gbs).denominator for gbs in set(self.gbs)))
        each = (self.n - 1) * len(self.roots)
        most = max(1, tuning.round_sends // each)
        some = [k for k in tuning.counts if k <= min(most, exact)]
        return [*dict.fromkeys([min(exact, most), *some])]

    def _trees(self, us_per_byte: Fraction, gbs: Fraction) -> Fraction:
        """How many times a root's whole data a link carries in the time."""
        return us_per_byte * 1000 * gbs / self.share

    def capacity(self, k: int, us_per_byte: Fraction) -> Ints:
        """Trees that every link may be in."""
        return np.array([math.floor(self._trees(us_per_byte, gbs) * k) for gbs in self.gbs], dtype=np.int64)

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
        # times at which some link may be in one more tree
        steps = sorted(
            {
                time
                for gbs in widths
                for count in range(math.floor(self._trees(low, gbs) * k), math.floor(self._trees(high, gbs) * k) + 1)
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

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Round:
        """A round of k trees a root.

        Raises TooLate.
        """
        capacity = self.capacity(k, us_per_byte)
        trees = pack(self.run, self.n, self.src, self.dst, capacity, dict.fromkeys(self.roots, k), deadline)
        trees.sort(key=lambda tree: self.roots.index(tree.root))
        return one_round(trees, self.src, self.dst, None)
