"""Hyperlinks: sends through a switch that multicasts or reduces, from one to many or from many to one, each port once.

The members of a switch's operations are the ranks with links to and from it. A multicast by one of them crosses its own
port up once and every member's port down once; a reduction for one of them crosses every member's port up and its own
port down (NVLS, SHARP). The rank that multicasts or reads is a member, and its own port is crossed too, because its
memory belongs to the group as that of the other members does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topologies.arrays import Bools, Floats, Ints, index_among, pointers, row_of_entry
from topologies.costs import Figures, SwitchCosts
from topologies.topology import Topology

FEWEST_MEMBERS = 3  # Between two ranks, an ordinary send is as good.
MOST_MEMBERS = 1024  # Each member has 4 hyperlinks to all members, so the columns grow with the square.


@dataclass(frozen=True, eq=False)
class Hyperlinks:
    """Columns of hyperlinks, which a schedule's rows name after the links as nlinks + hyperlink; all are read-only.

    Every member of a switch has two multicasts and two reductions where the switch can do them: one at the full rate,
    and a paced one at such a fraction of it that all members' paced multicasts and reductions can be in flight at once.

    Attributes:
        multicast: Whether it is a multicast, else a reduction: bool (n,).
        paced: Whether it has the paced rate: bool (n,).
        hub: Local rank that sends to, or reads from, all other members: int64 (n,).
        group: Number of the switch: int64 (n,).
        ptr: CSR: hyperlink h joins `hub` with every other member, from src[j] to dst[j] for j in ptr[h]:ptr[h+1].
        src: Local rank that sends.
        dst: Local rank that receives.
        alpha_us: Latency in µs of the longest path through the switch: float64 (n,).
        bandwidth_gbs: Bandwidth in GB/s: float64 (n,).
        takes_gbs: Rate in GB/s that it takes of each resource while it is in flight: float64 (n,). It is more than the
            bandwidth where an executor wastes some of the ports' rate.
        uses_ptr: CSR into the network's resources, as for links: int64 (n + 1,).
        uses_idx: Resources of the hyperlinks: int64.
    """

    multicast: Bools
    paced: Bools
    hub: Ints
    group: Ints
    ptr: Ints
    src: Ints
    dst: Ints
    alpha_us: Floats
    bandwidth_gbs: Floats
    takes_gbs: Floats
    uses_ptr: Ints
    uses_idx: Ints

    def __post_init__(self) -> None:
        for column in vars(self).values():
            column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.hub)

    def members(self, hyperlink: int) -> Ints:
        """Return the local ranks that take part in a hyperlink, its hub included, ascending."""
        pairs = slice(self.ptr[hyperlink], self.ptr[hyperlink + 1])
        return np.unique(np.concatenate([self.src[pairs], self.dst[pairs]]))


class Crossing(NamedTuple):
    """Hyperlinks before their resources are numbered; the lists have one entry per hyperlink except `caps`.

    Attributes:
        multicast: Whether it is a multicast, else a reduction.
        paced: Whether it has the paced rate.
        rank: Local rank that sends to, or reads from, all other members.
        group: Number of the switch.
        peers: Local ranks of the other members.
        alpha_us: Latency in µs.
        gbs: Bandwidth in GB/s.
        holds: GB/s that it takes of what it crosses, per GB/s that it moves.
        link: Physical links that it crosses.
        cap: Rows of `caps` that it uses.
        caps: (name, GB/s) of the capacities that hold all multicasts, or all reductions, through a port to a fraction
            of its rate.
    """

    multicast: list[bool]
    paced: list[bool]
    rank: list[int]
    group: list[int]
    peers: list[Ints]
    alpha_us: list[float]
    gbs: list[float]
    holds: list[float]
    link: list[Ints]
    cap: list[list[int]]
    caps: list[tuple[str, float]]


class _Switch(NamedTuple):
    """A switch that multicasts or reduces, and the ports of the ranks on it.

    Attributes:
        number: Number of the switch's group.
        name: Name of the switch.
        members: Local ranks on the switch, ascending.
        up: Physical link to the switch by local rank.
        down: Physical link from the switch by local rank.
        gbs: Rate in GB/s of each physical link.
        ops_gbs: Rate in GB/s of each physical link for operations only.
        costs: The executor's costs of operations; None where costs are off.
    """

    number: int
    name: str
    members: Ints
    up: dict[int, int]
    down: dict[int, int]
    gbs: Floats
    ops_gbs: Floats
    costs: SwitchCosts | None


def crossings(topology: Topology, ranks: Ints, link_gbs: Floats, figures: Figures | None = None) -> Crossing:
    """Return the hyperlinks among `ranks` of a topology, without the limits that their links are in.

    A switch has none whose ports share a limit, or that has fewer than FEWEST_MEMBERS or more than MOST_MEMBERS of
    these ranks on it. No switch has any where the executor's costs state no operations.

    Args:
        topology: The topology.
        ranks: Rank of the topology for each local rank; others are no members.
        link_gbs: Rate in GB/s of each physical link, an executor's efficiency included.
        figures: An executor's costs of links; None where these are off.
    """
    crossing = Crossing([], [], [], [], [], [], [], [], [], [], [])
    costs = None if figures is None else figures.switch_ops
    if figures is not None and costs is None:
        return crossing
    ops_gbs = link_gbs if costs is None else np.minimum(link_gbs, topology.bandwidth_gbs * costs.efficiency)
    local = index_among(topology.nranks, ranks)
    for number, ops in enumerate(topology.switch_ops):
        vertex = topology.nranks + topology.switches.index(ops.switch)
        up, down = _ports(topology, vertex, local)
        members = np.array(sorted(up.keys() & down.keys()), dtype=np.int64)
        ports = [link_of_rank[rank] for link_of_rank in (up, down) for rank in members.tolist()]
        if not FEWEST_MEMBERS <= len(members) <= MOST_MEMBERS or _share_a_limit(topology, ports):
            continue
        switch = _Switch(number, ops.switch, members, up, down, link_gbs, ops_gbs, costs)
        for multicast, part in ((True, ops.multicast), (False, ops.reduce)):
            if part:
                _add(crossing, topology, switch, multicast=multicast, part=part)
    return crossing


def _share_a_limit(topology: Topology, ports: list[int]) -> bool:
    """Return whether two of the physical links `ports` are in one limit.

    An operation, which crosses all of them, would cross this limit more than once.
    """
    chosen = np.array(ports, dtype=np.int64)
    return any(np.isin(chosen, limit.links, assume_unique=True).sum() > 1 for limit in topology.limits)


def _ports(topology: Topology, vertex: int, local: Ints) -> tuple[dict[int, int], dict[int, int]]:
    """Return the physical links from local ranks to the switch, and back, each by local rank.

    `vertex` is the switch; `local` has the local rank of each rank of the topology, -1 for none.
    """
    n = topology.nranks
    up = np.flatnonzero((topology.link_dst == vertex) & (topology.link_src < n))
    down = np.flatnonzero((topology.link_src == vertex) & (topology.link_dst < n))
    ends = (local[topology.link_src[up]].tolist(), local[topology.link_dst[down]].tolist())
    return tuple(  # type: ignore[return-value]
        {rank: link for rank, link in zip(rows, links.tolist(), strict=True) if rank >= 0}
        for rows, links in zip(ends, (up, down), strict=True)
    )


def _add(crossing: Crossing, topology: Topology, switch: _Switch, *, multicast: bool, part: float) -> None:
    """Add the multicasts, or the reductions, of a switch's members to `crossing`: first at full rate, then paced.

    A paced operation has such a part of the full rate that those of all members can be in flight at once.

    Args:
        crossing: The hyperlinks so far, to be appended to.
        topology: The topology.
        switch: The switch.
        multicast: Whether multicasts are added, else reductions.
        part: Their rate as a fraction of a port's rate, above 0; below 1, capacities are added to `caps` too.
    """
    members, up, down = switch.members, switch.up, switch.down
    own_links, member_links = (up, down) if multicast else (down, up)
    ports = np.array([member_links[rank] for rank in members.tolist()])
    gbs, alpha = switch.ops_gbs, topology.alpha_us
    all_gbs, first = float(gbs[ports].min()), len(crossing.caps)
    if part < 1:
        word = "multicast" if multicast else "reduce"
        names = (topology.link_dst if multicast else topology.link_src)[ports].tolist()
        gbs_of_ports = (part * switch.gbs[ports]).tolist()
        crossing.caps.extend(
            (f"{rank} {switch.name} {word}", cap) for rank, cap in zip(names, gbs_of_ports, strict=True)
        )
    caps = len(crossing.caps) - first
    for paced in (False, True):
        for rank in members.tolist():
            rate = min(all_gbs, float(gbs[own_links[rank]]))
            crossing.multicast.append(multicast)
            crossing.paced.append(paced)
            crossing.rank.append(rank)
            crossing.group.append(switch.number)
            crossing.peers.append(members[members != rank])
            own_us = round(float(alpha[own_links[rank]] + alpha[ports].max()), 9)
            crossing.alpha_us.append(own_us if switch.costs is None else switch.costs.latency_us)
            # Of the operations of n members, n of one kind and one of the other cross each port in one direction.
            crossing.gbs.append(min(rate / (len(members) + 1), part * rate / len(members)) if paced else part * rate)
            crossed = np.append(ports, own_links[rank])
            crossing.holds.append(float((switch.gbs / gbs)[crossed].min()))
            crossing.link.append(crossed)
            crossing.cap.append(list(range(first, first + caps)))


def pairs_of(crossing: Crossing) -> tuple[Ints, Ints, Ints]:
    """Return the pairs of ranks that each hyperlink joins as CSR (ptr, src, dst), three int64 columns.

    Hyperlink h joins src[j] with dst[j] for j in ptr[h]:ptr[h+1]. A multicast sends from its rank to each peer, a
    reduction from each peer to its rank.
    """
    counts = np.array([len(peers) for peers in crossing.peers], dtype=np.int64)
    ptr = pointers(counts)
    peers = np.concatenate([np.zeros(0, dtype=np.int64), *crossing.peers])
    ranks = np.array(crossing.rank, dtype=np.int64)[row_of_entry(ptr)]
    is_multicast = np.array(crossing.multicast, dtype=bool)[row_of_entry(ptr)]
    return ptr, np.where(is_multicast, ranks, peers), np.where(is_multicast, peers, ranks)
