"""The sends of a schedule as columns: what Python users read, turn into a data frame and draw."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from synth.app.figures import draw_network, draw_timeline
from synth.model.numbers import as_folder, taking
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import format_count, format_size, format_time
from synth.storage.schedule_file import load_schedule
from synth.timing.simulate import time_us
from topologies.arrays import Bools, Floats, Ints, row_entries
from topologies.optional import optional_module

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame


@dataclass(frozen=True, eq=False)
class SendTable:
    """All sends of a schedule at one message size, as columns: one row for each pair of ranks and each chunk.

    A multicast or a reduction by a switch has one row for each pair of ranks that it joins.

    Attributes:
        problem: What the schedule solves.
        schedule: The schedule, timed for one message size.
        engine: Name of the engine that found the schedule.
    """

    problem: Problem
    schedule: Schedule
    engine: str

    @property
    def size_bytes(self) -> float:
        """Return the message size in bytes that the times are for."""
        return self.schedule.size_bytes

    @cached_property
    def time_us(self) -> float:
        """Return the time in µs when the last chunk has arrived."""
        return time_us(self.problem, self.schedule)

    @cached_property
    def send(self) -> Ints:
        """Return the row of the schedule that each row of the table stands for; int64, shape (n,)."""
        _, send = self._pairs
        return send

    @cached_property
    def source(self) -> Ints:
        """Return the rank of the topology that sends, for each row; int64, shape (n,)."""
        pair, _ = self._pairs
        return np.array(self.problem.ranks)[self.problem.network.pairs.src[pair]]

    @cached_property
    def destination(self) -> Ints:
        """Return the rank of the topology that receives, for each row; int64, shape (n,)."""
        pair, _ = self._pairs
        return np.array(self.problem.ranks)[self.problem.network.pairs.dst[pair]]

    @property
    def chunk(self) -> Ints:
        """Return the number of the chunk that each row sends; int64, shape (n,)."""
        return self.schedule.chunk[self.send]

    @property
    def step(self) -> Ints:
        """Return the step, from 0; a send carries what its source holds after all earlier steps; int64, shape (n,)."""
        return self.schedule.step[self.send]

    @property
    def reduces(self) -> Bools:
        """Return True for rows that add the chunk to what the destination holds, not replace it; bool, shape (n,)."""
        return self.schedule.reduces[self.send]

    @property
    def start_us(self) -> Floats:
        """Return the time in µs at which each send takes its link; float64, shape (n,)."""
        return self.schedule.start_us[self.send]

    @property
    def end_us(self) -> Floats:
        """Return the time in µs at which each send leaves its link; float64, shape (n,)."""
        return self.schedule.end_us[self.send]

    @property
    def arrival_us(self) -> Floats:
        """Return the time in µs at which the destination can use each chunk, α after its end; float64, shape (n,)."""
        return (self.schedule.end_us + self.problem.network.carriers.alpha_us[self.schedule.link])[self.send]

    def __len__(self) -> int:
        return len(self.send)

    def __repr__(self) -> str:
        """Return the collective, the number of sends, the size and the time in one line."""
        question = f"{self.problem.collective.name} on {self.problem.topology.name}"
        takes = f"{format_size(round(self.size_bytes))} in {format_time(self.time_us)}"
        return f"<{format_count(len(self), 'send')} of {question}: {takes}>"

    def to_pandas(self) -> DataFrame:
        """Return the columns as a pandas data frame with one row a send.

        The columns are source, destination, chunk, step, reduces, start_us, end_us and arrival_us.

        Raises:
            InputError: pandas is not installed.
        """
        names = ("source", "destination", "chunk", "step", "reduces", "start_us", "end_us", "arrival_us")
        frame: DataFrame = load_pandas().DataFrame({name: getattr(self, name) for name in names})
        return frame

    @taking("sends.plot_timeline()")
    def plot_timeline(self, ax: Axes | None = None) -> Axes:
        """Draw when each pair of ranks is in use, one line a pair and one colour a step, and return the axes.

        A send arrives α after it leaves its link; a dashed line shows when the last one has.

        Args:
            ax: Axes of matplotlib to draw on; None for new ones.

        Raises:
            InputError: matplotlib is not installed.
        """
        return draw_timeline(self.source, self.destination, self.step, self.start_us, self.end_us, self.time_us, ax)

    @taking("sends.plot_network()")
    def plot_network(self, ax: Axes | None = None) -> Axes:
        """Draw the network with the share of the time in which each link is in use, and return the axes.

        Args:
            ax: Axes of matplotlib to draw on; None for new ones.

        Raises:
            InputError: matplotlib is not installed, switches multicast or reduce in the schedule, or the network has
                too many links.
        """
        return draw_network(self.problem, self.schedule, ax)

    @cached_property
    def _pairs(self) -> tuple[Ints, Ints]:
        """Return, for each row of the table, the index of the pair of ranks that is joined, and the schedule's row.

        Both are int arrays of shape (n,).
        """
        ptr, link = self.problem.network.pairs.ptr, self.schedule.link
        return row_entries(ptr, link), np.repeat(np.arange(len(link)), ptr[link + 1] - ptr[link])


def load_pandas() -> Any:
    """Import pandas and return it; raise InputError if it is not installed."""
    return optional_module("pandas", "pandas", "data frames need pandas")


@taking('synth.load("schedule.synth")')
def load(path: str | Path) -> SendTable:
    """Read a stored schedule (`NAME.synth`) and return its sends; a quotient's are those of the whole problem.

    Only the form of the file is checked. `synth prove FILE` replays the schedule and recomputes its proof.

    Args:
        path: The file.

    Raises:
        InputError: The file cannot be read, its content cannot be a schedule, or the whole problem does not fit in
            memory.
    """
    stored = load_schedule(as_folder(path, "path"))
    return SendTable(*stored.expanded(), engine=str(stored.header["engine"]))
