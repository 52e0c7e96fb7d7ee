"""What sends use: links from rank to rank, through switches, and the capacities these links share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from topologies.arrays import Bools, Floats, Ints, index_among, marked, pointers, ranges, row_entries, row_of_entry
from topologies.costed import figures_of
from topologies.errors import InputError
from topologies.topology import Topology


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

    def uses(self, link: int) -> Ints:
        """Resources of one link, ascending."""
        return self.uses_idx[self.uses_ptr[link] : self.uses_ptr[link + 1]]

    @property
    def link_of_use(self) -> Ints:
        """The link that each entry of `uses_idx` belongs to."""
        return row_of_entry(self.uses_ptr)

    def uses_and_links(self) -> tuple[Ints, Ints, Floats]:
        """(uses_ptr, uses_idx, capacity_gbs) with every link as a resource too, nresources + link, of its bandwidth."""
        uses = np.insert(self.uses_idx, self.uses_ptr[1:], self.nresources + np.arange(self.nlinks))
        capacity = np.concatenate([self.capacity_gbs, self.bandwidth_gbs])
        return self.uses_ptr + np.arange(self.nlinks + 1), uses, capacity


def network(topology: Topology, ranks: Sequence[int]) -> Network:
    """The network that `ranks` (ranks of the topology, in the caller's order) have among themselves.

    Other ranks do not exist; switches always do. From each port (a physical link from a rank to a switch) there is one
    path to each rank that can be reached through switches only, by the switches' tables: least α, then most bandwidth,
    then fewest hops, equal paths spread by destination; these are the same whatever costs are on. Two paths of one pair
    differ in their first physical link, which is a resource of each, so none makes another superfluous. A link uses
    every physical link it crosses and every limit that holds one of these.

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
        tables = _forwarding_tables(topology, wanted)
        port, column = np.nonzero(tables.reach[phys_dst[ports] - n])
        own = local[phys_src[ports[port]]] == column
        port, column = port[~own], column[~own]
        switch = phys_dst[ports[port]] - n
        src.append(local[phys_src[ports[port]]])
        dst.append(column)
        first.append(switch)
        # Spread by the rank's number in the topology, not in the group: what else takes part moves no route.
        hops.append([ports[port], *_follow(tables, switch, column, wanted[column])])
    depth = max(len(h) for h in hops)
    crossed = np.concatenate(
        [np.stack(h + [np.full(len(h[0]), -1, dtype=np.int64)] * (depth - len(h)), axis=1) for h in hops]
    )
    all_src, all_dst, all_first = np.concatenate(src), np.concatenate(dst), np.concatenate(first)
    order = np.lexsort((all_first, all_dst, all_src))
    return _assembled(topology, wanted, all_src[order], all_dst[order], crossed[order])


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


def _assembled(topology: Topology, wanted: Ints, src: Ints, dst: Ints, crossed: Ints) -> Network:
    """The Network of links src→dst that cross the physical links in each row of `crossed` (-1: none)."""
    used = crossed >= 0
    link_gbs, limit_gbs = topology.bandwidth_gbs, np.array([x.bandwidth_gbs for x in topology.limits])
    gap, figures = np.zeros(0), figures_of(topology)
    if figures is not None:
        factor = figures.efficiency[topology.link_kind]
        link_gbs = link_gbs * factor
        # of links of several kinds a limit carries no more than of the best of them
        limit_gbs = limit_gbs * np.array([factor[x.links].max() for x in topology.limits])
    rates = np.where(used, link_gbs[crossed], np.inf).min(axis=1, initial=np.inf)
    alpha = np.where(used, topology.alpha_us[crossed], 0.0).sum(axis=1)
    # Through switches the sum is rounded to 1e-9 µs: 0.1+0.2 in another order is still the same latency.
    alpha = np.where(used.sum(axis=1) > 1, np.round(alpha, 9), alpha)
    if figures is not None:
        kind = np.where(used, topology.link_kind[crossed], 0).max(axis=1, initial=0)
        alpha = np.where(np.isnan(figures.latency_us[kind]), alpha, figures.latency_us[kind])
        gap = figures.gap_us[kind] if figures.gap_us[kind].any() else gap
    link, where = np.nonzero(used)
    resource = crossed[link, where]
    if topology.limits:
        holder, limit = _limits_crossed(topology, link, resource)
        np.minimum.at(rates, holder, limit_gbs[limit])
        link = np.concatenate([link, holder])
        resource = np.concatenate([resource, topology.nlinks + limit])
    order = np.lexsort((resource, link))
    link, resource = link[order], resource[order]
    kept, index = np.unique(resource, return_inverse=True)
    capacity = np.concatenate([link_gbs, limit_gbs])[kept]
    vertices = [str(r) for r in range(topology.nranks)] + list(topology.switches)
    physical = kept[kept < topology.nlinks]
    ends = (topology.link_src[physical].tolist(), topology.link_dst[physical].tolist())
    names = [f"{vertices[a]}→{vertices[b]}" for a, b in zip(*ends, strict=True)]
    names += [topology.limits[i].name for i in (kept[len(physical) :] - topology.nlinks).tolist()]
    return Network(
        nranks=len(wanted),
        ranks=wanted,
        src=src,
        dst=dst,
        alpha_us=alpha,
        bandwidth_gbs=rates,
        uses_ptr=pointers(np.bincount(link, minlength=len(src))),
        uses_idx=index.reshape(-1).astype(np.int64),
        capacity_gbs=capacity,
        resource_names=tuple(names),
        gap_us=gap,
    )


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


@dataclass(frozen=True, eq=False)
class _Tables:
    """Best paths from each switch to each of D wanted ranks, through switches only."""

    edge_link: Ints  # (E,), physical switch→switch links sorted by source switch
    edge_start: Ints  # (nswitches + 1,), edges of switch s are edge_start[s]:edge_start[s+1]
    edge_to: Ints  # (E,), the switch each edge leads to
    best: Bools  # (E, D), whether the edge is on an equally best path to the wanted rank
    last: Ints  # (nswitches, D), the link from the switch straight to the rank where that is best, else -1
    reach: Bools  # (nswitches, D)


def _forwarding_tables(topology: Topology, ranks: Ints) -> _Tables:
    """Each switch's paths to `ranks`, compared from itself on: least α, then most bandwidth, then fewest hops.

    α is compared in whole picoseconds, so that the order in which the same figures are added up decides nothing.
    """
    n, nswitches, wanted = topology.nranks, len(topology.switches), len(ranks)
    picos = np.rint(topology.alpha_us * 1e6)
    gbs = topology.bandwidth_gbs
    src, dst = topology.link_src, topology.link_dst
    column = index_among(n, ranks)

    down = np.flatnonzero((src >= n) & (dst < n))
    down = down[column[dst[down]] >= 0]
    at = (src[down] - n, column[dst[down]])
    last = np.full((nswitches, wanted), -1, dtype=np.int64)
    last[at] = down
    alpha = np.full((nswitches, wanted), np.inf)
    alpha[at] = picos[down]
    rate = np.zeros((nswitches, wanted))
    rate[at] = gbs[down]
    straight_alpha, straight_rate = alpha.copy(), rate.copy()

    edges = np.flatnonzero((src >= n) & (dst >= n))  # sorted by source, as all links are
    tail, head = src[edges] - n, dst[edges] - n
    start = np.searchsorted(tail, np.arange(nswitches + 1))
    if not len(edges):
        return _Tables(edges, start, head, np.zeros((0, wanted), dtype=bool), last, last >= 0)
    sources = np.flatnonzero(np.diff(start))
    blocks = start[sources]
    cost, width = picos[edges][:, None], gbs[edges][:, None]

    def relax(values: Floats, better: np.ufunc, over_edges: Callable[[], Floats]) -> None:
        """Improves what switches have by what their edges offer them, until nothing changes."""
        while True:
            found = better(values[sources], better.reduceat(over_edges(), blocks))
            if (found == values[sources]).all():
                return
            values[sources] = found

    relax(alpha, np.minimum, lambda: cost + alpha[head])
    reach = np.isfinite(alpha)
    best = (cost + alpha[head] == alpha[tail]) & reach[tail]
    straight = (straight_alpha == alpha) & reach

    rate = np.where(straight, straight_rate, 0.0)
    relax(rate, np.maximum, lambda: np.where(best, np.minimum(width, rate[head]), 0.0))
    best &= np.minimum(width, rate[head]) == rate[tail]
    straight &= straight_rate == rate

    hops = np.where(straight, 1.0, np.inf)
    relax(hops, np.minimum, lambda: np.where(best, hops[head] + 1, np.inf))
    best &= hops[head] + 1 == hops[tail]
    return _Tables(edges, start, head, best, np.where(straight, last, -1), reach)


def _follow(tables: _Tables, switch: Ints, column: Ints, spread: Ints) -> list[Ints]:
    """The physical links from each `switch` to the rank in `column`, a column a hop, -1 where the path has ended.

    spread: picks one of several equally best edges: spread mod choices at the first switch that has a choice, the
    quotient at the next, so that a fat tree's destinations fill all its spines (D-mod-k routing).
    """
    at, quotient = switch.copy(), spread.copy()
    moving = np.arange(len(switch))
    hops: list[Ints] = []
    while len(moving):
        taken = np.full(len(switch), -1, dtype=np.int64)
        final = tables.last[at[moving], column[moving]]
        taken[moving] = final
        moving = moving[final < 0]
        # A last link is fewer hops than any edge, so an edge is only taken where there is none.
        order = np.argsort(at[moving], kind="stable")
        moving = moving[order]
        here = at[moving]
        for group in np.split(np.arange(len(moving)), np.flatnonzero(np.diff(here)) + 1):
            if not len(group):
                continue
            who = moving[group]
            s = int(at[who[0]])
            low, high = int(tables.edge_start[s]), int(tables.edge_start[s + 1])
            open_edges = tables.best[low:high][:, column[who]]
            upto = np.cumsum(open_edges, axis=0)
            choices = upto[-1]
            pick = np.argmax(upto == quotient[who] % choices + 1, axis=0)
            quotient[who] //= choices
            taken[who] = tables.edge_link[low + pick]
            at[who] = tables.edge_to[low + pick]
        hops.append(taken)
    return hops
