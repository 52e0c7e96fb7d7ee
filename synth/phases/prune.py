"""Schedules without the sends that change nothing."""

from __future__ import annotations

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import marked


def prune_copies(problem: Problem, schedule: Schedule) -> Schedule:
    """A copying schedule without sends that nobody needs: one arrival a rank and chunk, and each leads on.

    Of several arrivals the one of the earliest step (then row) stays, so what remains is a tree for every chunk.
    """
    net, collective = problem.network, problem.collective
    have = {(c, r) for r, c in collective.pre.tolist()}
    parent: dict[tuple[int, int], int] = {}
    order = np.argsort(schedule.step, kind="stable")
    chunk, src, dst = (schedule.chunk.tolist(), net.src[schedule.link].tolist(), net.dst[schedule.link].tolist())
    for row in order.tolist():
        cell = (chunk[row], dst[row])
        if cell not in have and cell not in parent:
            parent[cell] = row
    kept = np.zeros(len(schedule), dtype=bool)
    for rank, c in collective.post.tolist():
        cell = (c, rank)
        while cell in parent and not kept[parent[cell]]:
            row = parent[cell]
            kept[row] = True
            cell = (c, src[row])
    return schedule.take(kept)


def prune_sums(problem: Problem, schedule: Schedule) -> Schedule:
    """A reducing schedule without sends of nothing, and without those whose effect nobody sees."""
    filled, live = ({(c, r) for r, c in cells.tolist()} for cells in (problem.collective.pre, problem.collective.post))
    ends = (problem.network.src[schedule.link].tolist(), problem.network.dst[schedule.link].tolist())
    source, goal = ([*zip(schedule.chunk.tolist(), ranks, strict=True)] for ranks in ends)
    steps = [np.flatnonzero(schedule.step == at).tolist() for at in range(schedule.nsteps)]
    for rows in steps:
        rows[:] = [row for row in rows if source[row] in filled]
        filled |= {goal[row] for row in rows}
    for rows in reversed(steps):
        rows[:] = [row for row in rows if goal[row] in live]
        live -= {goal[row] for row in rows if not schedule.reduces[row]}
        live |= {source[row] for row in rows}
    return schedule.take(marked(len(schedule), [row for rows in steps for row in rows]))
