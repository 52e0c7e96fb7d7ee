"""Describe networks independently of their numbering, to find groups of ranks that have the same problem.

A relabelling of the local ranks that maps one network to another maps its answers too (`synth.app.clusters.carried`).
To find such networks, each is put into a canonical order (colour refinement, then one rank after another is marked),
and the orders are compared.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from synth.model.collective import Ints
from topologies.arrays import index_among, pointers, row_entries, row_of_entry
from topologies.network import Network
from topologies.symmetry.refinement import Colours, Structure, mark

_MOST_WORK = 3e7  # ranks times the entries that a round of refinement touches; this takes some seconds
_MOST_STARTS = 24  # indistinguishable ranks that are tried as the first one


def network_form(net: Network, nodes: Ints) -> bytes:
    """Return a digest (SHA-256, 32 bytes) of the network between local ranks in their order, and of their nodes.

    It is the same for networks that differ only in the topology's ranks and in the numbers of resources and nodes.

    Args:
        net: The network.
        nodes: Node of each local rank, shape (nranks,); only which ranks share a node counts.
    """
    order, carriers = resource_order(net), net.carriers
    used = index_among(net.nresources, order)[carriers.uses_idx]
    user = row_of_entry(carriers.uses_ptr)
    by_number = np.lexsort((used, user))
    digest = hashlib.sha256(str(net.nranks).encode())
    columns = [
        net.src, net.dst, carriers.alpha_us, carriers.bandwidth_gbs, net.gap_us, np.array([net.start_us]),
        user[by_number], used[by_number], net.capacity_gbs[order], _by_first(nodes),
    ]  # fmt: skip
    if (h := net.hyperlinks) is not None:
        columns += [h.multicast, h.paced, h.hub, _by_first(h.group), h.ptr, h.src, h.dst, h.takes_gbs]
    if (g := net.switch_graph) is not None:
        columns += [g.src, g.dst, g.alpha_us, g.uses_ptr, index_among(net.nresources, order)[g.uses_idx]]
    for column in columns:
        digest.update(str(column.shape).encode() + np.ascontiguousarray(column).tobytes())
    return digest.digest()


def _by_first(numbers: Ints) -> Ints:
    """Return for each number the place at which the same number first occurs; int, shape (n,)."""
    unique = np.unique(numbers, return_index=True, return_inverse=True)
    return unique[1][unique[2].reshape(-1)]


def resource_order(net: Network) -> Ints:
    """Return the resources in an order that depends only on the links that use them and on their capacities.

    In networks that differ only in the numbers of resources, the same resource is at each place. Shape (nresources,).
    """
    carriers = net.carriers
    user = row_of_entry(carriers.uses_ptr)
    weights = np.random.default_rng(1).integers(1 << 62, size=net.ncarriers, dtype=np.int64)
    users, first = np.zeros(net.nresources, dtype=np.int64), np.full(net.nresources, net.ncarriers)
    np.add.at(users, carriers.uses_idx, weights[user])
    np.minimum.at(first, carriers.uses_idx, user)
    return np.lexsort((net.capacity_gbs, users, first))


def canonical_order(net: Network, nodes: Ints, first: int | None = None) -> Ints:
    """Return the local ranks in an order that depends on the network only, as far as refinement distinguishes them.

    Two networks that differ only in the order of their ranks are mostly equal once each is in this order. Where they
    are not, one problem is treated as two. The ranks' own order (with `first` moved to the front) is returned where it
    is as good, where the network has hyperlinks, and where the search would take too long.

    Args:
        net: The network.
        nodes: Node of each local rank, shape (nranks,).
        first: A local rank (a root) that comes first; None without one.

    Returns:
        A permutation: the local rank at each place, shape (nranks,).
    """
    ranks = np.arange(net.nranks)
    own = ranks if first is None else np.concatenate([[first], ranks[ranks != first]])
    structure = Structure(net)
    work = structure.size * net.nranks
    if work > _MOST_WORK or net.hyperlinks is not None:
        return own
    node_size = np.bincount(nodes)[nodes].astype(np.uint64)  # number of ranks of each rank's node
    root = structure.refine(node_size if first is None else mark(node_size, first))
    starts = _smallest_cell(root)[: max(1, min(_MOST_STARTS, int(_MOST_WORK / work)))]
    orders = [own, *(_completed(structure, root, start) for start in starts)]
    if first is not None:
        orders = [np.concatenate([[first], order[order != first]]) for order in orders]
    forms = [network_form(*reordered(net, nodes, order)) for order in orders]
    return orders[forms.index(min(forms[1:]))]  # The first such order is the ranks' own where that is as good.


def _smallest_cell(colours: Colours) -> list[int]:
    """Return the ranks, ascending, of the smallest colour that more than one rank has; [0] where all colours differ.

    Of colours of equally few ranks the lowest counts.
    """
    values, cell, sizes = np.unique(colours.ranks, return_inverse=True, return_counts=True)
    if len(values) == len(colours.ranks):
        return [0]
    least = np.argmin(np.where(sizes > 1, sizes, len(cell) + 1))
    return np.flatnonzero(cell.reshape(-1) == least).tolist()


def _completed(structure: Structure, colours: Colours, start: int) -> Ints:
    """Return the ranks in the order of their colours, after marking ranks, `start` first, until all colours differ.

    After each mark the colours are refined; the next rank is the first of the smallest colour that ranks share.
    """
    while len(np.unique(colours.ranks)) < len(colours.ranks):
        colours = structure.refine(mark(colours.ranks, start), colours.links, colours.resources)
        start = _smallest_cell(colours)[0]
    return np.argsort(colours.ranks, kind="stable")


def reordered(net: Network, nodes: Ints, order: Ints) -> tuple[Network, Ints]:
    """Return the network with local rank order[i] at place i, and the node of each place, shape (nranks,).

    Links are in the order of `links_in_order`. Resources keep their numbers, and hyperlinks stay as they are.

    Args:
        net: The network.
        nodes: Node of each local rank, shape (nranks,).
        order: A permutation of the local ranks, shape (nranks,).
    """
    place, links = index_among(net.nranks, order), links_in_order(net, order)
    return replace(
        net,
        ranks=net.ranks[order],
        src=place[net.src[links]],
        dst=place[net.dst[links]],
        alpha_us=net.alpha_us[links],
        bandwidth_gbs=net.bandwidth_gbs[links],
        uses_ptr=pointers(np.diff(net.uses_ptr)[links]),
        uses_idx=net.uses_idx[row_entries(net.uses_ptr, links)],
        gap_us=net.gap_us[links] if len(net.gap_us) else net.gap_us,
    ), nodes[order]


def links_in_order(net: Network, order: Ints) -> Ints:
    """Return the links' numbers, shape (nlinks,), in their order with local rank order[i] at place i.

    They are sorted by the places of source and then destination; parallel links keep their order.
    """
    place = index_among(net.nranks, order)
    return np.lexsort((place[net.dst], place[net.src]))
