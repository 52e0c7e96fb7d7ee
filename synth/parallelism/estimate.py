"""How long concurrent groups take, by the traffic of a constructive algorithm: an estimate to rank placements by.

All groups of a request run at once; every resource's bytes are added up over all of them, and the busiest one, with
the latency of the steps, gives the time. Groups that reduce or gather go level by level (reduce-scatter outwards,
all-gather back inwards), by rings or straight, whichever is faster there; all else goes straight. Routes are the fixed
shortest ones (`synth.baselines.routes`). P² (MLSys 2022) ranks by such a cost: the slowest link and how many groups
share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np

from synth.baselines.ring import RINGED
from synth.baselines.routes import Routes
from synth.model.collective import Collective, Floats, Ints, named
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import row_entries
from topologies.levels.hierarchy import Hierarchy, nested
from topologies.network import Network, network
from topologies.topology import Topology

_HOPS = 4_000_000  # links of routes that are looked at together; some 200 MB


@dataclass(frozen=True, eq=False)
class RequestTime:
    """What a collective in all groups at once takes: µs in all, and µs for which each resource is busy."""

    time_us: float
    busy_us: Floats  # (nresources,) of the whole network


@dataclass(frozen=True, eq=False)
class Estimator:
    """Estimates on one topology; requests that were asked before are known.

    Raises (when asked) NoRoute where a rank cannot be reached.
    """

    topology: Topology
    hierarchy: Hierarchy
    known: dict[tuple[str, int, bytes], RequestTime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        net = network(self.topology, range(self.topology.nranks))
        object.__setattr__(self, "net", net)
        object.__setattr__(self, "routes", Routes(net, np.arange(net.nranks)))
        object.__setattr__(self, "level_of", _levels_of_resources(net, self.hierarchy, self.hierarchy.position))

    net: Network = field(init=False)
    routes: Routes = field(init=False)
    level_of: Ints = field(init=False)  # (nresources,): the innermost level between whose parts a resource's links go

    def estimate(self, collective: str, groups: Ints, size_bytes: float) -> RequestTime:
        """Time of the collective in all groups, int64 (groups, ranks of a group), of `size_bytes` each."""
        key = (collective, int(size_bytes), groups.tobytes() + groups.shape[1].to_bytes(4, "little"))
        if key not in self.known:
            busy, latency = (
                self._by_levels(groups, size_bytes, 2 if collective == "allreduce" else 1)
                if collective in RINGED
                else self._straight(named(collective, groups.shape[1], 1), groups, size_bytes)
            )
            self.known[key] = RequestTime(float(busy.max(initial=0.0)) + latency, busy)
        return self.known[key]

    def _by_levels(self, groups: Ints, size_bytes: float, passes: int) -> tuple[Floats, float]:
        """Reduce-scatter and/or all-gather, the innermost level first: busy times and latency in µs."""
        members, levels = nested(self.hierarchy, groups)
        busy, latency, share = np.zeros(self.net.nresources), 0.0, float(size_bytes)
        for level in reversed(range(len(levels))):
            p = levels[level].size
            rows = np.moveaxis(members, level + 1, -1).reshape(-1, p)
            best = self._ring(rows, share)
            if p > 2 and self._hops(rows) <= _HOPS:  # far longer routes than a ring's are no faster
                best = min(best, self._all_pairs(rows, share), key=lambda x: float(x[0].max()) + x[1])
            busy = busy + passes * best[0]
            latency += passes * best[1]
            share /= p
        return busy, latency

    def _ring(self, rows: Ints, share: float) -> tuple[Floats, float]:
        """Rings both ways round, each with half: what one pass takes."""
        p = rows.shape[1]
        each = share * (p - 1) / p
        if p == 2:
            return _slowest(self._sent(rows, rows[:, ::-1], np.full(rows.size, each)))
        src = np.concatenate([rows, rows])
        dst = np.concatenate([np.roll(rows, -1, axis=1), np.roll(rows, 1, axis=1)])
        busy, alpha = self._sent(src, dst, np.full(src.size, each / 2))
        # A share goes over all hops of its ring but one.
        hops = alpha.reshape(-1, p)
        return busy, float((hops.sum(axis=1) - hops.min(axis=1)).max())

    def _hops(self, rows: Ints) -> int:
        """Links on the routes between all pairs of each row."""
        a, b = _pairs(rows.shape[1])
        return int(self.routes.hops(rows[:, a].reshape(-1), rows[:, b].reshape(-1)).sum())

    def _all_pairs(self, rows: Ints, share: float) -> tuple[Floats, float]:
        p = rows.shape[1]
        a, b = _pairs(p)
        return _slowest(self._sent(rows[:, a], rows[:, b], np.full(len(rows) * len(a), share / p)))

    def _straight(self, collective: Collective, groups: Ints, size_bytes: float) -> tuple[Floats, float]:
        """Every chunk from its only holder straight to all goals."""
        holder = np.empty(collective.nchunks, dtype=np.int64)
        holder[collective.pre[:, 1]] = collective.pre[:, 0]
        goal, chunk = collective.post[:, 0], collective.post[:, 1]
        moves = holder[chunk] != goal
        goal, chunk = goal[moves], chunk[moves]
        amount = np.tile(collective.fraction[chunk] * size_bytes, len(groups))
        return _slowest(self._sent(groups[:, holder[chunk]], groups[:, goal], amount))

    def _sent(self, src: Ints, dst: Ints, amount: Floats) -> tuple[Floats, Floats]:
        """Busy times in µs of messages over fixed routes, and the α of each."""
        net = self.net
        src, dst = src.reshape(-1), dst.reshape(-1)
        load, alpha = np.zeros(net.nresources), np.zeros(len(src))
        block = np.cumsum(self.routes.hops(src, dst)) // _HOPS
        for begin, end in pairwise([0, *(np.flatnonzero(np.diff(block)) + 1).tolist(), len(src)]):
            message, link, _ = self.routes.expand(src[begin:end], dst[begin:end])
            count = np.diff(net.uses_ptr)[link]
            used = net.uses_idx[row_entries(net.uses_ptr, link)]
            load += np.bincount(used, np.repeat(amount[begin:end][message], count), net.nresources)
            alpha[begin:end] = np.bincount(message, net.alpha_us[link], end - begin)
        return load * US_PER_BYTE_AT_1_GBS / net.capacity_gbs, alpha


def _slowest(sent: tuple[Floats, Floats]) -> tuple[Floats, float]:
    return sent[0], float(sent[1].max(initial=0.0))


def _levels_of_resources(net: Network, hierarchy: Hierarchy, position: Ints) -> Ints:
    between, size = np.full(net.nlinks, len(hierarchy.levels) - 1, dtype=np.int64), len(position)
    for level in reversed(range(len(hierarchy.levels))):
        inside = size // math.prod(hierarchy.sizes[: level + 1])
        between[position[net.src] // inside != position[net.dst] // inside] = level
    found = np.zeros(net.nresources, dtype=np.int64)
    np.maximum.at(found, net.uses_idx, between[net.link_of_use])
    return found


@lru_cache(maxsize=64)
def _pairs(count: int) -> tuple[Ints, Ints]:
    a, b = (x.ravel() for x in np.indices((count, count)))
    return a[a != b], b[a != b]
