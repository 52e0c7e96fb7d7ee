"""Hold all sends of an algorithm as columns: a Schedule."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.text import format_count, format_size


@dataclass(frozen=True, eq=False)
class Schedule:
    """A schedule: one send a row, in order of priority.

    A send stands behind the sends that bring what it carries.

    Attributes:
        chunk: Chunk of each send; int, shape (n,).
        link: Link of the problem's network that each send uses; int, shape (n,).
        step: Step of each send, from 0; int, shape (n,). A send carries what its source holds after all arrivals of
            earlier steps and none of its own step or later. The step, and not the clock, defines which partial sum a
            send carries.
        reduces: Whether the destination adds the chunk to what it holds, or replaces it; bool, shape (n,).
        start_us: Time at which each send takes its link, in µs; float, shape (n,).
        end_us: Time at which each send leaves its link, in µs; float, shape (n,). The chunk can be used at the other
            end α later.
        size_bytes: Message size that the times are for.
        joined: Whether each send leaves in one message with the send of the row before it: over the same link, in the
            same step, as soon as all chunks of the message are ready. The chunks arrive all at once, and the message
            has one gap. Bool, shape (n,); empty where every send is a message of its own.
    """

    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools
    start_us: Floats
    end_us: Floats
    size_bytes: float
    joined: Bools = field(default_factory=lambda: np.zeros(0, dtype=bool))

    def __len__(self) -> int:
        return len(self.chunk)

    def __repr__(self) -> str:
        """Return the numbers of sends and steps in one line, with the message size for which the sends are timed.

        The time of the whole schedule is not in it, because the latency of the last link is not known here.
        """
        sends, steps = format_count(len(self), "send"), format_count(self.nsteps, "step")
        if not len(self) or not 0 < self.size_bytes < np.inf:
            return f"<Schedule of {sends} in {steps}, without times>"
        return f"<Schedule of {sends} in {steps}, timed for {format_size(round(self.size_bytes))}>"

    @property
    def nsteps(self) -> int:
        """Return the number of steps: the highest step + 1, or 0 without sends."""
        return int(self.step.max()) + 1 if len(self.step) else 0

    def take(self, rows: Ints | Bools) -> Schedule:
        """Return the schedule of some rows, with their times and for the same message size.

        Sends of one message stay joined where they still stand behind each other.

        Args:
            rows: Indices of the rows, in the order in which they shall stand; or a flag for every row.
        """
        columns = ("chunk", "link", "step", "reduces", "start_us", "end_us")
        joined = follows_same(self.message[rows]) if len(self.joined) else self.joined
        return replace(self, joined=joined, **{name: getattr(self, name)[rows] for name in columns})

    def read_only(self) -> Schedule:
        """Return the schedule with the same columns, which cannot be written through it."""
        columns: dict[str, Any] = {
            name: column.view() for name, column in vars(self).items() if isinstance(column, np.ndarray)
        }
        for column in columns.values():
            column.flags.writeable = False
        return replace(self, **columns)

    @property
    def message(self) -> Ints:
        """Return the number, from 0 on, of the message in which each send leaves, int64, shape (n,)."""
        return np.cumsum(~self.joined) - 1 if len(self.joined) else np.arange(len(self))


def follows_same(message: Ints) -> Bools:
    """Return for each row whether the row before it is of the same message; empty where no row is.

    Args:
        message: Number of the message of each row, shape (n,).
    """
    joined = np.append(False, message[1:] == message[:-1])[: len(message)]
    return joined if joined.any() else np.zeros(0, dtype=bool)


def untimed(chunk: Ints, link: Ints, step: Ints, reduces: Bools | None = None, joined: Bools | None = None) -> Schedule:
    """Build a schedule whose times and message size are all 0; `simulate.timed` sets them.

    Nothing is checked or sorted. The schedule shares arrays that have the right type already with the caller.

    Args:
        chunk: Chunk of each send, shape (n,).
        link: Link of each send, shape (n,).
        step: Step of each send, from 0, shape (n,).
        reduces: Whether each send is added, shape (n,); None if no send is.
        joined: Whether each send is in one message with the send before it, shape (n,); None if no send is.
    """
    none = np.zeros(len(chunk))
    reduces = np.zeros(len(chunk), dtype=bool) if reduces is None else reduces
    chunk, link, step = (np.asarray(column, dtype=np.int64) for column in (chunk, link, step))
    joined = np.zeros(0, dtype=bool) if joined is None else joined
    return Schedule(chunk, link, step, np.asarray(reduces, dtype=bool), none, none, 0.0, joined)
