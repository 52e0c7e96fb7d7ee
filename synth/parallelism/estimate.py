"""An estimate of how long concurrent groups take, by the traffic of a constructive algorithm; it ranks placements.

All groups of a request run at the same time. The bytes on every resource are added up over all of them; the busiest
resource and the latency of the steps give the time. Groups that reduce or gather proceed level by level
(reduce-scatter outwards, all-gather back inwards), by rings or by direct sends, whichever is faster in that level; all
other collectives send directly. Routes are the fixed shortest ones (`synth.baselines.routes`). P² (MLSys 2022) ranks
by such a cost: the slowest link and the number of groups that share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import pairwise

import numpy as np

from synth.baselines.algorithms.ring import RINGED
from synth.baselines.routes import Routes
from synth.model.collective import Collective, Floats, Ints, named
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import row_entries
from topologies.levels.hierarchy import Hierarchy, nested
from topologies.network import Network, network
from topologies.topology import Topology

_HOPS = 4_000_000  # Links of routes that are expanded in one block, which takes some 200 MB.


@dataclass(frozen=True, eq=False)
class RequestTime:
    """The time of a collective that runs in all groups at the same time.

    Attributes:
        time_us: Time until all groups are done, in µs.
        busy_us: Time for which each resource of the whole network is busy, in µs: float64 (nresources,).
    """

    time_us: float
    busy_us: Floats


@dataclass(frozen=True, eq=False)
class Estimator:
    """Time estimates on one topology, with a cache of the requests that were estimated.

    Attributes:
        topology: The topology.
        hierarchy: Its levels.
        estimates: Cached estimates, by collective, size in bytes, and groups.
    """

    topology: Topology
    hierarchy: Hierarchy
    estimates: dict[tuple[str, int, bytes], RequestTime] = field(default_factory=dict)

    @cached_property
    def net(self) -> Network:
        """Return the network of all ranks in their own order."""
        return network(self.topology, range(self.topology.nranks))

    @cached_property
    def routes(self) -> Routes:
        """Return the fixed routes between all ranks."""
        return Routes(self.net, np.arange(self.net.nranks))

    @cached_property
    def level_of(self) -> Ints:
        """Return the level of every resource, 0 for the outermost: int64 (nresources,).

        A link belongs to the outermost level in whose parts its ends differ, and a resource to the innermost level of
        the links that use it.
        """
        return _levels_of_resources(self.net, self.hierarchy, self.hierarchy.position)

    def estimate(self, collective: str, groups: Ints, size_bytes: float) -> RequestTime:
        """Estimate the time of a collective that all groups run at the same time.

        The result is cached and must not be changed.

        Args:
            collective: Name of the collective.
            groups: Ranks of each group: int64 (groups, ranks of a group).
            size_bytes: Message size of each group in bytes.

        Raises:
            NoRoute: A rank cannot be reached.
            InputError: `named` refuses the collective for groups of this size.
        """
        key = (collective, int(size_bytes), groups.tobytes() + groups.shape[1].to_bytes(4, "little"))
        if key not in self.estimates:
            busy_us, latency_us = (
                self._by_levels(groups, size_bytes, 2 if collective == "allreduce" else 1)
                if collective in RINGED
                else self._straight(named(collective, groups.shape[1], 1), groups, size_bytes)
            )
            self.estimates[key] = RequestTime(float(busy_us.max(initial=0.0)) + latency_us, busy_us)
        return self.estimates[key]

    def _by_levels(self, groups: Ints, size_bytes: float, passes: int) -> tuple[Floats, float]:
        """Return busy times and latency in µs of a reduce-scatter or an all-gather (or both, with two passes).

        Groups proceed level by level, the innermost first.
        """
        members, levels = nested(self.hierarchy, groups)
        busy, latency, share_bytes = np.zeros(self.net.nresources), 0.0, float(size_bytes)
        for level in reversed(range(len(levels))):
            p = levels[level].size
            rows = np.moveaxis(members, level + 1, -1).reshape(-1, p)
            best = self._ring(rows, share_bytes)
            if p > 2 and self._hops(rows) <= _HOPS:  # Routes that are far longer than a ring's are not faster.
                best = min(best, self._all_pairs(rows, share_bytes), key=lambda x: float(x[0].max()) + x[1])
            busy = busy + passes * best[0]
            latency += passes * best[1]
            share_bytes /= p
        return busy, latency

    def _ring(self, rows: Ints, share_bytes: float) -> tuple[Floats, float]:
        """Return busy times and latency in µs of one pass over rings in both directions.

        A pass is a reduce-scatter or an all-gather: each of p members sends (p - 1) / p of `share_bytes`, half in each
        direction. Two members exchange directly.
        """
        p = rows.shape[1]
        pass_bytes = share_bytes * (p - 1) / p
        if p == 2:
            return _slowest(self._sent(rows, rows[:, ::-1], np.full(rows.size, pass_bytes)))
        src = np.concatenate([rows, rows])
        dst = np.concatenate([np.roll(rows, -1, axis=1), np.roll(rows, 1, axis=1)])
        busy, alpha = self._sent(src, dst, np.full(src.size, pass_bytes / 2))
        # A part of the data takes all hops of its ring but one.
        hops = alpha.reshape(-1, p)
        return busy, float((hops.sum(axis=1) - hops.min(axis=1)).max())

    def _hops(self, rows: Ints) -> int:
        """Count the links on the routes between all ordered pairs of each row, over all rows."""
        a, b = _pairs(rows.shape[1])
        return int(self.routes.hops(rows[:, a].reshape(-1), rows[:, b].reshape(-1)).sum())

    def _all_pairs(self, rows: Ints, share_bytes: float) -> tuple[Floats, float]:
        """Return busy times and latency in µs if each rank sends directly to all others of its row.

        Each message has `share_bytes` / p bytes, in rows of p ranks.
        """
        p = rows.shape[1]
        a, b = _pairs(p)
        return _slowest(self._sent(rows[:, a], rows[:, b], np.full(len(rows) * len(a), share_bytes / p)))

    def _straight(self, collective: Collective, groups: Ints, size_bytes: float) -> tuple[Floats, float]:
        """Return busy times and latency in µs if every chunk goes from its only holder directly to all goals."""
        holder = np.empty(collective.nchunks, dtype=np.int64)
        holder[collective.pre[:, 1]] = collective.pre[:, 0]
        goal, chunk = collective.post[:, 0], collective.post[:, 1]
        moves = holder[chunk] != goal
        goal, chunk = goal[moves], chunk[moves]
        amount = np.tile(collective.fraction[chunk] * size_bytes, len(groups))
        return _slowest(self._sent(groups[:, holder[chunk]], groups[:, goal], amount))

    def _sent(self, src: Ints, dst: Ints, amount: Floats) -> tuple[Floats, Floats]:
        """Return the busy times of all resources and the α of each message in µs, over fixed routes.

        Args:
            src: Source of each message, in any shape.
            dst: Destination of each message, in the same order.
            amount: Bytes of each message, in the same order.
        """
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
    """Return the busy times and the largest α of the messages."""
    return sent[0], float(sent[1].max(initial=0.0))


def _levels_of_resources(net: Network, hierarchy: Hierarchy, position: Ints) -> Ints:
    """Return the level of every resource (see `Estimator.level_of`) by the position of every rank in the hierarchy.

    A resource without links is of level 0.
    """
    between, size = np.full(net.nlinks, len(hierarchy.levels) - 1, dtype=np.int64), len(position)
    for level in reversed(range(len(hierarchy.levels))):
        inside = size // math.prod(hierarchy.sizes[: level + 1])
        between[position[net.src] // inside != position[net.dst] // inside] = level
    level_of_resource = np.zeros(net.nresources, dtype=np.int64)
    np.maximum.at(level_of_resource, net.uses_idx, between[net.link_of_use])
    return level_of_resource


@lru_cache(maxsize=64)
def _pairs(count: int) -> tuple[Ints, Ints]:
    """Return the first and the second members of all ordered pairs of `count` different numbers."""
    a, b = (x.ravel() for x in np.indices((count, count)))
    return a[a != b], b[a != b]
