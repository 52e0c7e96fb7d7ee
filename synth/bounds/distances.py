"""Distances for given link lengths, for bounds and their witnesses; no engine finds its routes with this.

Small networks use Floyd and Warshall in NumPy, others SciPy's Dijkstra.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.deadline import check_deadline
from synth.model.problem import least_latency

_SMALL = 96  # ranks: up to here, all pairs take less time than the import of SciPy


class Distances:
    """Least sums of link lengths between ranks; inf where there is no route.

    Ranks that links of length 0 join in both directions are one point. They are joined first, so that prices on few
    resources leave few points to search from.

    Attributes:
        nranks: Number of ranks.
        point: Point of each rank, shape (nranks,).
    """

    def __init__(self, nranks: int, src: Ints, dst: Ints, length: Floats) -> None:
        """Build the distances of links src→dst with lengths ≥ 0; of parallel links the shortest counts."""
        self.nranks = nranks
        self.point = np.arange(nranks)
        if nranks > _SMALL and not (length > 0).all():
            free = length <= 0
            graph = _sparse(np.ones(int(free.sum())), src[free], dst[free], nranks)
            labels = _csgraph().connected_components(graph, directed=True, connection="strong")[1]
            self.point = np.asarray(labels, dtype=np.int64)
        self._points = int(self.point.max()) + 1
        a, b = self.point[src], self.point[dst]
        between = a != b
        a, b, length = a[between], b[between], length[between]
        order = np.lexsort((length, b, a))
        a, b = a[order], b[order]
        first = np.ones(len(a), dtype=bool)
        first[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
        self._src, self._dst, self._length = a[first], b[first], length[order][first]

    @cached_property
    def _table(self) -> Floats:
        """Return all distances between points, shape (points, points), by Floyd and Warshall; it is computed once."""
        return least_latency(self._points, self._src, self._dst, self._length)

    @cached_property
    def _forth(self) -> Any:
        """Return the SciPy graph of the links between points."""
        return _sparse(self._length, self._src, self._dst, self._points)

    @cached_property
    def _back(self) -> Any:
        """Return the SciPy graph of the reversed links between points."""
        return _sparse(self._length, self._dst, self._src, self._points)

    def _between_points(self, points: Ints, to: bool, nearest: bool) -> Floats:
        """Return distances from each of the points to all points, or with `to` from all points to each of them.

        The shape is (len(points), all points); with `nearest` it is (all points,), the least of each column.

        Raises:
            TimeUp: The time of the work around is over.
        """
        check_deadline()
        if self._points <= _SMALL:
            table = self._table[:, points].T if to else self._table[points]
            return np.asarray(table.min(axis=0) if nearest else table)
        return np.asarray(_csgraph().dijkstra(self._back if to else self._forth, indices=points, min_only=nearest))

    def rows(self, sources: Ints, *, to: bool = False) -> Floats:
        """Return the distances from each of some ranks to every rank, or from every rank to each of them.

        Args:
            sources: The ranks, in any order.
            to: Whether distances run from every rank to each of `sources`.

        Returns:
            A row for each of `sources`, shape (len(sources), nranks): 0 at the rank itself, inf without a route.

        Raises:
            TimeUp: The time of the work around is over.
        """
        points, place = np.unique(self.point[sources], return_inverse=True)
        table = self._between_points(points, to, nearest=False)
        if self._points == self.nranks and np.array_equal(points, sources):
            return table
        return np.asarray(table[place.reshape(-1)][:, self.point])

    def nearest(self, sources: Ints, *, to: bool = False) -> Floats:
        """Return the distance from the nearest of some ranks to every rank, or from every rank to the nearest of them.

        Args:
            sources: The ranks, at least one.
            to: Whether distances run from every rank to `sources`.

        Returns:
            Distances, shape (nranks,); inf where there is no route to or from any of `sources`.

        Raises:
            TimeUp: The time of the work around is over.
        """
        return np.asarray(self._between_points(np.unique(self.point[sources]), to, nearest=True)[self.point])


def _csgraph() -> Any:
    """Return SciPy's module of graph algorithms."""
    from scipy.sparse import csgraph  # Imported here: SciPy starts slowly, and small networks do without it.

    return csgraph


def _sparse(length: Floats, src: Ints, dst: Ints, count: int) -> Any:
    """Return the graph as SciPy takes it; an entry counts as a link even if its length is 0."""
    from scipy.sparse import csr_array  # Imported here: SciPy starts slowly.

    return csr_array((length, (src, dst)), shape=(count, count))
