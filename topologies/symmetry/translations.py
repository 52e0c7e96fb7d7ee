"""Translations: symmetries of a network that add to digits of the ranks' numbers, found without search or hints.

A translation (stride s, extent e) adds one to the digit (r // s) % e of every rank r, modulo e and without carry; s·e
divides the number of ranks. Translations of different digits commute, and no product of them but the identity leaves a
rank in its place. Translations along their dimensions keep rings, tori, full meshes and circulants; translations of
single bits keep hypercubes; a translation of the node's number keeps clusters of equal nodes. This holds for every
description of such a network.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice

import numpy as np

from topologies.arrays import Ints, pointers, positions, row_entries, segment_sums
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.refinement import LinkSets
from topologies.symmetry.tuning import TUNING

Translations = tuple[tuple[int, int], ...]  # (stride, extent) of each translation

_ROUND_OFF = 1e-9  # Relative error of sums of bandwidths.


@dataclass(frozen=True, eq=False)
class Orbits:
    """The classes of links and resources that a group of translations maps onto each other.

    Attributes:
        link_class: Class of each link: int64 (nlinks,).
        link_first: Link of each class that leaves a representative rank: int64 (classes,).
        resource_class: Class of each resource: int64 (nresources,). Resources of one class have equal capacity and are
            used by the same classes of links equally often. These are resources that translations map onto each other,
            and others that every symmetric schedule loads equally.
        resource_first: First resource of each class: int64 (resource classes,).
        times: Number of links of a class that use one resource, which is also the number of translates of a send that
            use it at once: int64 (resource classes,).
        uses: Rows (link class, resource class), sorted, for every class of links that uses a class of resources: int64
            (m, 2).
    """

    link_class: Ints
    link_first: Ints
    resource_class: Ints
    resource_first: Ints
    times: Ints
    uses: Ints


def translate(translations: Translations, ranks: Ints, counts: Sequence[int | Ints]) -> Ints:
    """Return the images of ranks under translations.

    Args:
        translations: The translations.
        ranks: The ranks.
        counts: Number of times that each translation is applied, any sign: a number, or one per rank.
    """
    moved = np.asarray(ranks, dtype=np.int64)
    for (stride, extent), count in zip(translations, counts, strict=True):
        digit = moved // stride % extent
        moved = moved + ((digit + count) % extent - digit) * stride
    return moved


def digits(translations: Translations, ranks: Ints) -> list[Ints]:
    """Return the digit of every rank to which each translation adds: an int64 array (ranks,) per translation."""
    ranks = np.asarray(ranks, dtype=np.int64)
    return [ranks // stride % extent for stride, extent in translations]


def element_of_rank(translations: Translations, ranks: Ints) -> Ints:
    """Return for each rank the number of the product of translations that maps its orbit's representative to the rank.

    The number is written in the rank's digits (see `digits`), of which the first translation's counts fastest.
    """
    number, weight = np.zeros(np.shape(ranks), dtype=np.int64), 1
    for digit, (_, extent) in zip(digits(translations, ranks), translations, strict=True):
        number += digit * weight
        weight *= extent
    return number


def representatives(translations: Translations, nranks: int) -> Ints:
    """Return one rank of every orbit, ascending: those whose digits of all translations are 0."""
    return np.flatnonzero(element_of_rank(translations, np.arange(nranks)) == 0)


def least_powers(translations: Translations, is_kept: Callable[[tuple[int, int]], bool]) -> Translations:
    """Return each translation replaced by its least power for which `is_kept` is true, or left out if there is none."""
    least: list[tuple[int, int]] = []
    for stride, extent in translations:
        powers = ((stride * power, extent // power) for power in range(1, extent) if extent % power == 0)
        least += islice(filter(is_kept, powers), 1)
    return tuple(least)


def translate_links(net: Network, translations: Translations, links: Ints, counts: Sequence[int | Ints]) -> Ints:
    """Return the images of links under translations of the network (see `translate`): int64 (links,).

    Args:
        net: The network.
        translations: The translations.
        links: The links to map.
        counts: As in `translate`; arrays hold one number for each of `links`.

    Raises:
        InputError: The translations map a link to no link.
    """
    pairs = _pairs(net)
    src, dst = (translate(translations, ends[links], counts) for ends in (net.src, net.dst))
    moved = pairs.links_at(src, dst, np.asarray(pairs.place[links]))
    if (moved < 0).any():
        raise InputError(f"the translations {translations} do not keep the network's links")
    return moved


def orbits(net: Network, translations: Translations) -> Orbits:
    """Return the classes of links and resources under translations of the network.

    Raises:
        InputError: The translations map a link to no link, or the translates of one send crowd a resource: a class of
            links uses it more often than another class, or with more than its capacity in sum.
    """
    classes = _orbits(_pairs(net), translations)
    if classes is None:
        raise InputError(f"the translations {translations} do not keep the network, or crowd one of its resources")
    return classes


@lru_cache(maxsize=4)
def quotient_network(net: Network, translations: Translations) -> Network:
    """Return the network, without hyperlinks, with one resource for every class of resources in `orbits`.

    The resource has the capacity of one of its class, divided by the number of translates of a send that use it at
    once. Copies of two sends cannot meet on a link either: a link is as narrow as some resource that it uses (see
    `Network`), so two sends over links of its class have no room on that resource's class. The results of the last four
    calls are kept.

    Raises:
        InputError: The translations do not keep the network, as in `orbits`.
    """
    classes = orbits(net, translations)
    cls, resource = classes.uses[:, 0], classes.uses[:, 1]  # They are sorted by class, then resource.
    starts = np.searchsorted(cls, np.arange(len(classes.link_first) + 1))
    used = row_entries(starts, classes.link_class)
    names = [net.resource_names[i] for i in classes.resource_first.tolist()]
    graph = None if net.switch_graph is None else net.switch_graph.renumbered(classes.resource_class)
    return replace(
        net,
        uses_ptr=pointers(np.diff(starts)[classes.link_class]),
        uses_idx=resource[used],
        capacity_gbs=net.capacity_gbs[classes.resource_first] / classes.times,
        resource_names=tuple(f"{name} and its translates" for name in names),
        hyperlinks=None,
        switch_graph=graph,
    )


def are_kept(net: Network, translations: Translations) -> bool:
    """Return True if translations keep a network as those of `find_translations` do: exactly, crowding no resource."""
    pairs = _pairs(net)
    return all(_keeps(pairs, edge) for edge in translations) and _orbits(pairs, translations) is not None


def find_translations(net: Network, look: Callable[[], None] = lambda: None) -> Translations:
    """Find translations that keep the network and generate the largest group; return none where no translation holds.

    Strides ascend, and each stride · extent divides the next stride. Each translation maps links onto links of equal α
    and bandwidth, and the links of every resource onto those of one of equal capacity (an exact check). No resource is
    over capacity when all translates of one send use it at once (see `orbits`). Of groups of equal order the one with
    the fewest translations is returned.

    Before the exact check, a sample of the links refuses most groups that crowd a resource, such as those of all nodes
    below an oversubscribed spine, and single translations, such as one of unlike rails. The search ends without a
    result after `TUNING.sampled_groups` groups that the sample refuses, or `TUNING.crowded_groups` that only the exact
    check refuses.

    Args:
        net: The network.
        look: Called before each exact check; what it raises ends the search and is raised.

    Returns:
        (stride, extent) of each translation; () where there is none, as without links.
    """
    if net.nlinks == 0:
        return ()
    candidates = _Candidates(_pairs(net))
    refused: set[Translations] = set()
    sampled_groups = 0
    while True:
        for chain in chains(net.nranks, candidates.open):
            if not chain:
                return ()
            if chain in refused:
                continue
            if candidates.refuses_sample(chain):
                look()
                if candidates.drops_one(chain):
                    break  # As below.
                refused.add(chain)
                sampled_groups += 1
                if sampled_groups == TUNING.sampled_groups:
                    return ()
                continue
            look()
            if all(candidates.keeps(edge) for edge in chain) and _orbits(candidates.pairs, chain) is not None:
                return chain
            if not all(candidates.holds(edge, look) for edge in chain):
                break  # Without this translation the order of the chains changes.
            refused.add(chain)
            if len(refused) - sampled_groups == TUNING.crowded_groups:
                return ()


def chains(nranks: int, edges: Sequence[tuple[int, int]]) -> Iterator[Translations]:
    """Yield all chains of single translations `edges`: the largest group first, then the fewest, then by strides.

    In a chain each stride · extent divides the next stride. The empty chain is last.
    """
    # The search is best first over the divisors of nranks, with the largest product still to come as exact bound.
    divisors = [d for d in range(1, nranks + 1) if nranks % d == 0]
    largest_below = dict.fromkeys(divisors, 1)
    for d in reversed(divisors):
        largest_below[d] = max((e * largest_below[s * e] for s, e in edges if s % d == 0), default=1)
    heap: list[tuple[int, int, Translations, int, bool]] = [(-largest_below[1], 0, (), 1, False)]
    while heap:
        bound, length, chain, stride, is_complete = heapq.heappop(heap)
        if is_complete:
            yield chain
            continue
        product = -bound // largest_below[stride]
        heapq.heappush(heap, (-product, length, chain, stride, True))
        for s, e in edges:
            if s % stride == 0:
                bound = -product * e * largest_below[s * e]
                heapq.heappush(heap, (bound, length + 1, (*chain, (s, e)), s * e, False))


def single_translations(nranks: int) -> list[tuple[int, int]]:
    """Return every (stride, extent) that a translation of this many ranks can have."""
    divisors = [d for d in range(1, nranks + 1) if nranks % d == 0]
    return [(s, t // s) for s in divisors for t in divisors if t > s and t % s == 0]


def sampled(edge: tuple[int, int], nranks: int) -> list[tuple[int, int]]:
    """Return (rank, image under a translation) of a few ranks, one of which has the last digit."""
    stride, extent = edge
    ranks = np.array([0, stride * (extent - 1), nranks - 1, nranks * 5 // 8])
    return list(zip(ranks.tolist(), translate((edge,), ranks, (1,)).tolist(), strict=True))


class _TranslatedPairs:
    """The links by their pair of ranks.

    Several links of one pair are sorted by α, bandwidth, number of resources, then their order.

    Attributes:
        net: The network.
        sets: The sets of links that use each resource.
        order: Links in the order of this table.
        first: Place in `order` of the first link of each pair.
        keys: Key of each pair.
        count: Number of links of each pair.
        place: Place of each link among those of its pair.
    """

    def __init__(self, net: Network) -> None:
        self.net, self.sets = net, LinkSets(net)
        key = net.src * net.nranks + net.dst
        order = np.arange(net.nlinks)
        if (np.diff(key) <= 0).any():
            order = np.lexsort((np.diff(net.uses_ptr), *reversed(net.figures), key))
        self.order = order
        self.first = np.flatnonzero(np.diff(key[order], prepend=-1))
        self.keys = key[order][self.first]
        self.count = np.diff(np.append(self.first, net.nlinks))
        self.place = np.empty(net.nlinks, dtype=np.int64)
        self.place[order] = positions(self.count)

    def links_at(self, src: Ints, dst: Ints, place: Ints) -> Ints:
        """Return the link of each pair (src, dst) at a place among the pair's links, -1 where there is none."""
        key = src * self.net.nranks + dst
        i = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        exists = (self.keys[i] == key) & (place < self.count[i])
        return np.where(exists, self.order[np.where(exists, self.first[i] + place, 0)], -1)


