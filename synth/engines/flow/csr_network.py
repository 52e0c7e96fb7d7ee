"""A network as the arrays that routing and list scheduling read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from topologies.arrays import grouped, index_among, pointers, row_entries, row_of_entry
from topologies.network import Network


class CsrNetwork(NamedTuple):
    """Links in bundles: parallel links, which use just the same resources, and of which one at a time can be busy.

    Attributes:
        nranks, nbundles: counts.
        src, dst, bundle: int, shape (links,).
        out_ptr, out_link: CSR by rank: links that leave it. in_ptr, in_link: links that enter it.
        alpha_us, bandwidth_gbs: float, shape (bundles,).
        uses_ptr, uses_idx: CSR by bundle: resources. capacity_gbs: float, shape (resources,).
        users_ptr, users_idx: CSR by resource: bundles, for resources that several bundles use; empty for others.
        exclusive: bool, shape (bundles,): the bundle shares none of its resources.
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
    uses_ptr: Ints
    uses_idx: Ints
    capacity_gbs: Floats
    users_ptr: Ints
    users_idx: Ints
    exclusive: Bools


def csr_network(net: Network) -> CsrNetwork:
    """Arrays of a network, each writable and contiguous, as compiled loops take them."""
    bundle, first = _bundles(net)
    nbundles = len(first)
    uses_ptr = pointers(np.diff(net.uses_ptr)[first])
    owner = row_of_entry(uses_ptr)
    uses_idx = net.uses_idx[row_entries(net.uses_ptr, first)].astype(np.int64)
    ptr, rows = grouped(uses_idx, net.nresources)
    several = np.diff(ptr) > 1
    keep = np.repeat(several, np.diff(ptr))
    users_ptr = pointers(np.where(several, np.diff(ptr), 0))
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
        uses_ptr=uses_ptr,
        uses_idx=uses_idx,
        capacity_gbs=np.array(net.capacity_gbs, dtype=np.float64),
        users_ptr=users_ptr,
        users_idx=np.ascontiguousarray(owner[rows][keep]),
        exclusive=~np.logical_or.reduceat(several[uses_idx], uses_ptr[:-1]) if nbundles else np.zeros(0, dtype=bool),
    )


def reverse_network(net: CsrNetwork) -> CsrNetwork:
    """Every link reversed, in the same bundles."""
    return net._replace(
        src=net.dst, dst=net.src, out_ptr=net.in_ptr, out_link=net.in_link, in_ptr=net.out_ptr, in_link=net.out_link
    )


def _bundles(net: Network) -> tuple[Ints, Ints]:
    """The bundle of every link, and a link of every bundle."""
    counts = np.diff(net.uses_ptr)
    width = int(counts.max(initial=0))
    table = np.full((net.nlinks, width + 2), -1.0)
    rows = net.link_of_use
    table[rows, np.arange(len(rows)) - net.uses_ptr[rows]] = net.uses_idx
    table[:, width] = net.alpha_us
    table[:, width + 1] = net.bandwidth_gbs
    tightest = np.full(net.nlinks, np.inf)
    np.minimum.at(tightest, rows, net.capacity_gbs[net.uses_idx])
    # links that could be busy at once although they use the same: each is a bundle of its own
    apart = tightest >= 2 * net.bandwidth_gbs * (1 - 1e-12)
    itself = np.where(apart, np.arange(net.nlinks), -1.0)
    _, first, bundle = np.unique(np.column_stack([table, itself]), axis=0, return_index=True, return_inverse=True)
    # bundles in order of their first link
    order = np.argsort(first, kind="stable")
    return index_among(len(order), order)[bundle.reshape(-1)], first[order].astype(np.int64)
