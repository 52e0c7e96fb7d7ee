"""Colour refinement of a network, and the permutation of links that a permutation of ranks induces.

Refinement gives ranks, links and resources different colours where the elements that they touch differ.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import Hashes, Ints, grouped, hashed, segment_sums
from topologies.errors import InputError
from topologies.network import Network

_OUT, _IN, _USE = np.uint64(0xA5A5A5A51), np.uint64(0x5A5A5A5A3), np.uint64(0x77777777F)


def mark(colours: Hashes, index: int) -> Hashes:
    """Return a copy of the colours in which the element `index` has a colour of its own."""
    marked = colours.copy()
    marked[index : index + 1] = hashed(marked[index : index + 1] ^ _USE)
    return marked


def _number(*columns: NDArray[np.float64]) -> Hashes:
    """Return a hash for each row, equal for rows whose figures are equal bit by bit."""
    total = np.zeros(len(columns[0]), dtype=np.uint64)
    for column in columns:
        total = hashed(total + np.ascontiguousarray(column + 0.0).view(np.uint64))
    return total


@dataclass(frozen=True, eq=False)
class Colours:
    """The colours of all elements as hashes, equal where refinement cannot tell two elements apart.

    Attributes:
        ranks: Colour of each rank: uint64 (nranks,).
        links: Colour of each link: uint64 (nlinks,).
        resources: Colour of each resource: uint64 (nresources,).
        rounds: Number of rounds of refinement.
    """

    ranks: Hashes
    links: Hashes
    resources: Hashes
    rounds: int

    def cells(self) -> int:
        """Return the number of different colours of ranks, of links and of resources, in sum."""
        return sum(len(np.unique(x)) for x in (self.ranks, self.links, self.resources))


class LinkSets:
    """A network prepared to check symmetries by sums of fixed random numbers, which are equal for equal sets of links.

    Attributes:
        net: The network.
        user: Link of each entry of `net.uses_idx`.
        ptr: CSR by resource, with `users`.
        users: Links that use each resource.
        salt: Random number of each link: uint64 (nlinks,).
        sums: Sum of the random numbers of each resource's links: uint64 (nresources,).
    """

    def __init__(self, net: Network) -> None:
        self.net = net
        self.user = net.link_of_use
        self.ptr, order = grouped(net.uses_idx, net.nresources)
        self.users = self.user[order]
        self.salt = np.random.default_rng(0).integers(1 << 63, size=net.nlinks, dtype=np.uint64)
        self.sums = segment_sums(self.salt[self.users], self.ptr)

    def are_kept_by(self, image: Ints) -> bool:
        """Return whether l → image[l] keeps the links' figures and maps resources to resources of equal capacity."""
        net = self.net
        if any((figure[image] != figure).any() for figure in net.figures):
            return False
        moved = segment_sums(self.salt[image[self.users]], self.ptr)
        a, b = np.lexsort((net.capacity_gbs, moved)), np.lexsort((net.capacity_gbs, self.sums))
        if (moved[a] != self.sums[b]).any() or (net.capacity_gbs[a] != net.capacity_gbs[b]).any():
            return False
        resource = np.empty(net.nresources, dtype=np.int64)
        resource[a] = b
        uses = self.user * net.nresources + net.uses_idx
        moved_uses = image[self.user] * net.nresources + resource[net.uses_idx]
        return bool((np.sort(moved_uses) == uses).all())


