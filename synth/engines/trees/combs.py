"""Spanning trees of meshes by formula, for all-reduce: along every line of one dimension, then along lines of the next.

A tree connects all lines of its first dimension to one place on them, the ranks at that place to one place of the
second dimension, and so on. Over all places, and with the dimensions in turn, every link has the same load. On a mesh
of a × b ranks the combs of rows and columns attain (ab - 1) / (2ab - a - b) of the message a link, which no packing of
trees betters, and none of them is deeper than the mesh is wide. Trees packed edge by edge are at least twice as deep.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np

from synth.baselines.algorithms.grid import grid_extents
from synth.bounds.cuts.worst_cut import decimal_fraction
from synth.engines.flow.tree_sends import Sends
from synth.engines.trees.packing import Tree
from synth.engines.trees.pipeline import one_round
from synth.engines.trees.tuning import TreesTuning
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.phases.reversal import mirror_links


def is_mesh(problem: Problem) -> bool:
    """Return True if ranks are numbered along two or more dimensions, and each is linked to its neighbours only.

    Links must be alike in both directions, without links around and without relays.
    """
    net, extents = problem.network, grid_extents(problem)
    if len(extents) < 2 or problem.relays or mirror_links(net) is None:
        return False
    place = _places(extents)
    is_neighbour = np.abs(place[net.src] - place[net.dst]).sum(axis=1) == 1
    pairs = np.unique(net.src.astype(np.int64) * len(place) + net.dst)
    nlinks_of_mesh = sum(2 * (extent - 1) * len(place) // extent for extent in extents)
    return bool(is_neighbour.all()) and len(pairs) == net.nlinks == nlinks_of_mesh


def _places(extents: tuple[int, ...]) -> Ints:
    """Return every rank's place in the mesh, int, shape (ranks, dimensions)."""
    return np.indices(extents).reshape(len(extents), -1).T.astype(np.int64)


class Combs:
    """Trees of a mesh (`is_mesh`) by formula; see `search.SpanningTrees`.

    Attributes:
        least: The bound in µs a byte, rounded.
        nearest: The least of `least_time`, once `counts` was called.
        sets: For each dimension the trees that start with its lines.
        uses: For each set how many of its trees use each link.
        times: How often each set is taken, by the number of trees.
    """

    def __init__(self, problem: Problem, least_us_per_byte: float) -> None:
        net, mirror = problem.network, mirror_links(problem.network)
        assert mirror is not None
        self.net, self.mirror = net, mirror
        self.extents = grid_extents(problem)
        self.place = _places(self.extents)
        self.least = Fraction(least_us_per_byte).limit_denominator(10**15)
        self.link = {ends: link for link, ends in enumerate(zip(net.src.tolist(), net.dst.tolist(), strict=True))}
        self.gbs = [decimal_fraction(value) for value in net.bandwidth_gbs.tolist()]
        self.sets = [self._combs(first) for first in range(len(self.extents))]
        self.uses = [self._uses(trees) for trees in self.sets]
        self.nearest = 2 * self.least
        self.times: dict[int, tuple[int, ...]] = {}  # number of trees → how often each set is taken

    def counts(self, tuning: TreesTuning) -> list[int]:
        """Return numbers of trees to try: for each factor in `losses` the fewest trees within it of the least time.

        None has more sends in a round than allowed; there may be no number at all. It sets `nearest` and `times`.
        """
        dims, most = len(self.extents), tuning.round_sends // (2 * len(self.place))
        most_repeats = max(1, round(tuning.most_combs ** (1 / dims)) - 1)
        time_of: dict[int, Fraction] = {}
        for repeats in itertools.product(range(most_repeats + 1), repeat=dims):
            k = self._many(repeats)
            if 0 < k <= most and (time := self._time(repeats)) < time_of.get(k, math.inf):
                time_of[k], self.times[k] = time, repeats
        self.nearest = min(time_of.values(), default=self.nearest)
        near = (min(k for k, t in time_of.items() if t <= self.nearest * x) for x in tuning.losses if time_of)
        return [*dict.fromkeys(near)]

    def least_time(self, k: int) -> Fraction:
        """Return the time that k trees take, in µs a byte; k is one of `counts`."""
        return self._time(self.times[k])

    def packed(self, k: int, us_per_byte: Fraction, deadline: float) -> Sends:  # noqa: ARG002 - A formula needs no deadline.
        """Return a round of k trees; k is one of `counts`."""
        trees = [tree for comb, repeats in zip(self.sets, self.times[k], strict=True) for tree in comb * repeats]
        return one_round(self.net, trees, self.mirror)

    def _many(self, repeats: tuple[int, ...]) -> int:
        """Return the number of trees if each set is taken so often."""
        return sum(len(trees) * count for trees, count in zip(self.sets, repeats, strict=True))

    def _time(self, repeats: tuple[int, ...]) -> Fraction:
        """Return the time of the busiest link in µs a byte, if each set is taken so often."""
        uses = (np.array(repeats) @ np.array(self.uses)).tolist()
        return max(Fraction(n) / (1000 * gbs) for n, gbs in set(zip(uses, self.gbs, strict=True))) / self._many(repeats)

    def _uses(self, trees: list[Tree]) -> Ints:
        """Return how many of the trees use each link: sums go up the trees, and results down."""
        arcs = np.array([arc for tree in trees for arc in tree.arcs])
        return np.bincount(np.concatenate([arcs, self.mirror[arcs]]), minlength=self.net.nlinks)

    def _combs(self, first: int) -> list[Tree]:
        """Return the trees that contain all lines along dimension `first`.

        There is one for every place along this dimension and those after it in turn, but for the last of them, along
        which all meet in the middle.
        """
        dims = [(first + i) % len(self.extents) for i in range(len(self.extents))]
        along = (range(self.extents[dim]) for dim in dims[:-1])
        return [self._comb(dims, (*places, self.extents[dims[-1]] // 2)) for places in itertools.product(*along)]

    def _comb(self, dims: list[int], places: tuple[int, ...]) -> Tree:
        """Return the tree whose lines along each of `dims` meet at these places along them."""
        goal = np.empty(len(dims), dtype=np.int64)
        goal[dims] = places
        offset = goal - self.place  # from every rank to the root, shape (ranks, dimensions)
        root = int(np.flatnonzero((offset == 0).all(axis=1))[0])
        step = np.array([math.prod(self.extents[dim + 1 :]) for dim in range(len(dims))])
        # Each rank is reached along the first of `dims` in which it differs from the root.
        link_dimension = np.array(dims)[(offset[:, dims] != 0).argmax(axis=1)]
        rank = np.arange(len(offset))
        towards_root = rank + np.sign(offset[rank, link_dimension]) * step[link_dimension]
        order = [i for i in np.abs(offset).sum(axis=1).argsort(kind="stable").tolist() if i != root]
        return Tree(root, 1, tuple(self.link[int(towards_root[i]), i] for i in order))
