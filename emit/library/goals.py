"""The goal of a program whose file cannot state it, as an index's entry or a file NAME.goal.json states it."""

from __future__ import annotations

from typing import Any

import numpy as np

from emit.goal import MAX_CELLS, Column, Goal
from emit.program import BUFFERS
from topologies.errors import InputError
from topologies.text.fields import Fields


def state_goal(goal: Goal) -> dict[str, Any]:
    """Return a goal as the field `goal` of an entry states it (see `emit.library.index`), in plain values.

    It has nranks, and initial and required, each five columns: rank, buffer ("i", "o", "s"), index, source, chunk. It
    does not state how buffers overlap: read again by `goal_stated`, they are apart.
    """

    def columns(rank: Column, buffer: Column, index: Column, source: Column, chunk: Column) -> list[list[Any]]:
        """Return rows as the five columns of an entry's goal."""
        return [
            rank.tolist(),
            [BUFFERS[code] for code in buffer.tolist()],
            *(c.tolist() for c in (index, source, chunk)),
        ]

    rank, buffer, index, set_of_cell = goal.required
    start = goal.sets.start
    length = np.diff(start)[set_of_cell]
    rows = np.concatenate([np.arange(start[x], start[x + 1]) for x in set_of_cell.tolist()] or [set_of_cell])
    rank, buffer, index = (np.repeat(column, length) for column in (rank, buffer, index))
    return {
        "nranks": goal.nranks,
        "initial": columns(*goal.initial),
        "required": columns(rank, buffer, index, goal.sets.source[rows], goal.sets.chunk[rows]),
    }


def goal_stated(value: object, origin: str) -> Goal:
    """Return the goal that the field `goal` of an entry states (see `state_goal`); its buffers are apart.

    Args:
        value: Value of the field.
        origin: Where it stands, with which errors begin.

    Raises:
        InputError: If the value is no goal, or a number in it is MAX_CELLS or more.
    """
    if not isinstance(value, dict):
        raise InputError(f"{origin}: goal: must be an object")
    table = Fields(value, "", f"{origin}: goal")
    nranks = table.integer("nranks", 1, MAX_CELLS)
    columns = {}
    for key in ("initial", "required"):
        stated = table.values.get(key)
        if not isinstance(stated, list) or len(stated) != 5 or not all(isinstance(item, list) for item in stated):
            table.fail(key, "must be five columns: rank, buffer, place, source, chunk")
        ranks, buffers, *numbers = stated
        if not all(type(item) is str for item in buffers):
            table.fail(key, "holds an unknown buffer; it must be i or o")
        if not all(type(item) is int and 0 <= item < MAX_CELLS for column in (ranks, *numbers) for item in column):
            table.fail(key, f"holds a number out of range; it must be 0 to {MAX_CELLS - 1}")
        columns[key] = (ranks, buffers, *numbers)
    return Goal.from_arrays(nranks, columns["initial"], columns["required"])
