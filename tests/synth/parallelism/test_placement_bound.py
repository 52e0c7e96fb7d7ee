"""The bytes that calls over different axes must carry across a part, against all sets of cells."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from synth.parallelism.axes import Axis
from synth.parallelism.placement import rank_placements
from synth.parallelism.placement_bound import least_crossing, least_crossing_of_all, step_bound
from synth.parallelism.workload import Call, Workload
from topologies.levels.hierarchy import find_levels
from topologies.load import load
from topologies.network import network

NAMES = ("allreduce", "allgather", "reducescatter", "alltoall")


def crossing(calls: list[Call], sizes: tuple[int, ...], cells: tuple[tuple[int, ...], ...]) -> np.ndarray:
    """Return the bytes into and out of a set of cells of the axes' grid."""
    crossing_bytes = np.zeros(2)
    for call in calls:
        k = math.prod(sizes[axis] for axis in call.over)
        groups = Counter(tuple(x for axis, x in enumerate(cell) if axis not in call.over) for cell in cells)
        for inside in groups.values():
            crossing_bytes += call.times * np.array(least_crossing(call, k, inside))
    return crossing_bytes


@pytest.mark.parametrize("sizes", [(2, 3), (4, 3), (3, 3), (2, 2, 2), (2, 1, 4), (2, 2, 3)])
def test_no_set_of_ranks_carries_less_and_in_two_axes_the_bound_is_reached(sizes: tuple[int, ...]) -> None:
    rng, grid = random.Random(str(sizes)), list(itertools.product(*map(range, sizes)))
    for part in range(1, len(grid)):
        if math.comb(len(grid), part) > 500:
            continue
        calls = [
            Call(
                str(i), rng.choice(NAMES), tuple(sorted(rng.sample(range(len(sizes)), rng.randint(1, len(sizes))))),
                rng.randint(1, 100), rng.choice((0.5, 1.0, 3.0)),
            )
            for i in range(3)
        ]  # fmt: skip
        calls = [call for call in calls if math.prod(sizes[axis] for axis in call.over) > 1]
        least = np.min([crossing(calls, sizes, cells) for cells in itertools.combinations(grid, part)], axis=0)
        least_bytes = least_crossing_of_all(calls, sizes, part)
        assert (least_bytes <= least * (1 + 1e-9)).all()
        if len(sizes) == 2:
            assert least_bytes == pytest.approx(least)


def test_two_axes_cannot_both_lie_within_a_node() -> None:
    """Check that eight ranks hold whole groups of either axis of 8, but not of both: a block of 2 × 4 is best."""
    calls = [Call("a", "allreduce", (0,), 5), Call("b", "allreduce", (1,), 3, 2.0)]
    assert least_crossing_of_all(calls, (8, 8), 8).tolist() == [4 * 5 + 2 * 6] * 2
    assert least_crossing_of_all(calls[:1], (8, 8), 8).tolist() == [0, 0]


def test_phases_have_one_placement() -> None:
    """Check nodes of four behind a link: two phases that each want the node for their own axis cannot both have it."""
    topology = load("fattree:4x4x1,alpha=0")
    levels, net = find_levels(topology), network(topology, range(16))
    axes = (Axis("a", 4), Axis("b", 4))
    first, second = (Call(name, "allreduce", (axis,), 1 << 20) for axis, name in enumerate("ab"))
    separate_us = [step_bound(net, levels, axes, Workload((call,))) for call in (first, second)]
    shared_us = step_bound(net, levels, axes, Workload((first, second)))
    times = [
        p.step.time_us for p in rank_placements(topology, levels, axes, Workload((first, second)), top=0).placements
    ]
    assert shared_us > 1.4 * sum(separate_us)
    assert shared_us <= min(times) * (1 + 1e-9)
