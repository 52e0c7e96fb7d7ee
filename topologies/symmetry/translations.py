"""Shifts: symmetries of a network that add to digits of the ranks' numbers, found without search or hints.

A digit shift (stride s, extent e) adds one to the digit (r // s) % e of every rank r, modulo e and without carry;
s·e divides the number of ranks. Shifts of different digits commute, and no product of them but the identity leaves
a rank in its place. Rings, tori, full meshes and circulants are kept by shifts of their dimensions, hypercubes by
those of single bits, clusters of equal nodes by that of the node's number, whoever described them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import grouped, positions, segment_sums
from topologies.errors import InputError
from topologies.network import Network

__all__ = [
    "Orbits",
    "Shifts",
    "digits",
    "elements",
    "image",
    "link_image",
    "orbits",
    "representatives",
    "shifts",
]

Ints = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Shifts = tuple[tuple[int, int], ...]

_TRIES = 30  # groups that hold one shift at a time but crowd a resource together
_ROUND_OFF = 1e-9


@dataclass(frozen=True, eq=False)
class Orbits:
    """What a group of shifts makes one of.

    Attributes:
        link_class: int, shape (nlinks,): equal for links that the shifts bring onto each other.
        link_first: int, shape (classes,): the link of each class that leaves a representative rank.
        resource_class: int, shape (nresources,): equal for resources of equal capacity that the same classes of
            links use, and as often: those that shifts bring onto each other, and others that every symmetric
            schedule loads in the same way.
        resource_first: int, shape (resource classes,): the first resource of each class.
        times: int, shape (resource classes,): how many links of one class use one resource, the same for all
            classes that use it: so many copies of a send use it at once.
        uses: int, shape (m, 2): rows (link class, resource class), sorted: who uses what.
    """

    link_class: Ints
    link_first: Ints
    resource_class: Ints
    resource_first: Ints
    times: Ints
    uses: Ints


def image(shifts: Shifts, ranks: Ints, by: Sequence[int | Ints]) -> Ints:
    """Where the shifts bring `ranks` when the i-th is done by[i] times (one number, or one a rank; any sign)."""
    moved = np.asarray(ranks, dtype=np.int64)
    for (stride, extent), times in zip(shifts, by, strict=True):
        digit = moved // stride % extent
        moved = moved + ((digit + times) % extent - digit) * stride
    return moved


def digits(shifts: Shifts, ranks: Ints) -> list[Ints]:
    """The digit of every rank that each shift adds to."""
    ranks = np.asarray(ranks, dtype=np.int64)
    return [ranks // stride % extent for stride, extent in shifts]


def elements(shifts: Shifts, ranks: Ints) -> Ints:
    """The number, below the order of the group, of the product of shifts that makes each rank of its representative.

    The first shift's digit counts fastest.
    """
    number, weight = np.zeros(np.shape(ranks), dtype=np.int64), 1
    for digit, (_, extent) in zip(digits(shifts, ranks), shifts, strict=True):
        number += digit * weight
        weight *= extent
    return number


def representatives(shifts: Shifts, nranks: int) -> Ints:
    """One rank of every orbit, ascending: those with all of the shifts' digits 0."""
    return np.flatnonzero(elements(shifts, np.arange(nranks)) == 0)


def link_image(net: Network, shifts: Shifts, links: Ints, by: Sequence[int]) -> Ints:
    """Where shifts of the network bring `links` (as in `image`). Raises InputError where that is no link."""
    ways = _ways(net)
    moved = ways.at(
        image(shifts, net.src[links], by), image(shifts, net.dst[links], by), np.asarray(ways.place[links])
    )
    if (moved < 0).any():
        raise InputError(f"the shifts {shifts} do not keep the network's links")
    return moved


def orbits(net: Network, shifts: Shifts) -> Orbits:
    """The classes of links and resources under shifts of the network.

    Raises InputError where these shifts bring a link where there is none, or let copies of one send crowd a
    resource: a class of links uses it oftener than another, or together with more than its capacity.
    """
    found = _orbits(_ways(net), shifts)
    if found is None:
        raise InputError(f"the shifts {shifts} do not keep the network, or crowd one of its resources")
    return found