class Structure:
    """A network prepared for refinement.

    Attributes:
        net: The network.
        links: Hash of each link's figures.
        resources: Hash of each resource's capacity.
        sets: The sets of links that use each resource.
        out_ptr: CSR by rank over the links, which are sorted by source.
        by_dst: Links sorted by destination.
        in_ptr: CSR by rank over `by_dst`.
        size: Number of elements that a round of refinement touches.
    """

    def __init__(self, net: Network) -> None:
        n = net.nranks
        self.net = net
        self.links = _number(*net.figures)
        self.resources = _number(net.capacity_gbs)
        self.sets = LinkSets(net)
        self.out_ptr = np.searchsorted(net.src, np.arange(n + 1))
        self.by_dst = np.argsort(net.dst, kind="stable")
        self.in_ptr = np.searchsorted(net.dst[self.by_dst], np.arange(n + 1))
        self.size = 500 + n + net.nlinks + len(net.uses_idx)  # The constant stands for NumPy's calls.

    def refine(
        self, ranks: Hashes, links: Hashes | None = None, resources: Hashes | None = None, rounds: int = 0
    ) -> Colours:
        """Return the colours refined until no cell splits, or for exactly `rounds` rounds where that is not 0.

        Args:
            ranks: First colour of each rank: uint64 (nranks,).
            links: First colour of each link: uint64 (nlinks,); None: by its figures.
            resources: First colour of each resource: uint64 (nresources,); None: by its capacity.
            rounds: Number of rounds, or 0.
        """
        links, resources = self.links if links is None else links, self.resources if resources is None else resources
        colours = Colours(ranks, links, resources, 0)
        if rounds:
            for _ in range(rounds):
                colours = self._round(colours)
            return colours
        cells, cells_after = 0, colours.cells()
        while cells_after != cells:
            colours = self._round(colours)
            cells, cells_after = cells_after, colours.cells()
        return colours

    def _round(self, c: Colours) -> Colours:
        """Return the colours after one more round."""
        net = self.net
        used: Hashes = segment_sums(hashed(c.resources)[net.uses_idx], net.uses_ptr)
        ends = hashed(c.ranks ^ _OUT)[net.src] + hashed(c.ranks ^ _IN)[net.dst]
        links = hashed(c.links + hashed(ends) + used * _USE)
        from_links: Hashes = segment_sums(hashed(links)[self.sets.users], self.sets.ptr)
        resources = hashed(c.resources + from_links)
        out: Hashes = segment_sums(hashed(links ^ _OUT), self.out_ptr)
        into: Hashes = segment_sums(hashed(links ^ _IN)[self.by_dst], self.in_ptr)
        return Colours(hashed(c.ranks + out + into), links, resources, c.rounds + 1)


def link_image(net: Network, p: Ints) -> Ints:
    """Return the permutation of links that a permutation of ranks induces, int64 (nlinks,): link l goes to image[l].

    Args:
        net: The network.
        p: Image of each rank: int (nranks,).

    Raises:
        InputError: p is no permutation of the ranks, or `find_link_image` finds it to be no automorphism of the
            network.
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
    """Return the image of each link under the permutation p of ranks: int64 (nlinks,); None if p is no automorphism.

    Equal links of one pair that their resources do not distinguish keep their order. Where another order of them would
    be needed, the result is None too.
    """
    net = structure.net
    n = net.nranks
    pair = net.src * n + net.dst
    pair_of_image = p[net.src] * n + p[net.dst]
    a = np.lexsort((structure.links, pair_of_image))
    b = np.lexsort((structure.links, pair))
    if (pair_of_image[a] != pair[b]).any() or (structure.links[a] != structure.links[b]).any():
        return None
    same = (np.diff(pair[b]) == 0) & (np.diff(structure.links[b]) == 0)
    if not same.any():
        return _confirmed(structure, a, b)
    # Only the resources that they share with other links distinguish equal links of one pair.
    colours = structure.refine(p.astype(np.uint64))
    image_colours = structure.refine(np.arange(n, dtype=np.uint64), rounds=colours.rounds)
    a, b = np.argsort(colours.links, kind="stable"), np.argsort(image_colours.links, kind="stable")
    if (colours.links[a] != image_colours.links[b]).any():
        return None
    return _confirmed(structure, a, b)


def _confirmed(structure: Structure, a: Ints, b: Ints) -> Ints | None:
    """Return the image that sends link a[i] to b[i], or None where figures or resources differ (an exact check)."""
    image = np.empty(structure.net.nlinks, dtype=np.int64)
    image[a] = b
    return image if structure.sets.are_kept_by(image) else None
