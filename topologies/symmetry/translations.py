"""Translations: symmetries of a network that add to digits of the ranks' numbers, found without search or hints.

A translation (stride s, extent e) adds one to the digit (r // s) % e of every rank r, modulo e and without carry;
s·e divides the number of ranks. Translations of different digits commute, and no product of them but the identity
leaves a rank in its place. Rings, tori, full meshes and circulants are kept by translations along their dimensions,
hypercubes by those of single bits, clusters of equal nodes by that of the node's number, whoever described them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from topologies.arrays import Ints, positions, segment_sums
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.refinement import LinkSets
from topologies.symmetry.tuning import TUNING

Translations = tuple[tuple[int, int], ...]  # (stride, extent) each

_ROUND_OFF = 1e-9  # relative: what sums of bandwidths may lose


@dataclass(frozen=True, eq=False)
class Orbits:
    """The classes of links and resources that a group of translations brings onto each other."""

    link_class: Ints  # (nlinks,): equal for links that the translations bring onto each other
    link_first: Ints  # (classes,): the link of each class that leaves a representative rank
    # (nresources,): equal for resources of equal capacity that the same classes of links use, and as often: those that
    # translations bring onto each other, and others that every symmetric schedule loads in the same way
    resource_class: Ints
    resource_first: Ints  # (resource classes,): the first resource of each class
    times: Ints  # (resource classes,): how many links of a class use one resource: so many translates of a send at once
    uses: Ints  # (m, 2): rows (link class, resource class), sorted: who uses what


def translate(translations: Translations, ranks: Ints, by: Sequence[int | Ints]) -> Ints:
    """Where `ranks` go when the i-th translation is done by[i] times (one number, or one a rank; any sign)."""
    moved = np.asarray(ranks, dtype=np.int64)
    for (stride, extent), times in zip(translations, by, strict=True):
        digit = moved // stride % extent
        moved = moved + ((digit + times) % extent - digit) * stride
    return moved


def digits(translations: Translations, ranks: Ints) -> list[Ints]:
    """The digit of every rank that each translation adds to."""
    ranks = np.asarray(ranks, dtype=np.int64)
    return [ranks // stride % extent for stride, extent in translations]


def elements(translations: Translations, ranks: Ints) -> Ints:
    """Which product of translations makes each rank of its representative; the first digit counts fastest."""
    number, weight = np.zeros(np.shape(ranks), dtype=np.int64), 1
    for digit, (_, extent) in zip(digits(translations, ranks), translations, strict=True):
        number += digit * weight
        weight *= extent
    return number


def representatives(translations: Translations, nranks: int) -> Ints:
    """One rank of every orbit, ascending: those with all of the translations' digits 0."""
    return np.flatnonzero(elements(translations, np.arange(nranks)) == 0)


def translate_links(net: Network, translations: Translations, links: Ints, by: Sequence[int]) -> Ints:
    """Where `links` go under translations of the network (see `translate`). Raises InputError where to no link."""
    pairs = _pairs(net)
    src, dst = (translate(translations, ends[links], by) for ends in (net.src, net.dst))
    moved = pairs.links_at(src, dst, np.asarray(pairs.place[links]))
    if (moved < 0).any():
        raise InputError(f"the translations {translations} do not keep the network's links")
    return moved


def orbits(net: Network, translations: Translations) -> Orbits:
    """The classes of links and resources under translations of the network.

    Raises InputError where these bring a link where there is none, or let translates of one send crowd a
    resource: a class of links uses it oftener than another, or together with more than its capacity.
    """
    found = _orbits(_pairs(net), translations)
    if found is None:
        raise InputError(f"the translations {translations} do not keep the network, or crowd one of its resources")
    return found


def find_translations(net: Network) -> Translations:
    """Translations that keep the network and together make the largest group that was found; empty where none holds.

    Strides ascend and each stride · extent divides the next stride. Each maps links onto links of equal α and bandwidth
    and the links of every resource onto those of one of equal capacity (checked in full), and no resource is over
    capacity when all translates of one send use it together (see `orbits`): after `Tuning.crowded_groups` that crowd
    one the search ends empty. Of groups of one order the one with the fewest translations is taken.
    """
    if net.nlinks == 0:
        return ()
    candidates = _Candidates(_pairs(net))
    refused: set[Translations] = set()
    while True:
        for chain in _chains(net.nranks, candidates.open):
            if not chain:
                return ()
            if chain in refused:
                continue
            if not all(candidates.holds(edge) for edge in chain):
                break  # one edge fewer: the order of the chains is another now
            if _orbits(candidates.pairs, chain) is not None:
                return chain
            refused.add(chain)
            if len(refused) == TUNING.crowded_groups:
                return ()


