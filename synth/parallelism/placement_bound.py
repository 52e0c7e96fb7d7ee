"""A lower limit on a step's time under any placement whatever, with a parallelism matrix or without.

Take a part P of the ranks with h of them, and a request whose groups have k. However ranks are placed, P holds the
members of whole groups, and of others m with 0 < m < k; what a collective must carry into P and out of it for these is
concave in m, so the least of all placements is that of h mod k members of one group. Divided by what P's links can
carry that is a time; within a phase the bytes of all calls add up, and phases follow each other, under one placement.

Calls over different axes cannot all have the placement that is best for them alone. P holds h cells of the grid of the
axes' coordinates; pushing the cells of every line of one axis to its beginning leaves what that axis's lines hold, and
makes what the others hold as uneven as it can be (Gale, Ryser), so that sums of concave functions of it do not grow. In
two axes the least is that of the Young diagrams of h cells, of which `least_of_all` finds the best; further axes are
taken in one by one, each line of the new axis standing for a diagram of those before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from synth.model.collective import Bools, Floats
from synth.parallelism.axes import Axis
from synth.parallelism.workload import Call, Workload
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import ranges
from topologies.levels.hierarchy import Hierarchy
from topologies.network import Network

MOST_PART = 128  # ranks of a part in which calls over different axes are counted together
MOST_AXES = 4  # of which all orders are tried


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
    sizes = [axis.size for axis in axes]
    phases = [[workload.calls[i] for i in phase] for phase in workload.phases]

    def least(calls: Sequence[Call], size: int, come: float, leave: float) -> float:
        needs = least_crossing_of_all(calls, sizes, size)
        return max(float(n) / c if c > 0 else 0.0 for n, c in zip(needs, (come, leave), strict=True))

    own = [max((least(calls, *side) for side in sides), default=0.0) for calls in phases]
    best = sum(own)
    for side in sides:
        # one placement for all these phases; each of the others as if it had one of its own
        chosen = list(range(len(phases)))
        for phase in [None, *chosen]:
            fewer = [other for other in chosen if other != phase]
            apart = sum(time for other, time in enumerate(own) if other not in fewer)
            found = apart + least([call for other in fewer for call in phases[other]], *side)
            if found > best or phase is None:
                best, chosen = max(best, found), fewer
    return best * US_PER_BYTE_AT_1_GBS


def least_crossing_of_all(calls: Sequence[Call], sizes: Sequence[int], part: int) -> Floats:
    """Bytes that must come into and leave a part of so many ranks, under the placement that is best for all calls.

    sizes: of the axes.
    """
    alone = np.zeros(2)
    for call in calls:
        alone += call.times * np.array(least_crossing(call, math.prod(sizes[a] for a in call.over), part))
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    if part > MOST_PART or not 2 <= len(wide) <= MOST_AXES:
        return alone
    best = alone
    for order in permutations(wide):
        best = np.maximum(best, [least_of_all(calls, sizes, order, part, side) for side in (0, 1)])
    return best


def least_of_all(calls: Sequence[Call], sizes: Sequence[int], order: Sequence[int], part: int, side: int) -> float:
    """No placement has fewer bytes come into (side 0) or leave (1) a part of so many ranks, of all calls together.

    order: the axes of more than one rank, the one that is taken in first last. Calls over one axis, and over all that
    were taken in, count together; others as if they were alone.
    """
    cells, within = np.zeros(2), 1  # least bytes by how many cells a diagram of the axes taken in has
    taken: set[int] = set()
    counted: set[int] = set()
    for axis in reversed(order):
        k = sizes[axis]
        taken.add(axis)
        lines = _crossing([call for call in calls if _wide(call, sizes) == {axis}], k, side)
        cells = _stacked(cells, lines, min(part, within * k))
        within *= k
        if len(taken) > 1:
            whole = _crossing([call for call in calls if _wide(call, sizes) == taken], within, side)
            cells = cells + whole[: len(cells)]
        counted |= {i for i, call in enumerate(calls) if _wide(call, sizes) in ({axis}, taken)}
    rest = sum(
        call.times * least_crossing(call, math.prod(sizes[a] for a in call.over), part)[side]
        for i, call in enumerate(calls)
        if i not in counted
    )
    return float(cells[part]) + rest


def _wide(call: Call, sizes: Sequence[int]) -> set[int]:
    """The axes of more than one rank that it is over."""
    return {axis for axis in call.over if sizes[axis] > 1}


def _crossing(calls: Sequence[Call], k: int, side: int) -> Floats:
    """Bytes of all calls in a group of k of which m are in the part, for m = 0..k."""
    found = np.zeros(k + 1)
    for call in calls:
        found += call.times * np.array([least_crossing(call, k, m)[side] for m in range(k + 1)])
    return found


def _stacked(row: Floats, column: Floats, most: int) -> Floats:
    """The least of Σ row[width] + Σ column[height] over diagrams of 0..most cells with at most len(column) - 1 rows.

    Rows do not grow; a column is as high as the number of rows that reach it. Of diagrams of r rows the last of which
    is w wide, the columns behind w have their height, and count; those up to w may still grow.
    """
    widths = min(len(row) - 1, most)
    least = np.full((most + 1, widths + 1), np.inf)  # [cells][width of the last row]
    least[0] = 0.0  # no row: the next may be of any width
    for rows in range(1, len(column)):
        # the width goes down to w: the columns left behind are rows - 1 high
        at = np.arange(widths + 1) * column[rows - 1]
        down = np.minimum.accumulate((least + at)[:, ::-1], axis=1)[:, ::-1] - at
        least = np.full_like(least, np.inf)
        for width in range(widths + 1):
            least[width:, width] = down[: most + 1 - width, width] + row[width]
    at = np.arange(widths + 1) * column[-1]
    found: Floats = (least + at).min(axis=1)
    return found


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
