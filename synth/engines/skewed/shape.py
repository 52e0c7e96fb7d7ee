"""The shape of a process group on a network: its nodes, its NICs, the lanes between nodes, and what bounds need.

A *NIC* is what all links of a rank to other nodes share: a resource of the network, or a rank's own port. A *lane*
carries a fixed share of what one node sends to another node, from one NIC to one NIC. The shares are such that all
NICs of a node are loaded equally.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.bounds.borders import border_times
from synth.model.collective import Floats, Ints
from synth.model.problem import least_latency
from topologies.arrays import components, pointers, positions, row_entries
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.topology import Topology

_MOST_RANKS = 2048  # A plan has a chunk for every two of them, and more.
_MOST_TICKS = 16  # With NICs of more different rates, sums of ticks could need more than 63 bits.
_MOST_BALANCED = 64  # Nodes up to which the shares of fabrics are balanced, which takes milliseconds a pair.
_SWEEPS = 8  # Times that each pair of nodes chooses its shares again.
_LEAST_SHARE = 1e-6  # A fabric with less of a pair's bytes gets none of them.
_RIGHT = "the group must be nodes whose ranks all have links, with NICs that serve one send each, as dgx-h100:4"


class NotInNodes(InputError):
    """An error about a group that is not in nodes whose ranks all have links and which NICs join."""


@dataclass(frozen=True, eq=False)
class GroupShape:
    """The shape of a process group of k ranks in N nodes; positions 0..k-1 are the network's local ranks.

    Attributes:
        net: The network of the group.
        node_of: Node of each position, int64, shape (k,); nodes are numbered by their first positions.
        node_ptr: First entry of each node in `node_rank`, int64, shape (N + 1,).
        node_rank: Positions by node, ascending in each node, int64, shape (k,).
        nic_of: NIC of each position, int64, shape (k,); -1 where there is one node.
        nic_ptr: First entry of each NIC in `nic_rank`, int64, shape (NICs + 1,).
        nic_rank: Positions by NIC, int64, shape (k,).
        between: Link from each position to each other position, int64, shape (k · k,); -1 for none. Inside a node it is
            the fastest link, between nodes the NIC's.
        lane_ptr: First lane of each pair of nodes a · N + b, int64, shape (N · N + 1,).
        lane_from: NIC at which each lane begins, int64, shape (lanes,).
        lane_to: NIC at which each lane ends.
        lane_source: Position that sends for ranks that are not on the lane's first NIC.
        lane_goal: Position that receives for ranks that are not on the lane's last NIC.
        lane_end: Share of the pair's bytes up to the end of each lane, float64, shape (lanes,); 1 at each pair's last.
        lane_ticks: Ticks for which a byte holds each lane; a tick is the time of a byte on the fastest lane.
        lane_flow: Cell of the matrices of rounds that each lane belongs to, int64, shape (lanes,).
        part_ports: Ports (rows) of each matrix of rounds, int64, shape (matrices,). NICs that lanes join, directly or
            through others, are of one matrix; matrices that are equal for all sizes are kept once.
        part_base: First cell of each matrix, int64, shape (matrices + 1,).
        tick_us: Length of a tick in µs; 0 where there is one node.
        leaves: Position at which a block leaves its source's node when it is sent straight, int64, shape (k · N,).
        enters: Position at which such a block enters the node of its goal, unless the goal itself is linked.
        straight_us: Time in µs for which a byte that is sent straight keeps the NIC at which it leaves busy, then the
            NIC at which it enters, float64, shape (2 · k · N,); 0 where this depends on the goal.
        ports: The two resources of each link, int64, shape (2 · links,); the same one twice where the link has one. A
            resource is left out if all its links share another one.
        has_ports: Whether links inside nodes share ports, so that a rank sends to one peer at a time.
        rank_us: Time of a byte out of each position and into each position, in µs, float64, shape (2 · k,).
        rank_alpha_us: Least α of a link out of each position and into each position, shape (2 · k,).
        node_us: The same as `rank_us` for nodes, shape (2 · N,); 0 where there is one node.
        node_alpha_us: The same as `rank_alpha_us` for nodes.
        least_us: Least sum of α on a path from each position to each position, in µs, shape (k · k,).
        unit_bytes: Bytes of a unit of size. All times of a byte are times of a unit, and plans cut blocks at units.
    """

    net: Network
    node_of: Ints
    node_ptr: Ints
    node_rank: Ints
    nic_of: Ints
    nic_ptr: Ints
    nic_rank: Ints
    between: Ints
    lane_ptr: Ints
    lane_from: Ints
    lane_to: Ints
    lane_source: Ints
    lane_goal: Ints
    lane_end: Floats
    lane_ticks: Floats
    lane_flow: Ints
    part_ports: Ints
    part_base: Ints
    tick_us: float
    leaves: Ints
    enters: Ints
    straight_us: Floats
    ports: Ints
    has_ports: bool
    rank_us: Floats
    rank_alpha_us: Floats
    node_us: Floats
    node_alpha_us: Floats
    least_us: Floats
    unit_bytes: float = 1.0

    @property
    def nranks(self) -> int:
        """Return k, the number of positions."""
        return len(self.node_of)

    @property
    def nnodes(self) -> int:
        """Return N, the number of nodes."""
        return len(self.node_ptr) - 1


def in_units(shape: GroupShape, unit_bytes: float) -> GroupShape:
    """Return the shape for sizes that count units of so many bytes, where `shape` is for bytes."""
    names = ("tick_us", "rank_us", "node_us", "straight_us")
    return replace(shape, unit_bytes=unit_bytes, **{name: getattr(shape, name) * unit_bytes for name in names})


def shape_of(topology: Topology, group: Sequence[int] | None = None, net: Network | None = None) -> GroupShape:
    """Return the shape of a process group.

    Args:
        topology: The topology, whose chassis are the nodes and whose costs count where they are on.
        group: Rank of the topology at each position; None for all ranks.
        net: The network of exactly these ranks, if the caller has it.

    Raises:
        NotInNodes: Two ranks of a node have no link, a resource can be used by two sends at once, a node has no NICs
            that reach some other node, or NICs differ too much.
        InputError: There are fewer than two ranks or too many.
    """
    ranks = range(topology.nranks) if group is None else group
    net = network(topology, ranks) if net is None else net
    if net.nranks < 2:
        raise InputError("group: has 1 rank; it must be at least 2")
    if net.nranks > _MOST_RANKS:
        raise InputError(f"group: has {net.nranks} ranks; plans for skewed sizes are for {_MOST_RANKS} at most")
    _check_exclusive(topology, net)
    node_of = _numbered(topology.nodes[net.ranks])
    k, n = net.nranks, int(node_of.max()) + 1
    node_ptr, node_rank = pointers(np.bincount(node_of)), np.argsort(node_of, kind="stable")
    between, has_ports = _links(topology, net, node_of)
    outward, inward = border_times(net, np.arange(k), k)
    node_out, node_in = (
        border_times(net, node_of, n) if n > 1 else ((np.zeros(1), np.zeros(1)), (np.zeros(1), np.zeros(1)))
    )
    lanes = _OneNode(k) if n == 1 else _Lanes(topology, net, node_of, between)
    lane_ptr, lane_from, lane_to, lane_source, lane_goal, lane_end, lane_ticks, lane_flow = lanes.lanes
    part_ports, part_base, tick_us = lanes.parts
    leaves, enters, straight_us = lanes.straight
    return GroupShape(
        net=net,
        node_of=node_of,
        node_ptr=node_ptr,
        node_rank=node_rank,
        nic_of=lanes.nic_of,
        nic_ptr=lanes.nic_ptr,
        nic_rank=lanes.nic_rank,
        between=between.ravel(),
        lane_ptr=lane_ptr,
        lane_from=lane_from,
        lane_to=lane_to,
        lane_source=lane_source,
        lane_goal=lane_goal,
        lane_end=lane_end,
        lane_ticks=lane_ticks,
        lane_flow=lane_flow,
        part_ports=part_ports,
        part_base=part_base,
        tick_us=tick_us,
        leaves=leaves,
        enters=enters,
        straight_us=straight_us,
        ports=_ports(topology, net).ravel(),
        has_ports=has_ports,
        rank_us=np.concatenate([outward[0], inward[0]]),
        rank_alpha_us=np.concatenate([outward[1], inward[1]]),
        node_us=np.concatenate([node_out[0], node_in[0]]),
        node_alpha_us=np.concatenate([node_out[1], node_in[1]]),
        least_us=least_latency(k, net.src, net.dst, net.alpha_us).ravel(),
    )


def _numbered(labels: Ints) -> Ints:
    """Return labels as numbers from 0, in the order of their first appearance."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.asarray(np.argsort(np.argsort(first))[inverse.reshape(-1)], dtype=np.int64)


