"""The logical network: links from rank to rank, through switches, and the capacities that these links share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import numpy as np

from topologies.arrays import (
    Floats,
    Ints,
    flags_of,
    index_among,
    pointers,
    ranges,
    row_entries,
    row_of_entry,
)
from topologies.costed import figures_of, protocol_costs
from topologies.costs import Figures
from topologies.hyperlinks import Crossing, Hyperlinks, crossings, pairs_of
from topologies.paths import Paths
from topologies.paths.listed import ListedPaths, list_paths
from topologies.paths.switch_graph import SwitchGraph, switch_graph_of
from topologies.topology import Topology


class Carriers(NamedTuple):
    """The columns of all that a schedule's rows can name: first the links, then the hyperlinks, as in `Network`.

    Attributes:
        alpha_us: Latency of each carrier in µs.
        bandwidth_gbs: Bandwidth of each carrier in GB/s.
        uses_ptr: CSR table of the resources that each carrier uses, with `uses_idx`.
        uses_idx: Resources of the carriers.
        gap_us: Time in µs for which a message occupies what its carrier uses in addition to its bytes; empty where no
            carrier has a gap.
        takes_gbs: Rate in GB/s that a carrier takes of each resource while it is in flight; for a link its bandwidth.
    """

    alpha_us: Floats
    bandwidth_gbs: Floats
    uses_ptr: Ints
    uses_idx: Ints
    gap_us: Floats
    takes_gbs: Floats

    @property
    def holds(self) -> Floats:
        """Return the rate that each carrier takes of its resources per GB/s that it carries: float64 (carriers,).

        It is 1 for links, and 1 or more for hyperlinks.
        """
        return self.takes_gbs / self.bandwidth_gbs


class Pairs(NamedTuple):
    """The pairs of ranks that every carrier joins, as CSR: carrier c sends from src[j] to dst[j], j in ptr[c]:ptr[c+1].

    Attributes:
        ptr: First pair of each carrier, and the end of the last: int64 (ncarriers + 1,).
        src: Local rank that sends.
        dst: Local rank that receives.
    """

    ptr: Ints
    src: Ints
    dst: Ints


@dataclass(frozen=True, eq=False)
class Network:
    """Links between local ranks 0..nranks-1 and the resources that the links use; all arrays are read-only.

    Links are sorted by (src, dst); of several links of one pair a direct link stands before paths through switches, and
    these stand in the order of their first switch.

    Attributes:
        nranks: Number of local ranks.
        ranks: Rank of the topology for each local rank: int64 (nranks,).
        src: Local rank that each link leaves: int64 (nlinks,).
        dst: Local rank that each link reaches: int64 (nlinks,).
        alpha_us: Latency in µs, summed over the path: float64 (nlinks,).
        bandwidth_gbs: Smallest bandwidth in GB/s on the path, limits included, which no send can exceed: float64
            (nlinks,).
        uses_ptr: CSR: link l uses the resources uses_idx[uses_ptr[l]:uses_ptr[l+1]]: int64 (nlinks + 1,).
        uses_idx: Resources of the links, sorted for each link, each once: int64.
        capacity_gbs: Capacity of each resource in GB/s: float64 (nresources,).
        resource_names: Name of each resource: "0→1" or "0→nvswitch" (ranks of the topology) for a physical link, or a
            limit's name.
        gap_us: Time in µs for which the resources of a link stay busy after a message: float64 (nlinks,); empty where
            no link has a gap.
        start_us: Time in µs before which nothing is sent.
        hyperlinks: Multicasts and reductions by switches; None where no switch does either.
        switch_graph: All paths through switches, where the links are only some of them; None where they are all.
    """

    nranks: int
    ranks: Ints
    src: Ints
    dst: Ints
    alpha_us: Floats
    bandwidth_gbs: Floats
    uses_ptr: Ints
    uses_idx: Ints
    capacity_gbs: Floats
    resource_names: tuple[str, ...]
    gap_us: Floats = field(default_factory=lambda: np.zeros(0))
    start_us: float = 0.0
    hyperlinks: Hyperlinks | None = None
    switch_graph: SwitchGraph | None = None

    def __post_init__(self) -> None:
        for column in vars(self).values():
            if isinstance(column, np.ndarray):
                column.setflags(write=False)

    @cached_property
    def widest_link(self) -> Ints:
        """Return the widest link from each rank to each other one, of equally wide ones one of least α; -1 for none.

        The array has the shape (ranks, ranks).
        """
        table = np.full((self.nranks, self.nranks), -1, dtype=np.int64)
        best_last = np.lexsort((-self.alpha_us, self.bandwidth_gbs))  # The last of several links stays in the table.
        table[self.src[best_last], self.dst[best_last]] = best_last
        table.setflags(write=False)
        return table

    def reversed(self) -> Network:
        """Return the network with each link reversed, in the same order, without hyperlinks."""
        graph = None if self.switch_graph is None else self.switch_graph.reversed()
        return replace(self, src=self.dst, dst=self.src, hyperlinks=None, switch_graph=graph)

    @property
    def nlinks(self) -> int:
        """Return the number of links, without hyperlinks."""
        return len(self.src)

    @property
    def nresources(self) -> int:
        """Return the number of resources."""
        return len(self.capacity_gbs)

    @property
    def figures(self) -> tuple[Floats, ...]:
        """Return the columns of figures in which links differ: α in µs, bandwidth in GB/s and, if any, gaps in µs."""
        return (self.alpha_us, self.bandwidth_gbs, *((self.gap_us,) if len(self.gap_us) else ()))

    @property
    def _links(self) -> Carriers:
        """Return the columns of the links only; a link takes its whole bandwidth of each resource that it uses."""
        rate = self.bandwidth_gbs
        return Carriers(self.alpha_us, rate, self.uses_ptr, self.uses_idx, self.gap_us, rate)

    @cached_property
    def carriers(self) -> Carriers:
        """Return the columns of all links and then of all hyperlinks, as schedules number them.

        The result is computed once and kept. Where links have gaps, hyperlinks have the gap 0.
        """
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
        """Return the pairs of ranks that links and then hyperlinks join: one pair a link, two or more a hyperlink.

        The result is computed once and kept.
        """
        h, link_ptr = self.hyperlinks, np.arange(self.nlinks + 1)
        if h is None:
            return Pairs(link_ptr, self.src, self.dst)
        ends = (np.concatenate(columns) for columns in ((self.src, h.src), (self.dst, h.dst)))
        return Pairs(np.concatenate([link_ptr, h.ptr[1:] + self.nlinks]), *ends)

    @property
    def ncarriers(self) -> int:
        """Return the number of links and hyperlinks."""
        return self.nlinks + (0 if self.hyperlinks is None else len(self.hyperlinks))

    def uses(self, link: int) -> Ints:
        """Return the resources of a link (not of a hyperlink), ascending."""
        return self.uses_idx[self.uses_ptr[link] : self.uses_ptr[link + 1]]

    @property
    def link_of_use(self) -> Ints:
        """Return the link that each entry of `uses_idx` belongs to: int64, as long as `uses_idx`."""
        return row_of_entry(self.uses_ptr)

    def uses_and_links(self, hyperlinks: bool = False) -> tuple[Ints, Ints, Floats]:
        """Return (uses_ptr, uses_idx, capacity_gbs) with one more resource for each link, numbered nresources + link.

        Only the link uses its own resource, whose capacity is the rate that the link takes.

        Args:
            hyperlinks: Whether hyperlinks follow the links, each with a resource of its own too.
        """
        carriers = self.carriers if hyperlinks else self._links
        numbers = np.arange(len(carriers.uses_ptr))
        uses = np.insert(carriers.uses_idx, carriers.uses_ptr[1:], self.nresources + numbers[:-1])
        return carriers.uses_ptr + numbers, uses, np.concatenate([self.capacity_gbs, carriers.takes_gbs])


def network(topology: Topology, ranks: Sequence[int], members: int | None = None, paths: Paths = Paths.ALL) -> Network:
    """Return the network that `ranks` have among themselves; it is built unless somebody holds it already.

    Other ranks do not exist; switches always do. From each port (a physical link from a rank to a switch) there is one
    path to each rank that can be reached through switches only, by the switches' tables: least α, then most bandwidth,
    then fewest hops, with equal paths spread by destination. The paths are the same whatever costs are on. Two paths of
    one pair differ in their first physical link, which is a resource of each, so neither makes the other superfluous. A
    link uses every physical link that it crosses and every limit that holds one of these. Ranks that no path joins have
    no link, and one rank alone has none; that is no error.

    If `paths` is not ALL, only some of more than `MOST_PATHS` paths (2¹⁸) are links, if these connect all ranks: those
    that `paths` names, and of the paths of a pair those that no other one is better than. The network then has a graph
    of all paths. Otherwise each of up to 2 · `MAX_LINKS` paths is a link.

    Args:
        topology: The topology, whose costs count where they are on.
        ranks: Ranks of the topology, in the order of the local ranks.
        members: Number of ranks, from the first, that take part in switches' multicasts and reductions; None: all.
        paths: The paths that are links of a large network.

    Raises:
        InputError: There are no ranks, a rank is not in the topology or given twice, or switches join too many pairs.
    """
    group = topology.group(ranks)
    key = group.tobytes(), len(group) if members is None else members, paths
    networks = _in_use.setdefault(topology, WeakValueDictionary())
    net = networks.get(key)
    if net is None:
        net = _assembled(topology, group, list_paths(topology, group, paths), group[:members])
        for same in [paths] if net.switch_graph is not None else Paths:
            networks[*key[:2], same] = net
    return net


# The networks that somebody holds, by topology and (ranks, members, paths); one takes half a second or more.
_in_use: WeakKeyDictionary[Topology, WeakValueDictionary[tuple[bytes, int, Paths], Network]] = WeakKeyDictionary()


def links_among(net: Network, chosen: Ints) -> tuple[Ints, Ints, Ints]:
    """Return (link of `net`, source, destination) of the links among some local ranks, each int64 (links,).

    The links are sorted as those of a network: by source and destination, and several links of one pair in the order of
    `net`.

    Args:
        net: The network.
        chosen: The local ranks, each once; a rank's index here is its number as source and destination.
    """
    number = index_among(net.nranks, chosen)
    begin = np.searchsorted(net.src, chosen)
    links = ranges(begin, np.searchsorted(net.src, chosen, side="right") - begin)
    links = links[number[net.dst[links]] >= 0]
    links = links[np.lexsort((number[net.dst[links]], number[net.src[links]]))]
    return links, number[net.src[links]], number[net.dst[links]]


def subnetwork(net: Network, chosen: Ints) -> tuple[Network, Ints]:
    """Build the network of the local ranks `chosen` without hyperlinks, and return the link of `net` behind each link.

    A path between two ranks does not depend on the other ranks, so it can be taken from the larger network; where that
    has only some paths as links, so has the smaller one. Resources that no link uses any more are left out.

    Args:
        net: The larger network.
        chosen: Its local ranks, each once, in the order of the new local ranks.
    """
    links, src, dst = links_among(net, chosen)
    count = net.uses_ptr[links + 1] - net.uses_ptr[links]
    used = net.uses_idx[row_entries(net.uses_ptr, links)]
    is_used = flags_of(net.nresources, used)
    resources = np.flatnonzero(is_used)
    graph = None
    if net.switch_graph is not None:
        graph = net.switch_graph.among(chosen).renumbered(index_among(net.nresources, resources))
    smaller = Network(
        nranks=len(chosen),
        ranks=net.ranks[chosen],
        src=src,
        dst=dst,
        alpha_us=net.alpha_us[links],
        bandwidth_gbs=net.bandwidth_gbs[links],
        uses_ptr=pointers(count),
        uses_idx=(np.cumsum(is_used) - 1)[used],
        capacity_gbs=net.capacity_gbs[resources],
        resource_names=tuple(net.resource_names[i] for i in resources.tolist()),
        gap_us=net.gap_us[links] if len(net.gap_us) else net.gap_us,
        start_us=net.start_us,
        switch_graph=graph,
    )
    return smaller, links


def _assembled(topology: Topology, group: Ints, paths: ListedPaths, members: Ints) -> Network:
    """Build the network whose links are some paths.

    Args:
        topology: The topology.
        group: Rank of the topology for each local rank.
        paths: The paths that are links.
        members: Ranks of the topology that take part in switches' operations, which are numbered after the links.
    """
    crossed = paths.crossed
    used, count, figures = crossed >= 0, len(crossed), figures_of(topology)
    link_gbs, limit_gbs = topology.bandwidth_gbs, np.array([x.bandwidth_gbs for x in topology.limits])
    if figures is not None:
        factor = figures.efficiency[topology.link_kind]
        link_gbs = link_gbs * factor
        # A limit over links of several kinds carries no more than it would over the most efficient kind.
        limit_gbs = limit_gbs * np.array([factor[x.links].max() for x in topology.limits])
    crossing = crossings(topology, members, link_gbs, figures)
    rates = np.append(np.where(used, link_gbs[crossed], np.inf).min(axis=1, initial=np.inf), crossing.gbs)
    alpha, gap = _latencies(topology, crossed, figures)
    alpha = np.append(alpha, crossing.alpha_us)
    holds = np.append(np.ones(count), crossing.holds)
    link, where = np.nonzero(used)
    resource = crossed[link, where]
    if crossing.rank:
        link = np.append(link, np.repeat(count + np.arange(len(crossing.rank)), [len(x) for x in crossing.link]))
        resource = np.concatenate([resource, *crossing.link])
    holder, limit = topology.limits_crossed(link, resource)
    np.minimum.at(rates, holder, limit_gbs[limit] / holds[holder])
    link, resource = np.append(link, holder), np.append(resource, topology.nlinks + limit)
    if crossing.caps:
        link = np.append(link, np.repeat(count + np.arange(len(crossing.rank)), [len(x) for x in crossing.cap]))
        resource = np.append(resource, topology.nlinks + len(limit_gbs) + np.concatenate(crossing.cap).astype(np.int64))
    order = np.lexsort((resource, link))
    link, resource = link[order], resource[order]
    used_resources, index = np.unique(resource, return_inverse=True)
    capacity = np.concatenate([link_gbs, limit_gbs, [gbs for _, gbs in crossing.caps]])[used_resources]
    ptr, uses = pointers(np.bincount(link, minlength=len(rates))), index.reshape(-1).astype(np.int64)
    return Network(
        nranks=len(group),
        ranks=group,
        src=paths.src,
        dst=paths.dst,
        alpha_us=alpha[:count],
        bandwidth_gbs=rates[:count],
        uses_ptr=ptr[: count + 1],
        uses_idx=uses[: ptr[count]],
        capacity_gbs=capacity,
        resource_names=tuple(_resource_names(topology, crossing, used_resources)),
        gap_us=gap,
        start_us=0.0 if (costs := protocol_costs(topology)) is None else float(costs.start_us),
        hyperlinks=_hyperlinks(crossing, (alpha, rates, rates * holds, ptr, uses), count) if crossing.rank else None,
        switch_graph=switch_graph_of(topology, group, used_resources) if paths.is_partial else None,
    )


def _latencies(topology: Topology, crossed: Ints, figures: Figures | None) -> tuple[Floats, Floats]:
    """Return α in µs of each link, and the gap in µs after each message: two float64 columns (links,).

    α is the sum over the path, rounded to 1e-9 µs where the path has more than one hop. Where costs are on, the latency
    of the highest kind of link on the path stands in its place, if the costs state one; the gap is that of the same
    kind. The second column is empty where no link has a gap.

    Args:
        topology: The topology.
        crossed: Physical links on each link's path, -1 for none: int64 (links, most hops).
        figures: The costs that are on, or None.
    """
    used = crossed >= 0
    alpha = np.where(used, topology.alpha_us[crossed], 0.0).sum(axis=1)
    # A sum over several hops is rounded to 1e-9 µs, because 0.1 + 0.2 must be the same latency in any order.
    alpha = np.where(used.sum(axis=1) > 1, np.round(alpha, 9), alpha)
    if figures is None:
        return alpha, np.zeros(0)
    kind = np.where(used, topology.link_kind[crossed], 0).max(axis=1, initial=0)
    gap = figures.gap_us[kind]
    alpha = np.where(np.isnan(figures.latency_us[kind]), alpha, figures.latency_us[kind])
    return alpha, gap if gap.any() else np.zeros(0)


def _hyperlinks(crossing: Crossing, columns: tuple[Floats, Floats, Floats, Ints, Ints], first: int) -> Hyperlinks:
    """Return the hyperlinks, whose columns begin at row `first` of the columns of all carriers.

    Args:
        crossing: The hyperlinks before their resources are numbered.
        columns: (α, GB/s, GB/s taken, uses_ptr, uses_idx) of all carriers.
        first: Number of links.
    """
    alpha, rates, takes, ptr, uses = columns
    return Hyperlinks(
        np.array(crossing.multicast),
        np.array(crossing.paced),
        np.array(crossing.rank, dtype=np.int64),
        np.array(crossing.group, dtype=np.int64),
        *pairs_of(crossing),
        alpha[first:],
        rates[first:],
        takes[first:],
        ptr[first:] - ptr[first],
        uses[ptr[first] :],
    )


def _resource_names(topology: Topology, crossing: Crossing, resources: Ints) -> list[str]:
    """Return the names of the used resources: physical links ("0→1"), limits, then capacities of switches' operations.

    Args:
        topology: The topology.
        crossing: The hyperlinks, with the capacities of switches' operations.
        resources: Numbers of the used resources, ascending: physical links, then limits, then capacities.
    """
    vertices = [str(r) for r in range(topology.nranks)] + list(topology.switches)
    physical = resources[resources < topology.nlinks]
    ends = (topology.link_src[physical].tolist(), topology.link_dst[physical].tolist())
    names = [f"{vertices[a]}→{vertices[b]}" for a, b in zip(*ends, strict=True)]
    shared = [*(limit.name for limit in topology.limits), *(name for name, _ in crossing.caps)]
    return names + [shared[i] for i in (resources[len(physical) :] - topology.nlinks).tolist()]
