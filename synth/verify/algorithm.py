"""An Algorithm: a problem and a schedule that solves it, checked by replay when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.rounds import rounds
from synth.timing.simulate import Clock, time_us
from synth.verify.replay import TUNING, replay


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A schedule that was replayed and found right. Making a wrong one raises `ScheduleRefused`.

    Attributes:
        problem: with the number of chunks that the schedule has.
        schedule: timed for chunks of 1 MiB, or for `size_bytes`.
        engine: what found it.
        claim: what is proved of it in the k-synchronous model, in words; empty when nothing is.
        size_bytes: the message size at which it is checked if it is very large; else small and large chunks are.
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

    @property
    def chunks(self) -> int:
        """Chunks a block."""
        return self.problem.collective.chunks

    @cached_property
    def steps(self) -> int:
        return self.schedule.nsteps

    @cached_property
    def rounds(self) -> int:
        """Rounds of the k-synchronous model (a round moves a chunk over the slowest link)."""
        return rounds(self.problem, self.schedule)

    def time_us(self, size_bytes: float) -> float:
        """Predicted time at a message size, by `simulate`."""
        if size_bytes not in self._times_us:
            self._times_us[size_bytes] = time_us(self.problem, self._clock.timed(size_bytes))
        return self._times_us[size_bytes]

    def timed(self, size_bytes: float) -> Schedule:
        """The schedule with the times of messages of so many bytes."""
        return self._clock.timed(size_bytes)

    @cached_property
    def _clock(self) -> Clock:
        return Clock(self.problem, self.schedule)

    @cached_property
    def _times_us(self) -> dict[float, float]:
        return {}
