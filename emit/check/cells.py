"""Number memory by cells: one number for each chunk of memory, whichever buffers reach it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emit.columns import Column, Columns
from emit.goal import Goal
from emit.program import Program
from topologies.errors import InputError


@dataclass(slots=True)
class Cells:
    """The memory cells that a program's steps access; consecutive chunks have consecutive cells.

    Attributes:
        src: Cell of the first source chunk, by step.
        dst: Cell of the first destination chunk, by step.
        base: Cell of a buffer's index 0, int64, shape (nranks, 3), by rank and buffer code.
    """

    src: list[int]
    dst: list[int]
    base: Column

    def of(self, rank: Column, buffer: Column, index: Column) -> list[int]:
        """Return the cells of chunks that are given as columns (rank, buffer code, index)."""
        cells: list[int] = (self.base[rank, buffer] + index).tolist()
        return cells


def cells_of(program: Program, c: Columns, goal: Goal | None, aliased: bool) -> Cells:
    """Build the numbering of a program's memory cells.

    Args:
        program: The program.
        c: Its steps.
        goal: Says where o lies in i; None if there is no goal. Its cells are numbered even if they exceed a buffer.
        aliased: Whether o[x] and i[x] are one cell if there is no goal.

    Raises:
        InputError: The goal has another number of ranks.
    """
    if goal is not None and goal.nranks != program.nranks:
        raise InputError(f"goal for {goal.nranks} ranks, program of {program.nranks}; it must be equal")
    o_in_i = goal.o_in_i if goal is not None else (0 if aliased else None,) * program.nranks
    reach = max((max(g.i_chunks, g.o_chunks, g.s_chunks) for g in program.gpus), default=0)
    if goal is not None:
        for column in (goal.initial[2], goal.required[2]):
            reach = max(reach, int(column.max(initial=0)) + 1)
    reach = max([reach, *(abs(x) for x in o_in_i if x is not None)])
    # A rank's memory: space below and above i for an o that shares its cells, then an o of its own, then s.
    stride = 6 * reach
    base = np.zeros((program.nranks, 3), dtype=np.int64)
    for rank, shift in enumerate(o_in_i):
        i_at = rank * stride + reach
        base[rank] = (i_at, i_at + (shift if shift is not None else 3 * reach), i_at + 4 * reach)
    rank_of_step = c.rank[c.block]
    return Cells((base[rank_of_step, c.src] + c.src_at).tolist(), (base[rank_of_step, c.dst] + c.dst_at).tolist(), base)
