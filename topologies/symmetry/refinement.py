"""Colour refinement of a network: ranks, links and resources told apart by what they touch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.arrays import segment_sums
from topologies.network import Network
from topologies.symmetry.link_sets import LinkSets

__all__ = ["Colours", "Structure", "mark"]

Hashes = NDArray[np.uint64]
Ints = NDArray[np.int64]

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
        now = Colours(
            ranks,
            self.links if links is None else links,
            self.resources if resources is None else resources,
            0,
        )
        cells = 0 if rounds else now.cells()
        while True:
            now = self._round(now)
            if rounds:
                if now.rounds == rounds:
                    return now
                continue
            more = now.cells()
            if more == cells:
                return now
            cells = more

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
