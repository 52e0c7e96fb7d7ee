"""Large networks through switches: the pairs of ranks that have links, and the graph of all paths beside them.

Where switches join hundreds of ranks with each other, a link for each pair takes more time and memory than all searches
for schedules, which use few of them. A search asks for a network with links within the parts of each level, such as
nodes, and between the ranks at the same place in its parts. Bounds count the other paths too: they are in the graph.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from topologies.arrays import Bools, Floats, Ints, index_among, pointers, reachable, row_entries, segment_sums
from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels
from topologies.paths import Paths
from topologies.topology import Topology

MOST_PATHS = 1 << 18  # Paths through switches up to which each of them is a link.


@dataclass(frozen=True, eq=False)
class SwitchGraph:
    """All paths of a network that go through switches, as edges between vertices.

    Vertices are the local ranks, then the topology's switches. An edge is a physical link at a switch. A path leads
    from a rank through switches only to another rank.

    Attributes:
        nranks: Number of local ranks.
        nvertices: Number of vertices.
        src: Vertex that each edge leaves: int64 (edges,).
        dst: Vertex that each edge reaches: int64 (edges,).
        alpha_us: Latency in µs of each edge; a path's latency is at least the sum of its edges': float64 (edges,).
        uses_ptr: CSR table of the network's resources that each edge uses, with `uses_idx`.
        uses_idx: Resources of the edges.
    """

    nranks: int
    nvertices: int
    src: Ints
    dst: Ints
    alpha_us: Floats
    uses_ptr: Ints
    uses_idx: Ints

    @property
    def columns(self) -> tuple[Ints | Floats, ...]:
        """Return all columns, by which graphs of as many ranks differ."""
        return self.src, self.dst, self.alpha_us, self.uses_ptr, self.uses_idx

    def using(self, resources: Bools) -> Bools:
        """Return which edges use a flagged resource: bool (edges,); `resources` are flags (nresources,)."""
        return segment_sums(resources[self.uses_idx], self.uses_ptr) > 0

    def joins(self, part: Ints, cut: Bools) -> bool:
        """Return whether a path without the edges `cut` leads from a rank to a rank of another part.

        Args:
            part: Part of each local rank: int64 (nranks,), each from 0 on; -1 for ranks at which no path begins.
            cut: Flags of the edges that no path may take: bool (edges,).
        """
        src, dst = self.src[~cut], self.dst[~cut]
        begins = src < self.nranks
        first_rank, first_switch, src, dst = src[begins], dst[begins], src[~begins], dst[~begins]
        for number in np.unique(part[part >= 0]).tolist():
            own = part == number
            reached = reachable(self.nvertices, src, dst, first_switch[own[first_rank]])
            if (reached[: self.nranks] & ~own).any():
                return True
        return False

    def least_alpha_us(self, through: Bools) -> float:
        """Return a latency in µs that no path over one of the flagged edges is below; inf where no edge is flagged.

        Args:
            through: Flags of the edges: bool (edges,).
        """
        before, after = self._nearest(self.src, self.dst), self._nearest(self.dst, self.src)
        sums = before[self.src] + self.alpha_us + after[self.dst]
        return float(sums[through].min(initial=np.inf))

    def _nearest(self, tail: Ints, head: Ints) -> Floats:
        """Return the least latency from any rank to each vertex along edges tail→head: float64 (vertices,)."""
        us = np.full(self.nvertices, np.inf)
        us[: self.nranks] = 0.0
        while True:
            nearer = us.copy()
            np.minimum.at(nearer, head, us[tail] + self.alpha_us)
            if (nearer == us).all():
                return us
            us = nearer

    def reversed(self) -> SwitchGraph:
        """Return the graph with each edge reversed, in the same order."""
        return replace(self, src=self.dst, dst=self.src)

    def renumbered(self, resource: Ints) -> SwitchGraph:
        """Return the graph of a network with other resources; an edge uses no resource that is left out.

        Args:
            resource: Number of each resource in that network, -1 for one that is left out: int64 (nresources,).
        """
        used = resource[self.uses_idx]
        counts = segment_sums(used >= 0, self.uses_ptr)
        return replace(self, uses_ptr=pointers(counts), uses_idx=used[used >= 0])

    def among(self, chosen: Ints) -> SwitchGraph:
        """Return the graph in which other ranks do not exist; `chosen` are local ranks in their new order."""
        vertices = np.concatenate([chosen, np.arange(self.nranks, self.nvertices)])
        number = index_among(self.nvertices, vertices)
        kept = np.flatnonzero((number[self.src] >= 0) & (number[self.dst] >= 0))
        return SwitchGraph(
            nranks=len(chosen),
            nvertices=len(vertices),
            src=number[self.src[kept]],
            dst=number[self.dst[kept]],
            alpha_us=self.alpha_us[kept],
            uses_ptr=pointers(np.diff(self.uses_ptr)[kept]),
            uses_idx=self.uses_idx[row_entries(self.uses_ptr, kept)],
        )


def listed_pairs(topology: Topology, group: Ints, paths: Paths) -> Bools | None:
    """Return which pairs of ranks have links through switches in a large network; None where these are all pairs.

    Args:
        topology: The topology.
        group: Rank of the topology for each local rank: int64 (nranks,).
        paths: The paths that are links.

    Returns:
        Flags [from, to]: bool (nranks, nranks).
    """
    if paths is Paths.ALL:
        return None
    try:
        hierarchy = find_levels(topology)
    except InputError:
        return None
    names = [level.name for level in hierarchy.levels]
    inner = names.index("node") + 1 if "node" in names else 1
    sizes = (math.prod(hierarchy.sizes[:inner]), *hierarchy.sizes[inner:])
    if paths is Paths.LEVELS and len(group) * sum(sizes) > MOST_PATHS:
        sizes = hierarchy.sizes
    if len(sizes) < 2:
        return None
    differing = np.zeros((len(group), len(group)), dtype=np.int8)
    for place in np.unravel_index(hierarchy.position[group], sizes):
        differing += place[:, None] != place[None, :]
    return np.asarray(differing <= 1)
