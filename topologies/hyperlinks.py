"""Sends through a switch that multicasts or reduces: one to many, and many to one, each port once.

The members of a switch's operations are the ranks with links to and from it. A multicast by one of them crosses its own
port up once and every member's port down once; a reduction for one of them crosses every member's port up and its own
down (NVLS, SHARP). The rank that multicasts or reads is a member, and its own port is crossed too: its memory is of the
group as that of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from topologies.arrays import Bools, Floats, Ints, index_among, pointers, row_of_entry
from topologies.costs import Figures, SwitchCosts
from topologies.topology import Topology

FEWEST_MEMBERS = 3  # of two, a send from one to the other does as well
MOST_MEMBERS = 1024  # a switch with more does none: of every one there are 4 hyperlinks over all


@dataclass(frozen=True, eq=False)
class Hyperlinks:
    """Columns of hyperlinks, which a schedule's rows name after the links: nlinks + hyperlink. All are read-only.

    Of every switch that can, and every member, there are two: one at the full rate, and a paced one at such a part of
    it that all members' paced multicasts and reductions can be in flight at once.
    """

    multicast: Bools  # (n,), else a reduction
    paced: Bools
    one: Ints  # local rank that sends to, or reads from, all others
    group: Ints  # members' group: a number a switch
    ptr: Ints  # CSR: hyperlink h goes from src[j] to dst[j] for j in ptr[h]:ptr[h+1]: one to every other, or back
    src: Ints
    dst: Ints
    alpha_us: Floats  # (n,), the longest way through the switch
    bandwidth_gbs: Floats
    # (n,), of each resource while it is in flight: more than its bandwidth where an executor wastes some of its ports
    takes_gbs: Floats
    uses_ptr: Ints  # CSR into the network's resources, as of its links
    uses_idx: Ints

    def __post_init__(self) -> None:
        for column in vars(self).values():
            column.setflags(write=False)

    def __len__(self) -> int:
        return len(self.one)

    def find(self, one: int, *, multicast: bool, paced: bool, group: int = -1) -> int:
        """The hyperlink of a local rank, in one group (-1: the first that has it); -1 where there is none."""
        here = (self.one == one) & (self.multicast == multicast) & (self.paced == paced)
        here &= (self.group == group) | (group < 0)
        return int(np.argmax(here)) if here.any() else -1

    def members(self, hyperlink: int) -> Ints:
        """Local ranks, ascending."""
        j = slice(self.ptr[hyperlink], self.ptr[hyperlink + 1])
        return np.unique(np.concatenate([self.src[j], self.dst[j]]))


class Crossing(NamedTuple):
    """Hyperlinks before their resources are numbered: what each crosses, and how fast.

    holds: GB/s that it takes of what it crosses, for each GB/s that it moves. link: physical links. cap: the rows of
    `caps` that it uses. caps: (name, GB/s) of what holds all multicasts, or reductions, through a port to a part of
    its rate.
    """

    multicast: list[bool]
    paced: list[bool]
    one: list[int]
    group: list[int]
    others: list[Ints]
    alpha_us: list[float]
    gbs: list[float]
    holds: list[float]
    link: list[Ints]
    cap: list[list[int]]
    caps: list[tuple[str, float]]


class _Switch(NamedTuple):
    """A group of ports among which a switch operates, and those of the ranks that are on them.

    number: of its group; up, down: physical links by local rank; gbs: what each physical link carries, and ops_gbs
    what it does of operations alone.
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
    """The hyperlinks among `ranks` of a topology (local rank → rank), without the limits that their links are in.

    link_gbs: what each physical link carries. figures: of an executor's costs, where these are on. None of a switch
    whose ports share a limit with each other; none where the costs say nothing of such operations.
    """
    made = Crossing([], [], [], [], [], [], [], [], [], [], [])
    costs = None if figures is None else figures.switch_ops
    if figures is not None and costs is None:
        return made
    ops_gbs = link_gbs if costs is None else np.minimum(link_gbs, topology.bandwidth_gbs * costs.efficiency)
    local = index_among(topology.nranks, ranks)
    for number, ops in enumerate(topology.switch_ops):
        vertex = topology.nranks + topology.switches.index(ops.switch)
        up, down = _ports(topology, vertex, local)
        members = np.array(sorted(up.keys() & down.keys()), dtype=np.int64)
        ports = [way[rank] for way in (up, down) for rank in members.tolist()]
        if not FEWEST_MEMBERS <= len(members) <= MOST_MEMBERS or _share_a_limit(topology, ports):
            continue
        switch = _Switch(number, ops.switch, members, up, down, link_gbs, ops_gbs, costs)
        for multicast, part in ((True, ops.multicast), (False, ops.reduce)):
            if part:
                _add(made, topology, switch, multicast=multicast, part=part)
    return made


