"""A network as arrays for routing and list scheduling."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from topologies.arrays import grouped, index_among, pointers, row_entries, row_of_entry
from topologies.network import Network


class CsrNetwork(NamedTuple):
    """A network whose links are in bundles: parallel links over the same resources, of which one at a time can be busy.

    Attributes:
        nranks: Number of ranks.
        nbundles: Number of bundles.
        src: Source rank of each link, int, shape (links,).
        dst: Destination rank of each link, int, shape (links,).
        bundle: Bundle of each link, int, shape (links,).
        out_ptr: CSR pointer from a rank to the links that leave it.
        out_link: Links that leave each rank, in CSR order.
        in_ptr: CSR pointer from a rank to the links that enter it.
        in_link: Links that enter each rank, in CSR order.
        alpha_us: Latency of each bundle in µs, float, shape (bundles,).
        bandwidth_gbs: Bandwidth of each bundle in GB/s, float, shape (bundles,).
        gap_us: Time in µs for which each bundle stays busy after a send, float, shape (bundles,).
        uses_ptr: CSR pointer from a bundle to the resources that it uses.
        uses_idx: Resources of each bundle, in CSR order.
        capacity_gbs: Capacity of each resource in GB/s, float, shape (resources,).
        users_ptr: CSR pointer from a resource to the bundles that use it; empty for a resource of one bundle.
        users_idx: Bundles that use each resource, in CSR order.
        exclusive: Whether a bundle shares none of its resources, bool, shape (bundles,).
    """

    nranks: int
    nbundles: int
    src: Ints
    dst: Ints
    bundle: Ints
    out_ptr: Ints
    out_link: Ints
    in_ptr: Ints
    in_link: Ints
    alpha_us: Floats
    bandwidth_gbs: Floats
    gap_us: Floats
    uses_ptr: Ints
    uses_idx: Ints
    capacity_gbs: Floats
    users_ptr: Ints
    users_idx: Ints
    exclusive: Bools


def csr_network(net: Network) -> CsrNetwork:
    """Return a network in compressed rows, as the compiled loops need it; every array is writable and contiguous.

    A bundle is a link, or links with the same figures and resources of which only one can be busy at a time. The rows
    are the bundles out of and into each rank, the resources of each bundle, and the bundles of each resource that
    several of them share.
    """
    bundle, first = _bundles(net)
    nbundles = len(first)
    uses_ptr = pointers(np.diff(net.uses_ptr)[first])
    owner = row_of_entry(uses_ptr)
    uses_idx = net.uses_idx[row_entries(net.uses_ptr, first)].astype(np.int64)
    ptr, rows = grouped(uses_idx, net.nresources)
    is_shared = np.diff(ptr) > 1
    keep = np.repeat(is_shared, np.diff(ptr))
    users_ptr = pointers(np.where(is_shared, np.diff(ptr), 0))
    out_ptr, out_link = grouped(net.src, net.nranks)
    in_ptr, in_link = grouped(net.dst, net.nranks)
    return CsrNetwork(
        nranks=net.nranks,
        nbundles=nbundles,
        src=np.array(net.src, dtype=np.int64),
        dst=np.array(net.dst, dtype=np.int64),
        bundle=bundle,
        out_ptr=out_ptr,
        out_link=out_link,
        in_ptr=in_ptr,
        in_link=in_link,
        alpha_us=np.array(net.alpha_us[first], dtype=np.float64),
        bandwidth_gbs=np.array(net.bandwidth_gbs[first], dtype=np.float64),
        gap_us=np.array(net.gap_us[first], dtype=np.float64) if len(net.gap_us) else np.zeros(nbundles),
        uses_ptr=uses_ptr,
        uses_idx=uses_idx,
        capacity_gbs=np.array(net.capacity_gbs, dtype=np.float64),
        users_ptr=users_ptr,
        users_idx=np.ascontiguousarray(owner[rows][keep]),
        exclusive=~np.logical_or.reduceat(is_shared[uses_idx], uses_ptr[:-1]) if nbundles else np.zeros(0, dtype=bool),
    )


def carrier_network(net: Network) -> CsrNetwork:
    """Return a network in compressed rows whose bundles are its links and hyperlinks, one each.

    The bandwidth of a bundle is the rate that it takes of what it uses. A hyperlink has no destination of its own, so
    the ends of bundles and the tables of each rank's links are empty.
    """
    alpha_us, _, uses_ptr, uses_idx, gap_us, takes_gbs = net.carriers
    ptr, rows = grouped(uses_idx, net.nresources)
    is_shared = np.diff(ptr) > 1
    keep = np.repeat(is_shared, np.diff(ptr))
    none = np.zeros(0, dtype=np.int64)
    return CsrNetwork(
        nranks=net.nranks,
        nbundles=net.ncarriers,
        src=none,
        dst=none,
        bundle=np.arange(net.ncarriers),
        out_ptr=none,
        out_link=none,
        in_ptr=none,
        in_link=none,
        alpha_us=alpha_us.copy(),
        bandwidth_gbs=takes_gbs.copy(),
        gap_us=gap_us.copy() if len(gap_us) else np.zeros(net.ncarriers),
        uses_ptr=uses_ptr.copy(),
        uses_idx=uses_idx.astype(np.int64),
        capacity_gbs=np.array(net.capacity_gbs, dtype=np.float64),
        users_ptr=pointers(np.where(is_shared, np.diff(ptr), 0)),
        users_idx=np.ascontiguousarray(row_of_entry(uses_ptr)[rows][keep]),
        exclusive=~np.logical_or.reduceat(is_shared[uses_idx], uses_ptr[:-1]),
    )


def reverse_network(net: CsrNetwork) -> CsrNetwork:
    """Return the network with every link reversed, in the same bundles; it shares its arrays with `net`."""
    return net._replace(
        src=net.dst, dst=net.src, out_ptr=net.in_ptr, out_link=net.in_link, in_ptr=net.out_ptr, in_link=net.out_link
    )


def _bundles(net: Network) -> tuple[Ints, Ints]:
    """Return the bundle of every link, shape (links,), and the first link of every bundle, ascending."""
    counts = np.diff(net.uses_ptr)
    width = int(counts.max(initial=0))
    table = np.full((net.nlinks, width + 3), -1.0)
    rows = net.link_of_use
    table[rows, np.arange(len(rows)) - net.uses_ptr[rows]] = net.uses_idx
    table[:, width] = net.alpha_us
    table[:, width + 1] = net.bandwidth_gbs
    table[:, width + 2] = net.gap_us if len(net.gap_us) else 0.0
    tightest = np.full(net.nlinks, np.inf)
    np.minimum.at(tightest, rows, net.capacity_gbs[net.uses_idx])
    # Links that use the same resources but can be busy at once are each a bundle of their own.
    is_own_bundle = tightest >= 2 * net.bandwidth_gbs * (1 - 1e-12)
    bundle_key = np.where(is_own_bundle, np.arange(net.nlinks), -1.0)
    _, first, bundle = np.unique(np.column_stack([table, bundle_key]), axis=0, return_index=True, return_inverse=True)
    # The bundles are in order of their first link.
    order = np.argsort(first, kind="stable")
    return index_among(len(order), order)[bundle.reshape(-1)], first[order].astype(np.int64)
