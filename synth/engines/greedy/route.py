"""Routing first: every chunk gets a tree so that no resource is loaded much more than the others.

Chunks are routed one after the other over links whose length grows with their resources' load (exponential
prices, as in Garg and Könemann's multi-commodity flows), then each is taken out and routed again. A tree grows
from the chunk's holders, rank by rank, over the link that is cheapest in length and, in part, in distance from the
root: shallow trees for small messages, deep and even ones for large. The order of the sends comes afterwards
(`synth.engines.greedy.list_scheduling`) and costs little: the routing decides. Works on copying problems;
reductions come by reversal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from synth.engines.greedy.list_scheduling import order_sends
from synth.model.collective import Bools, Floats
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule, untimed
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import marked
from topologies.errors import InputError

NAME = "route"
_SHARPNESS = 8.0  # of the prices: how much longer the busiest resource is than an idle one, as a power of e


def work(problem: Problem) -> float:
    """About the seconds that one pass takes."""
    collective = problem.collective
    sends = len(collective.post) + float(collective.wants.any(axis=1).sum())
    return sends * (4e-5 + 3e-8 * problem.network.nlinks)


def solve(problem: Problem, size_bytes: float, depth: float = 0.5, passes: int = 3) -> Schedule:
    """A right schedule of a copying problem, made for messages of `size_bytes`; rows in order of start.

    Args:
        depth: 0 for trees that only mind the load, 1 for trees that also count the whole path from the root.
        passes: how often all chunks are routed; the best pass stays.
    """
    router = _Router(problem, size_bytes, depth)
    best: list[list[int]] = []
    least = np.inf
    for _ in range(passes):
        for chunk in router.order:
            router.remove(chunk)
            router.route(chunk)
        if router.load.max() < least * (1 - 1e-6):
            least = float(router.load.max())
            best = [list(links) for links in router.trees]
    rows = [(chunk, link) for chunk, links in enumerate(best) for link in links]
    return order_sends(problem, along_trees(problem, rows), size_bytes)


def along_trees(problem: Problem, rows: Sequence[Sequence[int]]) -> Schedule:
    """Rows (chunk, link), each after those that bring what it carries, as sends; a send's step is its depth."""
    src, dst = problem.network.src.tolist(), problem.network.dst.tolist()
    depth = {(c, r): 0 for r, c in problem.collective.pre.tolist()}
    steps = []
    for chunk, link in rows:
        steps.append(depth[chunk, src[link]])
        depth.setdefault((chunk, dst[link]), steps[-1] + 1)
    chunks, links = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return untimed(chunks, links, np.array(steps), np.zeros(len(steps), dtype=bool))


class _Router:
    """Loads in µs of every resource, and the tree of every chunk."""

    def __init__(self, problem: Problem, size_bytes: float, depth: float) -> None:
        net, collective = problem.network, problem.collective
        self.net, self.depth = net, depth
        self.hold = collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
        self.load = np.zeros(net.nresources)
        self.trees: list[list[int]] = [[] for _ in range(collective.nchunks)]
        self.holders: list[list[int]] = [[] for _ in range(collective.nchunks)]
        for rank, chunk in collective.pre.tolist():
            self.holders[chunk].append(rank)
        self.goals: list[set[int]] = [set() for _ in range(collective.nchunks)]
        for rank, chunk in collective.post.tolist():
            if rank not in self.holders[chunk]:
                self.goals[chunk].add(rank)
        self.distance = hops(net.nranks, net.src, net.dst)
        self.order = self._order()
        self.scale = 1.0

    def _order(self) -> list[int]:
        """A chunk of every source, then the next of every source; of a source's chunks the most distant goals first."""
        made: Counter[int] = Counter()
        keyed = []
        far = [
            max((int(self.distance[h[0], v]) for v in g), default=0) if h else 0
            for h, g in zip(self.holders, self.goals, strict=True)
        ]
        for chunk in sorted(range(len(far)), key=lambda c: (-far[c], c)):
            if self.goals[chunk]:
                source = self.holders[chunk][0]
                keyed.append((made[source], source, chunk))
                made[source] += 1
        return [chunk for _, _, chunk in sorted(keyed)]

    def _add(self, chunk: int, link: int, sign: float) -> None:
        uses = self.net.uses(link)
        self.load[uses] += sign * self.hold[chunk] / self.net.capacity_gbs[uses]

    def remove(self, chunk: int) -> None:
        """Take a chunk's tree out."""
        for link in self.trees[chunk]:
            self._add(chunk, link, -1.0)
        self.trees[chunk] = []

    def lengths(self, chunk: int) -> Floats:
        """Every link's length: its α, and what the chunk's time on its resources is worth at their prices."""
        net = self.net
        peak = max(float(self.load.max()), 1e-12)
        price = np.exp(_SHARPNESS * (self.load / peak - 1.0))
        each = self.hold[chunk] / net.capacity_gbs * (price + 1e-3)
        summed = np.add.reduceat(each[net.uses_idx], net.uses_ptr[:-1])
        return np.asarray(summed + 1e-3 * (self.hold[chunk] / net.bandwidth_gbs + net.alpha_us))

    def route(self, chunk: int) -> None:
        """Route a chunk to all its goals."""
        goals = set(self.goals[chunk])
        inside = marked(self.net.nranks, self.holders[chunk])
        everyone = len(goals) + len(self.holders[chunk]) >= self.net.nranks
        (self._grow if everyone else self._reach)(chunk, goals, inside)

    def _join(self, chunk: int, link: int, goals: set[int], inside: Bools) -> None:
        """Have the link's end in the chunk's tree."""
        v = int(self.net.dst[link])
        inside[v] = True
        goals.discard(v)
        self.trees[chunk].append(link)
        self._add(chunk, link, 1.0)

    def _grow(self, chunk: int, goals: set[int], inside: Bools) -> None:
        """A tree to all ranks, a rank at a time; prices follow the load while it grows."""
        net = self.net
        away = np.where(inside, 0.0, np.inf)
        while goals:
            length = self.lengths(chunk)
            links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
            if not len(links):
                raise InputError(f"chunk {chunk} cannot reach rank {min(goals)} of the problem")
            link = int(links[(length[links] + away[net.src[links]]).argmin()])
            away[net.dst[link]] = self.depth * (away[net.src[link]] + length[link])
            self._join(chunk, link, goals, inside)

    def _reach(self, chunk: int, goals: set[int], inside: Bools) -> None:
        """Shortest paths, each from the part of the tree that is there already, to the nearest goal first."""
        net = self.net
        while goals:
            length = self.lengths(chunk)
            away = np.where(inside, 0.0, np.inf)
            parent = np.full(net.nranks, -1, dtype=np.int64)
            for _ in range(net.nranks):
                through = away[net.src] + length
                better = through < away[net.dst] * (1 - 1e-12)
                if not better.any():
                    break
                links = np.flatnonzero(better)
                links = links[np.lexsort((-links, -through[links]))]  # the last one written is the shortest
                away[net.dst[links]] = through[links]
                parent[net.dst[links]] = links
            goal = min(goals, key=lambda v: (away[v], v))
            if np.isinf(away[goal]):
                raise InputError(f"chunk {chunk} cannot reach rank {goal} of the problem")
            path = []
            at = goal
            while not inside[at]:
                path.append(int(parent[at]))
                at = int(net.src[path[-1]])
            for link in reversed(path):
                self._join(chunk, link, goals, inside)
