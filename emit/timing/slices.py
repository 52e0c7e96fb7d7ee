"""Model the slices of a chunk: an MSCCL executor runs its list of steps once for each slice, and these passes overlap.

Its interpreter loops over a chunk in pieces as large as what one step of a connection's buffer holds (for Simple half
the buffer), with NCCL's default sizes of buffers. A threadblock begins its next pass when its own last step has ended,
whatever the other threadblocks do, and a step waits for the step of the same pass. So data that passes through a chain
of ranks flows slice by slice: a pipeline of few large chunks fills as fast as one of many small chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from emit.columns import Columns
from synth.model.collective import Ints

# Bytes of data in a slice: for Simple 4 of 8 steps of 4 MiB; for LL 512 threads · 8 lines of 8 bytes; for LL128
# 640 threads · 120 words of 8 bytes, of which 15 of 16 are data.
SLICE_BYTES = {"Simple": 2 << 20, "LL": 32 << 10, "LL128": 576_000}
MOST_SLICES = 16  # More slices change a time by less than 1 %, and each slice costs as much time to run.


def slices_of(protocol: str, chunk_bytes: float) -> int:
    """Return the number of slices in which a chunk moves.

    It is the largest power of two that exceeds neither MOST_SLICES nor the number of slices that an executor makes of
    so many bytes: at least 1, one for each SLICE_BYTES of the protocol, rounded up.
    """
    needed = -(-chunk_bytes // SLICE_BYTES[protocol])
    return 1 << (int(min(max(needed, 1), MOST_SLICES)).bit_length() - 1)


@dataclass(frozen=True, eq=False)
class Passes:
    """A program's steps, repeated for each pass, pass by pass in each threadblock.

    Attributes:
        step: Step of the program for each repeated step, int, shape (passes · steps,).
        number: Number of the repeated step, by pass and step of the program, int, shape (passes, steps).
        start: First repeated step of each threadblock, with one more entry at the end.
        block: Threadblock of each repeated step.
        dep: Repeated step that each waits for, −1 for none.
        sends: Connection that each sends on, −1 for none.
        receives: Connection that each receives from, −1 for none.
    """

    step: Ints
    number: Ints
    start: Ints
    block: Ints
    dep: Ints
    sends: Ints
    receives: Ints

    def by_tie(self, of_steps: Ints) -> Ints:
        """Return the repeated steps in the order in which requests of the same age are served, shape (passes · steps,).

        The order is by pass, then as in `of_steps`, the same order of the program's steps.
        """
        return np.asarray(self.number[:, of_steps].ravel())


def passes(columns: Columns, slices: int) -> Passes:
    """Build the steps of a program, repeated for each slice; a step waits for the step of the same pass.

    Args:
        columns: Steps of the program.
        slices: Number of passes, 1 or more.
    """
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
    )
