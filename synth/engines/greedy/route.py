"""Greedy routing: every chunk gets a tree so that no resource is loaded much more than the others.

Chunks are routed one after the other over links whose length grows with the load on their resources (exponential
prices, as in Garg and Könemann's multi-commodity flows). Then each chunk is removed and routed again. A tree grows from
the chunk's holders, rank by rank, over the link that is cheapest in length and, in part, in distance from the root:
shallow trees for small messages, deep and balanced trees for large messages. The order of the sends comes afterwards
(`synth.engines.greedy.list_scheduling`) and matters less than the routing. Works on copying problems; reductions come
by reversal.
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
from topologies.arrays import flags_of
from topologies.errors import InputError

NAME = "route"
_SHARPNESS = 8.0  # of the prices: the busiest resource costs e to this power as much as an idle one


def work(problem: Problem) -> float:
    """Estimate the seconds that one pass takes."""
    collective = problem.collective
    sends = len(collective.post) + float(collective.wants.any(axis=1).sum())
    return sends * (4e-5 + 3e-8 * problem.network.nlinks)


def solve(problem: Problem, size_bytes: float, depth: float = 0.5, passes: int = 3) -> Schedule:
    """Return a correct schedule of a copying problem for messages of `size_bytes`, with its rows in order of start.

    Args:
        problem: A copying problem.
        size_bytes: Message size in bytes.
        depth: 0 for trees that only follow the load, 1 for trees that also count the whole path from the root.
        passes: Number of times that all chunks are routed; the best pass counts.
    """
    router = _GreedyRouter(problem, size_bytes, depth)
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
    """Build sends from rows (chunk, link), each after the rows that bring its chunk; a send's step is its depth."""
    src, dst = problem.network.src.tolist(), problem.network.dst.tolist()
    depth = {(c, r): 0 for r, c in problem.collective.pre.tolist()}
    steps = []
    for chunk, link in rows:
        steps.append(depth[chunk, src[link]])
        depth.setdefault((chunk, dst[link]), steps[-1] + 1)
    chunks, links = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    return untimed(chunks, links, np.array(steps), np.zeros(len(steps), dtype=bool))


class _GreedyRouter:
    """A router of all chunks of a problem.

    Attributes:
        load: Time in µs that every resource is busy, shape (nresources,).
        trees: The links of every chunk's tree.
        holders: The ranks that hold each chunk at the start.
        goals: The ranks that want each chunk and do not hold it at the start.
        order: The chunks in the order in which they are routed.
    """

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
        """Return one chunk of every source, then the next of every source; a source's most distant goals come first."""
        routed_of_source: Counter[int] = Counter()
        keyed = []
        far = [
            max((int(self.distance[h[0], v]) for v in g), default=0) if h else 0
            for h, g in zip(self.holders, self.goals, strict=True)
        ]
        for chunk in sorted(range(len(far)), key=lambda c: (-far[c], c)):
            if self.goals[chunk]:
                source = self.holders[chunk][0]
                keyed.append((routed_of_source[source], source, chunk))
                routed_of_source[source] += 1
        return [chunk for _, _, chunk in sorted(keyed)]

    def _add(self, chunk: int, link: int, sign: float) -> None:
        """Add a chunk's load on a link to the resources, or remove it where `sign` is -1."""
        uses = self.net.uses(link)
        self.load[uses] += sign * self.hold[chunk] / self.net.capacity_gbs[uses]

    def remove(self, chunk: int) -> None:
        """Remove the tree of a chunk."""
        for link in self.trees[chunk]:
            self._add(chunk, link, -1.0)
        self.trees[chunk] = []

    def lengths(self, chunk: int) -> Floats:
        """Return the length of every link: its α, and the chunk's time on the link's resources at their prices."""
        net = self.net
        peak = max(float(self.load.max()), 1e-12)
        price = np.exp(_SHARPNESS * (self.load / peak - 1.0))
        priced_time = self.hold[chunk] / net.capacity_gbs * (price + 1e-3)
        summed = np.add.reduceat(priced_time[net.uses_idx], net.uses_ptr[:-1])
        return np.asarray(summed + 1e-3 * (self.hold[chunk] / net.bandwidth_gbs + net.alpha_us))

    def route(self, chunk: int) -> None:
        """Route a chunk to all its goals."""
        goals = set(self.goals[chunk])
        inside = flags_of(self.net.nranks, self.holders[chunk])
        everyone = len(goals) + len(self.holders[chunk]) >= self.net.nranks
        (self._grow if everyone else self._reach)(chunk, goals, inside)

    def _join(self, chunk: int, link: int, goals: set[int], inside: Bools) -> None:
        """Add a link, and the rank at its end, to a chunk's tree."""
        v = int(self.net.dst[link])
        inside[v] = True
        goals.discard(v)
        self.trees[chunk].append(link)
        self._add(chunk, link, 1.0)

    def _grow(self, chunk: int, goals: set[int], inside: Bools) -> None:
        """Build a tree to all ranks, a rank at a time; prices follow the load while it grows."""
        net = self.net
        distance = np.where(inside, 0.0, np.inf)
        while goals:
            length = self.lengths(chunk)
            links = np.flatnonzero(inside[net.src] & ~inside[net.dst])
            if not len(links):
                raise InputError(f"chunk {chunk} cannot reach rank {min(goals)} of the problem")
            link = int(links[(length[links] + distance[net.src[links]]).argmin()])
            distance[net.dst[link]] = self.depth * (distance[net.src[link]] + length[link])
            self._join(chunk, link, goals, inside)

    def _reach(self, chunk: int, goals: set[int], inside: Bools) -> None:
        """Build a tree by shortest paths, each from the part that exists, to the nearest goal first."""
        net = self.net
        while goals:
            length = self.lengths(chunk)
            distance = np.where(inside, 0.0, np.inf)
            parent = np.full(net.nranks, -1, dtype=np.int64)
            for _ in range(net.nranks):
                through = distance[net.src] + length
                better = through < distance[net.dst] * (1 - 1e-12)
                if not better.any():
                    break
                links = np.flatnonzero(better)
                links = links[np.lexsort((-links, -through[links]))]  # The shortest link to a rank is written last.
                distance[net.dst[links]] = through[links]
                parent[net.dst[links]] = links
            goal = min(goals, key=lambda v: (distance[v], v))
            if np.isinf(distance[goal]):
                raise InputError(f"chunk {chunk} cannot reach rank {goal} of the problem")
            path = []
            rank = goal
            while not inside[rank]:
                path.append(int(parent[rank]))
                rank = int(net.src[path[-1]])
            for link in reversed(path):
                self._join(chunk, link, goals, inside)
