"""Remove the sends of a schedule that have no effect."""

from __future__ import annotations

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.arrays import flags_of

_Cell = tuple[int, int]  # chunk, rank


def prune_copies(problem: Problem, schedule: Schedule) -> Schedule:
    """Remove the sends of a copying schedule that nobody needs.

    Of the arrivals of a chunk at a rank, the one of the earliest step (then row) stays, and only if a wanted copy
    depends on it; none stays at a rank that holds the chunk from the beginning. What remains is a tree for every chunk.
    The rows that stay keep their order and times.
    """
    source, goal, filled, live = _cells(problem, schedule)
    first_arrivals, needed = [], []
    for row in np.argsort(schedule.step, kind="stable").tolist():
        if goal[row] not in filled:
            filled.add(goal[row])
            first_arrivals.append(row)
    for row in reversed(first_arrivals):
        if goal[row] in live:
            live.add(source[row])
            needed.append(row)
    return schedule.take(flags_of(len(schedule), needed))


def prune_sums(problem: Problem, schedule: Schedule) -> Schedule:
    """Remove the sends of a reducing schedule that carry nothing or whose effect reaches no output.

    The rows that stay keep their order and times.
    """
    source, goal, filled, live = _cells(problem, schedule)
    steps = [np.flatnonzero(schedule.step == step).tolist() for step in range(schedule.nsteps)]
    for rows in steps:
        rows[:] = [row for row in rows if source[row] in filled]
        filled |= {goal[row] for row in rows}
    for rows in reversed(steps):
        rows[:] = [row for row in rows if goal[row] in live]
        live -= {goal[row] for row in rows if not schedule.reduces[row]}
        live |= {source[row] for row in rows}
    return schedule.take(flags_of(len(schedule), [row for rows in steps for row in rows]))


def _cells(problem: Problem, schedule: Schedule) -> tuple[list[_Cell], list[_Cell], set[_Cell], set[_Cell]]:
    """Return the source and goal cell of each send, the cells filled before, and those wanted after.

    A cell is (chunk, local rank).
    """
    filled, live = ({(c, r) for r, c in cells.tolist()} for cells in (problem.collective.pre, problem.collective.post))
    ends = (problem.network.src[schedule.link].tolist(), problem.network.dst[schedule.link].tolist())
    source, goal = ([*zip(schedule.chunk.tolist(), ranks, strict=True)] for ranks in ends)
    return source, goal, filled, live