def _check_exclusive(topology: Topology, net: Network) -> None:
    """Raise NotInNodes if a link takes only a part of a resource, so that two sends can share it."""
    partial = net.bandwidth_gbs[net.link_of_use] < net.capacity_gbs[net.uses_idx] * (1 - 1e-12)
    if partial.any():
        name = net.resource_names[int(net.uses_idx[np.argmax(partial)])]
        raise NotInNodes(f"{topology.name}: {name} can carry two sends at once, which no plan for skewed sizes is for")


def _links(topology: Topology, net: Network, node_of: Ints) -> tuple[Ints, bool]:
    """Return the link between every two positions, shape (k, k), and whether those inside nodes share ports.

    Raises:
        NotInNodes: Two ranks of a node have no link, or only one over their NICs.
    """
    between = net.widest_link
    inside = node_of[:, None] == node_of[None, :]
    np.fill_diagonal(inside, False)
    if (between[inside] < 0).any():
        a, b = np.argwhere(inside & (between < 0))[0]
        raise NotInNodes(f"{topology.name}: ranks {net.ranks[a]} and {net.ranks[b]} of a node have no link; {_RIGHT}")
    links = between[inside]
    outer = np.flatnonzero(node_of[net.src] != node_of[net.dst])
    is_outer = np.zeros(net.nresources, dtype=bool)
    is_outer[net.uses_idx[row_entries(net.uses_ptr, outer)]] = True
    if len(links) and is_outer[net.uses_idx[row_entries(net.uses_ptr, links)]].any():
        slow = next(int(link) for link in links if is_outer[net.uses(int(link))].any())
        a, b = net.ranks[net.src[slow]], net.ranks[net.dst[slow]]
        raise NotInNodes(f"{topology.name}: ranks {a} and {b} of a node are joined by their NICs only; {_RIGHT}")
    used = np.concatenate([net.uses(int(link)) for link in links]) if len(links) else links
    return between, bool(len(used) and np.bincount(used).max() > 1)


