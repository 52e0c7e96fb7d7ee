"""What must move at all, read off a collective: the facts on which bounds stand (no dense tables).

Entries are those of `Collective.holders` and `Collective.goals`: one a (chunk, rank), by chunk, ranks ascending.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from synth.model.collective import Bools, Collective, Floats, Ints


@dataclass(frozen=True, eq=False)
class Requirements:
    """Attributes:
    hold_chunk, goal_chunk: the chunk of every holder's and every goal's entry.
    nhold, ngoal: shape (nchunks,): how many hold and want a chunk.
    held: goals' entries: whether that rank holds the chunk before.
    wanted: holders' entries: whether that rank wants the chunk after.
    arrive: goals' entries: at least one send of the chunk must come to that rank.
    depart: holders' entries: at least one send of the chunk must leave that rank.
    """

    hold_chunk: Ints
    goal_chunk: Ints
    nhold: Ints
    ngoal: Ints
    held: Bools
    wanted: Bools
    arrive: Bools
    depart: Bools

    @property
    def any(self) -> bool:
        """Whether anything has to move."""
        return bool(self.arrive.any())


@lru_cache(maxsize=2)
def find_requirements(collective: Collective) -> Requirements:
    """A plain chunk comes to whoever wants it without holding it, and leaves its only holder if others want it.

    A sum comes to whoever wants it unless all of it is there, and leaves every holder if others want it.
    """
    (hold_ptr, hold_rank), (goal_ptr, goal_rank) = collective.holders, collective.goals
    nhold, ngoal = np.diff(hold_ptr), np.diff(goal_ptr)
    every = np.arange(collective.nchunks)
    hold_chunk, goal_chunk = np.repeat(every, nhold), np.repeat(every, ngoal)
    at_hold = hold_chunk * collective.nranks + hold_rank
    at_goal = goal_chunk * collective.nranks + goal_rank
    held, wanted = np.isin(at_goal, at_hold), np.isin(at_hold, at_goal)
    sums = collective.reduces
    complete = held & (nhold == 1)[goal_chunk]
    others = (ngoal[hold_chunk] - wanted) > 0
    arrive, depart = np.where(sums[goal_chunk], ~complete, ~held), others & (sums | (nhold == 1))[hold_chunk]
    return Requirements(hold_chunk, goal_chunk, nhold, ngoal, held, wanted, arrive, depart)


def sum_by(where: Ints, amount: Floats, count: int) -> Floats:
    """Sums of the amounts that have the same `where` in 0..count-1, shape (count,)."""
    return np.bincount(where, weights=amount, minlength=count).astype(np.float64, copy=False)
