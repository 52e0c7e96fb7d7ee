"""Switches that stand for each other as one: the spines of a Clos fabric, the planes of a fabric with two planes.

A network sends each pair of ranks over one path (`topologies.network`). A fabric that spreads the data of a pair over
equal paths has the capacity of all of them, so such paths become one path of wider links.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from topologies.arrays import Bools, Ints, components, hashed, pointers, row_of_entry, segment_sums
from topologies.topology import Limit, Topology

_MOST_ROUNDS = 32  # Rounds of refinement; a fabric needs about as many as it has levels of switches.


def merge_switches(topology: Topology, is_mergeable: Bools | None = None) -> Topology:
    """Return the topology with each class of switches that stand for each other as one switch.

    Two switches stand for each other where they have the same links to and from the same ranks and to and from classes
    of the same switches. A link between two classes, or a rank and a class, has the sum of its members' bandwidths, and
    their α. The merged switch is named after its first member and the number of members: `switch8.x4`.

    This is exact where a fabric spreads all data over equal paths (by packets, or by many flows). What the merged
    switch carries, its members can carry in equal shares, because each has an equal part of every link. What the
    members carry, the merged switch can carry, because its links have their sums. Where a fabric is irregular, such as
    by a missing uplink, the switches differ and stay apart, and each pair of ranks keeps one of its paths.

    A topology is returned as it is where a class has a switch that multicasts or reduces, where a limit is for some of
    the links that would become one, or where two classes would need two links with different α or kinds.

    Args:
        topology: The topology.
        is_mergeable: Whether each switch may be merged with others, shape (switches,); None for all.
    """
    if not topology.switches:
        return topology
    n = topology.nranks
    member_class = _switch_classes(topology, is_mergeable)
    counts = np.bincount(member_class)
    able = {ops.switch for ops in topology.switch_ops}
    merged_switches = [name for name, count in zip(topology.switches, counts[member_class], strict=True) if count > 1]
    if not merged_switches or not able.isdisjoint(merged_switches):
        return topology
    vertex = np.concatenate([np.arange(n), n + member_class])
    src, dst = vertex[topology.link_src], vertex[topology.link_dst]
    # Links inside a class carry nothing where its members share everything equally.
    at = np.flatnonzero(src != dst)
    key, first, inverse = np.unique(src[at] * len(vertex) + dst[at], return_index=True, return_inverse=True)
    link, merged = at[first], inverse.reshape(-1)
    for column in (topology.alpha_us, topology.link_kind):
        if (column[at] != column[link][merged]).any():
            return topology
    limits = _limits_of_merged(topology, at, merged, len(link))
    if limits is None:
        return topology
    firsts = np.unique(member_class, return_index=True)[1].tolist()
    return replace(
        topology,
        switches=tuple(
            topology.switches[j] + (f".x{count}" if count > 1 else "")
            for j, count in zip(firsts, counts.tolist(), strict=True)
        ),
        link_src=key // len(vertex),
        link_dst=key % len(vertex),
        alpha_us=topology.alpha_us[link],
        bandwidth_gbs=np.bincount(merged, weights=topology.bandwidth_gbs[at]).astype(np.float64),
        link_kind=topology.link_kind[link],
        limits=limits,
    )


def _limits_of_merged(topology: Topology, at: Ints, merged: Ints, nmerged: int) -> tuple[Limit, ...] | None:
    """Return the limits over merged links, or None where a limit is for a part of a merged link or for a lost link.

    Args:
        topology: The topology before.
        at: Its links that are kept, shape (kept,).
        merged: Merged link of each of these, shape (kept,).
        nmerged: Number of merged links.
    """
    nmembers, limits = np.bincount(merged, minlength=nmerged), []
    for limit in topology.limits:
        is_limited = np.isin(at, limit.links)
        count = np.bincount(merged[is_limited], minlength=nmerged)
        if is_limited.sum() < len(limit.links) or ((count > 0) & (count < nmembers)).any():
            return None
        limits.append(replace(limit, links=np.flatnonzero(count)))
    return tuple(limits)


def has_choice_of_paths(topology: Topology) -> bool:
    """Return whether links between switches form a cycle, so that a rank may be at the end of two paths."""
    src, dst = topology.link_src - topology.nranks, topology.link_dst - topology.nranks
    inner = (src >= 0) & (dst >= 0)
    count = len(topology.switches)
    low, high = np.minimum(src[inner], dst[inner]), np.maximum(src[inner], dst[inner])
    pairs = np.unique(low * count + high)
    parts = len(np.unique(components(count, pairs // count, pairs % count))) if len(pairs) else count
    return len(pairs) > count - parts


def _switch_classes(topology: Topology, is_mergeable: Bools | None) -> Ints:
    """Return the class of each switch, numbered by the classes' first members: int64 (switches,).

    A switch that may not be merged, where `is_mergeable` says so, is a class of its own.

    The classes are the coarsest in which members have equal links to and from every rank and every class (colour
    refinement in which each rank has a colour of its own). Where a few rounds do not yield these, each switch is a
    class of its own.
    """
    n, count = topology.nranks, len(topology.switches)
    own = np.arange(count, dtype=np.int64)
    kinds = (topology.link_kind, topology.alpha_us, topology.bandwidth_gbs)
    figure = np.unique(np.column_stack(kinds), axis=0, return_inverse=True)[1].reshape(-1)
    into, out = topology.link_dst >= n, topology.link_src >= n
    switch = np.concatenate([topology.link_dst[into], topology.link_src[out]]) - n
    neighbour = np.concatenate([topology.link_src[into], topology.link_dst[out]])
    label = np.concatenate([2 * figure[into], 2 * figure[out] + 1])
    order = np.argsort(switch, kind="stable")
    switch, neighbour, label = switch[order], neighbour[order], label[order]
    ptr = pointers(np.bincount(switch, minlength=count))
    classes, before = np.zeros(count, dtype=np.int64) if is_mergeable is None else np.where(is_mergeable, count, own), 0
    for _ in range(_MOST_ROUNDS):
        entry = label * (n + count) + np.concatenate([np.arange(n), n + classes])[neighbour]
        sums = segment_sums(hashed(entry.astype(np.uint64)), ptr)
        _, first, inverse = np.unique(
            np.column_stack([classes.astype(np.uint64), sums]), axis=0, return_index=True, return_inverse=True
        )
        if len(first) == before:
            return classes if _are_equal(classes, entry, switch, ptr) else own
        by_first = np.empty(len(first), dtype=np.int64)
        by_first[np.argsort(first)] = np.arange(len(first))
        classes, before = by_first[inverse.reshape(-1)], len(first)
    return own


def _are_equal(classes: Ints, entry: Ints, switch: Ints, ptr: Ints) -> bool:
    """Return whether the switches of each class have equal entries, which equal sums of hashes do not prove.

    Args:
        classes: Class of each switch.
        entry: A number for each link of each switch.
        switch: The switch of each entry, ascending.
        ptr: First entry of each switch, and the end of the last.
    """
    entry = entry[np.lexsort((entry, switch))]
    lead = np.unique(classes, return_index=True)[1][classes]
    lengths = np.diff(ptr)
    if (lengths != lengths[lead]).any():
        return False
    row = row_of_entry(ptr)
    return bool((entry == entry[ptr[lead[row]] + np.arange(len(entry)) - ptr[row]]).all())
