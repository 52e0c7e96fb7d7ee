"""Where a program's chunks lie in the caller's buffers, for any number of elements."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emit.columns import Column
from emit.goal import BLOCKED, Goal, buffer_sizes, goal_for
from emit.program import Program
from topologies.errors import InputError


@dataclass(frozen=True, eq=False)
class Layout:
    """A program's buffers when a block has so many elements.

    A block is the whole buffer of an allreduce, broadcast or reduce and of a custom program, and one rank's share in
    all others. It is cut into chunks as evenly as whole elements allow; the first element of chunk j of a block of n
    elements in k chunks is ⌊j n / k⌋.

    Attributes:
        chunks: of a block. elements: of a block. longest: elements of the longest chunk.
    """

    program: Program
    elements: int
    chunks: int
    longest: int

    @classmethod
    def of(cls, program: Program, elements: int) -> Layout:
        """Raises InputError for fewer than no elements."""
        if elements < 0:
            raise InputError(f"{elements} elements: would be 0 or more")
        p = program
        chunks = p.nchunks_per_loop // p.nranks if p.collective in BLOCKED else p.nchunks_per_loop
        return cls(program, elements, chunks, -(-elements // chunks))

    def spans(self, cells: int) -> Column:
        """First element of each cell of a buffer of so many cells, and its end: (cells + 1,), counted from 0."""
        at = np.arange(cells + 1, dtype=np.int64)
        return at // self.chunks * self.elements + at % self.chunks * self.elements // self.chunks

    def cells(self, rank: int) -> tuple[int, int]:
        """Chunks of the rank's input and output buffer, out of place."""
        p = self.program
        if p.collective == "custom":
            gpu = p.gpus[rank]
            return gpu.i_chunks, gpu.o_chunks
        return buffer_sizes(p.collective, p.nranks, p.nchunks_per_loop, rank, p.root)

    def sizes(self, rank: int) -> tuple[int, int]:
        """Elements of them."""
        given, made = self.cells(rank)
        return int(self.spans(given)[-1]), int(self.spans(made)[-1])


def goal_of(program: Program, goal: Goal | None, inplace: bool) -> Goal:
    """What the program must achieve. Raises InputError where neither its name nor `goal` says it."""
    p = program
    found = goal or goal_for(p.collective, p.nranks, p.nchunks_per_loop, inplace, p.root)
    if found is None:
        raise InputError(
            f"collective {p.collective!r} does not say what the result must be: would be given a goal"
        )
    return found
