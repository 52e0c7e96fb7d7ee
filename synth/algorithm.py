"""An Algorithm: a problem and a schedule that solves it, checked by replay when it is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from synth.problem import Problem
from synth.schedule import Schedule, rounds
from synth.simulate import predict_us, timed
from synth.verify import replay

_CHECKED_CHUNK_BYTES = (1 << 10, 1 << 20)


@dataclass(frozen=True, eq=False)
class Algorithm:
    """A schedule that was replayed and found right. Making a wrong one raises `verify.Refused`.

    Attributes:
        problem: with the number of chunks that the schedule has.
        schedule: timed for chunks of 1 MiB.
        engine: what found it.
        claim: what is proved of it in the k-synchronous model, in words; empty when nothing is.
    """

    problem: Problem
    schedule: Schedule
    engine: str
    claim: str = ""

    def __post_init__(self) -> None:
        smallest = float(self.problem.collective.fraction.min())
        for chunk_bytes in _CHECKED_CHUNK_BYTES:
            at = timed(self.problem, self.schedule, chunk_bytes / smallest)
            replay(self.problem, at)
        object.__setattr__(self, "schedule", at)

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
        return predict_us(self.problem, self.schedule, size_bytes)
