"""Searches for arrivals and departures: where much data must arrive or leave, or come from afar or go there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from synth.bounds.cuts.cut_candidates import node_sets, worst
from synth.bounds.resource_cover import cover, gbs_by_end
from synth.bounds.search import BoundSearch, with_gbs
from synth.bounds.witness import whole_network
from synth.bounds.witnesses.afar import Afar, FromAfar, ToAfar, distances_at
from synth.bounds.witnesses.contributions import MOST_RANKS, Contributions
from synth.bounds.witnesses.ends import Arrivals, Departures, Ends
from synth.model.collective import Bools, Floats, Ints
from synth.model.deadline import checking_deadline
from synth.model.requirements import sum_by
from topologies.arrays import flags_of

_E = TypeVar("_E", bound=Ends)
_A = TypeVar("_A", bound=Afar)
_FEW_MEMBERS = 16  # of a group, up to which all members are tried
_MOST_DISTANCES = 8  # of a rank, the largest

# Flags of ranks, and the one resource that all their links use, or None.
_Sets = list[tuple[Bools, int | None]]


def find_arrivals(search: BoundSearch) -> Iterator[Arrivals]:
    """Yield arrivals at all ranks that want anything, and at the worst sets that share a resource or a node.

    For a quotient problem only arrivals at all ranks are yielded. There are none where no data must arrive, and none
    for sets without links.

    Raises:
        TimeUp: The time of the work around is over.
    """
    return _find(search, Arrivals, search.traffic.comes, search.problem.network.dst)


def find_departures(search: BoundSearch) -> Iterator[Departures]:
    """Yield departures from all ranks that must send anything, and from the worst sets on a resource or a node.

    For a quotient problem only departures from all ranks are yielded. There are none where no data must leave, and none
    for sets without links.

    Raises:
        TimeUp: The time of the work around is over.
    """
    return _find(search, Departures, search.traffic.leaves, search.problem.network.src)


def find_from_afar(search: BoundSearch) -> Iterator[FromAfar]:
    """Yield witnesses at `search.size_bytes` for data that come to the first rank of the group, its last, and the root.

    Each rank has one for each of the largest distances of other ranks. In a quotient problem the first stands for all.
    """
    return _find_afar(search, FromAfar)


def find_to_afar(search: BoundSearch) -> Iterator[ToAfar]:
    """Yield witnesses as `find_from_afar` does, for data that leave these ranks."""
    return _find_afar(search, ToAfar)


def _find_afar(search: BoundSearch, witness_class: type[_A]) -> Iterator[_A]:
    """Yield the witnesses of one class, without numbers."""
    problem, net, arrivals = search.problem, whole_network(search.problem), witness_class.arrivals
    last = 0 if problem.quotient is not None else problem.collective.nranks - 1
    for rank in sorted({0, problem.collective.root, last}):
        links = np.flatnonzero((net.dst if arrivals else net.src) == rank)
        if not len(links):
            continue
        resources = cover(net, links)
        away_us = distances_at(net, rank, arrivals)[: problem.collective.nranks]
        distances = np.unique(np.round(away_us[np.isfinite(away_us) & (away_us > 0)], 9))
        for since_us in distances[-_MOST_DISTANCES:].tolist():
            text = f"data {'to' if arrivals else 'from'} {search.name_ranks([rank])} over {since_us:.4g} µs or more"
            yield witness_class(
                ranks=(rank,),
                times=(since_us,),
                at_bytes=search.size_bytes,
                resources=tuple(resources.tolist()),
                text=with_gbs(text, net, resources),
            )


def find_contributions(search: BoundSearch) -> Iterator[Contributions]:
    """Yield witnesses at `search.size_bytes` for members that want sums, in sets of the ranks that are nearest to them.

    All members of a small group are tried, of a large one the first, the last and the root.
    """
    problem, net = search.problem, search.problem.network
    members = list(range(problem.collective.nranks))
    if net.hyperlinks is not None or net.nranks > MOST_RANKS or not problem.collective.reducing:
        return
    if len(members) > _FEW_MEMBERS:
        members = sorted({0, problem.collective.root, len(members) - 1})
    for rank in checking_deadline(members):
        away_us = distances_at(net, rank, arrivals=True)
        for distance_us in np.unique(np.round(away_us[np.isfinite(away_us)], 9))[:_MOST_DISTANCES].tolist():
            inside = away_us <= distance_us * (1 + 1e-9) + 1e-9
            links = np.flatnonzero(inside[net.dst] & ~inside[net.src])
            if not len(links):
                break
            resources, ranks = cover(net, links), np.flatnonzero(inside)
            text = f"contributions to the sums of {search.name_ranks([rank])} that enter {search.name_ranks(ranks)}"
            yield Contributions(
                ranks=(rank,),
                parts=(tuple(ranks.tolist()),),
                at_bytes=search.size_bytes,
                resources=tuple(resources.tolist()),
                text=with_gbs(text, net, resources),
            )


def _find(search: BoundSearch, witness_class: type[_E], amount: Floats, end: Ints) -> Iterator[_E]:
    """Yield the witnesses of one class, without numbers.

    Args:
        search: The search.
        witness_class: Arrivals or Departures.
        amount: Share of the message that must arrive at, or leave, each rank of the group, shape (k,).
        end: The rank at which each link arrives, or from which it leaves, shape (nlinks,).
    """
    problem, net = search.problem, search.problem.network
    needy = np.zeros(net.nranks)
    needy[: len(amount)] = amount
    if not (needy > 0).any():
        return
    sets: _Sets = [(np.ones(net.nranks, dtype=bool), None)]
    if problem.quotient is None:
        sets = [(needy > 0, None), *_sharing_a_resource(search, needy, end), *_sharing_a_node(search, needy, end)]
    for flags, resource in checking_deadline(sets):
        links = np.flatnonzero(flags[end])
        if not len(links):
            continue
        resources = cover(net, links) if resource is None else np.array([resource])
        ranks = np.flatnonzero(flags)
        yield witness_class(
            ranks=tuple(ranks.tolist()),
            resources=tuple(resources.tolist()),
            text=with_gbs(f"{witness_class.kind} at {search.name_ranks(ranks)}", net, resources),
        )


def _sharing_a_resource(search: BoundSearch, needy: Floats, end: Ints) -> _Sets:
    """Return the sets of two or more ranks whose links all use one resource, with the resource.

    Only the `few` sets of the tuning that move most bytes per GB/s of it are returned, the worst first, and in them
    only ranks that move any.

    Args:
        search: The search.
        needy: Share of the message that each local rank must move, shape (nranks,).
        end: The rank that counts of each link, shape (nlinks,).

    Returns:
        (flags of the ranks, shape (nranks,), and the resource) of each set.
    """
    net = search.problem.network
    key, count = np.unique(end[net.link_of_use] * net.nresources + net.uses_idx, return_counts=True)
    # True where all links with this end at the rank use the resource.
    all_links_use = count == np.bincount(end, minlength=net.nranks)[key // net.nresources]
    rank, resource = np.divmod(key[all_links_use], net.nresources)
    amount = sum_by(resource, needy[rank], net.nresources)
    amount[np.bincount(resource, minlength=net.nresources) < 2] = 0.0
    best = worst(amount, net.capacity_gbs, search.tuning.few)
    return [(flags_of(net.nranks, rank[resource == r]) & (needy > 0), r) for r in best]


def _sharing_a_node(search: BoundSearch, needy: Floats, end: Ints) -> _Sets:
    """Return the ranks that must move anything of the nodes whose ranks move most bytes per GB/s.

    Only the `few` nodes of the tuning are returned, the worst first; none where there is only one node.

    Args:
        search: The search.
        needy: Share of the message that each local rank must move, shape (nranks,).
        end: The rank that counts of each link, shape (nlinks,).

    Returns:
        (flags of the ranks, shape (nranks,), and None in place of a resource) of each node.
    """
    nodes = node_sets(search.problem)
    if len(nodes) < 2:
        return []
    index = np.argmax(nodes, axis=0)
    gbs = gbs_by_end(search.problem.network, index[end], len(nodes))
    best = worst(sum_by(index, needy, len(nodes)), gbs, search.tuning.few)
    return [(nodes[i] & (needy > 0), None) for i in best]