def _filled(busy: Floats, width: Floats, amount: float) -> Floats:
    """Return how an amount fills vessels of some widths from their present levels up to one common level.

    Args:
        busy: Present level of each vessel, shape (vessels,).
        width: Width of each vessel, more than 0.
        amount: Amount to distribute.
    """
    order = np.argsort(busy, kind="stable")
    for used in range(1, len(order) + 1):
        chosen = order[:used]
        level = (amount + (busy[chosen] * width[chosen]).sum()) / width[chosen].sum()
        if used == len(order) or level <= busy[order[used]]:
            break
    filled = np.zeros(len(busy))
    filled[chosen] = (level - busy[chosen]) * width[chosen]
    return filled


class _OneNode:
    """The lanes of a single node: none; the attributes are as in `_Lanes`."""

    def __init__(self, k: int) -> None:
        none = np.zeros(0, dtype=np.int64)
        self.nic_of, self.nic_ptr, self.nic_rank = np.full(k, -1), np.zeros(1, dtype=np.int64), none
        self.lanes = np.zeros(2, dtype=np.int64), none, none, none, none, np.zeros(0), np.zeros(0), none
        self.parts = none, np.zeros(1, dtype=np.int64), 0.0
        self.straight = np.arange(k), np.arange(k), np.zeros(2 * k)


