"""Schedules without the sends that change nothing."""

from __future__ import annotations

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import marked

_Cell = tuple[int, int]  # chunk, rank


def prune_copies(problem: Problem, schedule: Schedule) -> Schedule:
    """A copying schedule without sends that nobody needs: one arrival a rank and chunk, and each leads on.

    Of several arrivals the one of the earliest step (then row) stays, so what remains is a tree for every chunk.
    """
    source, goal, filled, live = _cells(problem, schedule)
    first, kept = [], []
    for row in np.argsort(schedule.step, kind="stable").tolist():
        if goal[row] not in filled:
            filled.add(goal[row])
            first.append(row)
    for row in reversed(first):
        if goal[row] in live:
            live.add(source[row])
            kept.append(row)
    return schedule.take(marked(len(schedule), kept))


def prune_sums(problem: Problem, schedule: Schedule) -> Schedule:
    """A reducing schedule without sends of nothing, and without those whose effect nobody sees."""
    source, goal, filled, live = _cells(problem, schedule)
    steps = [np.flatnonzero(schedule.step == at).tolist() for at in range(schedule.nsteps)]
    for rows in steps:
        rows[:] = [row for row in rows if source[row] in filled]
        filled |= {goal[row] for row in rows}
    for rows in reversed(steps):
        rows[:] = [row for row in rows if goal[row] in live]
        live -= {goal[row] for row in rows if not schedule.reduces[row]}
        live |= {source[row] for row in rows}
    return schedule.take(marked(len(schedule), [row for rows in steps for row in rows]))


def _cells(problem: Problem, schedule: Schedule) -> tuple[list[_Cell], list[_Cell], set[_Cell], set[_Cell]]:
    """Where each send comes from and goes to; and what is filled before and wanted after."""
    filled, live = ({(c, r) for r, c in cells.tolist()} for cells in (problem.collective.pre, problem.collective.post))
    ends = (problem.network.src[schedule.link].tolist(), problem.network.dst[schedule.link].tolist())
    source, goal = ([*zip(schedule.chunk.tolist(), ranks, strict=True)] for ranks in ends)
    return source, goal, filled, live
