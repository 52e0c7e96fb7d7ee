"""The choice of the paths that are links of a network: all of a small one, some of a large one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topologies.arrays import Bools, Ints, index_among, strongly_connected
from topologies.errors import InputError
from topologies.levels.hierarchy import find_levels
from topologies.paths import MOST_PATHS, Paths
from topologies.paths.routing import Tables, follow, forwarding_tables
from topologies.topology import MAX_LINKS, Topology

_MOST_LISTED = 2 * MAX_LINKS  # Paths through switches, of which each takes half a KiB while the network is built.


class ListedPaths(NamedTuple):
    """The paths that are links of a network, sorted as a network's links are.

    Attributes:
        src: Local rank that each path leaves: int64 (paths,).
        dst: Local rank that each path reaches: int64 (paths,).
        crossed: Physical links on each path in their order, -1 after its end: int64 (paths, most hops).
        is_partial: Whether there are other paths through switches.
    """

    src: Ints
    dst: Ints
    crossed: Ints
    is_partial: bool


def list_paths(topology: Topology, group: Ints, paths: Paths) -> ListedPaths:
    """Return the paths that are links of the network of some ranks; `topologies.network.network` states the choice.

    Args:
        topology: The topology.
        group: Rank of the topology for each local rank: int64 (nranks,).
        paths: The paths that are links of a large network.

    Raises:
        InputError: Switches join too many pairs of ranks.
    """
    n, local = topology.nranks, index_among(topology.nranks, group)
    direct, through = _choose_paths(topology, group, paths)
    src, dst = [local[topology.link_src[direct]]], [local[topology.link_dst[direct]]]
    first, hops = [np.full(len(direct), -1, dtype=np.int64)], [[direct]]
    if through is not None:
        switch = topology.link_dst[through.port] - n
        src.append(local[topology.link_src[through.port]])
        dst.append(through.column)
        first.append(switch)
        # Paths are spread by the rank's number in the topology, so that no route depends on the rest of the group.
        hops.append([through.port, *follow(through.tables, switch, through.column, group[through.column])])
    is_partial = through is not None and through.is_partial
    depth = max(len(h) for h in hops)
    crossed = np.concatenate(
        [np.stack(h + [np.full(len(h[0]), -1, dtype=np.int64)] * (depth - len(h)), axis=1) for h in hops]
    )
    all_src, all_dst, all_first = np.concatenate(src), np.concatenate(dst), np.concatenate(first)
    order = np.lexsort((all_first, all_dst, all_src))
    if is_partial:
        is_kept = _undominated(topology, all_src[order], all_dst[order], crossed[order])
        order = order[is_kept | (all_first[order] < 0)]  # Only paths through switches are in the graph.
    return ListedPaths(all_src[order], all_dst[order], crossed[order], is_partial)


def count_partial_paths(topology: Topology, ranks: Sequence[int], paths: Paths) -> int | None:
    """Return how many paths through switches would be links; None where all of them would be.

    It takes a byte for each port and rank, and a few for each pair of ranks.

    Raises:
        InputError: The ranks are no group, or switches join too many pairs of them.
    """
    through = _choose_paths(topology, topology.group(ranks), paths)[1]
    return len(through.port) if through is not None and through.is_partial else None


class _ThroughSwitches(NamedTuple):
    """The paths through switches that are links.

    Attributes:
        tables: The switches' forwarding tables.
        port: Physical link by which each path leaves its rank: int64 (paths,).
        column: Local rank that each path reaches: int64 (paths,).
        is_partial: Whether there are others beside them.
    """

    tables: Tables
    port: Ints
    column: Ints
    is_partial: bool


def _choose_paths(topology: Topology, group: Ints, paths: Paths) -> tuple[Ints, _ThroughSwitches | None]:
    """Return the physical links among the checked ranks `group`, and their paths through switches; None without ports.

    Raises:
        InputError: Switches join too many pairs of ranks.
    """
    n, local = topology.nranks, index_among(topology.nranks, group)
    src, dst = topology.link_src, topology.link_dst
    inside = src < n
    inside[inside] = local[src[inside]] >= 0
    direct = np.flatnonzero(inside & (dst < n))
    direct = direct[local[dst[direct]] >= 0]
    ports = np.flatnonzero(inside & (dst >= n))
    if not len(ports):
        return direct, None
    tables = forwarding_tables(topology, group)
    reach, rank = tables.reach[dst[ports] - n], local[src[ports]]
    reach[np.arange(len(ports)), rank] = False
    count, is_partial = int(reach.sum()), False
    if count > MOST_PATHS and (listed := _listed_pairs(topology, group, paths)) is not None:
        fewer = reach & listed[rank]
        port, column = np.nonzero(fewer)
        ends = np.append(local[src[direct]], rank[port]), np.append(local[dst[direct]], column)
        is_partial = len(port) < count and strongly_connected(len(group), *ends)
        reach = fewer if is_partial else reach
    if not is_partial and count > _MOST_LISTED:
        raise InputError(
            f"topology {topology.name!r}: switches join {count} pairs of {len(group)} ranks; it must be at most"
            f" {_MOST_LISTED}, among a group of fewer ranks"
        )
    port, column = np.nonzero(reach)
    return direct, _ThroughSwitches(tables, ports[port], column, is_partial)


def _undominated(topology: Topology, src: Ints, dst: Ints, crossed: Ints) -> Bools:
    """Return which paths are not worse than their pair's path of least α: later, and no wider: bool (paths,).

    Ranks of a node need no paths over their NICs where a switch of the node joins them.

    Args:
        topology: The topology.
        src: Local rank that each path leaves, sorted together with `dst`.
        dst: Local rank that each path reaches.
        crossed: Physical links on each path, -1 for none: int64 (paths, most hops).
    """
    used = crossed >= 0
    alpha = np.where(used, topology.alpha_us[crossed], 0.0).sum(axis=1)
    gbs = np.where(used, topology.bandwidth_gbs[crossed], np.inf).min(axis=1, initial=np.inf)
    pair = np.cumsum(np.diff(src, prepend=-1).astype(bool) | np.diff(dst, prepend=-1).astype(bool)) - 1
    order = np.lexsort((-gbs, alpha, pair))
    best = order[np.searchsorted(pair[order], np.arange(pair[-1] + 1))][pair]
    return np.asarray((alpha <= alpha[best] * (1 + 1e-9)) | (gbs > gbs[best]))


def _listed_pairs(topology: Topology, group: Ints, paths: Paths) -> Bools | None:
    """Return which pairs of ranks have links through switches in a large network; None where these are all pairs.

    Args:
        topology: The topology.
        group: Rank of the topology for each local rank: int64 (nranks,).
        paths: The paths that are links.

    Returns:
        Flags [from, to]: bool (nranks, nranks).
    """
    if paths is Paths.ALL:
        return None
    try:
        hierarchy = find_levels(topology)
    except InputError:
        return None
    names = [level.name for level in hierarchy.levels]
    inner = names.index("node") + 1 if "node" in names else 1
    sizes = (math.prod(hierarchy.sizes[:inner]), *hierarchy.sizes[inner:])
    if paths is Paths.LEVELS and len(group) * sum(sizes) > MOST_PATHS:
        sizes = hierarchy.sizes
    if len(sizes) < 2:
        return None
    differing = np.zeros((len(group), len(group)), dtype=np.int8)
    for place in np.unravel_index(hierarchy.position[group], sizes):
        differing += place[:, None] != place[None, :]
    return np.asarray(differing <= 1)