def _share_a_limit(topology: Topology, ports: list[int]) -> bool:
    """Whether some are in one limit, which an operation would cross several times."""
    chosen = np.array(ports, dtype=np.int64)
    return any(np.isin(chosen, limit.links, assume_unique=True).sum() > 1 for limit in topology.limits)


def _ports(topology: Topology, vertex: int, local: Ints) -> tuple[dict[int, int], dict[int, int]]:
    """Physical links from local ranks to the switch, and back, by local rank."""
    n = topology.nranks
    up = np.flatnonzero((topology.link_dst == vertex) & (topology.link_src < n))
    down = np.flatnonzero((topology.link_src == vertex) & (topology.link_dst < n))
    ends = (local[topology.link_src[up]].tolist(), local[topology.link_dst[down]].tolist())
    return tuple(  # type: ignore[return-value]
        {rank: link for rank, link in zip(rows, links.tolist(), strict=True) if rank >= 0}
        for rows, links in zip(ends, (up, down), strict=True)
    )


def _add(made: Crossing, topology: Topology, switch: _Switch, *, multicast: bool, part: float) -> None:
    """The multicasts, or the reductions, of one switch's members: at full rate, then paced."""
    members, up, down = switch.members, switch.up, switch.down
    lone, shared = (up, down) if multicast else (down, up)  # by the one rank, by all
    ports = np.array([shared[rank] for rank in members.tolist()])
    gbs, alpha = switch.ops_gbs, topology.alpha_us
    all_gbs, first = float(gbs[ports].min()), len(made.caps)
    if part < 1:
        word = "multicast" if multicast else "reduce"
        names = (topology.link_dst if multicast else topology.link_src)[ports].tolist()
        gbs_of_ports = (part * switch.gbs[ports]).tolist()
        made.caps.extend((f"{rank} {switch.name} {word}", cap) for rank, cap in zip(names, gbs_of_ports, strict=True))
    caps = len(made.caps) - first
    for paced in (False, True):
        for rank in members.tolist():
            rate = min(all_gbs, float(gbs[lone[rank]]))
            made.multicast.append(multicast)
            made.paced.append(paced)
            made.one.append(rank)
            made.group.append(switch.number)
            made.others.append(members[members != rank])
            own_us = round(float(alpha[lone[rank]] + alpha[ports].max()), 9)
            made.alpha_us.append(own_us if switch.costs is None else switch.costs.latency_us)
            # of n members' operations of both kinds n + 1 cross each port one way, n of them of one kind
            made.gbs.append(min(rate / (len(members) + 1), part * rate / len(members)) if paced else part * rate)
            crossed = np.append(ports, lone[rank])
            made.holds.append(float((switch.gbs / gbs)[crossed].min()))
            made.link.append(crossed)
            made.cap.append(list(range(first, first + caps)))


def pairs_of(made: Crossing) -> tuple[Ints, Ints, Ints]:
    """(ptr, src, dst) of `Hyperlinks`."""
    counts = np.array([len(others) for others in made.others], dtype=np.int64)
    ptr = pointers(counts)
    others = np.concatenate([np.zeros(0, dtype=np.int64), *made.others])
    ones = np.array(made.one, dtype=np.int64)[row_of_entry(ptr)]
    forth = np.array(made.multicast, dtype=bool)[row_of_entry(ptr)]
    return ptr, np.where(forth, ones, others), np.where(forth, others, ones)