class _Lanes:
    """The lanes between nodes of a network, and the positions that stand at their ends.

    Attributes:
        is_shared: Whether all links of each position to other nodes, then from other nodes, share a resource.
        fabric: Fabric of each NIC. A fabric is a set of NICs that reach each other, directly or through others.
        share: Share of each fabric in what each node sends to each node, shape (nodes, nodes, fabrics).
        nic_of: NIC of each position.
        nic_ptr: First entry of each NIC in `nic_rank`.
        nic_rank: Positions by NIC.
        lanes: The columns of `GroupShape` from `lane_ptr` to `lane_flow`.
        parts: (`part_ports`, `part_base`, `tick_us`) of `GroupShape`.
        straight: (`leaves`, `enters`, `straight_us`) of `GroupShape`.
    """

    def __init__(self, topology: Topology, net: Network, node_of: Ints, between: Ints) -> None:
        self._topology, self._net, self._node_of, self._between = topology, net, node_of, between
        self.nnodes = int(node_of.max()) + 1
        outer = np.flatnonzero(node_of[net.src] != node_of[net.dst])
        self.nic_of = self._nics(outer)
        count = int(self.nic_of.max()) + 1
        self.nic_ptr = pointers(np.bincount(self.nic_of, minlength=count))
        self.nic_rank = np.argsort(self.nic_of, kind="stable")
        self.first = self.nic_rank[self.nic_ptr[:-1]]
        self.nic_node = node_of[self.first]
        self.fabric = components(count, self.nic_of[net.src[outer]], self.nic_of[net.dst[outer]])
        self.fabric = _numbered(self.fabric)
        self.rate = self._rates(outer, count)
        self.share = self._shares()
        self._set_lanes()
        self.straight = self._straight()

    def _nics(self, outer: Ints) -> Ints:
        """Return the NIC of each position.

        Positions have one NIC if a resource is common to all their links to other nodes.

        Raises:
            NotInNodes: Links out of a NIC and into it are not shared by the same ranks.
        """
        net, k = self._net, self._net.nranks
        is_outer = np.zeros(net.nlinks, dtype=bool)
        is_outer[outer] = True
        used = is_outer[net.link_of_use]
        link, resource = net.link_of_use[used], net.uses_idx[used]
        sides = []
        self.is_shared = []
        for end in (net.src, net.dst):
            links_of_rank = np.bincount(end[outer], minlength=k)
            cells, uses = np.unique(end[link] * net.nresources + resource, return_counts=True)
            rank, shared = np.divmod(cells, net.nresources)
            is_common = uses == links_of_rank[rank]
            self.is_shared.append(np.bincount(rank[is_common], minlength=k) > 0)
            sides.append(components(k + net.nresources, rank[is_common], k + shared[is_common])[:k])
        out, into = (_numbered(side) for side in sides)
        if (out != into).any():
            rank = net.ranks[int(np.argmax(out != into))]
            raise NotInNodes(f"{self._topology.name}: rank {rank} sends and receives over different NICs; {_RIGHT}")
        return out

    def _rates(self, outer: Ints, count: int) -> Floats:
        """Return the GB/s of each NIC, shape (count,): those of its slowest link, 0 without links to other nodes."""
        net = self._net
        rate = np.full(count, np.inf)
        for end in (net.src, net.dst):
            np.minimum.at(rate, self.nic_of[end[outer]], net.bandwidth_gbs[outer])
        rate[np.isinf(rate)] = 0.0
        return rate

    def _shares(self) -> Floats:
        """Return the share of each fabric in what a node sends to a node, shape (nodes, nodes, fabrics).

        The share of a fabric is proportional to the smaller of the two nodes' rates on it. If not all nodes have the
        same rates on all fabrics, these shares are only a start, since some pairs have a choice of fabrics and others
        have none. Then, for blocks of equal size, each pair of nodes in turn gives more to the fabrics that are least
        loaded at its ends, so that it avoids those which pairs without a choice need.
        """
        n, nfabrics = self.nnodes, int(self.fabric.max()) + 1
        width = np.zeros((n, nfabrics))
        np.add.at(width, (self.nic_node, self.fabric), self.rate)
        common = np.minimum(width[:, None], width[None, :])
        share: Floats = common / np.maximum(common.sum(axis=2, keepdims=True), 1e-300)
        if (width == width[0]).all() or n > _MOST_BALANCED:
            return share
        members = np.bincount(self._node_of).astype(np.float64)
        sizes = np.outer(members, members)
        np.fill_diagonal(sizes, 0.0)
        for _ in range(_SWEEPS):
            for a, b in np.argwhere((sizes > 0) & (common.sum(axis=2) > 0)).tolist():
                usable = np.flatnonzero(common[a, b] > 0)
                carried = share * sizes[:, :, None]
                carried[a, b] = 0.0
                ends = carried[a].sum(axis=0) / np.maximum(width[a], 1e-300), carried[:, b].sum(axis=0)
                busy = np.maximum(ends[0], ends[1] / np.maximum(width[b], 1e-300))[usable]
                share[a, b] = 0.0
                share[a, b, usable] = _filled(busy, common[a, b, usable], float(sizes[a, b])) / sizes[a, b]
        return share

    def _set_lanes(self) -> None:
        """Set `lanes` and `parts`.

        Raises:
            NotInNodes: As `_lanes_between` raises it, or the rates of NICs differ too much.
        """
        rows, ends, ptr = [], list[float](), [0]
        for a in range(self.nnodes):
            for b in range(self.nnodes):
                if a != b:
                    lanes = list(self._lanes_between(a, b))
                    rows += [lane[:2] for lane in lanes]
                    ends += [lane[2] for lane in lanes]
                ptr.append(len(rows))
        begin, end = np.array(rows, dtype=np.int64).T
        gbs = self._net.bandwidth_gbs[self._between[self.first[begin], self.first[end]]]
        part = _numbered(components(len(self.first), begin, end))
        ports = np.bincount(part)
        place = np.empty(len(part), dtype=np.int64)
        place[np.argsort(part, kind="stable")] = np.concatenate([np.arange(count) for count in ports])
        if self._equal_parts(part, begin, end, np.array(ends), np.array(ptr), place):
            part[:] = 0
            ports = ports[:1]
        base = pointers(ports * ports)
        flow = base[part[begin]] + place[begin] * ports[part[begin]] + place[end]
        fastest = float(gbs.max())
        if fastest > _MOST_TICKS * float(gbs.min()):
            rates = f"{gbs.min():g} and {fastest:g} GB/s"
            raise NotInNodes(
                f"{self._topology.name}: NICs have {rates}; the rates must differ by {_MOST_TICKS} at most"
            )
        self.lanes = (
            np.array(ptr, dtype=np.int64),
            begin,
            end,
            self.first[begin],
            self.first[end],
            np.array(ends),
            fastest / gbs,
            flow,
        )
        self.parts = ports.astype(np.int64), base, 1e-3 / fastest

    def _equal_parts(self, part: Ints, begin: Ints, end: Ints, ends: Floats, ptr: Ints, place: Ints) -> bool:
        """Return whether every part has one NIC a node, and every pair of nodes one lane of equal share a part."""
        count, n = int(part.max()) + 1, self.nnodes
        if len(part) != count * n or (place != self.nic_node).any() or len(begin) != count * n * (n - 1):
            return False
        share = np.diff(np.append(0.0, ends))
        share[ptr[:-1][np.diff(ptr) > 0]] = ends[ptr[:-1][np.diff(ptr) > 0]]
        gbs = self._net.bandwidth_gbs[self._between[self.first[begin], self.first[end]]]
        return bool(np.ptp(gbs) == 0 and np.allclose(share, 1 / count) and (place[end] == self.nic_node[end]).all())

    def _lanes_between(self, a: int, b: int) -> Iterator[tuple[int, int, float]]:
        """Yield (NIC of node a, NIC of node b, share of the bytes up to the end of the lane) of each lane from a to b.

        The bytes from a to b are divided between fabrics as `_shares` says. Within a fabric they form an interval. It
        is cut once between the NICs of a and once between those of b, in proportion to their rates, so that every NIC
        carries its part. A lane is where a part of a NIC of a and a part of a NIC of b overlap.

        Raises:
            NotInNodes: No NIC of one node reaches the other, or some NIC does not reach another one of its fabric.
        """
        at = {node: np.flatnonzero(self.nic_node == node) for node in (a, b)}
        fabrics = [f for f in np.unique(self.fabric[at[a]]).tolist() if (self.fabric[at[b]] == f).any()]
        ranks = [int(self._net.ranks[np.argmax(self._node_of == node)]) for node in (a, b)]
        if not fabrics:
            raise NotInNodes(
                f"{self._topology.name}: no NIC joins the nodes of ranks {ranks[0]} and {ranks[1]}; {_RIGHT}, and it"
                " must have ranks at the same rail"
            )
        fabrics = [f for f in fabrics if self.share[a, b, f] > _LEAST_SHARE]
        sides = [[nics[self.fabric[nics] == f] for nics in at.values()] for f in fabrics]
        widths = [float(self.share[a, b, f]) for f in fabrics]
        total, width_before = sum(widths), 0.0
        for (out, into), width in zip(sides, widths, strict=True):
            edges = [np.cumsum(self.rate[nics]) / self.rate[nics].sum() for nics in (out, into)]
            p = q = 0
            while p < len(out) and q < len(into):
                step = min(edges[0][p], edges[1][q])
                self._check_lane(int(out[p]), int(into[q]))
                last = out is sides[-1][0] and p == len(out) - 1 and q == len(into) - 1
                yield int(out[p]), int(into[q]), 1.0 if last else (width_before + width * float(step)) / total
                ends_p, ends_q = edges[0][p] <= step + 1e-12, edges[1][q] <= step + 1e-12
                p, q = p + ends_p, q + ends_q
            width_before += width

    def _check_lane(self, out: int, into: int) -> None:
        """Raise NotInNodes if some rank of a NIC has no link to some rank of another NIC."""
        of_nic = [self.nic_rank[self.nic_ptr[nic] : self.nic_ptr[nic + 1]] for nic in (out, into)]
        links = self._between[np.ix_(*of_nic)]
        if (links < 0).any():
            a, b = np.argwhere(links < 0)[0]
            ranks = [int(self._net.ranks[members[i]]) for members, i in zip(of_nic, (a, b), strict=True)]
            raise NotInNodes(f"{self._topology.name}: ranks {ranks[0]} and {ranks[1]} have no link; {_RIGHT}")

    def _straight(self) -> tuple[Ints, Ints, Floats]:
        """Return where a block of each position leaves its node, and enters each other node, when sent straight.

        It leaves at its own rank if that has a link to the node, else at the first rank that has one. It enters at the
        first rank that is linked, unless the goal itself is. The third column is `GroupShape.straight_us`.
        """
        net, k, n = self._net, self._net.nranks, self.nnodes
        leaves, enters = np.tile(np.arange(k)[:, None], n), np.tile(np.arange(k)[:, None], n)
        byte_us = np.zeros((2, k, n))
        members = [np.flatnonzero(self._node_of == node) for node in range(n)]
        # Whether each position has a link to each node, and the first position there.
        first = np.stack([np.where(self._between[:, part] >= 0, part, k).min(axis=1) for part in members], axis=1)
        count = np.stack([(self._between[:, part] >= 0).sum(axis=1) for part in members], axis=1)
        for rank in range(k):
            mates = members[self._node_of[rank]]
            for node in range(n):
                if node == self._node_of[rank]:
                    continue
                out = rank if first[rank, node] < k else int(mates[np.argmax(first[mates, node] < k)])
                into = int(first[out, node])
                leaves[rank, node], enters[rank, node] = out, into
                us = 1e-3 / float(net.bandwidth_gbs[self._between[out, into]])
                byte_us[0, rank, node] = us if self.is_shared[0][out] else 0.0
                byte_us[1, rank, node] = us if self.is_shared[1][into] and count[out, node] == 1 else 0.0
        return leaves.ravel(), enters.ravel(), byte_us.ravel()


