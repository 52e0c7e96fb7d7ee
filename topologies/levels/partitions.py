"""Partitions of a topology's ranks that its graph suggests as levels of a hierarchy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from topologies.arrays import Floats, Ints, components
from topologies.topology import Topology

# Largest factor between neighbouring figures of one class; measured links of one kind differ by less.
_SAME_KIND = 1.25
_MOST_SQUARED = 4096  # Most vertices of a graph whose triangles are counted.


@dataclass(frozen=True, eq=False)
class Partition:
    """A division of the ranks into parts.

    Attributes:
        of_rank: Part of each rank, numbered by the parts' first ranks: int64 (ranks,).
        parts_name: The parts in words, as messages name them.
        is_chassis: Whether the parts are chassis.
        is_grid: Whether the parts are blocks of a grid.
    """

    of_rank: Ints
    parts_name: str
    is_chassis: bool = False
    is_grid: bool = False

    @cached_property
    def sizes(self) -> Ints:
        """Return the number of ranks of each part."""
        return np.bincount(self.of_rank)

    @property
    def count(self) -> int:
        """Return the number of parts."""
        return len(self.sizes)

    @property
    def is_regular(self) -> bool:
        """Return whether all parts have the same size."""
        return bool((self.sizes == self.sizes[0]).all())

    def nests_with(self, partition: Partition) -> bool:
        """Return whether one of the two partitions is strictly finer than the other."""
        coarse, fine = sorted((self, partition), key=lambda part: part.count)
        if coarse.count == fine.count:
            return False
        pairs = np.unique(fine.of_rank * coarse.count + coarse.of_rank)
        return len(pairs) == fine.count


def _partition(labels: Ints, parts_name: str, is_chassis: bool = False, is_grid: bool = False) -> Partition:
    """Return the partition of ranks by label, its parts numbered by their first ranks."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    by_first = np.empty(len(first), dtype=np.int64)
    by_first[np.argsort(first)] = np.arange(len(first))
    return Partition(by_first[inverse.reshape(-1)], parts_name, is_chassis, is_grid)


def _is_proper(partition: Partition) -> bool:
    """Return whether a partition has more than one part and fewer parts than ranks."""
    return 1 < partition.count < len(partition.of_rank)


def chassis(topology: Topology) -> Iterator[Partition]:
    """Yield the partition into nodes; nothing where there is one node, or each rank has a node of its own."""
    partition = _partition(topology.nodes, "nodes", is_chassis=True)
    if _is_proper(partition):
        yield partition


def connected_parts(topology: Topology, triangles: bool = False) -> Iterator[Partition]:
    """Yield the partitions into connected parts as links are added kind by kind, finest first.

    Each has more than one part and fewer parts than ranks.

    The kinds are ordered by: the bandwidth that ranks can reach over a link, highest first; the number of switches
    between its ends and the ranks, fewest first; α, lowest first; and, with `triangles`, links that are in a triangle
    before links that are in none (in a dragonfly this separates the links of a group from those between groups).
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
    for highest in range(len(kinds)):
        is_used = kind <= highest
        labels = components(topology.nvertices, src[is_used], dst[is_used])[: topology.nranks]
        slowest = float(gbs[is_used].min())
        partition = _partition(labels, f"parts joined at {slowest:g} GB/s")
        if _is_proper(partition) and partition.count != last:
            yield partition
        last = partition.count


def grid_blocks(topology: Topology) -> Iterator[Partition]:
    """Yield the blocks of consecutive ranks where the graph is the Cartesian product of a block and a graph of blocks.

    The largest blocks come first; a block of all ranks or of one rank is none.
    Only topologies without switches have them: in a torus or mesh, numbered by coordinates, every dimension gives one.
    """
    n = topology.nranks
    if len(topology.switches) or not topology.nlinks:
        return
    for block in range(n // 2, 1, -1):
        if n % block == 0 and _is_product(topology, block):
            yield _partition(np.arange(n) // block, f"blocks of {block} ranks", is_grid=True)


def _is_product(topology: Topology, block: int) -> bool:
    """Return whether every link changes one of (rank // block, rank % block), equally for every value of the other.

    Links that correspond must have equal α and bandwidth too. `block` divides the number of ranks.
    """
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
    """Return the class of each value, numbered from 0 by ascending value, or by descending value: int64 (values,).

    Two values with none between them are in one class where the larger is at most 1.25 times the smaller.
    """
    distinct, inverse = np.unique(values, return_inverse=True)
    number = np.zeros(len(distinct), dtype=np.int64)
    number[1:] = np.cumsum(distinct[1:] > distinct[:-1] * _SAME_KIND)
    number = number[inverse.reshape(-1)]
    return number.max() - number if descending else number


def _reachable_gbs(topology: Topology) -> Floats:
    """Return the rate in GB/s at which a rank's data can use each link: at most the widest path from any rank to it.

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
    # A rank's own data are not limited by the links that lead to the rank.
    return np.minimum(gbs, width[topology.link_src])


def _heights(topology: Topology) -> Ints:
    """Return the number of hops from every vertex to the nearest rank: int64 (nvertices,); nvertices for no path."""
    height = np.full(topology.nvertices, topology.nvertices, dtype=np.int64)
    height[: topology.nranks] = 0
    while True:
        before = height.copy()
        np.minimum.at(height, topology.link_src, height[topology.link_dst] + 1)
        if (height == before).all():
            return height


def _lone(topology: Topology) -> Ints:
    """Return 1 for each link of two ranks, or two switches, without a common neighbour of their kind; else 0.

    The result is int64 (nlinks,). All links of ranks are 0 where there are more than 4096 ranks, and so for switches.
    """
    lone = np.zeros(topology.nlinks, dtype=np.int64)
    n, size = topology.nranks, topology.nvertices
    for first, last in ((0, n), (n, size)):
        if last - first > _MOST_SQUARED:
            continue
        at = (first <= topology.link_src) & (topology.link_src < last)
        at &= (first <= topology.link_dst) & (topology.link_dst < last)
        if not at.any():
            continue
        src, dst = topology.link_src[at] - first, topology.link_dst[at] - first
        adjacent = np.zeros((last - first, last - first), dtype=np.float32)
        adjacent[src, dst] = adjacent[dst, src] = 1
        lone[at] = (adjacent @ adjacent)[src, dst] == 0
    return lone
