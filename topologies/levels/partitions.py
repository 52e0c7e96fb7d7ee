"""Partitions of a topology's ranks that its graph suggests as levels of a hierarchy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topologies.arrays import Floats, Ints, components
from topologies.topology import Topology

# Figures of one class are no further apart than this, one to the next: measured links of one kind differ by less.
_SAME_KIND = 1.25
_MOST_SQUARED = 4096  # vertices of a graph whose triangles are counted


@dataclass(frozen=True, eq=False)
class Partition:
    """Ranks in parts: `of_rank`, int64 (ranks,), the part of each, numbered by their first ranks."""

    of_rank: Ints
    what: str  # the parts, in words
    is_chassis: bool = False
    is_grid: bool = False

    @cached_property
    def sizes(self) -> Ints:
        """Ranks of each part."""
        return np.bincount(self.of_rank)

    @property
    def count(self) -> int:
        """Number of parts."""
        return len(self.sizes)

    @property
    def is_regular(self) -> bool:
        """Whether all parts are equally large."""
        return bool((self.sizes == self.sizes[0]).all())

    def nests_with(self, other: Partition) -> bool:
        """Whether one of the two is strictly finer than the other."""
        coarse, fine = sorted((self, other), key=lambda part: part.count)
        if coarse.count == fine.count:
            return False
        pairs = np.unique(fine.of_rank * coarse.count + coarse.of_rank)
        return len(pairs) == fine.count


def _partition(labels: Ints, what: str, is_chassis: bool = False, is_grid: bool = False) -> Partition:
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    by_first = np.empty(len(first), dtype=np.int64)
    by_first[np.argsort(first)] = np.arange(len(first))
    return Partition(by_first[inverse.reshape(-1)], what, is_chassis, is_grid)


def _is_proper(partition: Partition) -> bool:
    return 1 < partition.count < len(partition.of_rank)


def chassis(topology: Topology) -> Iterator[Partition]:
    """The partition into nodes, where the topology names several."""
    found = _partition(topology.nodes, "nodes", is_chassis=True)
    if _is_proper(found):
        yield found


def connected_parts(topology: Topology, triangles: bool = False) -> Iterator[Partition]:
    """What stays connected when links are added kind by kind, finest first.

    Kinds, in this order: the bandwidth that ranks can have over a link, highest first; how many switches are between
    its ends and the ranks, fewest first; α, lowest first; with `triangles` links that are in one before those that are
    in none (in a dragonfly that tells the links of a group from those between groups).
    """
    src, dst = topology.link_src, topology.link_dst
    if not len(src):
        return
    gbs, height = _reachable_gbs(topology), _heights(topology)
    keys = [_classes(gbs, descending=True), height[src] + height[dst], _classes(topology.alpha_us)]
    keys += [_lone(topology)] if triangles else []
    kinds, kind = np.unique(np.column_stack(keys), axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    last = -1
    for upto in range(len(kinds)):
        use = kind <= upto
        labels = components(topology.nvertices, src[use], dst[use])[: topology.nranks]
        slowest = float(gbs[use].min())
        found = _partition(labels, f"parts joined at {slowest:g} GB/s")
        if _is_proper(found) and found.count != last:
            yield found
        last = found.count


def grid_blocks(topology: Topology) -> Iterator[Partition]:
    """Blocks of consecutive ranks where the graph is the Cartesian product of a block and the graph of blocks.

    Only of a topology without switches: in a torus or mesh, numbered by coordinates, every dimension gives one.
    """
    n = topology.nranks
    if len(topology.switches) or not topology.nlinks:
        return
    for block in range(n // 2, 1, -1):
        if n % block == 0 and _is_product(topology, block):
            yield _partition(np.arange(n) // block, f"blocks of {block} ranks", is_grid=True)


def _is_product(topology: Topology, block: int) -> bool:
    """Whether every link changes one of (rank // block, rank % block), in the same way whatever the other is."""
    high_src, low_src = np.divmod(topology.link_src, block)
    high_dst, low_dst = np.divmod(topology.link_dst, block)
    if ((high_src != high_dst) & (low_src != low_dst)).any():
        return False
    figures = (topology.alpha_us, topology.bandwidth_gbs)
    for at, src, dst, fixed, copies in (
        (high_src == high_dst, low_src, low_dst, high_src, topology.nranks // block),
        (low_src == low_dst, high_src, high_dst, low_src, block),
    ):
        order = np.lexsort((dst[at], src[at], fixed[at]))
        if not len(order) or len(order) % copies:
            return False
        for column in (src, dst, *figures):
            rows = column[at][order].reshape(copies, -1)
            if (rows != rows[0]).any():
                return False
    return True


def _classes(values: Floats, descending: bool = False) -> Ints:
    """A number for each value, equal for those that are of one kind, in their order."""
    found, inverse = np.unique(values, return_inverse=True)
    number = np.zeros(len(found), dtype=np.int64)
    number[1:] = np.cumsum(found[1:] > found[:-1] * _SAME_KIND)
    number = number[inverse.reshape(-1)]
    return number.max() - number if descending else number


def _reachable_gbs(topology: Topology) -> Floats:
    """Of each link the rate that a rank's data can have on it: no higher than on the way there from any rank.

    So a fat trunk between switches counts as the ports below it.
    """
    n = topology.nranks
    gbs = topology.bandwidth_gbs.copy()
    for limit in topology.limits:
        gbs[limit.links] = np.minimum(gbs[limit.links], limit.bandwidth_gbs)
    width = np.zeros(topology.nvertices)
    width[:n] = np.inf
    while True:
        before = width.copy()
        np.maximum.at(width, topology.link_dst, np.minimum(gbs, width[topology.link_src]))
        if (width == before).all():
            break
    # A rank sends at any rate; where it is reached from does not narrow what leaves it.
    return np.minimum(gbs, width[topology.link_src])


def _heights(topology: Topology) -> Ints:
    """Of every vertex the number of hops to the nearest rank."""
    height = np.full(topology.nvertices, topology.nvertices, dtype=np.int64)
    height[: topology.nranks] = 0
    while True:
        before = height.copy()
        np.minimum.at(height, topology.link_src, height[topology.link_dst] + 1)
        if (height == before).all():
            return height


def _lone(topology: Topology) -> Ints:
    """1 for each link of two ranks, or two switches, that have no neighbour of their kind in common; else 0.

    All 0 where the graph is too large to look.
    """
    lone = np.zeros(topology.nlinks, dtype=np.int64)
    n, size = topology.nranks, topology.nvertices
    for first, last in ((0, n), (n, size)):
        if last - first > _MOST_SQUARED:
            continue
        at = (first <= topology.link_src) & (topology.link_src < last)
        at &= (first <= topology.link_dst) & (topology.link_dst < last)
        src, dst = topology.link_src[at] - first, topology.link_dst[at] - first
        adjacent = np.zeros((last - first, last - first), dtype=np.float32)
        adjacent[src, dst] = adjacent[dst, src] = 1
        lone[at] = (adjacent @ adjacent)[src, dst] == 0
    return lone
