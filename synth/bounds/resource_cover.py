"""Resource covers: resources of which every one of some links uses at least one, with little capacity together."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.requirements import sum_by
from topologies.arrays import marked, pointers, row_entries, sorted_rows
from topologies.network import Network

_MOST_PICKS = 4000  # then every link that is left takes its own cheapest
_DENSE = 50_000_000  # cells up to which counting is better than sorting


def cover(net: Network, links: Ints) -> Ints:
    """Resources, ascending, of which every one of `links` uses at least one; little capacity (greedy).

    First what a link cannot be without, then always the least capacity a link, and in the end nothing superfluous.
    """
    counts = net.uses_ptr[links + 1] - net.uses_ptr[links]
    picked = marked(net.nresources, net.uses_idx[net.uses_ptr[links[counts == 1]]])
    if not (counts == 1).all():
        _pick(picked, net, links)
        _drop(picked, net, links)
    return np.flatnonzero(picked)


@lru_cache(maxsize=2)
def _users(net: Network) -> tuple[Ints, Ints]:
    """(ptr, links): resource r is used by links[ptr[r]:ptr[r+1]]."""
    ptr = pointers(np.bincount(net.uses_idx, minlength=net.nresources))
    return ptr, net.link_of_use[sorted_rows(net.uses_idx)]


def _pick(picked: Bools, net: Network, links: Ints) -> None:
    """Add resources until every one of `links` has one."""
    ptr, users_of = _users(net)
    uncovered = marked(net.nlinks, links)
    for r in np.flatnonzero(picked).tolist():
        uncovered[users_of[ptr[r] : ptr[r + 1]]] = False
    left = np.flatnonzero(uncovered)
    users = np.bincount(net.uses_idx[row_entries(net.uses_ptr, left)], minlength=net.nresources)
    for _ in range(_MOST_PICKS):
        some = np.flatnonzero(users)
        if not len(some):
            return
        pick = int(some[np.argmin(net.capacity_gbs[some] / users[some])])
        picked[pick] = True
        gone = users_of[ptr[pick] : ptr[pick + 1]]
        gone = gone[uncovered[gone]]
        uncovered[gone] = False
        users -= np.bincount(net.uses_idx[row_entries(net.uses_ptr, gone)], minlength=net.nresources)
    picked[single_uses(net)[0][uncovered]] = True


def _drop(picked: Bools, net: Network, links: Ints) -> None:
    """Take away resources, the widest first, whose links all have another."""
    ptr, users_of = _users(net)
    here = marked(net.nlinks, links)
    times = np.zeros(net.nlinks, dtype=np.int64)
    chosen = np.flatnonzero(picked)
    for r in chosen.tolist():
        times[users_of[ptr[r] : ptr[r + 1]]] += 1
    times[~here] = 2
    for r in chosen[np.argsort(-net.capacity_gbs[chosen], kind="stable")].tolist():
        mine = users_of[ptr[r] : ptr[r + 1]]
        if times[mine].min() > 1:
            times[mine] -= here[mine]
            picked[r] = False


@lru_cache(maxsize=2)
def single_uses(net: Network) -> tuple[Ints, ...]:
    """One resource of every link, chosen in three ways: the scarcest, the first, the last.

    They make quick estimates of resource covers: shape (nlinks,) each, none twice.
    """
    start = net.uses_ptr[:-1]
    users = np.bincount(net.uses_idx, minlength=net.nresources)
    scarce = (net.capacity_gbs / np.maximum(users, 1))[net.uses_idx]
    link = net.link_of_use
    least = np.flatnonzero(scarce == np.minimum.reduceat(scarce, start)[link])[::-1]
    scarcest = np.empty(net.nlinks, dtype=np.int64)
    scarcest[link[least]] = net.uses_idx[least]
    found: list[Ints] = []
    for one in (scarcest, net.uses_idx[start], net.uses_idx[net.uses_ptr[1:] - 1]):
        if not any(np.array_equal(one, other) for other in found):
            found.append(one)
    return tuple(found)


def gbs_by_end(net: Network, end: Ints, count: int) -> Floats:
    """GB/s of the resources at each of `count` ends of links, shape (count,); inf nowhere, 0 where no link ends.

    end: the end of every link, shape (nlinks,), -1 for links that are left out. Each link is held against one
    of its resources.
    """
    here = end >= 0
    best = np.full(count, np.inf)
    for one in single_uses(net):
        key = end[here] * net.nresources + one[here]
        if count * net.nresources <= _DENSE:
            gbs: Floats = marked(count * net.nresources, key).reshape(count, -1) @ net.capacity_gbs
        else:
            key = np.unique(key)
            gbs = sum_by(key // net.nresources, net.capacity_gbs[key % net.nresources], count)
        best = np.minimum(best, gbs)
    return best