def _ports(topology: Topology, net: Network) -> Ints:
    """Return the two resources of each link, shape (links, 2); a link with one resource has the same one twice.

    A resource is left out if all its links share another one.

    Raises:
        NotInNodes: A link has more than two.
    """
    users = np.bincount(net.uses_idx, minlength=net.nresources)
    ports = np.zeros((net.nlinks, 2), dtype=np.int64)
    link, used = net.link_of_use, net.uses_idx
    # Pairs of resources of one link: the first is left out if they are common to as many links as use the first.
    begin, count = net.uses_ptr[link], np.diff(net.uses_ptr)[link]
    first = np.repeat(used, count)
    second = used[np.repeat(begin, count) + positions(count)]
    cells, common = np.unique(first * net.nresources + second, return_counts=True)
    first, second = np.divmod(cells, net.nresources)
    is_covered = (common == users[first]) & ((users[second] > users[first]) | (second < first)) & (first != second)
    is_needed = np.ones(net.nresources, dtype=bool)
    is_needed[first[is_covered]] = False
    is_kept = is_needed[used]
    number = np.bincount(link[is_kept], minlength=net.nlinks)
    if (number > 2).any():
        name = net.resource_names[int(used[np.argmax(number[link] > 2)])]
        raise NotInNodes(f"{topology.name}: {name} is one of three resources that a link shares with others; {_RIGHT}")
    ptr = pointers(number)[:-1]
    ports[:, 0], ports[:, 1] = used[is_kept][ptr], used[is_kept][ptr + number - 1]
    return ports
