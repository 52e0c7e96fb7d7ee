"""Networks by what they are, not by how their parts are numbered: which groups of ranks have the same problem.

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

_MOST_WORK = 3e7  # ranks that are told apart, times what a round of refinement touches: some seconds
_TRIED = 24  # ranks that nothing tells apart, each of which could be the first


def network_form(net: Network, nodes: Ints) -> bytes:
    """A digest of the network between local ranks in their order, and of which of them share a node.

    The same for networks that differ only in the topology's ranks and in the numbers of resources and nodes.
    """
    order, each = resource_order(net), net.carriers
    used = index_among(net.nresources, order)[each.uses_idx]
    user = row_of_entry(each.uses_ptr)
    by_number = np.lexsort((used, user))
    digest = hashlib.sha256(str(net.nranks).encode())
    columns = [
        net.src, net.dst, each.alpha_us, each.bandwidth_gbs, net.gap_us, np.array([net.start_us]),
        user[by_number], used[by_number], net.capacity_gbs[order], _by_first(nodes),
    ]  # fmt: skip
    if (h := net.hyperlinks) is not None:
        columns += [h.multicast, h.paced, h.one, _by_first(h.group), h.ptr, h.src, h.dst, h.takes_gbs]
    for column in columns:
        digest.update(str(column.shape).encode() + np.ascontiguousarray(column).tobytes())
    return digest.digest()


def _by_first(numbers: Ints) -> Ints:
    """The place of the first that has the same number, of each."""
    seen = np.unique(numbers, return_index=True, return_inverse=True)
    return seen[1][seen[2].reshape(-1)]


def resource_order(net: Network) -> Ints:
    """The resources in an order that follows from the links that use them, and from their capacities, alone."""
    each = net.carriers
    user = row_of_entry(each.uses_ptr)
    weights = np.random.default_rng(1).integers(1 << 62, size=net.ncarriers, dtype=np.int64)
    users, first = np.zeros(net.nresources, dtype=np.int64), np.full(net.nresources, net.ncarriers)
    np.add.at(users, each.uses_idx, weights[user])
    np.minimum.at(first, each.uses_idx, user)
    return np.lexsort((net.capacity_gbs, users, first))


def canonical_order(net: Network, nodes: Ints, first: int | None = None) -> Ints:
    """Local ranks in an order that follows from the network alone, as far as refinement tells them apart.

    Networks that differ in the order of their ranks only are mostly the same, each in this order; where they are not,
    one problem is taken for two. It is the ranks' own order where that is as good.

    Args:
        nodes: of each local rank.
        first: a local rank (a root) that comes first.
    """
    ranks = np.arange(net.nranks)
    own = ranks if first is None else np.concatenate([[first], ranks[ranks != first]])
    structure = Structure(net)
    work = structure.size * net.nranks
    if work > _MOST_WORK or net.hyperlinks is not None:
        return own
    beside = np.bincount(nodes)[nodes].astype(np.uint64)  # ranks of its node
    root = structure.refine(beside if first is None else mark(beside, first))
    starts = _smallest_cell(root)[: max(1, min(_TRIED, int(_MOST_WORK / work)))]
    orders = [own, *(_completed(structure, root, start) for start in starts)]
    if first is not None:
        orders = [np.concatenate([[first], order[order != first]]) for order in orders]
    forms = [network_form(*reordered(net, nodes, order)) for order in orders]
    return orders[forms.index(min(forms[1:]))]  # the first one: its own, where that is the same


def _smallest_cell(colours: Colours) -> list[int]:
    """The ranks that share their colour with the fewest others, but with some; the first rank where all differ."""
    values, cell, sizes = np.unique(colours.ranks, return_inverse=True, return_counts=True)
    if len(values) == len(colours.ranks):
        return [0]
    least = np.argmin(np.where(sizes > 1, sizes, len(cell) + 1))
    return np.flatnonzero(cell.reshape(-1) == least).tolist()


def _completed(structure: Structure, colours: Colours, start: int) -> Ints:
    """The ranks in the order of their colours, once ranks were marked, `start` first, until all colours differ."""
    while len(np.unique(colours.ranks)) < len(colours.ranks):
        colours = structure.refine(mark(colours.ranks, start), colours.links, colours.resources)
        start = _smallest_cell(colours)[0]
    return np.argsort(colours.ranks, kind="stable")


def reordered(net: Network, nodes: Ints, order: Ints) -> tuple[Network, Ints]:
    """The network with local rank order[i] in place i, and the nodes of its ranks; resources keep their numbers."""
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
    """The links as they stand with local rank order[i] in place i: by source and destination there."""
    place = index_among(net.nranks, order)
    return np.lexsort((place[net.dst], place[net.src]))
