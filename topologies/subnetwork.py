"""The part of a network that some of its ranks have among themselves, without routing anew."""

from __future__ import annotations

import numpy as np

from topologies.arrays import Ints, pointers, ranges, row_entries
from topologies.network import Network


def links_among(net: Network, chosen: Ints) -> tuple[Ints, Ints, Ints]:
    """(link of `net`, source, destination) of the links among some local ranks, renumbered in the order given.

    Sorted as a network's links are: by source and destination, several of one pair as they stand in `net`.
    """
    number = np.full(net.nranks, -1, dtype=np.int64)
    number[chosen] = np.arange(len(chosen))
    begin = np.searchsorted(net.src, chosen)
    links = ranges(begin, np.searchsorted(net.src, chosen, side="right") - begin)
    links = links[number[net.dst[links]] >= 0]
    links = links[np.lexsort((number[net.dst[links]], number[net.src[links]]))]
    return links, number[net.src[links]], number[net.dst[links]]


def subnetwork(net: Network, chosen: Ints) -> tuple[Network, Ints]:
    """What `network.network` gives for the local ranks `chosen`, and the link of `net` that each of its links is.

    A path between two ranks does not depend on who else takes part, so it can be taken from the larger network.
    """
    links, src, dst = links_among(net, chosen)
    count = net.uses_ptr[links + 1] - net.uses_ptr[links]
    used = net.uses_idx[row_entries(net.uses_ptr, links)]
    there = np.zeros(net.nresources, dtype=bool)
    there[used] = True
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
    )
    return part, links
