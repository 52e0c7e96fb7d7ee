"""Derive from a collective what must be sent in any schedule: the facts that bounds rest on (no dense tables).

Entries are those of `Collective.holders` and `Collective.goals`: one for each (chunk, rank), by chunk, ranks ascending.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from synth.model.collective import Bools, Collective, Floats, Ints


@dataclass(frozen=True, eq=False)
class Requirements:
    """The sends that any schedule of a collective must have.

    Attributes:
        hold_chunk: Chunk of every holder's entry, shape (holders' entries,).
        goal_chunk: Chunk of every goal's entry, shape (goals' entries,).
        nhold: Number of ranks that hold each chunk, shape (nchunks,).
        ngoal: Number of ranks that want each chunk, shape (nchunks,).
        goal_is_holder: Whether each goal's rank holds the chunk before, shape (goals' entries,).
        arrive: Whether at least one send of the chunk must come to each goal's rank, shape (goals' entries,).
        depart: Whether at least one send of the chunk must leave each holder's rank, shape (holders' entries,).
    """

    hold_chunk: Ints
    goal_chunk: Ints
    nhold: Ints
    ngoal: Ints
    goal_is_holder: Bools
    arrive: Bools
    depart: Bools

    @property
    def any(self) -> bool:
        """Return whether any chunk has to move."""
        return bool(self.arrive.any())


@lru_cache(maxsize=2)
def find_requirements(collective: Collective) -> Requirements:
    """Find the sends that any schedule of a collective must have.

    A plain chunk comes to every rank that wants it without holding it, and leaves its only holder if others want it. A
    sum comes to every rank that wants it unless the rank is its only holder, and leaves every holder if others want it.
    Calls with the same object share one result.
    """
    (hold_ptr, hold_rank), (goal_ptr, goal_rank) = collective.holders, collective.goals
    nhold, ngoal = np.diff(hold_ptr), np.diff(goal_ptr)
    chunks = np.arange(collective.nchunks)
    hold_chunk, goal_chunk = np.repeat(chunks, nhold), np.repeat(chunks, ngoal)
    at_hold = hold_chunk * collective.nranks + hold_rank
    at_goal = goal_chunk * collective.nranks + goal_rank
    goal_is_holder, holder_is_goal = np.isin(at_goal, at_hold), np.isin(at_hold, at_goal)
    sums = collective.reduces
    complete = goal_is_holder & (nhold == 1)[goal_chunk]
    wanted_elsewhere = (ngoal[hold_chunk] - holder_is_goal) > 0
    arrive, depart = (
        np.where(sums[goal_chunk], ~complete, ~goal_is_holder),
        wanted_elsewhere & (sums | (nhold == 1))[hold_chunk],
    )
    return Requirements(hold_chunk, goal_chunk, nhold, ngoal, goal_is_holder, arrive, depart)


def sum_by(where: Ints, amount: Floats, count: int) -> Floats:
    """Return the sums of the amounts that have the same index, shape (count,); 0 for an index without any.

    Args:
        where: Index of each amount, 0..count-1, shape (n,).
        amount: The amounts, shape (n,).
        count: Number of sums.
    """
    return np.bincount(where, weights=amount, minlength=count).astype(np.float64, copy=False)
