"""Sets of ranks out of which, or into which, much must go over little capacity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.bounds.distances import Distances
from synth.bounds.resource_cover import gbs_by_end
from synth.bounds.traffic import Traffic, capacities_out, sweep_capacities
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from synth.model.requirements import summed
from topologies.network import Network

_ALL_TRIED = 64  # ranks up to which every plain set becomes a candidate
_FEW = 4  # of every sort, otherwise
_MOST_SETS = 80  # each with its other side
_MOST_CELLS = 10_000_000  # links × sets, ranks × resources
_MOST_WORK = 1 << 20  # links × orders that are swept
_MOST_SPECTRAL = 3000  # vertices
_STEPS = 40  # of a longest way, each of which splits the ranks in two
_MOST_SEARCHED = 4_000_000  # links and vertices


def candidates(problem: Problem, traffic: Traffic) -> list[Bools]:
    """Sending sides of cuts that are worth working out, as flags of local ranks; none twice, none empty.

    Single ranks and nodes and what is outside them; the best first ranks in orders by distance and by the
    graph's slowest vibrations; the ranks on either side of every link of a longest way.
    """
    n, k = problem.nranks, problem.collective.nranks
    nodes = [flags for flags in node_sets(problem) if not flags.all()]
    found: list[Bools] = []
    if n <= _ALL_TRIED:
        for rank in range(k):
            one = np.arange(n) == rank
            found += [one, ~one]
    else:
        net = problem.network
        out, into = (gbs_by_end(net, end, n)[:k] for end in (net.src, net.dst))
        found += [np.arange(n) == r for r in _largest(traffic.leaves, out)]
        found += [np.arange(n) != r for r in _largest(traffic.comes, into)]
    if len(nodes) <= _FEW or n <= _ALL_TRIED:
        found += [flags for node in nodes for flags in (node, ~node)]
        nodes = []
    if traffic.known:
        graph = _Graph(problem)
        sets = nodes + list(graph.sides()) if n > 3 else nodes
        sets = sets[: max(4, min(_MOST_SETS, _MOST_CELLS // problem.network.nlinks))]
        table = np.array([flags for one in sets for flags in (one, ~one)], dtype=bool).reshape(-1, n)
        if len(table):
            best = _largest(traffic.leaving(table), capacities_out(problem.network, table))
            found += [table[i] for i in best]
        if n > 3:
            found += _swept(problem, traffic, graph)
    else:
        found += [flags for node in nodes[:_FEW] for flags in (node, ~node)]
    kept: dict[bytes, Bools] = {}
    for flags in found:
        if flags.any() and not flags.all():
            kept.setdefault(flags.tobytes(), flags)
    return list(kept.values())


def node_sets(problem: Problem) -> list[Bools]:
    """Local ranks of every node of the cluster that the group touches."""
    node = problem.topology.nodes[np.array(problem.ranks)]
    return [node == i for i in np.unique(node)]


def gatherings(problem: Problem, needy: Floats, end: Ints) -> list[tuple[Bools, int | None]]:
    """Ranks whose links all use the same resource, and nodes: those with most need a GB/s."""
    net = problem.network
    rank, resource = _used_by_all(net, end)
    ratio = summed(resource, needy[rank], net.nresources) / net.capacity_gbs
    ratio[np.bincount(resource, minlength=net.nresources) < 2] = 0.0
    found: list[tuple[Bools, int | None]] = []
    for r in np.argsort(-ratio, kind="stable")[:_FEW].tolist():
        if ratio[r] > 0:
            flags = np.zeros(net.nranks, dtype=bool)
            flags[rank[resource == r]] = True
            found.append((flags & (needy > 0), r))
    nodes = node_sets(problem)
    if len(nodes) > 1:
        node = problem.topology.nodes[np.array(problem.ranks)]
        index = np.searchsorted(np.unique(node), node)
        gbs = gbs_by_end(net, index[end], len(nodes))
        amount = summed(index, needy, len(nodes))
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = np.where(gbs > 0, amount / gbs, 0.0)
        for i in np.argsort(-ratio, kind="stable")[:_FEW].tolist():
            if ratio[i] > 0:
                found.append((nodes[i] & (needy > 0), None))
    return found


def _used_by_all(net: Network, end: Ints) -> tuple[Ints, Ints]:
    """Pairs of a rank and a resource that all links with this end at the rank use."""
    key = end[net.link_of_use] * net.nresources + net.uses_idx
    if net.nranks * net.nresources <= _MOST_CELLS:
        count = np.bincount(key, minlength=net.nranks * net.nresources)
        key = np.flatnonzero(count)
        count = count[key]
    else:
        key, count = np.unique(key, return_counts=True)
    rank = key // net.nresources
    whole = count == np.bincount(end, minlength=net.nranks)[rank]
    return rank[whole], key[whole] % net.nresources


def _largest(amount: Floats, capacity: Floats) -> list[int]:
    """Where most must go over a GB/s, the most first."""
    usable = np.isfinite(capacity) & (capacity > 0) & (amount > 0)
    ratio = np.where(usable, amount / np.where(usable, capacity, 1.0), 0.0)
    order = np.argsort(-ratio, kind="stable")[:_FEW]
    return [int(i) for i in order if ratio[i] > 0]


def _swept(problem: Problem, traffic: Traffic, graph: _Graph) -> list[Bools]:
    """The best first ranks of every order and of every order backwards."""
    net = problem.network
    ends = np.arange(problem.nranks)
    sets, ratios = [], []
    orders = max(1, min(20, _MOST_WORK // net.nlinks))
    for _, order in zip(range(orders), graph.orders(), strict=False):
        for one in (order, order[::-1]):
            place = np.empty_like(one)
            place[one] = ends
            amount, capacity = traffic.sweep(place), sweep_capacities(net, place)
            usable = np.isfinite(capacity) & (capacity > 0)
            ratio = np.where(usable, amount / np.where(usable, capacity, 1.0), 0.0)
            best = int(ratio.argmax())
            if ratio[best] > 0:
                sets.append(place <= best)
                ratios.append(ratio[best])
    return [sets[i] for i in np.argsort(-np.array(ratios), kind="stable")[:_FEW]]


@dataclass(frozen=True, eq=False)
class Wires:
    """Local ranks, then all switches, and the physical links among them.

    Attributes:
        nranks, nvertices: ranks are the first vertices.
        link: the topology's number of every link; src, dst, gbs: its ends and GB/s.
    """

    nranks: int
    nvertices: int
    link: Ints
    src: Ints
    dst: Ints
    gbs: Floats


def wires(problem: Problem) -> Wires:
    """How the ranks at hand are wired."""
    topology, n = problem.topology, problem.nranks
    vertex = np.full(topology.nvertices, -1, dtype=np.int64)
    vertex[list(problem.ranks)] = np.arange(n)
    vertex[topology.nranks :] = n + np.arange(len(topology.switches))
    src, dst = vertex[topology.link_src], vertex[topology.link_dst]
    there = np.flatnonzero((src >= 0) & (dst >= 0))
    gbs = topology.bandwidth_gbs[there]
    return Wires(n, n + len(topology.switches), there, src[there], dst[there], gbs)


class _Graph:
    """The wires as one sees them who counts hops."""

    def __init__(self, problem: Problem) -> None:
        wired = wires(problem)
        self.n, self.nvertices = wired.nranks, wired.nvertices
        self.a, self.b, self.gbs = wired.src, wired.dst, wired.gbs
        self.far = Distances(self.nvertices, self.a, self.b, np.ones(len(self.a)))
        rows = [self._row(0)]
        while len(rows) < 5:
            reached = np.where(np.isfinite(np.minimum.reduce(rows)), np.minimum.reduce(rows), -1.0)
            away = rows[-1] if len(rows) < 3 else reached
            rows.append(self._row(int(np.where(np.isfinite(away), away, -1.0)[: self.n].argmax())))
        self.rows = rows[1:]

    def _row(self, vertex: int) -> Floats:
        row: Floats = self.far.rows(np.array([vertex]))[0]
        return row

    def sides(self) -> Iterator[Bools]:
        """Ranks nearer to one end than to the other of each link on a longest way, from rows[0] to rows[1]."""
        row = self.rows[0]
        at = int(np.where(np.isfinite(row), row, -1.0)[: self.n].argmax())
        way = [at]
        while row[at] > 0:
            before = self.a[(self.b == at) & (row[self.a] == row[at] - 1)]
            at = int(before.min())
            way.append(at)
        steps = max(8, min(_STEPS, _MOST_SEARCHED // (len(self.a) + 8 * self.nvertices)))
        picked = np.unique(np.linspace(0, len(way) - 2, min(steps, len(way) - 1)).astype(np.int64))
        rows = self.far.rows(np.array(way)[np.concatenate([picked, picked + 1])])
        for near, far in zip(rows[: len(picked)], rows[len(picked) :], strict=True):
            yield (near < far)[: self.n]

    def orders(self) -> Iterator[Ints]:
        """Local ranks by distance from far corners, by which of two is nearer, and by slow vibrations."""
        ends = self.rows
        for key in self._vibrations():
            yield np.argsort(key[: self.n], kind="stable")
        for i, row in enumerate(ends):
            yield np.lexsort((ends[i - 1][: self.n], row[: self.n]))
        for one, other in ((0, 1), (0, 2), (1, 2), (2, 3)):
            with np.errstate(invalid="ignore"):
                apart = np.nan_to_num(ends[one] - ends[other])
            yield np.lexsort((ends[one][: self.n], apart[: self.n]))

    def _vibrations(self) -> list[Floats]:
        """The Laplacian's eigenvectors with the least eigenvalues but the first (Fiedler)."""
        n = self.nvertices
        if n > _MOST_SPECTRAL or n < 4:
            return []
        if n <= 128:
            laplace = np.zeros((n, n))
            np.add.at(laplace, (self.a, self.b), -self.gbs)
            laplace = laplace + laplace.T
            np.fill_diagonal(laplace, -laplace.sum(axis=1))
            vectors = np.linalg.eigh(laplace)[1]
            return [np.round(vectors[:, i], 9) for i in (1, 2)]
        from scipy.sparse import csc_array
        from scipy.sparse.linalg import eigsh

        degree = summed(self.a, self.gbs, n) + summed(self.b, self.gbs, n)
        every = np.arange(n)
        matrix = csc_array(
            (
                np.concatenate([degree, -self.gbs, -self.gbs]),
                (np.concatenate([every, self.a, self.b]), np.concatenate([every, self.b, self.a])),
            ),
            shape=(n, n),
        )
        start = np.cos(every * 0.7) + 0.01 * every / n
        _, vectors = eigsh(matrix, k=3, sigma=-1e-3 * float(degree.mean()), v0=start)
        return [np.round(vectors[:, i], 9) for i in (1, 2)]