def shifts(net: Network) -> Shifts:
    """Digit shifts that keep the network and together make the largest group that was found.

    Strides ascend and each stride · extent divides the next stride. Every shift maps links onto links of equal α
    and bandwidth, and the links of every resource onto those of a resource of equal capacity (checked in full),
    and the copies of one send that the group makes have room on every resource together (see `orbits`). Of
    groups of one order the one with the fewest shifts is taken. Empty where no shift holds, or where room is
    wanting in each of the largest groups whose single shifts hold (so many are tried: 30).
    """
    ways = _ways(net)
    if net.nlinks == 0:
        return ()
    candidates = _Candidates(ways)
    refused: set[Shifts] = set()
    while True:
        for chain in _chains(net.nranks, candidates.open):
            if not chain:
                return ()
            if chain in refused:
                continue
            if not all(candidates.holds(edge) for edge in chain):
                break  # one edge fewer: the order of the chains is another now
            if _orbits(ways, chain) is not None:
                return chain
            refused.add(chain)
            if len(refused) == _TRIES:
                return ()


def _chains(nranks: int, edges: Sequence[tuple[int, int]]) -> Iterator[Shifts]:
    """All chains of shifts, the largest group first, then by fewest shifts, then by strides; the empty one last.

    Best first over the divisors of nranks, bounded exactly by the largest product still to come.
    """
    divisors = [d for d in range(1, nranks + 1) if nranks % d == 0]
    rest = dict.fromkeys(divisors, 1)
    for d in reversed(divisors):
        rest[d] = max((e * rest[s * e] for s, e in edges if s % d == 0), default=1)
    heap: list[tuple[int, int, Shifts, int, bool]] = [(-rest[1], 0, (), 1, False)]
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


class _Ways:
    """Links by their pair of ranks; several of one pair by α, bandwidth, number of resources, then their order."""

    def __init__(self, net: Network) -> None:
        self.net = net
        key = net.src * net.nranks + net.dst
        order = np.arange(net.nlinks)
        if (np.diff(key) <= 0).any():
            order = np.lexsort((np.diff(net.uses_ptr), net.bandwidth_gbs, net.alpha_us, key))
        self.order = order
        self.first = np.flatnonzero(np.diff(key[order], prepend=-1))
        self.keys = key[order][self.first]
        self.count = np.diff(np.append(self.first, net.nlinks))
        self.place = np.empty(net.nlinks, dtype=np.int64)
        self.place[order] = positions(self.count)
        self.user = net.link_of_use
        # links and classes get fixed random numbers; equal sets have equal sums, and are then compared in full
        self.salt = np.random.default_rng(0).integers(1 << 63, size=net.nlinks, dtype=np.uint64)
        self.resource_ptr, self.by_resource = grouped(net.uses_idx, net.nresources)
        self.sums = segment_sums(self.salt[self.user[self.by_resource]], self.resource_ptr)

    def at(self, src: Ints, dst: Ints, place: Ints) -> Ints:
        """The links at these places among those of their pairs, -1 where there is none."""
        key = src * self.net.nranks + dst
        i = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        there = (self.keys[i] == key) & (place < self.count[i])
        return np.where(there, self.order[np.where(there, self.first[i] + place, 0)], -1)


@lru_cache(maxsize=4)
def _ways(net: Network) -> _Ways:
    return _Ways(net)


