"""An answer at once: chunks one after the other, each over the ways that bring it soonest.

Every rank that wants a chunk takes it from whoever has it first, given the links that earlier chunks hold
(earliest-arrival trees on a network with reservations). Works on copying problems; reductions come by reversal.
"""

from __future__ import annotations

import heapq

import numpy as np

from synth.problem import Problem, hops
from synth.schedule import Schedule, untimed
from synth.simulate import US_PER_BYTE_AT_1_GBS

NAME = "greedy"


def solve(problem: Problem, size_bytes: float) -> Schedule:
    """A right schedule of a copying problem, good around `size_bytes`; rows in order of start."""
    net, collective = problem.network, problem.collective
    out: list[list[int]] = [[] for _ in range(net.nranks)]
    for link, u in enumerate(net.src.tolist()):
        out[u].append(link)
    state = _State(
        dst=net.dst.tolist(),
        src=net.src.tolist(),
        alpha=net.alpha_us.tolist(),
        gbs=net.bandwidth_gbs.tolist(),
        out=out,
        uses=[net.uses_idx[net.uses_ptr[i] : net.uses_ptr[i + 1]].tolist() for i in range(net.nlinks)],
        share=[  # of a shared resource a narrow link holds only its part
            [
                float(net.bandwidth_gbs[i] / net.capacity_gbs[r])
                for r in net.uses_idx[net.uses_ptr[i] : net.uses_ptr[i + 1]]
            ]
            for i in range(net.nlinks)
        ],
        resource_free=[0.0] * net.nresources,
        link_free=[0.0] * net.nlinks,
    )
    hold = (collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS).tolist()
    holders: list[list[int]] = [[] for _ in range(collective.nchunks)]
    for rank, chunk in collective.pre.tolist():
        holders[chunk].append(rank)
    wanted: list[set[int]] = [set() for _ in range(collective.nchunks)]
    for rank, chunk in collective.post.tolist():
        wanted[chunk].add(rank)
    sends: list[tuple[float, int, int, int]] = []
    for chunk in _order(problem, holders, wanted):
        sends += [
            (start, chunk, link, step)
            for start, link, step in state.grow(holders[chunk], wanted[chunk], hold[chunk])
        ]
    sends.sort()
    columns = np.array([s[1:] for s in sends], dtype=np.int64).reshape(-1, 3)
    return untimed(columns[:, 0], columns[:, 1], columns[:, 2], np.zeros(len(columns), dtype=bool))


def _order(problem: Problem, holders: list[list[int]], wanted: list[set[int]]) -> list[int]:
    """The sources in turn; of each source's chunks those that have furthest to go come first."""
    net = problem.network
    distance = hops(net.nranks, net.src, net.dst)
    far = [
        max((int(distance[h, v]) for v in w for h in hs[:1]), default=0)
        for hs, w in zip(holders, wanted, strict=True)
    ]
    by_source: dict[int, list[int]] = {}
    for chunk in sorted(range(len(far)), key=lambda c: (-far[c], c)):
        by_source.setdefault(holders[chunk][0] if holders[chunk] else -1, []).append(chunk)
    turns: list[tuple[int, int, int]] = []
    for source, chunks in by_source.items():
        turns += [(turn, source, chunk) for turn, chunk in enumerate(chunks)]
    return [chunk for _, _, chunk in sorted(turns)]


class _State:
    """Links and resources with the time from which each is free."""

    def __init__(
        self,
        src: list[int],
        dst: list[int],
        alpha: list[float],
        gbs: list[float],
        out: list[list[int]],
        uses: list[list[int]],
        share: list[list[float]],
        resource_free: list[float],
        link_free: list[float],
    ) -> None:
        self.src, self.dst, self.alpha, self.gbs, self.out = src, dst, alpha, gbs, out
        self.uses, self.share = uses, share
        self.resource_free, self.link_free = resource_free, link_free

    def start(self, link: int, ready: float) -> float:
        begin = max(ready, self.link_free[link])
        for r in self.uses[link]:
            if self.resource_free[r] > begin:
                begin = self.resource_free[r]
        return begin

    def grow(self, holders: list[int], wanted: set[int], hold: float) -> list[tuple[float, int, int]]:
        """Sends (start, link, step) that bring one chunk to all that want it, reserving what they use."""
        arrived = dict.fromkeys(holders, 0.0)
        depth = dict.fromkeys(holders, 0)
        missing = wanted - arrived.keys()
        sends: list[tuple[float, int, int]] = []
        while missing:
            best, parent = self._soonest(arrived, missing, hold)
            way = []
            at = best
            while at not in arrived:
                way.append(parent[at])
                at = self.src[parent[at]]
            for link in reversed(way):
                u, v = self.src[link], self.dst[link]
                begin = self.start(link, arrived[u])
                lasts = hold / self.gbs[link]
                self.link_free[link] = begin + lasts
                for r, share in zip(self.uses[link], self.share[link], strict=True):
                    self.resource_free[r] = max(self.resource_free[r], begin) + lasts * share
                sends.append((begin, link, depth[u]))
                arrived[v], depth[v] = begin + lasts + self.alpha[link], depth[u] + 1
                missing.discard(v)
        return sends

    def _soonest(
        self, arrived: dict[int, float], missing: set[int], hold: float
    ) -> tuple[int, dict[int, int]]:
        """The missing rank that can have the chunk first, and the links on the way (Dijkstra)."""
        reached: dict[int, float] = dict(arrived)
        parent: dict[int, int] = {}
        heap = [(when, rank) for rank, when in arrived.items()]
        heapq.heapify(heap)
        while heap:
            when, u = heapq.heappop(heap)
            if when > reached[u]:
                continue
            if u in missing:
                return u, parent
            for link in self.out[u]:
                v = self.dst[link]
                if v in arrived:
                    continue
                then = self.start(link, when) + hold / self.gbs[link] + self.alpha[link]
                if then < reached.get(v, float("inf")):
                    reached[v] = then
                    parent[v] = link
                    heapq.heappush(heap, (then, v))
        raise ValueError(f"rank {min(missing)} cannot be reached")
