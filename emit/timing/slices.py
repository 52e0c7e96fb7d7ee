"""Slices: an MSCCL executor runs its list of steps once for every slice of a chunk, and the passes overlap.

Its interpreter loops over a chunk in pieces of what one step of a connection's buffer holds (for Simple of half the
buffer), with NCCL's default sizes of buffers; a threadblock begins its next pass when its own last step has ended,
whatever the others do, and a step waits for the step of the same pass. So what goes through several ranks one behind
the other flows on slice by slice: a pipeline of few large chunks fills as fast as one of many small ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emit.columns import Columns
from synth.model.collective import Ints
from topologies.arrays import pointers

# of data: Simple 4 of 8 steps of 4 MiB; LL 512 threads · 8 lines of 8 bytes; LL128 640 threads · 120 words of 8 bytes,
# 15 of 16 of them data
SLICE_BYTES = {"Simple": 2 << 20, "LL": 32 << 10, "LL128": 576_000}
MOST_SLICES = 16  # that are told apart: more change a time by less than a hundredth, and each takes as long to run


def slices_of(protocol: str, chunk_bytes: float) -> int:
    """In how many slices a chunk is moved, a power of two, at most as many as an executor makes."""
    needed = -(-chunk_bytes // SLICE_BYTES[protocol])
    return 1 << (int(min(max(needed, 1), MOST_SLICES)).bit_length() - 1)


@dataclass(frozen=True, eq=False)
class Passes:
    """A program's steps, pass by pass in each threadblock.

    Attributes:
        step: int, shape (n,): the program's step that each is.
        number: of those of pass p: first[p]; shape (passes, steps).
        start, block, dep, sends, receives, moves: as `Clock` takes them.
    """

    step: Ints
    number: Ints
    start: Ints
    block: Ints
    dep: Ints
    sends: Ints
    receives: Ints
    moves: Ints

    def by_tie(self, of_steps: Ints) -> Ints:
        """The steps as they go first of one age: by pass, then as the program's do."""
        return np.asarray(self.number[:, of_steps].ravel())


def passes(columns: Columns, times: Ints, slices: int) -> Passes:
    """The steps of a program `slices` times over; times: transmissions of each step in one pass."""
    c, nsteps = columns, len(columns.dep)
    length = np.diff(c.start)[c.block]
    first = c.start[c.block]
    number = slices * first + np.arange(nsteps) - first + np.arange(slices)[:, None] * length
    step = np.empty(slices * nsteps, dtype=np.int64)
    step[number.ravel()] = np.tile(np.arange(nsteps), slices)
    dep = np.full(slices * nsteps, -1)
    waits = np.flatnonzero(c.dep >= 0)
    dep[number[:, waits]] = number[:, c.dep[waits]]
    return Passes(
        step=step,
        number=number,
        start=slices * c.start,
        block=c.block[step],
        dep=dep,
        sends=c.sends[step],
        receives=c.receives[step],
        moves=pointers(times[step]),
    )
