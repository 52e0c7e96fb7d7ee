"""Choose the link of each connection, and state what links and threadblocks can carry."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from synth.model.collective import Floats, Ints
from topologies.costed import protocol_costs
from topologies.errors import InputError
from topologies.network import Network, network
from topologies.paths import Paths
from topologies.topology import Topology

_ROUNDING = 1e-9


class MessageLinks(NamedTuple):
    """The links that the messages of a program or a plan can use; in plans also switches and signals.

    Attributes:
        alpha_us: Latency of each link in µs.
        bandwidth_gbs: Bandwidth of each link in GB/s.
        holds: Rate that a message takes of the limits of each link for each GB/s that it moves.
        gap_us: Time in µs for which a message keeps the limits of each link busy after it has left; None for 0.
        limits: Limits of the links, in the form of `Network.uses_and_links`.
    """

    alpha_us: Floats
    bandwidth_gbs: Floats
    holds: Floats
    gap_us: Floats | None
    limits: tuple[Ints, Ints, Floats]


def links_of(net: Network) -> MessageLinks:
    """Return the links of a network, without its hyperlinks; a link takes of its limits the rate that it moves."""
    return MessageLinks(net.alpha_us.copy(), net.bandwidth_gbs, np.ones(net.nlinks), net.gap_us, net.uses_and_links())


def program_network(topology: Topology, group: Sequence[int]) -> Network:
    """Return the network of a program's ranks, with all paths through switches as links unless these are too many.

    A program may send along paths that no search uses.

    Args:
        topology: The topology under the program's protocol.
        group: Topology rank of each rank of the program, as `place_ranks` returns them.

    Raises:
        InputError: Switches join too many pairs of ranks, and levels name no paths to do with.
    """
    try:
        return network(topology, group)
    except InputError:
        return network(topology, group, paths=Paths.NODES)


def place_ranks(n: int, topology: Topology, group: Sequence[int] | None) -> tuple[int, ...]:
    """Return the topology's rank of each of a program's `n` ranks: those of the group, or 0, 1, … if that is None.

    Whether the group's ranks exist is not checked.

    Raises:
        InputError: The topology has too few ranks, or the group has another number of ranks.
    """
    if group is None and n > topology.nranks:
        raise InputError(f"program has {n} ranks, {topology.name} has {topology.nranks}; it must be at most as many")
    if group is not None and len(group) != n:
        raise InputError(f"group has {len(group)} ranks, the program {n}; it must be as many")
    return tuple(range(n)) if group is None else tuple(int(rank) for rank in group)


def block_rates(topology: Topology, link_gbs: Floats) -> Floats:
    """Return the GB/s at which one threadblock sends over links of bandwidths `link_gbs`, with the shape of that array.

    If costs are on, a threadblock gets an equal share of the link: the largest share that it can move. As many
    threadblocks as there are shares then fill the link. If costs are off, the rate is the bandwidth.
    """
    costs = protocol_costs(topology)
    if costs is None:
        return link_gbs.copy()
    return np.asarray(link_gbs / np.maximum(1.0, np.ceil(link_gbs / costs.threadblock_gbs - _ROUNDING)))


def assign_links(net: Network, ends: Ints, topology: Topology) -> Ints:
    """Return the number of the link that each connection uses, shape (connections,).

    It is the widest link of its pair of ranks, of equally wide ones one with the least α. Links that are equal in both
    serve the connections of their pair cyclically.

    Args:
        net: The network.
        ends: Connections, one row (source, destination, channel) each, with the network's local ranks.
        topology: The topology, whose name errors state.

    Raises:
        InputError: Two connected ranks have no link.
    """
    n = net.nranks
    pair = net.src * n + net.dst
    # The links of a pair of ranks are ordered by descending bandwidth, then by α.
    order = np.lexsort((net.alpha_us, -net.bandwidth_gbs, pair))
    first = np.searchsorted(pair[order], ends[:, 0] * n + ends[:, 1])
    link_kinds = np.stack([pair, net.bandwidth_gbs, net.alpha_us])[:, order]
    starts = np.flatnonzero(np.any(np.diff(link_kinds, prepend=np.nan) != 0, axis=0))
    parallel = np.diff(starts, append=len(order))  # number of equal links of a pair
    chosen = np.empty(len(ends), dtype=np.int64)
    last_used: dict[int, int] = {}
    for number in np.lexsort((ends[:, 2], ends[:, 1], ends[:, 0])).tolist():
        source, target, _ = ends[number].tolist()
        widest = int(first[number])
        if widest == len(order) or pair[order[widest]] != source * n + target:
            ranks = net.ranks[[source, target]].tolist()
            origin = "" if ranks == [source, target] else f", where they are ranks {ranks[0]} and {ranks[1]}"
            raise InputError(
                f"rank {source} sends to rank {target}, to which {topology.name} has no link{origin};"
                " choose other ranks (--group), or another network"
            )
        use = last_used[widest] = last_used.get(widest, -1) + 1
        chosen[number] = order[widest + use % parallel[np.searchsorted(starts, widest)]]
    return chosen