class _Candidates:
    """Single shifts: those that a look at a few ranks does not refuse, and the full check of one."""

    def __init__(self, ways: _Ways) -> None:
        self.ways, net = ways, ways.net
        n = net.nranks
        self.dst = net.dst[ways.order]
        self.ptr = np.searchsorted(net.src[ways.order], np.arange(n + 1))
        self.salt = np.random.default_rng(1).integers(1 << 63, size=n, dtype=np.uint64)
        self.sums = segment_sums(self.salt[self.dst], self.ptr)
        divisors = [d for d in range(1, n + 1) if n % d == 0]
        pairs = [(s, t // s) for s in divisors for t in divisors if t > s and t % s == 0]
        self.open = [edge for edge in pairs if self._looks(edge)]
        self.checked: set[tuple[int, int]] = set()

    def _looks(self, edge: tuple[int, int]) -> bool:
        """Whether the neighbours of a few ranks, and of one whose digit starts over, are kept."""
        stride, extent = edge
        n = self.ways.net.nranks
        some = np.array([0, stride * (extent - 1), n - 1, n * 5 // 8])
        images = image((edge,), some, (1,))
        for rank, to in zip(some.tolist(), images.tolist(), strict=True):
            near = image((edge,), self.dst[self.ptr[rank] : self.ptr[rank + 1]], (1,))
            if self.salt[near].sum(dtype=np.uint64) != self.sums[to]:
                return False
        return True

    def holds(self, edge: tuple[int, int]) -> bool:
        """Whether this shift keeps the network and crowds nothing alone; one that does not is open no longer."""
        if edge in self.checked:
            return True
        if not self._keeps(edge) or _orbits(self.ways, (edge,)) is None:
            self.open.remove(edge)
            return False
        self.checked.add(edge)
        return True

    def _keeps(self, edge: tuple[int, int]) -> bool:
        ways, net = self.ways, self.ways.net
        p = image((edge,), np.arange(net.nranks), (1,))
        links = ways.at(p[net.src], p[net.dst], ways.place)
        if (links < 0).any():
            return False
        if any((figure[links] != figure).any() for figure in (net.alpha_us, net.bandwidth_gbs)):
            return False
        # Pair the resources by the sums of their links' numbers, then compare the sets themselves.
        moved = segment_sums(ways.salt[links[ways.user[ways.by_resource]]], ways.resource_ptr)
        a, b = np.lexsort((net.capacity_gbs, moved)), np.lexsort((net.capacity_gbs, ways.sums))
        if (moved[a] != ways.sums[b]).any() or (net.capacity_gbs[a] != net.capacity_gbs[b]).any():
            return False
        resource = np.empty(net.nresources, dtype=np.int64)
        resource[a] = b
        here = ways.user * net.nresources + net.uses_idx
        there = links[ways.user] * net.nresources + resource[net.uses_idx]
        return bool((np.sort(there) == here).all())


def _orbits(ways: _Ways, shifts: Shifts) -> Orbits | None:
    net = ways.net
    back = [-digit for digit in digits(shifts, net.src)]
    first = ways.at(image(shifts, net.src, back), image(shifts, net.dst, back), ways.place)
    own = first == np.arange(net.nlinks)
    if (first < 0).any() or not own[first].all():
        return None
    link_class, link_first = (np.cumsum(own) - 1)[first], np.flatnonzero(own)
    classes = len(link_first)

    pair, count = np.unique(net.uses_idx * classes + link_class[ways.user], return_counts=True)
    resource, used_by = pair // classes, pair % classes
    ptr = np.searchsorted(resource, np.arange(net.nresources + 1))
    times = np.ones(net.nresources, dtype=np.int64)
    times[resource] = count
    if (times[resource] != count).any():
        return None
    room = net.capacity_gbs[resource] * (1 + _ROUND_OFF)
    if (count * net.bandwidth_gbs[link_first[used_by]] > room).any():
        return None

    sums = segment_sums(ways.salt[used_by], ptr)
    order = np.lexsort((sums, times, net.capacity_gbs))
    new = np.ones(len(order), dtype=bool)
    new[1:] = np.diff(sums[order]) != 0
    new[1:] |= (np.diff(times[order]) != 0) | (np.diff(net.capacity_gbs[order]) != 0)
    like = np.empty(len(order), dtype=np.int64)
    like[order] = order[new][np.cumsum(new) - 1]  # the sort is stable: the first of each class
    leads = like == np.arange(len(order))
    # equal sums are not yet equal sets
    same = ptr[like[resource]] + np.arange(len(resource)) - ptr[resource]
    if (np.diff(ptr) != np.diff(ptr)[like]).any() or (used_by != used_by[same]).any():
        return None
    resource_class = (np.cumsum(leads) - 1)[like]
    rows = leads[resource]
    uses = np.column_stack([used_by[rows], resource_class[resource[rows]]])
    return Orbits(
        link_class=link_class,
        link_first=link_first,
        resource_class=resource_class,
        resource_first=np.flatnonzero(leads),
        times=times[leads],
        uses=uses[np.lexsort((uses[:, 1], uses[:, 0]))],
    )
