"""A network as the arrays that compiled engines read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from topologies.arrays import grouped, pointers, row_entries, row_of_entry
from topologies.network import Network


class Wires(NamedTuple):
    """Links grouped into lanes: links that use just the same resources, of which one at a time can be busy.

    Attributes:
        nranks, nlanes: counts.
        src, dst, lane: int, shape (links,).
        out_ptr, out_link: CSR by rank: links that leave it. in_ptr, in_link: links that enter it.
        alpha_us, bandwidth_gbs: float, shape (lanes,).
        uses_ptr, uses_idx: CSR by lane: resources. capacity_gbs: float, shape (resources,).
        users_ptr, users_idx: CSR by resource: lanes, for resources that several lanes use; empty for others.
        alone: bool, shape (lanes,): the lane shares none of its resources.
    """

    nranks: int
    nlanes: int
    src: Ints
    dst: Ints
    lane: Ints
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
    alone: Bools


def wires(net: Network) -> Wires:
    """Arrays of a network, each writable and contiguous so that a kernel is compiled for one kind only."""
    lane, first = _lanes(net)
    nlanes = len(first)
    uses_ptr = pointers(np.diff(net.uses_ptr)[first])
    owner = row_of_entry(uses_ptr)
    uses_idx = net.uses_idx[row_entries(net.uses_ptr, first)].astype(np.int64)
    ptr, rows = grouped(uses_idx, net.nresources)
    several = np.diff(ptr) > 1
    keep = np.repeat(several, np.diff(ptr))
    users_ptr = pointers(np.where(several, np.diff(ptr), 0))
    out_ptr, out_link = grouped(net.src, net.nranks)
    in_ptr, in_link = grouped(net.dst, net.nranks)
    return Wires(
        nranks=net.nranks,
        nlanes=nlanes,
        src=np.array(net.src, dtype=np.int64),
        dst=np.array(net.dst, dtype=np.int64),
        lane=lane,
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
        alone=~np.logical_or.reduceat(several[uses_idx], uses_ptr[:-1])
        if nlanes
        else np.zeros(0, dtype=bool),
    )


def _lanes(net: Network) -> tuple[Ints, Ints]:
    """Lane of every link, and a link of every lane."""
    counts = np.diff(net.uses_ptr)
    width = int(counts.max(initial=0))
    table = np.full((net.nlinks, width + 2), -1.0)
    rows = net.link_of_use
    table[rows, np.arange(len(rows)) - net.uses_ptr[rows]] = net.uses_idx
    table[:, width] = net.alpha_us
    table[:, width + 1] = net.bandwidth_gbs
    tightest = np.full(net.nlinks, np.inf)
    np.minimum.at(tightest, rows, net.capacity_gbs[net.uses_idx])
    # links that could be busy at once although they use the same: each is a lane of its own
    apart = tightest >= 2 * net.bandwidth_gbs * (1 - 1e-12)
    alone = np.where(apart, np.arange(net.nlinks), -1.0)
    _, first, lane = np.unique(
        np.column_stack([table, alone]), axis=0, return_index=True, return_inverse=True
    )
    # lanes in order of their first link
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    return rank[lane.reshape(-1)], first[order].astype(np.int64)
