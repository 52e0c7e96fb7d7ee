"""Distances for given link lengths, for bounds and their witnesses; no engine finds its routes with this.

Small networks: Floyd and Warshall in NumPy. Others: SciPy's Dijkstra.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.problem import least_latency

_SMALL = 96  # ranks; all pairs of so few take less time than the import of SciPy


class Distances:
    """Least sums of link lengths between ranks; inf where no route is.

    Ranks that zero-length links join both ways are one point (found first, so that prices on few resources leave
    few points to search from).
    """

    def __init__(self, nranks: int, src: Ints, dst: Ints, length: Floats) -> None:
        """Links src→dst with their lengths ≥ 0, any number a pair: the shortest counts."""
        self.nranks = nranks
        self.point = np.arange(nranks)
        if nranks > _SMALL and not (length > 0).all():
            self.point = self._joined(src[length <= 0], dst[length <= 0])
        self._points = int(self.point.max()) + 1
        a, b = self.point[src], self.point[dst]
        between = a != b
        a, b, length = a[between], b[between], length[between]
        order = np.lexsort((length, b, a))
        a, b = a[order], b[order]
        first = np.ones(len(a), dtype=bool)
        first[1:] = (a[1:] != a[:-1]) | (b[1:] != b[:-1])
        self._src, self._dst, self._length = a[first], b[first], length[order][first]

    def _joined(self, src: Ints, dst: Ints) -> Ints:
        free = _sparse(np.ones(len(src)), src, dst, self.nranks)
        labels = _csgraph().connected_components(free, directed=True, connection="strong")[1]
        return np.asarray(labels, dtype=np.int64)

    @cached_property
    def _table(self) -> Floats:
        return least_latency(self._points, self._src, self._dst, self._length)

    @cached_property
    def _forth(self) -> Any:
        return _sparse(self._length, self._src, self._dst, self._points)

    @cached_property
    def _back(self) -> Any:
        return _sparse(self._length, self._dst, self._src, self._points)

    def _between_points(self, points: Ints, to: bool, nearest: bool) -> Floats:
        """Rows from (or to) the points given to all, or the least of each column."""
        if self._points <= _SMALL:
            table = self._table[:, points].T if to else self._table[points]
            return np.asarray(table.min(axis=0) if nearest else table)
        return np.asarray(_csgraph().dijkstra(self._back if to else self._forth, indices=points, min_only=nearest))

    def rows(self, sources: Ints, *, to: bool = False) -> Floats:
        """From each of `sources` to every rank, or `to` each from every rank: shape (len(sources), nranks)."""
        points, place = np.unique(self.point[sources], return_inverse=True)
        table = self._between_points(points, to, nearest=False)
        if self._points == self.nranks and np.array_equal(points, sources):
            return table
        return np.asarray(table[place.reshape(-1)][:, self.point])

    def nearest(self, sources: Ints, *, to: bool = False) -> Floats:
        """From that of `sources` which is nearest to every rank, or `to` it: shape (nranks,)."""
        return np.asarray(self._between_points(np.unique(self.point[sources]), to, nearest=True)[self.point])


def _csgraph() -> Any:
    from scipy.sparse import csgraph  # starts slowly, and small networks do without

    return csgraph


def _sparse(length: Floats, src: Ints, dst: Ints, count: int) -> Any:
    """The graph as SciPy takes it; an entry that is there counts as a link, also with length 0."""
    from scipy.sparse import csr_array  # starts slowly

    return csr_array((length, (src, dst)), shape=(count, count))
