"""A lower bound on a step's time under any placement, with or without a parallelism matrix.

Take a part P of the ranks with h ranks, and a request whose groups have k ranks. However the ranks are placed, P holds
the members of whole groups, and of other groups m members with 0 < m < k. The bytes that a collective must carry into P
and out of it for such a group are concave in m, so the minimum over all placements is that of one group with h mod k
members in P. Divided by the rate of P's links, these bytes give a time. Within a phase the bytes of all calls add up,
and the times of phases add up, under one placement.

Calls over different axes cannot all have the placement that is best for each of them. P holds h cells of the grid of
the axes' coordinates. Pushing the cells of every line of one axis to its beginning leaves the counts in that axis's
lines as they are, and makes the counts in the lines of other axes as uneven as possible (Gale, Ryser), so that sums of
concave functions of the counts do not grow. For two axes the minimum is that of the Young diagrams of h cells, of which
`least_of_all` finds the best. Further axes are added one by one; each line of a new axis stands for a diagram of the
axes before it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations

import numpy as np

from synth.bounds.resource_cover import cover
from synth.model.collective import Floats
from synth.parallelism.axes import Axis
from synth.parallelism.workload import Call, Workload
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.levels.hierarchy import Hierarchy
from topologies.network import Network

MOST_PART = 128  # Ranks of a part up to which calls over different axes share one placement.
MOST_AXES = 4  # Axes up to which all orders are tried.


def step_bound(net: Network, hierarchy: Hierarchy, axes: Sequence[Axis], workload: Workload) -> float:
    """Compute a lower bound in µs on the time of a step under any placement of the axes.

    It considers the bytes that cross the border of the first part of each level; α does not count. It is 0 if no call
    needs to send any.

    Args:
        net: Network of all ranks in their own order.
        hierarchy: Levels of the network.
        axes: Axes to place.
        workload: Calls of the step.
    """
    parts = [hierarchy.parts(level)[0] for level in range(len(hierarchy.levels))]
    cuts = []
    for part in parts:
        inside = np.zeros(net.nranks, dtype=bool)
        inside[part] = True
        if not inside.all():
            crossing = (~inside[net.src] & inside[net.dst], inside[net.src] & ~inside[net.dst])
            inward_gbs, outward_gbs = (
                float(net.capacity_gbs[cover(net, np.flatnonzero(links))].sum()) for links in crossing
            )
            cuts.append((len(part), inward_gbs, outward_gbs))
    sizes = [axis.size for axis in axes]
    phases = [[workload.calls[i] for i in phase] for phase in workload.phases]

    def least(calls: Sequence[Call], size: int, inward_gbs: float, outward_gbs: float) -> float:
        """Return bytes / GB/s of the direction that takes longer, for calls under their best placement."""
        needs = least_crossing_of_all(calls, sizes, size)
        return max(float(n) / c if c > 0 else 0.0 for n, c in zip(needs, (inward_gbs, outward_gbs), strict=True))

    bound_of_phase = [max((least(calls, *cut) for cut in cuts), default=0.0) for calls in phases]
    best = sum(bound_of_phase)
    for cut in cuts:
        # The joint phases share one placement; each other phase counts as if it had its own.
        chosen = list(range(len(phases)))
        for phase in [None, *chosen]:
            joint_phases = [index for index in chosen if index != phase]
            separate_bound = sum(time for index, time in enumerate(bound_of_phase) if index not in joint_phases)
            candidate_bound = separate_bound + least([call for index in joint_phases for call in phases[index]], *cut)
            if candidate_bound > best or phase is None:
                best, chosen = max(best, candidate_bound), joint_phases
    return best * US_PER_BYTE_AT_1_GBS


def least_crossing_of_all(calls: Sequence[Call], sizes: Sequence[int], part: int) -> Floats:
    """Return the bytes that must at least enter and leave a part of the ranks, whatever the placement of the axes.

    It is the largest of these bounds: the sum over calls of what each needs under its own best placement, and, for
    every order of the axes, what calls over different axes need under one placement (`least_of_all`). The latter count
    only for parts of up to `MOST_PART` ranks and 2 to `MOST_AXES` axes of more than one rank.

    Args:
        calls: The calls; each counts with all its runs.
        sizes: Sizes of the axes.
        part: Number of ranks in the part.

    Returns:
        The bytes into the part and out of it: float64 (2,). The best placement may be another for each of them.
    """
    separate_bytes = np.zeros(2)
    for call in calls:
        separate_bytes += call.times * np.array(least_crossing(call, math.prod(sizes[a] for a in call.over), part))
    wide = [axis for axis, size in enumerate(sizes) if size > 1]
    if part > MOST_PART or not 2 <= len(wide) <= MOST_AXES:
        return separate_bytes
    best = separate_bytes
    for order in permutations(wide):
        best = np.maximum(best, [least_of_all(calls, sizes, order, part, side) for side in (0, 1)])
    return best


def least_of_all(calls: Sequence[Call], sizes: Sequence[int], order: Sequence[int], part: int, side: int) -> float:
    """Return the bytes that must at least enter (side 0) or leave (side 1) a part, for all calls in any placement.

    Calls over one axis, and calls over all axes added so far, are counted in one placement; other calls are counted as
    if each had its own.

    Args:
        calls: The calls; each counts with all its runs.
        sizes: Sizes of the axes.
        order: All axes of more than one rank; the first one is added last. Every order gives a true bound.
        part: Number of ranks in the part.
        side: 0: bytes into the part; 1: bytes out of it.
    """
    # least_bytes[cells]: least bytes over the diagrams of the added axes that have as many cells.
    least_bytes, within = np.zeros(2), 1
    added_axes: set[int] = set()
    counted: set[int] = set()
    for axis in reversed(order):
        k = sizes[axis]
        added_axes.add(axis)
        lines = _crossing([call for call in calls if _wide(call, sizes) == {axis}], k, side)
        least_bytes = _stacked(least_bytes, lines, min(part, within * k))
        within *= k
        if len(added_axes) > 1:
            whole = _crossing([call for call in calls if _wide(call, sizes) == added_axes], within, side)
            least_bytes = least_bytes + whole[: len(least_bytes)]
        counted |= {i for i, call in enumerate(calls) if _wide(call, sizes) in ({axis}, added_axes)}
    separate_bytes = sum(
        call.times * least_crossing(call, math.prod(sizes[a] for a in call.over), part)[side]
        for i, call in enumerate(calls)
        if i not in counted
    )
    return float(least_bytes[part]) + separate_bytes


def _wide(call: Call, sizes: Sequence[int]) -> set[int]:
    """Return the axes of a call that have more than one rank."""
    return {axis for axis in call.over if sizes[axis] > 1}


def _crossing(calls: Sequence[Call], k: int, side: int) -> Floats:
    """Return the bytes of all calls in a group of k ranks with m ranks in the part, for m = 0..k: float64 (k + 1,)."""
    crossing_bytes = np.zeros(k + 1)
    for call in calls:
        crossing_bytes += call.times * np.array([least_crossing(call, k, m)[side] for m in range(k + 1)])
    return crossing_bytes


def _stacked(row: Floats, column: Floats, most: int) -> Floats:
    """Return the least of Σ row[width] + Σ column[height] over Young diagrams, for every number of cells in 0..most.

    The diagrams have at most len(column) - 1 rows. Rows do not grow, and a column is as high as the number of rows that
    reach it. In a diagram of r rows whose last one is w wide, the columns behind w have their final height and are
    counted; those up to w may still grow.

    Args:
        row: What a row of each width 0..len(row) - 1 adds.
        column: What a column of each height 0..len(column) - 1 adds.
        most: Largest number of cells.
    """
    widths = min(len(row) - 1, most)
    least = np.full((most + 1, widths + 1), np.inf)  # [cells][width of the last row].
    least[0] = 0.0  # Without a row the next one may have any width.
    for rows in range(1, len(column)):
        # The width shrinks to w: the columns behind w are rows - 1 high.
        column_sums = np.arange(widths + 1) * column[rows - 1]
        narrowed = np.minimum.accumulate((least + column_sums)[:, ::-1], axis=1)[:, ::-1] - column_sums
        least = np.full_like(least, np.inf)
        for width in range(widths + 1):
            least[width:, width] = narrowed[: most + 1 - width, width] + row[width]
    column_sums = np.arange(widths + 1) * column[-1]
    least_sums: Floats = (least + column_sums).min(axis=1)
    return least_sums


def least_crossing(call: Call, k: int, part: int) -> tuple[float, float]:
    """Return the bytes that one run of a call must at least carry into and out of a part, in any placement.

    Both are 0 if the part can consist of whole groups, and for collectives without a known limit, such as broadcast.

    Args:
        call: The call.
        k: Number of ranks of each of its groups.
        part: Number of ranks in the part.
    """
    inside, size = part % k, float(call.size_bytes)
    if not inside:
        return 0.0, 0.0
    inward, outward = {
        "allreduce": (1.0, 1.0),
        "allgather": ((k - inside) / k, inside / k),
        "reducescatter": (inside / k, (k - inside) / k),
        "alltoall": (inside * (k - inside) / k, inside * (k - inside) / k),
    }.get(call.collective, (0.0, 0.0))
    return inward * size, outward * size