_pairs = lru_cache(maxsize=4)(_TranslatedPairs)


class _Candidates:
    """The single translations that may keep the network: those that pass a quick look at the ranks.

    Attributes:
        pairs: The links by pair of ranks.
        dst: Destination of each link in the order of `pairs`.
        ptr: First link of each rank in the order of `pairs`.
        figures: Sums of the bandwidths out of and into each rank and of the latencies out of it, shape (3, ranks).
        salt: Random number of each rank.
        sums: Sum of the random numbers of each rank's neighbours.
        samples: Links whose translates are looked at before the exact checks, a few before more.
        open: Translations (stride, extent) that nothing has refused.
        checked: Translations that passed the full check.
        sampled: Translations at whose images of a few links `drops_one` has looked.
        kept: Whether each translation that `keeps` has checked keeps the network.
    """

    def __init__(self, pairs: _TranslatedPairs) -> None:
        self.pairs, net = pairs, pairs.net
        n = net.nranks
        self.dst = net.dst[pairs.order]
        self.ptr = np.searchsorted(net.src[pairs.order], np.arange(n + 1))
        ends = ((net.src, net.bandwidth_gbs), (net.dst, net.bandwidth_gbs), (net.src, net.alpha_us))
        self.figures = np.stack([np.bincount(at, figures, minlength=n) for at, figures in ends])
        self.salt = np.random.default_rng(1).integers(1 << 63, size=n, dtype=np.uint64)
        self.sums = segment_sums(self.salt[self.dst], self.ptr)
        self.samples = _sampled_links(pairs)
        self.open = [edge for edge in single_translations(n) if self._looks_right(edge)]
        self.checked: set[tuple[int, int]] = set()
        self.sampled: set[tuple[int, int]] = set()
        self.kept: dict[tuple[int, int], bool] = {}

    def _looks_right(self, edge: tuple[int, int]) -> bool:
        """Return whether a translation keeps the neighbours of a few ranks, and the figures of the links of all ranks.

        One of these few ranks has the last digit.
        """
        images = translate((edge,), np.arange(self.pairs.net.nranks), (1,))
        if not np.allclose(self.figures[:, images], self.figures, rtol=_ROUND_OFF, atol=0.0):
            return False
        for rank, image in sampled(edge, self.pairs.net.nranks):
            moved_neighbours = translate((edge,), self.dst[self.ptr[rank] : self.ptr[rank + 1]], (1,))
            if self.salt[moved_neighbours].sum(dtype=np.uint64) != self.sums[image]:
                return False
        return True

    def refuses_sample(self, chain: Translations) -> bool:
        """Return whether the translates of a few links show that translations do not keep the network or crowd it.

        What this refuses, `_orbits` refuses, too.
        """
        return any(self._refuses(sample, chain) for sample in self.samples)

    def _refuses(self, sample: Ints, chain: Translations) -> bool:
        """Return whether the translates of some links show that translations do not keep or crowd the network."""
        pairs, net = self.pairs, self.pairs.net
        extents = [extent for _, extent in chain]
        order = math.prod(extents)
        counts = [np.tile(count, len(sample)) for count in np.unravel_index(np.arange(order), extents)]
        links = np.repeat(sample, order)
        src, dst = (translate(chain, ends[links], counts) for ends in (net.src, net.dst))
        moved = pairs.links_at(src, dst, pairs.place[links])
        if (moved < 0).any():
            return True
        row = np.repeat(np.repeat(np.arange(len(sample)), order), net.uses_ptr[moved + 1] - net.uses_ptr[moved])
        resource = net.uses_idx[row_entries(net.uses_ptr, moved)]
        cell, times = np.unique(resource * len(sample) + row, return_counts=True)
        resource, row = cell // len(sample), cell % len(sample)
        if ((np.diff(resource) == 0) & (np.diff(times) != 0)).any():
            return True
        most = net.capacity_gbs[resource] * (1 + _ROUND_OFF)
        return bool((times * net.bandwidth_gbs[sample[row]] > most).any())

    def drops_one(self, chain: Translations) -> bool:
        """Return whether the same look refuses a translation of a group by itself, and remove all such from `open`."""
        unseen = [edge for edge in chain if edge not in self.sampled]
        self.sampled.update(unseen)
        refused = [edge for edge in unseen if self.refuses_sample((edge,))]
        for edge in refused:
            self.open.remove(edge)
        return bool(refused)

    def keeps(self, edge: tuple[int, int]) -> bool:
        """Return whether a translation keeps the network, whatever it crowds; the result is kept."""
        if edge not in self.kept:
            self.kept[edge] = _keeps(self.pairs, edge)
        return self.kept[edge]

    def holds(self, edge: tuple[int, int], look: Callable[[], None]) -> bool:
        """Return whether a translation keeps the network and crowds no resource by itself.

        A translation that does not is removed from `open`.
        """
        if edge not in self.checked:
            look()
            if self.refuses_sample((edge,)) or not self.keeps(edge) or _orbits(self.pairs, (edge,)) is None:
                self.open.remove(edge)
                return False
            self.checked.add(edge)
        return True


