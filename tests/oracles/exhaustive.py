"""The fastest of all schedules of a very small copying problem, by trying all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule, untimed
from synth.timing.simulate import time_us, timed


def trees(problem: Problem, chunk: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield all trees of (link, step) that bring one chunk to all ranks that want it and serve no other rank."""
    net, collective = problem.network, problem.collective
    holders = np.flatnonzero(collective.holds[chunk]).tolist()
    goals = set(np.flatnonzero(collective.wants[chunk]).tolist()) - set(holders)
    receivers = [r for r in range(net.nranks) if r not in holders]
    into = [[-1, *np.flatnonzero(net.dst == r).tolist()] for r in receivers]
    for choice in itertools.product(*into):
        link_into = dict(zip(receivers, choice, strict=True))
        depth = dict.fromkeys(holders, 0)
        while True:
            ready = [
                r for r in receivers if r not in depth and link_into[r] >= 0 and int(net.src[link_into[r]]) in depth
            ]
            if not ready:
                break
            for r in ready:
                depth[r] = depth[int(net.src[link_into[r]])] + 1
        used = [r for r in receivers if link_into[r] >= 0]
        leads = {int(net.src[link_into[r]]) for r in used}
        if goals <= depth.keys() and all(r in depth and (r in goals or r in leads) for r in used):
            yield tuple((link_into[r], depth[r] - 1) for r in used)


def fastest(problem: Problem, size: float, most_sends: int) -> float | None:
    """Return the least time over every tree of every chunk in every order of sends.

    None: A choice of trees has more than `most_sends` sends.
    """
    best = np.inf
    for choice in itertools.product(*(list(trees(problem, c)) for c in range(problem.collective.nchunks))):
        rows = [(step, chunk, link) for chunk, tree in enumerate(choice) for link, step in tree]
        if len(rows) > most_sends:
            return None
        for order in itertools.permutations(rows):
            holders_of: dict[int, set[int]] = {}
            table = np.array(order, dtype=np.int64).reshape(-1, 3)
            if not _in_order(problem, table, holders_of):
                continue
            plain = np.zeros(len(table), dtype=bool)
            best = min(best, _time(problem, untimed(table[:, 1], table[:, 2], table[:, 0], plain), size))
    return float(best)


def _in_order(problem: Problem, table: np.ndarray, holders_of: dict[int, set[int]]) -> bool:
    """Return whether every send's chunk is at its source when it is sent."""
    net, collective = problem.network, problem.collective
    for _, chunk, link in table.tolist():
        have = holders_of.setdefault(chunk, set(np.flatnonzero(collective.holds[chunk]).tolist()))
        if int(net.src[link]) not in have:
            return False
        have.add(int(net.dst[link]))
    return True


def _time(problem: Problem, schedule: Schedule, size: float) -> float:
    return time_us(problem, timed(problem, schedule, size))
