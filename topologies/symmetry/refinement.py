"""Colour refinement of a network, the permutation of links that one of ranks induces, and what it must keep.

Refinement gives ranks, links and resources colours that differ where what they touch differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Ints, grouped, segment_sums
from topologies.errors import InputError
from topologies.network import Network
from topologies.symmetry.tuning import TUNING

Hashes = NDArray[np.uint64]

_C1, _C2, _GOLD = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB), np.uint64(0x9E3779B97F4A7C15)
_S27, _S30, _S31 = np.uint64(27), np.uint64(30), np.uint64(31)
_OUT, _IN, _USE = np.uint64(0xA5A5A5A51), np.uint64(0x5A5A5A5A3), np.uint64(0x77777777F)


def _mix(x: Hashes) -> Hashes:
    """splitmix64: equal in, equal out, on every machine."""
    x = x + _GOLD
    x = (x ^ (x >> _S30)) * _C1
    x = (x ^ (x >> _S27)) * _C2
    return x ^ (x >> _S31)


def mark(colours: Hashes, index: int) -> Hashes:
    """A copy in which element `index` has a colour of its own."""
    marked = colours.copy()
    marked[index : index + 1] = _mix(marked[index : index + 1] ^ _USE)
    return marked


def _number(*columns: NDArray[np.float64]) -> Hashes:
    """Equal rows get equal hashes; figures are compared bit by bit."""
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        total = _mix(total + np.ascontiguousarray(column + 0.0).view(np.uint64))
    return total


@dataclass(frozen=True, eq=False)
class Colours:
    """Hashes by element: equal where refinement cannot tell two elements apart. `rounds` it took."""

    ranks: Hashes
    links: Hashes
    resources: Hashes
    rounds: int

    def cells(self) -> int:
        """Number of different colours."""
        return sum(len(np.unique(x)) for x in (self.ranks, self.links, self.resources))


class LinkSets:
    """A network prepared to check symmetries, by fixed random numbers of links (`salt`): equal sets have equal sums.

    user: the link of each entry of `uses_idx`. users, ptr: CSR by resource: the links that use it.
    """

    def __init__(self, net: Network) -> None:
        self.net = net
        self.user = net.link_of_use
        self.ptr, order = grouped(net.uses_idx, net.nresources)
        self.users = self.user[order]
        self.salt = np.random.default_rng(0).integers(1 << 63, size=net.nlinks, dtype=np.uint64)
        self.sums = segment_sums(self.salt[self.users], self.ptr)

    def are_kept_by(self, image: Ints) -> bool:
        """Whether l → image[l] keeps α and bandwidth, and sets of resources go to those of equal capacity."""
        net = self.net
        if (net.alpha_us[image] != net.alpha_us).any() or (net.bandwidth_gbs[image] != net.bandwidth_gbs).any():
            return False
        moved = segment_sums(self.salt[image[self.users]], self.ptr)
        a, b = np.lexsort((net.capacity_gbs, moved)), np.lexsort((net.capacity_gbs, self.sums))
        if (moved[a] != self.sums[b]).any() or (net.capacity_gbs[a] != net.capacity_gbs[b]).any():
            return False
        resource = np.empty(net.nresources, dtype=np.int64)
        resource[a] = b
        here = self.user * net.nresources + net.uses_idx
        there = image[self.user] * net.nresources + resource[net.uses_idx]
        return bool((np.sort(there) == here).all())


class Structure:
    """A network prepared for refinement. `size` counts what one round touches."""

    def __init__(self, net: Network) -> None:
        n = net.nranks
        self.net = net
        self.links = _number(net.alpha_us, net.bandwidth_gbs)
        self.resources = _number(net.capacity_gbs)
        self.sets = LinkSets(net)
        self.out_ptr = np.searchsorted(net.src, np.arange(n + 1))
        self.by_dst = np.argsort(net.dst, kind="stable")
        self.in_ptr = np.searchsorted(net.dst[self.by_dst], np.arange(n + 1))
        self.size = 500 + n + net.nlinks + len(net.uses_idx)  # NumPy takes a while for nothing, too

    def refine(
        self, ranks: Hashes, links: Hashes | None = None, resources: Hashes | None = None, rounds: int = 0
    ) -> Colours:
        """Refines from these colours until no cell splits, or for exactly `rounds` where that is not 0."""
        links, resources = self.links if links is None else links, self.resources if resources is None else resources
        now = Colours(ranks, links, resources, 0)
        if rounds:
            for _ in range(rounds):
                now = self._round(now)
            return now
        cells, more = 0, now.cells()
        while more != cells:
            now = self._round(now)
            cells, more = more, now.cells()
        return now

    def _round(self, c: Colours) -> Colours:
        net = self.net
        used: Hashes = segment_sums(_mix(c.resources)[net.uses_idx], net.uses_ptr)
        ends = _mix(c.ranks ^ _OUT)[net.src] + _mix(c.ranks ^ _IN)[net.dst]
        links = _mix(c.links + _mix(ends) + used * _USE)
        heard: Hashes = segment_sums(_mix(links)[self.sets.users], self.sets.ptr)
        resources = _mix(c.resources + heard)
        out: Hashes = segment_sums(_mix(links ^ _OUT), self.out_ptr)
        into: Hashes = segment_sums(_mix(links ^ _IN)[self.by_dst], self.in_ptr)
        return Colours(_mix(c.ranks + out + into), links, resources, c.rounds + 1)


def link_image(net: Network, p: Ints) -> Ints:
    """The permutation of links that p induces: link l goes to link image[l].

    Raises InputError where p is no permutation of the ranks or no automorphism of the network, or needs more than some
    hundred tries between several equal links of one pair.
    """
    p = np.asarray(p)
    n = net.nranks
    if p.shape != (n,) or p.dtype.kind not in "iu" or (np.sort(p) != np.arange(n)).any():
        raise InputError(f"not a permutation of the {n} ranks")
    image = find_link_image(Structure(net), p.astype(np.int64))
    if image is None:
        raise InputError("not an automorphism of the network: links, figures or shared capacities differ")
    return image


def find_link_image(structure: Structure, p: Ints) -> Ints | None:
    """Images of links under p, None where p is no automorphism."""
    net = structure.net
    n = net.nranks
    here = net.src * n + net.dst
    there = p[net.src] * n + p[net.dst]
    a = np.lexsort((structure.links, there))
    b = np.lexsort((structure.links, here))
    if (there[a] != here[b]).any() or (structure.links[a] != structure.links[b]).any():
        return None
    same = (np.diff(here[b]) == 0) & (np.diff(structure.links[b]) == 0)
    if not same.any():
        return _confirmed(structure, a, b)
    # Equal links of one pair: only what they share with others says which goes to which.
    left = structure.refine(p.astype(np.uint64))
    right = structure.refine(np.arange(n, dtype=np.uint64), rounds=left.rounds)
    tries = iter(range(TUNING.ambiguous_tries))
    return _matched(structure, left, right, tries)


def _matched(structure: Structure, left: Colours, right: Colours, tries: Iterator[int]) -> Ints | None:
    a, b = np.argsort(left.links, kind="stable"), np.argsort(right.links, kind="stable")
    if next(tries, None) is None or (left.links[a] != right.links[b]).any():
        return None
    found = _confirmed(structure, a, b)
    same = np.flatnonzero(np.diff(left.links[a]) == 0)
    if found is not None or not len(same):
        return found
    first = int(a[same[0]])
    marked = structure.refine(left.ranks, mark(left.links, first), left.resources)
    for choice in np.flatnonzero(right.links == left.links[first]).tolist():
        other = structure.refine(right.ranks, mark(right.links, choice), right.resources, marked.rounds)
        found = _matched(structure, marked, other, tries)
        if found is not None:
            return found
    return None


def _confirmed(structure: Structure, a: Ints, b: Ints) -> Ints | None:
    """The image that sends link a[i] to b[i] where figures and resources stay (checked exactly)."""
    image = np.empty(structure.net.nlinks, dtype=np.int64)
    image[a] = b
    return image if structure.sets.are_kept_by(image) else None
