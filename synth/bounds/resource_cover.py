"""Resource covers: sets of resources with little capacity, of which every given link uses at least one."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.deadline import checking_deadline
from synth.model.requirements import sum_by
from topologies.arrays import flags_of, pointers, row_entries, sorted_rows
from topologies.network import Network

_MOST_PICKS = 4000  # afterwards every uncovered link takes its own scarcest resource
_DENSE = 50_000_000  # cells up to which counting is faster than sorting


def cover(net: Network, links: Ints) -> Ints:
    """Return resources, ascending, of which every one of `links` uses at least one; a greedy choice of little capacity.

    It takes the resources that a link needs because it uses no other, then always the least capacity per link, and
    drops superfluous ones.

    Args:
        net: The network.
        links: Links (not hyperlinks), each once; without any, the result is empty.

    Raises:
        TimeUp: The time of the work around is over.
    """
    counts = net.uses_ptr[links + 1] - net.uses_ptr[links]
    picked = flags_of(net.nresources, net.uses_idx[net.uses_ptr[links[counts == 1]]])
    if not (counts == 1).all():
        _pick(picked, net, links)
        _drop(picked, net, links)
    return np.flatnonzero(picked)


@lru_cache(maxsize=2)
def _users(net: Network) -> tuple[Ints, Ints]:
    """Return (ptr, links): resource r is used by links[ptr[r]:ptr[r+1]], ascending; two networks are cached."""
    ptr = pointers(np.bincount(net.uses_idx, minlength=net.nresources))
    return ptr, net.link_of_use[sorted_rows(net.uses_idx)]


def _pick(picked: Bools, net: Network, links: Ints) -> None:
    """Flag further resources in `picked` until every one of `links` uses one.

    The next is always the resource of least capacity per link that uses none yet. After 4000 of them each such link
    takes its own scarcest resource.

    Args:
        picked: Flags of the resources, shape (nresources,); it is changed.
        net: The network.
        links: The links.

    Raises:
        TimeUp: The time of the work around is over.
    """
    ptr, users_of = _users(net)
    uncovered = flags_of(net.nlinks, links)
    for r in np.flatnonzero(picked).tolist():
        uncovered[users_of[ptr[r] : ptr[r + 1]]] = False
    remaining = np.flatnonzero(uncovered)
    users = np.bincount(net.uses_idx[row_entries(net.uses_ptr, remaining)], minlength=net.nresources)
    for _ in checking_deadline(range(_MOST_PICKS), every=16):
        used = np.flatnonzero(users)
        if not len(used):
            return
        pick = int(used[np.argmin(net.capacity_gbs[used] / users[used])])
        picked[pick] = True
        newly_covered = users_of[ptr[pick] : ptr[pick + 1]]
        newly_covered = newly_covered[uncovered[newly_covered]]
        uncovered[newly_covered] = False
        users -= np.bincount(net.uses_idx[row_entries(net.uses_ptr, newly_covered)], minlength=net.nresources)
    picked[single_uses(net)[0][uncovered]] = True


def _drop(picked: Bools, net: Network, links: Ints) -> None:
    """Clear the flags in `picked` of superfluous resources: every one of `links` that uses it uses another flagged one.

    Resources of most capacity are tried first.

    Args:
        picked: Flags of the resources, shape (nresources,); it is changed.
        net: The network.
        links: The links that must use a resource.
    """
    ptr, users_of = _users(net)
    is_covered_link = flags_of(net.nlinks, links)
    times = np.zeros(net.nlinks, dtype=np.int64)
    chosen = np.flatnonzero(picked)
    for r in chosen.tolist():
        times[users_of[ptr[r] : ptr[r + 1]]] += 1
    times[~is_covered_link] = 2
    for r in chosen[np.argsort(-net.capacity_gbs[chosen], kind="stable")].tolist():
        links_of_resource = users_of[ptr[r] : ptr[r + 1]]
        if times[links_of_resource].min() > 1:
            times[links_of_resource] -= is_covered_link[links_of_resource]
            picked[r] = False


@lru_cache(maxsize=2)
def single_uses(net: Network) -> tuple[Ints, ...]:
    """Return one resource of every link, chosen by three rules: the scarcest, the first, the last.

    The scarcest has the least capacity for each of its links. The arrays give quick estimates of resource covers. Each
    has shape (nlinks,), and no two are equal: there are one to three, the scarcest first. Two networks are cached.
    """
    start = net.uses_ptr[:-1]
    users = np.bincount(net.uses_idx, minlength=net.nresources)
    scarce = (net.capacity_gbs / np.maximum(users, 1))[net.uses_idx]
    link = net.link_of_use
    least = np.flatnonzero(scarce == np.minimum.reduceat(scarce, start)[link])[::-1]
    scarcest = np.empty(net.nlinks, dtype=np.int64)
    scarcest[link[least]] = net.uses_idx[least]
    choices: list[Ints] = []
    for choice in (scarcest, net.uses_idx[start], net.uses_idx[net.uses_ptr[1:] - 1]):
        if not any(np.array_equal(choice, earlier) for earlier in choices):
            choices.append(choice)
    return tuple(choices)


def gbs_by_end(net: Network, end: Ints, count: int) -> Floats:
    """Return the GB/s at each of `count` ends of links, shape (count,); 0 where no link ends.

    Each link counts at one of its resources, by the rule that gives the least.

    Args:
        net: The network.
        end: The end of every link, shape (nlinks,), -1 for links that are left out.
        count: Number of ends.
    """
    included = end >= 0
    best = np.full(count, np.inf)
    for resource_of_link in single_uses(net):
        key = end[included] * net.nresources + resource_of_link[included]
        if count * net.nresources <= _DENSE:
            gbs: Floats = flags_of(count * net.nresources, key).reshape(count, -1) @ net.capacity_gbs
        else:
            key = np.unique(key)
            gbs = sum_by(key // net.nresources, net.capacity_gbs[key % net.nresources], count)
        best = np.minimum(best, gbs)
    return best
