"""What sends use: links from rank to rank, through switches, and the capacities these links share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from topologies.arrays import Floats, Ints, index_among, marked, pointers, ranges, row_entries, row_of_entry
from topologies.costed import figures_of, protocol_costs
from topologies.errors import InputError
from topologies.hyperlinks import Crossing, Hyperlinks, crossings, pairs_of
from topologies.routing import follow, forwarding_tables
from topologies.topology import Topology


class Carriers(NamedTuple):
    """What a schedule's rows can name: the links, then the hyperlinks; columns as those of `Network`.

    takes_gbs: of each resource while it is in flight; of a link its bandwidth.
    """

    alpha_us: Floats
    bandwidth_gbs: Floats
    uses_ptr: Ints
    uses_idx: Ints
    gap_us: Floats
    takes_gbs: Floats

    @property
    def holds(self) -> Floats:
        """What each takes of its resources for each GB/s that it carries: 1 for links."""
        return self.takes_gbs / self.bandwidth_gbs


class Pairs(NamedTuple):
    """Who sends to whom over every carrier, as CSR: over carrier c from src[j] to dst[j] for j in ptr[c]:ptr[c+1]."""

    ptr: Ints
    src: Ints
    dst: Ints


@dataclass(frozen=True, eq=False)
class Network:
    """Links between local ranks 0..nranks-1 and the resources they take part in. All arrays are read-only."""

    nranks: int
    ranks: Ints  # (nranks,), local rank → rank of the topology
    # local ranks; links are sorted by (src, dst), a direct link before paths through switches, these by their first
    src: Ints
    dst: Ints
    alpha_us: Floats  # (nlinks,), summed over the path
    bandwidth_gbs: Floats  # (nlinks,), the smallest on the path, limits included: no send could ever move faster
    uses_ptr: Ints  # CSR: link l uses resources uses_idx[uses_ptr[l]:uses_ptr[l+1]], sorted, each once
    uses_idx: Ints
    capacity_gbs: Floats  # (nresources,)
    resource_names: tuple[str, ...]  # "0→1", "0→nvswitch" (ranks of the topology) for a physical link, or a limit's
    # (nlinks,): what a link uses stays busy so long after a message; empty where nothing does
    gap_us: Floats = field(default_factory=lambda: np.zeros(0))
    start_us: float = 0.0  # before which nothing is sent
    hyperlinks: Hyperlinks | None = None  # None where no switch multicasts or reduces

    def __post_init__(self) -> None:
        for column in vars(self).values():
            if isinstance(column, np.ndarray):
                column.setflags(write=False)

    @property
    def nlinks(self) -> int:
        return len(self.src)

    @property
    def nresources(self) -> int:
        return len(self.capacity_gbs)

    @property
    def _links(self) -> Carriers:
        rate = self.bandwidth_gbs
        return Carriers(self.alpha_us, rate, self.uses_ptr, self.uses_idx, self.gap_us, rate)

    @cached_property
    def carriers(self) -> Carriers:
        """Links and hyperlinks."""
        h, own = self.hyperlinks, self._links
        if h is None:
            return own
        return Carriers(
            np.concatenate([own.alpha_us, h.alpha_us]),
            np.concatenate([own.bandwidth_gbs, h.bandwidth_gbs]),
            np.concatenate([own.uses_ptr, h.uses_ptr[1:] + own.uses_ptr[-1]]),
            np.concatenate([own.uses_idx, h.uses_idx]),
            np.append(own.gap_us, np.zeros(len(h))) if len(own.gap_us) else own.gap_us,
            np.concatenate([own.takes_gbs, h.takes_gbs]),
        )

    @cached_property
    def pairs(self) -> Pairs:
        """Of links and hyperlinks."""
        h, each = self.hyperlinks, np.arange(self.nlinks + 1)
        if h is None:
            return Pairs(each, self.src, self.dst)
        ends = (np.concatenate(both) for both in ((self.src, h.src), (self.dst, h.dst)))
        return Pairs(np.concatenate([each, h.ptr[1:] + self.nlinks]), *ends)

    @property
    def ncarriers(self) -> int:
        """Links and hyperlinks together."""
        return self.nlinks + (0 if self.hyperlinks is None else len(self.hyperlinks))

    def uses(self, link: int) -> Ints:
        """Resources of one link, ascending."""
        return self.uses_idx[self.uses_ptr[link] : self.uses_ptr[link + 1]]

    @property
    def link_of_use(self) -> Ints:
        """The link that each entry of `uses_idx` belongs to."""
        return row_of_entry(self.uses_ptr)

    def uses_and_links(self, hyperlinks: bool = False) -> tuple[Ints, Ints, Floats]:
        """(uses_ptr, uses_idx, capacity_gbs) with every link as a resource too, nresources + link, of what it takes.

        hyperlinks: also of these, after the links.
        """
        one = self.carriers if hyperlinks else self._links
        each = np.arange(len(one.uses_ptr))
        uses = np.insert(one.uses_idx, one.uses_ptr[1:], self.nresources + each[:-1])
        return one.uses_ptr + each, uses, np.concatenate([self.capacity_gbs, one.takes_gbs])


def network(topology: Topology, ranks: Sequence[int], members: int | None = None) -> Network:
    """The network that `ranks` (ranks of the topology, in the caller's order) have among themselves.

    Other ranks do not exist; switches always do. From each port (a physical link from a rank to a switch) there is one
    path to each rank that can be reached through switches only, by the switches' tables: least α, then most bandwidth,
    then fewest hops, equal paths spread by destination; these are the same whatever costs are on. Two paths of one pair
    differ in their first physical link, which is a resource of each, so none makes another superfluous. A link uses
    every physical link it crosses and every limit that holds one of these.

    members: how many of the ranks, the first ones, take part in switches' multicasts and reductions; None: all.

    Raises InputError for a rank that is not in the topology or given twice, and for no ranks.
    """
    wanted = _checked(topology, ranks)
    local = index_among(topology.nranks, wanted)
    n = topology.nranks
    phys_src, phys_dst = topology.link_src, topology.link_dst

    inside = phys_src < n
    inside[inside] = local[phys_src[inside]] >= 0
    direct = np.flatnonzero(inside & (phys_dst < n))
    direct = direct[local[phys_dst[direct]] >= 0]
    ports = np.flatnonzero(inside & (phys_dst >= n))

    src, dst = [local[phys_src[direct]]], [local[phys_dst[direct]]]
    first, hops = [np.full(len(direct), -1, dtype=np.int64)], [[direct]]
    if len(ports):
        tables = forwarding_tables(topology, wanted)
        port, column = np.nonzero(tables.reach[phys_dst[ports] - n])
        own = local[phys_src[ports[port]]] == column
        port, column = port[~own], column[~own]
        switch = phys_dst[ports[port]] - n
        src.append(local[phys_src[ports[port]]])
        dst.append(column)
        first.append(switch)
        # Spread by the rank's number in the topology, not in the group: what else takes part moves no route.
        hops.append([ports[port], *follow(tables, switch, column, wanted[column])])
    depth = max(len(h) for h in hops)
    crossed = np.concatenate(
        [np.stack(h + [np.full(len(h[0]), -1, dtype=np.int64)] * (depth - len(h)), axis=1) for h in hops]
    )
    all_src, all_dst, all_first = np.concatenate(src), np.concatenate(dst), np.concatenate(first)
    order = np.lexsort((all_first, all_dst, all_src))
    return _assembled(topology, wanted, all_src[order], all_dst[order], crossed[order], wanted[:members])


def links_among(net: Network, chosen: Ints) -> tuple[Ints, Ints, Ints]:
    """(link of `net`, source, destination) of the links among some local ranks, renumbered in the order given.

    Sorted as a network's links are: by source and destination, several of one pair as they stand in `net`.
    """
    number = index_among(net.nranks, chosen)
    begin = np.searchsorted(net.src, chosen)
    links = ranges(begin, np.searchsorted(net.src, chosen, side="right") - begin)
    links = links[number[net.dst[links]] >= 0]
    links = links[np.lexsort((number[net.dst[links]], number[net.src[links]]))]
    return links, number[net.src[links]], number[net.dst[links]]


def subnetwork(net: Network, chosen: Ints) -> tuple[Network, Ints]:
    """What `network` gives for the local ranks `chosen`, and the link of `net` that each of its links is.

    But for hyperlinks, of which it has none.

    A path between two ranks does not depend on who else takes part, so it can be taken from the larger network.
    """
    links, src, dst = links_among(net, chosen)
    count = net.uses_ptr[links + 1] - net.uses_ptr[links]
    used = net.uses_idx[row_entries(net.uses_ptr, links)]
    there = marked(net.nresources, used)
    kept = np.flatnonzero(there)
    part = Network(
        nranks=len(chosen),
        ranks=net.ranks[chosen],
        src=src,
        dst=dst,
        alpha_us=net.alpha_us[links],
        bandwidth_gbs=net.bandwidth_gbs[links],
        uses_ptr=pointers(count),
        uses_idx=(np.cumsum(there) - 1)[used],
        capacity_gbs=net.capacity_gbs[kept],
        resource_names=tuple(net.resource_names[i] for i in kept.tolist()),
        gap_us=net.gap_us[links] if len(net.gap_us) else net.gap_us,
        start_us=net.start_us,
    )
    return part, links


def _checked(topology: Topology, ranks: Sequence[int]) -> Ints:
    given = np.asarray(ranks)
    last = topology.nranks - 1
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iu":
        raise InputError(f"ranks: must be a sequence of at least one whole number from 0 to {last}")
    wanted = given.astype(np.int64)
    outside = (wanted < 0) | (wanted > last)
    if outside.any():
        bad = int(wanted[np.argmax(outside)])
        raise InputError(f"ranks: {bad} is not in {topology.name}; it must be 0 to {last}")
    values, counts = np.unique(wanted, return_counts=True)
    if len(values) < len(wanted):
        raise InputError(f"ranks: {int(values[np.argmax(counts)])} is given twice; each must be given once")
    return wanted


def _assembled(topology: Topology, wanted: Ints, src: Ints, dst: Ints, crossed: Ints, members: Ints) -> Network:
    """The Network of links src→dst that cross the physical links in each row of `crossed` (-1: none).

    members: ranks of the topology that take part in switches' operations; these are numbered after the links here.
    """
    used, count, figures = crossed >= 0, len(src), figures_of(topology)
    link_gbs, limit_gbs = topology.bandwidth_gbs, np.array([x.bandwidth_gbs for x in topology.limits])
    if figures is not None:
        factor = figures.efficiency[topology.link_kind]
        link_gbs = link_gbs * factor
        # of links of several kinds a limit carries no more than of the best of them
        limit_gbs = limit_gbs * np.array([factor[x.links].max() for x in topology.limits])
    made = crossings(topology, members, link_gbs, figures)
    rates = np.append(np.where(used, link_gbs[crossed], np.inf).min(axis=1, initial=np.inf), made.gbs)
    alpha = np.where(used, topology.alpha_us[crossed], 0.0).sum(axis=1)
    # Through switches the sum is rounded to 1e-9 µs: 0.1+0.2 in another order is still the same latency.
    alpha = np.where(used.sum(axis=1) > 1, np.round(alpha, 9), alpha)
    gap = np.zeros(0)
    if figures is not None:
        kind = np.where(used, topology.link_kind[crossed], 0).max(axis=1, initial=0)
        alpha = np.where(np.isnan(figures.latency_us[kind]), alpha, figures.latency_us[kind])
        gap = figures.gap_us[kind] if figures.gap_us[kind].any() else gap
    alpha = np.append(alpha, made.alpha_us)
    holds = np.append(np.ones(count), made.holds)
    link, where = np.nonzero(used)
    resource = crossed[link, where]
    if made.one:
        link = np.append(link, np.repeat(count + np.arange(len(made.one)), [len(x) for x in made.link]))
        resource = np.concatenate([resource, *made.link])
    if topology.limits:
        holder, limit = _limits_crossed(topology, link, resource)
        np.minimum.at(rates, holder, limit_gbs[limit] / holds[holder])
        link = np.concatenate([link, holder])
        resource = np.concatenate([resource, topology.nlinks + limit])
    if made.caps:
        link = np.append(link, np.repeat(count + np.arange(len(made.one)), [len(x) for x in made.cap]))
        resource = np.append(resource, topology.nlinks + len(limit_gbs) + np.concatenate(made.cap).astype(np.int64))
    order = np.lexsort((resource, link))
    link, resource = link[order], resource[order]
    kept, index = np.unique(resource, return_inverse=True)
    capacity = np.concatenate([link_gbs, limit_gbs, [gbs for _, gbs in made.caps]])[kept]
    ptr, uses = pointers(np.bincount(link, minlength=len(rates))), index.reshape(-1).astype(np.int64)
    return Network(
        nranks=len(wanted),
        ranks=wanted,
        src=src,
        dst=dst,
        alpha_us=alpha[:count],
        bandwidth_gbs=rates[:count],
        uses_ptr=ptr[: count + 1],
        uses_idx=uses[: ptr[count]],
        capacity_gbs=capacity,
        resource_names=tuple(_resource_names(topology, made, kept)),
        gap_us=gap,
        start_us=0.0 if (costs := protocol_costs(topology)) is None else float(costs.start_us),
        hyperlinks=_hyperlinks(made, (alpha, rates, rates * holds, ptr, uses), count) if made.one else None,
    )


def _hyperlinks(made: Crossing, columns: tuple[Floats, Floats, Floats, Ints, Ints], first: int) -> Hyperlinks:
    """Of the columns (α, GB/s, GB/s taken, uses_ptr, uses_idx) of all that can be sent over those from `first` on."""
    alpha, rates, takes, ptr, uses = columns
    return Hyperlinks(
        np.array(made.multicast),
        np.array(made.paced),
        np.array(made.one, dtype=np.int64),
        np.array(made.group, dtype=np.int64),
        *pairs_of(made),
        alpha[first:],
        rates[first:],
        takes[first:],
        ptr[first:] - ptr[first],
        uses[ptr[first] :],
    )


def _resource_names(topology: Topology, made: Crossing, kept: Ints) -> list[str]:
    vertices = [str(r) for r in range(topology.nranks)] + list(topology.switches)
    physical = kept[kept < topology.nlinks]
    ends = (topology.link_src[physical].tolist(), topology.link_dst[physical].tolist())
    names = [f"{vertices[a]}→{vertices[b]}" for a, b in zip(*ends, strict=True)]
    shared = [*(limit.name for limit in topology.limits), *(name for name, _ in made.caps)]
    return names + [shared[i] for i in (kept[len(physical) :] - topology.nlinks).tolist()]


def _limits_crossed(topology: Topology, link: Ints, physical: Ints) -> tuple[Ints, Ints]:
    """(link, limit) for every limit that a link crosses, once for all of its physical links there."""
    count = len(topology.limits)
    member = np.concatenate([x.links for x in topology.limits])
    owner = np.repeat(np.arange(count), [len(x.links) for x in topology.limits])
    by_link = np.argsort(member, kind="stable")
    member, owner = member[by_link], owner[by_link]
    low = np.searchsorted(member, physical, side="left")
    many = np.searchsorted(member, physical, side="right") - low
    pair = np.unique(np.repeat(link, many) * count + owner[ranges(low, many)])
    return pair // count, pair % count
