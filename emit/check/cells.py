"""Memory as cells: one number for each chunk of memory, however many buffers it can be reached through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emit.columns import Column, Columns
from emit.goal import Goal
from emit.program import Program
from topologies.errors import InputError


@dataclass(slots=True)
class Cells:
    """`src`, `dst`: the cell of each step's first source and destination chunk; the next chunk's is the next.

    base: of each (rank, buffer code) the cell of index 0.
    """

    src: list[int]
    dst: list[int]
    base: Column

    def of(self, rank: Column, buffer: Column, index: Column) -> list[int]:
        """Cells of columns (rank, buffer code, index)."""
        out: list[int] = (self.base[rank, buffer] + index).tolist()
        return out


def cells_of(program: Program, c: Columns, goal: Goal | None, aliased: bool) -> Cells:
    """Number the cells: i and o share memory where the goal says so (no goal: chunk by chunk if `aliased`).

    Raises InputError for a goal of another number of ranks.
    """
    if goal is not None and goal.nranks != program.nranks:
        raise InputError(f"goal for {goal.nranks} ranks, program of {program.nranks}; it must be equal")
    o_in_i = goal.o_in_i if goal is not None else (0 if aliased else None,) * program.nranks
    reach = max((max(g.i_chunks, g.o_chunks, g.s_chunks) for g in program.gpus), default=0)
    if goal is not None:
        for column in (goal.initial[2], goal.required[2]):
            reach = max(reach, int(column.max(initial=0)) + 1)
    reach = max([reach, *(abs(x) for x in o_in_i if x is not None)])
    # A rank's memory: room below and above i for an o that shares its cells, then a lone o, then s.
    stride = 6 * reach
    base = np.zeros((program.nranks, 3), dtype=np.int64)
    for rank, shift in enumerate(o_in_i):
        i_at = rank * stride + reach
        base[rank] = (i_at, i_at + (shift if shift is not None else 3 * reach), i_at + 4 * reach)
    of = c.rank[c.block]
    return Cells((base[of, c.src] + c.src_at).tolist(), (base[of, c.dst] + c.dst_at).tolist(), base)