def _chains(nranks: int, edges: Sequence[tuple[int, int]]) -> Iterator[Translations]:
    """All chains of translations: the largest group first, then the fewest, then by strides; the empty one last."""
    # best first over the divisors of nranks, bounded exactly by the largest product still to come
    divisors = [d for d in range(1, nranks + 1) if nranks % d == 0]
    rest = dict.fromkeys(divisors, 1)
    for d in reversed(divisors):
        rest[d] = max((e * rest[s * e] for s, e in edges if s % d == 0), default=1)
    heap: list[tuple[int, int, Translations, int, bool]] = [(-rest[1], 0, (), 1, False)]
    while heap:
        bound, length, chain, at, done = heapq.heappop(heap)
        if done:
            yield chain
            continue
        product = -bound // rest[at]
        heapq.heappush(heap, (-product, length, chain, at, True))
        for s, e in edges:
            if s % at == 0:
                bound = -product * e * rest[s * e]
                heapq.heappush(heap, (bound, length + 1, (*chain, (s, e)), s * e, False))


class _Pairs:
    """Links by their pair of ranks; several of one pair by α, bandwidth, number of resources, then their order."""

    def __init__(self, net: Network) -> None:
        self.net, self.sets = net, LinkSets(net)
        key = net.src * net.nranks + net.dst
        order = np.arange(net.nlinks)
        if (np.diff(key) <= 0).any():
            order = np.lexsort((np.diff(net.uses_ptr), net.bandwidth_gbs, net.alpha_us, key))
        self.order = order
        self.first = np.flatnonzero(np.diff(key[order], prepend=-1))
        self.keys = key[order][self.first]
        self.count = np.diff(np.append(self.first, net.nlinks))
        self.place = np.empty(net.nlinks, dtype=np.int64)  # of each link among those of its pair
        self.place[order] = positions(self.count)

    def links_at(self, src: Ints, dst: Ints, place: Ints) -> Ints:
        """The links at these places among those of their pairs, -1 where there is none."""
        key = src * self.net.nranks + dst
        i = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        there = (self.keys[i] == key) & (place < self.count[i])
        return np.where(there, self.order[np.where(there, self.first[i] + place, 0)], -1)


_pairs = lru_cache(maxsize=4)(_Pairs)


class _Candidates:
    """Single translations: those that a look at a few ranks does not refuse, and the full check of one."""

    def __init__(self, pairs: _Pairs) -> None:
        self.pairs, net = pairs, pairs.net
        n = net.nranks
        self.dst = net.dst[pairs.order]
        self.ptr = np.searchsorted(net.src[pairs.order], np.arange(n + 1))
        self.salt = np.random.default_rng(1).integers(1 << 63, size=n, dtype=np.uint64)
        self.sums = segment_sums(self.salt[self.dst], self.ptr)
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        edges = [(s, t // s) for s in divisors for t in divisors if t > s and t % s == 0]
        self.open = [edge for edge in edges if self._looks_right(edge)]
        self.checked: set[tuple[int, int]] = set()

    def _looks_right(self, edge: tuple[int, int]) -> bool:
        """Whether the neighbours of a few ranks, and of one whose digit starts over, are kept."""
        stride, extent = edge
        n = self.pairs.net.nranks
        some = np.array([0, stride * (extent - 1), n - 1, n * 5 // 8])
        images = translate((edge,), some, (1,))
        for rank, to in zip(some.tolist(), images.tolist(), strict=True):
            near = translate((edge,), self.dst[self.ptr[rank] : self.ptr[rank + 1]], (1,))
            if self.salt[near].sum(dtype=np.uint64) != self.sums[to]:
                return False
        return True

    def holds(self, edge: tuple[int, int]) -> bool:
        """Whether this one keeps the network and crowds nothing alone; one that does not is open no longer."""
        if edge not in self.checked:
            if not self._keeps(edge) or _orbits(self.pairs, (edge,)) is None:
                self.open.remove(edge)
                return False
            self.checked.add(edge)
        return True

    def _keeps(self, edge: tuple[int, int]) -> bool:
        pairs, net = self.pairs, self.pairs.net
        p = translate((edge,), np.arange(net.nranks), (1,))
        links = pairs.links_at(p[net.src], p[net.dst], pairs.place)
        return not (links < 0).any() and pairs.sets.are_kept_by(links)


def _orbits(pairs: _Pairs, translations: Translations) -> Orbits | None:
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
    lead[order] = order[new][np.cumsum(new) - 1]  # the sort is stable: the first of each class
    is_lead = lead == np.arange(len(order))
    # equal sums are not yet equal sets
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
