"""A Schedule: all sends of an algorithm as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from synth.model.collective import Bools, Floats, Ints


@dataclass(frozen=True, eq=False)
class Schedule:
    """Sends, one a row, in order of priority (a send stands behind the sends that bring what it carries).

    Attributes:
        chunk, link: int, shape (n,): which chunk goes over which link of the problem's network.
        step: int, shape (n,), from 0. A send carries what its source holds after all arrivals of earlier steps
            and none of its own step or later; this, and not the clock, says which partial sum is meant.
        reduces: bool, shape (n,): added to what the destination holds (else it replaces it).
        start_us, end_us: float, shape (n,): when the send takes and leaves the link; the chunk can be used at
            the other end α later.
        size_bytes: the message size that the times are for.
    """

    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools
    start_us: Floats
    end_us: Floats
    size_bytes: float

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def nsteps(self) -> int:
        return int(self.step.max()) + 1 if len(self.step) else 0

    def take(self, rows: Ints | Bools) -> Schedule:
        """The rows given, in the order given."""
        columns = ("chunk", "link", "step", "reduces", "start_us", "end_us")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})


def untimed(chunk: Ints, link: Ints, step: Ints, reduces: Bools | None = None) -> Schedule:
    """A schedule whose times are still to be set by `simulate.timed`; no send reduces where `reduces` is None."""
    none = np.zeros(len(chunk))
    reduces = np.zeros(len(chunk), dtype=bool) if reduces is None else reduces
    chunk, link, step = (np.asarray(column, dtype=np.int64) for column in (chunk, link, step))
    return Schedule(chunk, link, step, np.asarray(reduces, dtype=bool), none, none, 0.0)
