"""Sets of ranks that must send or receive much data over little capacity."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.bounds.distances import Distances
from synth.bounds.resource_cover import gbs_by_end
from synth.bounds.search import BoundTuning
from synth.bounds.traffic import Traffic, capacities_out, sweep_capacities
from synth.model.collective import Bools, Floats, Ints
from synth.model.deadline import checking_deadline
from synth.model.problem import Problem
from synth.model.requirements import sum_by
from topologies.arrays import index_among


def candidates(problem: Problem, traffic: Traffic, tuning: BoundTuning) -> list[Bools]:
    """Return the sending sides of cuts that are worth a proof, as distinct flags of local ranks.

    They are single ranks, nodes and their complements; the best prefixes of orders by distance and by the graph's least
    eigenvectors; and the ranks on either side of every link of a longest route. In large networks only those count that
    are estimated to be the worst. None is empty and none has all ranks.
    """
    n, few = problem.nranks, tuning.few
    nodes = [flags for flags in node_sets(problem) if not flags.all()]
    sides = _single_ranks(problem, traffic, tuning)
    if len(nodes) <= few or n <= tuning.all_sets:
        sides += _both_sides(nodes)
        nodes = []
    if traffic.has_table:
        graph = _HopGraph(problem, tuning)
        sets = nodes + list(graph.sides()) if n > 3 else nodes
        sets = sets[: max(4, min(tuning.most_sets, tuning.table_cells // problem.network.nlinks))]
        table = np.array(_both_sides(sets), dtype=bool).reshape(-1, n)
        if len(table):
            sides += [*table[worst(traffic.leaving(table), capacities_out(problem.network, table), few)]]
        if n > 3:
            sides += _swept(problem, traffic, graph, tuning)
    else:
        sides += _both_sides(nodes[:few])
    return list({flags.tobytes(): flags for flags in sides if flags.any() and not flags.all()}.values())


def blocks(problem: Problem, tuning: BoundTuning) -> list[Bools]:
    """Return the sending sides of cuts for a quotient problem, one of all sets that translations map onto each other.

    They are flags of local ranks: the first rank, the first node, and the first s, s·⌊e/2⌋ and s·e ranks for a
    translation of stride s and extent e, each followed by its complement. None is empty and none has all ranks.
    """
    assert problem.quotient is not None
    n, ranks = problem.nranks, np.arange(problem.nranks)
    node = problem.topology.nodes[np.array(problem.ranks)]
    strides = [size for s, e in problem.quotient.translations for size in (s, s * max(1, e // 2), s * e)]
    sets = [node == node[0], *(ranks < size for size in sorted({1, *strides}))]
    distinct = {members.tobytes(): members for members in sets if 0 < members.sum() < n}
    return _both_sides([*distinct.values()][: tuning.most_sets])


def _single_ranks(problem: Problem, traffic: Traffic, tuning: BoundTuning) -> list[Bools]:
    """Return every rank of the group and its complement as flags of local ranks, or the worst few where there are many.

    Of many, those are returned that must send most per GB/s, and the complements of those that must receive most.
    """
    net, n, k = problem.network, problem.nranks, problem.collective.nranks
    if n <= tuning.all_sets:
        return _both_sides([np.arange(n) == rank for rank in range(k)])
    out, into = (gbs_by_end(net, end, n)[:k] for end in (net.src, net.dst))
    sending: list[Bools] = [np.arange(n) == r for r in worst(traffic.leaves, out, tuning.few)]
    return sending + [np.arange(n) != r for r in worst(traffic.comes, into, tuning.few)]


def _both_sides(sets: list[Bools]) -> list[Bools]:
    """Return every set followed by its complement."""
    return [flags for members in sets for flags in (members, ~members)]


def node_sets(problem: Problem) -> list[Bools]:
    """Return the local ranks of every node of the cluster that group or relays touch, as flags of shape (nranks,).

    Nodes are in the order of their numbers.
    """
    node = problem.topology.nodes[np.array(problem.ranks)]
    return [node == i for i in np.unique(node)]


def _bytes_per_gbs(amount: Floats, capacity: Floats) -> Floats:
    """Return the amount / the capacity in GB/s of each index, or 0 where the capacity is 0 or infinite."""
    usable = np.isfinite(capacity) & (capacity > 0)
    return np.asarray(np.where(usable, amount / np.where(usable, capacity, 1.0), 0.0))


def worst(amount: Floats, capacity: Floats, count: int) -> list[int]:
    """Return the indices of the `count` largest amounts per GB/s, the worst first; fewer where others are 0.

    Of equals the lower index comes first.

    Args:
        amount: Amount of each index, ≥ 0.
        capacity: GB/s of each index; an amount over no (or infinite) capacity counts as 0.
        count: Most indices.
    """
    ratio = _bytes_per_gbs(amount, capacity)
    order = np.argsort(-ratio, kind="stable")[:count]
    return [int(i) for i in order if ratio[i] > 0]


def _swept(problem: Problem, traffic: Traffic, graph: _HopGraph, tuning: BoundTuning) -> list[Bools]:
    """Return the best prefixes of orders and of reversed orders as flags of local ranks, the best first.

    Of each order the prefix counts that must send most per GB/s; `tuning.few` of them are returned at most.
    """
    net, sets, ratios = problem.network, [], []
    orders = max(1, min(20, tuning.sweep_work // net.nlinks))
    for _, order in checking_deadline(zip(range(orders), graph.orders(), strict=False)):
        for direction in (order, order[::-1]):
            place = index_among(problem.nranks, direction)
            ratio = _bytes_per_gbs(traffic.sweep(place), sweep_capacities(net, place))
            best = int(ratio.argmax())
            if ratio[best] > 0:
                sets.append(place <= best)
                ratios.append(ratio[best])
    return [sets[i] for i in np.argsort(-np.array(ratios), kind="stable")[: tuning.few]]


def physical_links(problem: Problem) -> tuple[Ints, Ints, Ints]:
    """Return (link of the topology, source, destination) of the links among the problem's ranks and all switches.

    Ends are vertices: local ranks, then the topology's switches.
    """
    topology, n = problem.topology, problem.nranks
    vertex = index_among(topology.nvertices, list(problem.ranks))
    vertex[topology.nranks :] = n + np.arange(len(topology.switches))
    src, dst = vertex[topology.link_src], vertex[topology.link_dst]
    link = np.flatnonzero((src >= 0) & (dst >= 0))
    return link, src[link], dst[link]


class _HopGraph:
    """The physical links as a graph in which distances are hops.

    Attributes:
        a: Source vertex of every link.
        b: Destination vertex of every link.
        gbs: Bandwidth of every link in GB/s.
        n: Number of local ranks.
        nvertices: Number of ranks and switches.
        hops: Distances in hops.
        corners: Hops from four vertices, each far from the vertices before it, shape (nvertices,) each.
    """

    def __init__(self, problem: Problem, tuning: BoundTuning) -> None:
        link, self.a, self.b = physical_links(problem)
        self.gbs = problem.topology.bandwidth_gbs[link]
        self.n, self.tuning = problem.nranks, tuning
        self.nvertices = self.n + len(problem.topology.switches)
        self.hops = Distances(self.nvertices, self.a, self.b, np.ones(len(self.a)))
        rows = [self._hops_from(0)]
        while len(rows) < 5:
            reached = np.where(np.isfinite(np.minimum.reduce(rows)), np.minimum.reduce(rows), -1.0)
            rows.append(self._hops_from(self._furthest(rows[-1] if len(rows) < 3 else reached)))
        self.corners = rows[1:]

    def _hops_from(self, vertex: int) -> Floats:
        """Return the hops from a vertex to every vertex, shape (nvertices,); inf where there is no route."""
        return np.asarray(self.hops.rows(np.array([vertex]))[0])

    def _furthest(self, row: Floats) -> int:
        """Return the local rank with the largest finite distance in a row of all vertices; the lowest of equals."""
        return int(np.where(np.isfinite(row), row, -1.0)[: self.n].argmax())

    def sides(self) -> Iterator[Bools]:
        """Yield, for links on a longest route, the ranks that are fewer hops from the link's end than from its start.

        The route leads from a corner to the rank that is farthest from it; of a long one only some links count, evenly
        spread. Each yield is flags of the ranks, shape (n,).
        """
        row = self.corners[0]
        at = self._furthest(row)
        route = [at]
        while row[at] > 0:
            at = int(self.a[(self.b == at) & (row[self.a] == row[at] - 1)].min())
            route.append(at)
        most = self.tuning.split_work // (len(self.a) + 8 * self.nvertices)
        links = min(max(8, min(self.tuning.split_links, most)), len(route) - 1)
        picked = np.unique(np.linspace(0, len(route) - 2, links).astype(np.int64))
        rows = self.hops.rows(np.array(route)[np.concatenate([picked, picked + 1])])
        for from_end, from_start in zip(rows[: len(picked)], rows[len(picked) :], strict=True):
            yield (from_end < from_start)[: self.n]

    def orders(self) -> Iterator[Ints]:
        """Yield orders of the local ranks: by eigenvectors, by distance from corners, by the nearer of two corners.

        Each is a permutation, the rank at each place, shape (n,).
        """
        ends = self.corners
        for key in self._least_eigenvectors():
            yield np.argsort(key[: self.n], kind="stable")
        for i, row in enumerate(ends):
            yield np.lexsort((ends[i - 1][: self.n], row[: self.n]))
        for first_corner, second_corner in ((0, 1), (0, 2), (1, 2), (2, 3)):
            with np.errstate(invalid="ignore"):
                difference = np.nan_to_num(ends[first_corner] - ends[second_corner])
            yield np.lexsort((ends[first_corner][: self.n], difference[: self.n]))

    def _least_eigenvectors(self) -> list[Floats]:
        """Return the eigenvectors of the Laplacian's second and third least eigenvalues (Fiedler vectors).

        Links count by their bandwidths. Each has shape (nvertices,) and is rounded to 9 digits. There are none for
        fewer than 4 vertices or more than the tuning allows.
        """
        n = self.nvertices
        if n > self.tuning.spectral_vertices or n < 4:
            return []
        if n <= 128:
            laplace = np.zeros((n, n))
            np.add.at(laplace, (self.a, self.b), -self.gbs)
            laplace = laplace + laplace.T
            np.fill_diagonal(laplace, -laplace.sum(axis=1))
            vectors = np.linalg.eigh(laplace)[1]
            return [np.round(vectors[:, i], 9) for i in (1, 2)]
        from scipy.sparse import (
            csc_array,
            linalg,
        )  # Imported here: SciPy starts slowly, and small graphs do without it.

        degree = sum_by(self.a, self.gbs, n) + sum_by(self.b, self.gbs, n)
        vertices = np.arange(n)
        ends = np.concatenate([vertices, self.a, self.b]), np.concatenate([vertices, self.b, self.a])
        matrix = csc_array((np.concatenate([degree, -self.gbs, -self.gbs]), ends), shape=(n, n))
        start = np.cos(vertices * 0.7) + 0.01 * vertices / n
        _, vectors = linalg.eigsh(matrix, k=3, sigma=-1e-3 * float(degree.mean()), v0=start)
        return [np.round(vectors[:, i], 9) for i in (1, 2)]
