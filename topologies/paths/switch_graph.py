"""The graph of all paths through switches, for networks in which only some of these paths are links."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from topologies.arrays import Bools, Floats, Ints, index_among, pointers, reachable, row_entries, segment_sums
from topologies.costed import figures_of
from topologies.topology import Topology


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
        inner_edges = np.flatnonzero((number[self.src] >= 0) & (number[self.dst] >= 0))
        return SwitchGraph(
            nranks=len(chosen),
            nvertices=len(vertices),
            src=number[self.src[inner_edges]],
            dst=number[self.dst[inner_edges]],
            alpha_us=self.alpha_us[inner_edges],
            uses_ptr=pointers(np.diff(self.uses_ptr)[inner_edges]),
            uses_idx=self.uses_idx[row_entries(self.uses_ptr, inner_edges)],
        )


def switch_graph_of(topology: Topology, group: Ints, resources: Ints) -> SwitchGraph:
    """Return the graph of all paths through switches among ranks.

    Args:
        topology: The topology.
        group: Rank of the topology for each local rank.
        resources: What each resource of the network is: a physical link, or nlinks + a limit, ascending.
    """
    vertices = np.concatenate([group, np.arange(topology.nranks, topology.nvertices)])
    number = index_among(topology.nvertices, vertices)
    src, dst = number[topology.link_src], number[topology.link_dst]
    edges = np.flatnonzero((src >= 0) & (dst >= 0) & ((src >= len(group)) | (dst >= len(group))))
    edge, resource = np.arange(len(edges)), edges
    holder, limit = topology.limits_crossed(edge, edges)
    edge, resource = np.append(edge, holder), np.append(resource, topology.nlinks + limit)
    count = topology.nlinks + len(topology.limits)
    index = index_among(count, resources[resources < count])[resource]
    edge, index = edge[index >= 0], index[index >= 0]
    order = np.lexsort((index, edge))
    return SwitchGraph(
        nranks=len(group),
        nvertices=len(vertices),
        src=src[edges],
        dst=dst[edges],
        alpha_us=_least_latencies(topology)[edges],
        uses_ptr=pointers(np.bincount(edge, minlength=len(edges))),
        uses_idx=index[order],
    )


def _least_latencies(topology: Topology) -> Floats:
    """Return a latency in µs for each physical link, of which no path has less than the sum: float64 (nlinks,).

    Where costs are on, a path has the latency of its highest kind of link. It then stands at the path's first link, as
    the least latency of any kind from that link's own on.
    """
    figures = figures_of(topology)
    if figures is None:
        return np.maximum(topology.alpha_us - 1e-9, 0.0)  # A path's latency is rounded to 1e-9 µs.
    least = np.zeros(topology.nlinks)
    higher = np.full(topology.nlinks, np.inf)
    for kind in np.unique(topology.link_kind)[::-1].tolist():
        us = figures.latency_us[kind]
        higher = np.minimum(higher, topology.alpha_us if np.isnan(us) else us)
        first = (topology.link_kind == kind) & (topology.link_src < topology.nranks)
        least[first] = higher[first]
    return least
