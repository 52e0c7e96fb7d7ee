"""Define an Algorithm: a problem and a schedule that solves it, checked by replay at construction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from synth.model.collective import Floats
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import format_count
from synth.timing.rounds import rounds
from synth.timing.simulate import Clock, time_us
from synth.verify.replay import TUNING, replay


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A schedule that was replayed and is right; its times are computed at construction, whatever times it came with.

    A wrong schedule raises `ScheduleRefused` at construction, one that cannot be timed raises `ScheduleError`.

    Attributes:
        problem: The problem, with the number of chunks that the schedule has.
        schedule: The schedule, timed for chunks of 1 MiB, or for `size_bytes`; its columns are read-only.
        engine: Name of the engine that produced the schedule.
        claim: Proved property of the schedule in the k-synchronous model, in words; empty if nothing is proved.
        size_bytes: Message size in bytes at which a very large schedule is checked. Other schedules are checked for a
            small and a large chunk.
    """

    problem: Problem
    schedule: Schedule
    engine: str
    claim: str = ""
    size_bytes: float = 0.0

    def __post_init__(self) -> None:
        smallest = float(self.problem.collective.fraction.min())
        sizes = [chunk_bytes / smallest for chunk_bytes in TUNING.chunk_bytes]
        if len(self.schedule) > TUNING.once_from and self.size_bytes:
            sizes = [self.size_bytes]
        for size in sizes:
            object.__setattr__(self, "schedule", self._clock.timed(size))
            replay(self.problem, self.schedule)
            self._times_us[size] = time_us(self.problem, self.schedule)
        object.__setattr__(self, "schedule", self.schedule.read_only())  # It stays as it was replayed.

    def __repr__(self) -> str:
        """Return the question, the engine and the numbers of steps, chunks of a block and sends in one line."""
        counts = (self.steps, "step"), (self.chunks, "chunk"), (len(self.schedule), "send")
        shape = ", ".join(format_count(count, name) for count, name in counts)
        return f"<{self.problem.collective.name} on {self.problem.topology.name} by {self.engine}: {shape}>"

    @property
    def chunks(self) -> int:
        """Return the number of chunks a block."""
        return self.problem.collective.chunks

    @cached_property
    def steps(self) -> int:
        """Return the number of steps: one more than the last step that has a send."""
        return self.schedule.nsteps

    @cached_property
    def rounds(self) -> int:
        """Return the rounds of the k-synchronous model; a round moves a chunk over the slowest link."""
        return rounds(self.problem, self.schedule)

    def time_us(self, size_bytes: float) -> float:
        """Return the predicted time in µs at a message size in bytes, by `simulate`; 0 for a schedule without sends.

        The time at each size is kept.
        """
        if size_bytes not in self._times_us:
            self._times_us[size_bytes] = time_us(self.problem, self._clock.timed(size_bytes))
        return self._times_us[size_bytes]

    def time_in_parts_us(self, fraction: Floats, size_bytes: float) -> float:
        """Return `time_us` for chunks that are other parts of the message; `fraction` is as for `Clock.timed`."""
        return time_us(self.problem, self._clock.timed(size_bytes, fraction))

    def timed(self, size_bytes: float) -> Schedule:
        """Return the schedule with its times at a message size in bytes; it is not replayed at this size, nor kept.

        Its columns are read-only.
        """
        return self._clock.timed(size_bytes).read_only()

    @cached_property
    def _clock(self) -> Clock:
        """Return the clock of the problem and the schedule, made once; ScheduleError if it cannot be timed."""
        return Clock(self.problem, self.schedule)

    @cached_property
    def _times_us(self) -> dict[float, float]:
        """Return the times in µs that are known, by message size in bytes; they are added as they are computed."""
        return {}
