"""Bucket (Jain and Sabharwal, ICPP 2010): rings along one dimension of a grid after another, in both directions."""

from __future__ import annotations

import numpy as np

from synth.baselines.algorithms.exchange import Pattern, along, exchange_baselines
from synth.baselines.algorithms.grid import grid_extents
from synth.baselines.fifo import Unordered
from synth.baselines.tuning import TUNING
from synth.model.problem import Problem

NAME = "bucket"


def bucket_baselines(problem: Problem, most: int = TUNING.most_sends) -> list[Unordered]:
    """Build exchanges in which neighbours on the lines of a dimension send each other what they lack.

    There are as many concurrent exchanges as dimensions, each of which begins with another one. They take as many hops
    as the grid's diameter, and on a torus every link carries as much. It is for grids of any extents, with or without
    links around; empty where a line has other links too.
    """
    extents = grid_extents(problem)
    k, net = problem.collective.nranks, problem.network
    linked = np.zeros((k, k), dtype=bool)
    inside = (net.src < k) & (net.dst < k)
    linked[net.src[inside], net.dst[inside]] = True
    lines = []
    for dimension, extent in enumerate(extents):
        place = np.arange(extent)
        neighbours = [
            along(extents, dimension, (place + direction) % extent) for direction in ((1, -1) if extent > 2 else (1,))
        ]
        phase = [np.where(linked[np.arange(k), goals], goals, -1) for goals in neighbours]
        around = all((goals >= 0).all() for goals in phase)
        lines.append([phase] * (extent // 2 if around else extent - 1))
        for goals in phase:
            linked[np.flatnonzero(goals >= 0), goals[goals >= 0]] = False
    if linked.any():
        return []
    turned: list[Pattern] = [[p for i in range(len(lines)) for p in lines[d - i]] for d in range(len(lines))]
    return exchange_baselines(problem, NAME, turned, most)
