"""Spanning trees of meshes by formula, for all-reduce: along every line of one dimension, then along lines of the next.

A tree joins all lines of its first dimension to one place on them, what stands there to one place of the second, and so
on. Over all places and with the dimensions in turn every link carries alike: on a mesh of a × b ranks the combs of rows
and columns attain (ab - 1) / (2ab - a - b) of the message a link, which no packing of trees betters, and none of them
is deeper than the mesh is wide; what is packed edge by edge comes out twice as deep and more.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np

from synth.baselines.grid import grid_extents
from synth.bounds.worst_cut import written
from synth.engines.trees.packing import Tree
from synth.engines.trees.pipeline import Round, one_round
from synth.engines.trees.tuning import Tuning
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.phases.reversal import mirror_links


def is_mesh(problem: Problem) -> bool:
    """Whether ranks are numbered along two or more dimensions, each linked both ways to what is next, and no other."""
    net, extents = problem.network, grid_extents(problem)
    if len(extents) < 2 or problem.relays or mirror_links(net) is None:
        return False
    place = _places(extents)
    beside = np.abs(place[net.src] - place[net.dst]).sum(axis=1) == 1
    pairs = np.unique(net.src.astype(np.int64) * len(place) + net.dst)
    every = sum(2 * (extent - 1) * len(place) // extent for extent in extents)
    return bool(beside.all()) and len(pairs) == net.nlinks == every


def _places(extents: tuple[int, ...]) -> Ints:
    """Every rank's place in the mesh, shape (ranks, dimensions)."""
    return np.indices(extents).reshape(len(extents), -1).T.astype(np.int64)


class Combs:
    """Trees of a mesh (`is_mesh`) by formula; see `search.Trees`.

    Attributes:
        least: what the bound says, rounded. nearest: the least of `least_time`, once `counts` are known.
    """

    def __init__(self, problem: Problem, least_us_per_byte: float) -> None:
        net, mirror = problem.network, mirror_links(problem.network)
        assert mirror is not None
        self.net, self.mirror, self.nroots = net, mirror, 1
        self.extents = grid_extents(problem)
        self.place = _places(self.extents)
        self.least = Fraction(least_us_per_byte).limit_denominator(10**15)
        self.link = {ends: link for link, ends in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True))}
        self.gbs = [written(value) for value in net.bandwidth_gbs.tolist()]
        self.sets = [self._combs(first) for first in range(len(self.extents))]
        self.uses = [self._uses(trees) for trees in self.sets]
        self.nearest = 2 * self.least
        self.times: dict[int, tuple[int, ...]] = {}  # by the number of trees: how often each set is taken

    def counts(self, tuning: Tuning) -> list[int]:
        """The fewest trees within each of some losses over the least time, as far as a round may have sends."""
        dims, most = len(self.extents), tuning.round_sends // (2 * len(self.place))
        often = max(1, round(tuning.most_combs ** (1 / dims)) - 1)
        found: dict[int, Fraction] = {}
        for times in itertools.product(range(often + 1), repeat=dims):
            k = self._many(times)
            if 0 < k <= most and (time := self._time(times)) < found.get(k, math.inf):
                found[k], self.times[k] = time, times
        self.nearest = min(found.values(), default=self.nearest)
        near = (min(k for k, t in found.items() if t <= self.nearest * x) for x in tuning.losses if found)
        return [*dict.fromkeys(near)]

    def least_time(self, k: int) -> Fraction:
        """The µs a byte that k trees take."""
        return self._time(self.times[k])

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Round:  # noqa: ARG002 - by formula
        """A round of k trees."""
        trees = [tree for one, many in zip(self.sets, self.times[k], strict=True) for tree in one * many]
        return one_round(trees, self.net.src, self.net.dst, self.mirror)

    def _many(self, times: tuple[int, ...]) -> int:
        return sum(len(trees) * many for trees, many in zip(self.sets, times, strict=True))

    def _time(self, times: tuple[int, ...]) -> Fraction:
        """µs a byte of the busiest link."""
        uses = (np.array(times) @ np.array(self.uses)).tolist()
        return max(Fraction(n) / (1000 * gbs) for n, gbs in set(zip(uses, self.gbs, strict=True))) / self._many(times)

    def _uses(self, trees: list[Tree]) -> Ints:
        """How many of the trees use each link: sums come up, and go down."""
        arcs = np.array([arc for tree in trees for arc in tree.arcs])
        return np.bincount(np.concatenate([arcs, self.mirror[arcs]]), minlength=self.net.nlinks)

    def _combs(self, first: int) -> list[Tree]:
        """The trees whose lines along dimension `first` are whole, one for every place but along the last dimension."""
        dims = [(first + i) % len(self.extents) for i in range(len(self.extents))]
        along = (range(self.extents[dim]) for dim in dims[:-1])
        return [self._comb(dims, (*places, self.extents[dims[-1]] // 2)) for places in itertools.product(*along)]

    def _comb(self, dims: list[int], places: tuple[int, ...]) -> Tree:
        """The tree whose lines along each of dims meet at these places along them."""
        goal = np.empty(len(dims), dtype=np.int64)
        goal[dims] = places
        away = goal - self.place  # of every rank from the root, shape (ranks, dimensions)
        root = int(np.flatnonzero((away == 0).all(axis=1))[0])
        step = np.array([math.prod(self.extents[dim + 1 :]) for dim in range(len(dims))])
        on = np.array(dims)[(away[:, dims] != 0).argmax(axis=1)]  # the dimension along which a rank's link to it runs
        rank = np.arange(len(away))
        nearer = rank + np.sign(away[rank, on]) * step[on]
        order = [i for i in np.abs(away).sum(axis=1).argsort(kind="stable").tolist() if i != root]
        return Tree(root, 1, tuple(self.link[int(nearer[i]), i] for i in order))
