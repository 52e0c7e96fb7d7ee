"""The set of links that use each resource, and whether a permutation of links keeps these sets."""

from __future__ import annotations

import numpy as np

from topologies.arrays import Ints, grouped, segment_sums
from topologies.network import Network


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
