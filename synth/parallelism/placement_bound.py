"""A lower limit on a step's time under any placement whatever, with a parallelism matrix or without.

Take a part P of the ranks with h of them, and a request whose groups have k. However ranks are placed, P holds the
members of whole groups, and of others m with 0 < m < k; what a collective must carry into P and out of it for these is
concave in m, so the least of all placements is that of h mod k members of one group. Divided by what P's links can
carry that is a time; within a phase the bytes of all calls add up, and phases follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from synth.model.collective import Bools
from synth.parallelism.axes import Axis
from synth.parallelism.hierarchy import Hierarchy
from synth.parallelism.workload import Call, Workload
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import ranges
from topologies.network import Network


def step_bound(net: Network, hierarchy: Hierarchy, axes: Sequence[Axis], workload: Workload) -> float:
    """Microseconds that a step takes at least under any placement of the axes.

    net: of all ranks in their own order. Looked at are one rank and one part of every level.
    """
    parts = [hierarchy.parts(level)[0] for level in range(len(hierarchy.levels))]
    sides = []
    for part in parts:
        inside = np.zeros(net.nranks, dtype=bool)
        inside[part] = True
        if not inside.all():
            come = crossing_gbs(net, ~inside[net.src] & inside[net.dst])
            leave = crossing_gbs(net, inside[net.src] & ~inside[net.dst])
            sides.append((len(part), come, leave))
    total = 0.0
    for phase in workload.phases:
        least = 0.0
        for size, come, leave in sides:
            needs = np.zeros(2)
            for i in phase:
                call = workload.calls[i]
                needs += call.times * np.array(least_crossing(call, math.prod(axes[a].size for a in call.over), size))
            least = max([least, *(float(n) / c for n, c in zip(needs, (come, leave), strict=True) if c > 0)])
        total += least * US_PER_BYTE_AT_1_GBS
    return total


def least_crossing(call: Call, k: int, part: int) -> tuple[float, float]:
    """Bytes that must come into and leave a part of so many ranks, for groups of k, under the best placement."""
    m, size = part % k, float(call.size_bytes)
    if not m:
        return 0.0, 0.0
    inward, outward = {
        "allreduce": (1.0, 1.0),
        "allgather": ((k - m) / k, m / k),
        "reducescatter": (m / k, (k - m) / k),
        "alltoall": (m * (k - m) / k, m * (k - m) / k),
    }.get(call.collective, (0.0, 0.0))
    return inward * size, outward * size


def crossing_gbs(net: Network, links: Bools) -> float:
    """An upper limit on what these links carry together: the capacities of resources that cover all of them.

    Every link is covered by the one of its resources with the least capacity for each of these links that use it.
    """
    chosen = np.flatnonzero(links)
    if not len(chosen):
        return 0.0
    count = net.uses_ptr[chosen + 1] - net.uses_ptr[chosen]
    used = net.uses_idx[ranges(net.uses_ptr[chosen], count)]
    users = np.bincount(used, minlength=net.nresources)
    price = net.capacity_gbs[used] / users[used]
    first = np.cumsum(count) - count
    order = np.lexsort((used, price, np.repeat(np.arange(len(chosen)), count)))
    cover = np.unique(used[order][first])
    return float(net.capacity_gbs[cover].sum())