def _sampled_links(pairs: _TranslatedPairs) -> tuple[Ints, Ints, Ints]:
    """Return a few links, then more with these, then still more with these: each ascending, int64.

    The first is a user of the resource whose users together exceed it most; then come users of the resources that are
    exceeded most, then links in even distances.
    """
    net, sets = pairs.net, pairs.sets
    even = np.linspace(0, net.nlinks - 1, min(net.nlinks, TUNING.sampled_links)).astype(np.int64)
    demand = np.bincount(net.uses_idx, weights=net.bandwidth_gbs[sets.user], minlength=net.nresources)
    worst = np.argsort(-demand / net.capacity_gbs, kind="stable")[: TUNING.sampled_links // 4]
    ends = [sets.users[place] for resource in worst for place in (sets.ptr[resource], sets.ptr[resource + 1] - 1)]
    users = np.unique(np.array(ends, dtype=np.int64))
    return np.array(ends[:1], dtype=np.int64), users, np.union1d(users, even)


def _keeps(pairs: _TranslatedPairs, edge: tuple[int, int]) -> bool:
    """Return whether a translation (stride, extent) maps links and resources onto equal ones."""
    net = pairs.net
    p = translate((edge,), np.arange(net.nranks), (1,))
    links = pairs.links_at(p[net.src], p[net.dst], pairs.place)
    return not (links < 0).any() and pairs.sets.are_kept_by(links)


@lru_cache(maxsize=2)
def _orbits(pairs: _TranslatedPairs, translations: Translations) -> Orbits | None:
    """Return the classes of links and resources, or None where the translations keep no links or crowd a resource.

    The results of the last two calls are kept.
    """
    net = pairs.net
    back = [-digit for digit in digits(translations, net.src)]
    first = pairs.links_at(translate(translations, net.src, back), translate(translations, net.dst, back), pairs.place)
    own = first == np.arange(net.nlinks)
    if (first < 0).any() or not own[first].all():
        return None
    link_class, link_first = (np.cumsum(own) - 1)[first], np.flatnonzero(own)
    classes = len(link_first)

    cell, count = np.unique(net.uses_idx * classes + link_class[pairs.sets.user], return_counts=True)
    resource, used_by = cell // classes, cell % classes
    ptr = np.searchsorted(resource, np.arange(net.nresources + 1))
    times = np.ones(net.nresources, dtype=np.int64)
    times[resource] = count
    if (times[resource] != count).any():
        return None
    most = net.capacity_gbs[resource] * (1 + _ROUND_OFF)
    if (count * net.bandwidth_gbs[link_first[used_by]] > most).any():
        return None

    sums = segment_sums(pairs.sets.salt[used_by], ptr)
    order = np.lexsort((sums, times, net.capacity_gbs))
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.diff(sums[order]) != 0
    new[1:] |= (np.diff(times[order]) != 0) | (np.diff(net.capacity_gbs[order]) != 0)
    lead = np.empty(len(order), dtype=np.int64)
    lead[order] = order[new][np.cumsum(new) - 1]  # The sort is stable, so this is the first of each class.
    is_lead = lead == np.arange(len(order))
    # Equal sums do not prove equal sets.
    same = ptr[lead[resource]] + np.arange(len(resource)) - ptr[resource]
    if (np.diff(ptr) != np.diff(ptr)[lead]).any() or (used_by != used_by[same]).any():
        return None
    resource_class = (np.cumsum(is_lead) - 1)[lead]
    rows = is_lead[resource]
    uses = np.column_stack([used_by[rows], resource_class[resource[rows]]])
    return Orbits(
        link_class=link_class,
        link_first=link_first,
        resource_class=resource_class,
        resource_first=np.flatnonzero(is_lead),
        times=times[is_lead],
        uses=uses[np.lexsort((uses[:, 1], uses[:, 0]))],
    )
