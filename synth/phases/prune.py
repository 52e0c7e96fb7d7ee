"""Remove the sends of a schedule that have no effect."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from synth.model.collective import Bools, Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule


class _Cells(NamedTuple):
    """The cells of a schedule, numbered; a cell is a chunk at a rank.

    Attributes:
        source: Cell from which each send takes its chunk, shape (sends,).
        goal: Cell to which each send brings it, shape (sends,).
        filled: Whether each cell has its chunk before the schedule, shape (cells,).
        live: Whether each cell must have it after the schedule, shape (cells,).
        steps: Sends of each step in the order of their rows.
    """

    source: Ints
    goal: Ints
    filled: Bools
    live: Bools
    steps: list[Ints]


def prune_copies(problem: Problem, schedule: Schedule) -> Schedule:
    """Remove the sends of a copying schedule that nobody needs.

    Of the arrivals of a chunk at a rank, the one of the earliest step (then row) stays, and only if a wanted copy
    depends on it; none stays at a rank that holds the chunk from the beginning. What remains is a tree for every chunk.
    The rows that stay keep their order and times.
    """
    cells = _cells(problem, schedule)
    is_needed = np.zeros(len(schedule), dtype=bool)
    order = np.concatenate([np.zeros(0, dtype=np.int64), *cells.steps])
    is_needed[order[np.unique(cells.goal[order], return_index=True)[1]]] = True
    is_needed &= ~cells.filled[cells.goal]
    for rows in reversed(cells.steps):
        is_needed[rows] &= cells.live[cells.goal[rows]]
        cells.live[cells.source[rows[is_needed[rows]]]] = True
    return schedule.take(is_needed)


def prune_sums(problem: Problem, schedule: Schedule) -> Schedule:
    """Remove the sends of a reducing schedule that carry nothing or whose effect reaches no output.

    The rows that stay keep their order and times.
    """
    cells = _cells(problem, schedule)
    is_needed = np.zeros(len(schedule), dtype=bool)
    for rows in cells.steps:
        is_needed[rows] = cells.filled[cells.source[rows]]
        cells.filled[cells.goal[rows[is_needed[rows]]]] = True
    for rows in reversed(cells.steps):
        is_needed[rows] &= cells.live[cells.goal[rows]]
        needed = rows[is_needed[rows]]
        cells.live[cells.goal[needed[~schedule.reduces[needed]]]] = False
        cells.live[cells.source[needed]] = True
    return schedule.take(is_needed)


def _cells(problem: Problem, schedule: Schedule) -> _Cells:
    """Return the cells of a schedule."""
    net, collective, nranks = problem.network, problem.collective, problem.nranks
    source, goal = (schedule.chunk * nranks + ends[schedule.link] for ends in (net.src, net.dst))
    before, after = (rows[:, 1] * nranks + rows[:, 0] for rows in (collective.pre, collective.post))
    cells, number = np.unique(np.concatenate([source, goal, before, after]), return_inverse=True)
    filled, live = np.zeros(len(cells), dtype=bool), np.zeros(len(cells), dtype=bool)
    source, goal, before, after = np.split(number, np.cumsum([len(source), len(goal), len(before)]))
    filled[before] = live[after] = True
    order = np.argsort(schedule.step, kind="stable")
    return _Cells(source, goal, filled, live, np.split(order, np.cumsum(np.bincount(schedule.step))[:-1]))
