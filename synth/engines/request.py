"""What an engine is asked, and what it answers: candidates and claims."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from synth.bounds.prove import Bound
from synth.model.collective import Floats
from synth.model.numbers import MOST_SECONDS
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

SEEDS = 2**31  # what all solvers take


@dataclass(frozen=True)
class Options:
    """What the user pins. Sizes in bytes, budget in seconds.

    begun: of `synth.model.deadline.now`, since when the budget counts; None: since the search began.
    rank_sends: how many sends a rank may take part in, on average; None: any number.
    least_bytes: of a chunk, to which engines refine: an executor keeps no more of smaller ones under way; None: any.
    """

    size: int | None = None
    chunks: int | None = None
    steps: int | None = None
    rounds: int | None = None
    engine: str = "auto"
    budget_s: float = 30.0
    seed: int = 0
    rank_sends: int | None = None
    least_bytes: int | None = None
    begun: float | None = None

    def check(self) -> None:
        """Raise InputError for a number that cannot be."""
        for name in ("size", "chunks", "steps", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: {value} is not possible; it must be 1 or more")
        if not 0 < self.budget_s < MOST_SECONDS:
            right = f"more than 0 seconds and less than {MOST_SECONDS:g}"
            raise InputError(f"budget: {self.budget_s:g} s is not possible; it must be {right}")
        if not 0 <= self.seed < SEEDS:
            raise InputError(f"seed: {self.seed} is not possible; it must be in 0..{SEEDS - 1}")

    @property
    def pinned(self) -> bool:
        """Whether a shape is asked for."""
        return (self.chunks, self.steps, self.rounds) != (None, None, None)

    @property
    def shape(self) -> str:
        """That shape: `3 steps, 1 chunk`."""
        pinned = (("step", self.steps), ("round", self.rounds), ("chunk", self.chunks))
        return ", ".join(f"{value} {name}{'s' * (value > 1)}" for name, value in pinned if value is not None)


class Known(Protocol):
    """What the search knows while an engine runs; it grows between two answers of the engine."""

    def best_us(self, size_bytes: float) -> float:
        """The best time so far for messages of `size_bytes`, in µs; inf where there is none."""

    def time_us(self, candidate: Candidate) -> float:
        """The time of the candidate that an engine yielded last, at its size, in µs; inf where it was of no use."""

    def fewest_steps(self) -> int | None:
        """The fewest steps of any algorithm so far; None where there is none."""

    def shown_bytes(self) -> list[int]:
        """The message sizes at which the answers so far would be shown."""


@dataclass(frozen=True)
class Request:
    """What is asked of an engine beside the problem.

    Attributes:
        options: what the user pins.
        sizes: message sizes in bytes to find schedules for, the most important first.
        deadline: of `now`; there is an answer even where it has passed.
        workers: solver processes.
        known: what is known so far.
        bound: on the time of any algorithm.
        solvers: that the engine asks, in this order.
        most_sends: to which an engine may refine chunks; 0: as it likes.
        work_s: seconds of work that an engine may spend which counts its work instead of reading the clock.
    """

    options: Options
    sizes: tuple[int, ...]
    deadline: float
    workers: Workers
    known: Known
    bound: Bound
    work_s: float = 3.0
    solvers: tuple[str, ...] = ()
    most_sends: int = 0


@dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule that an engine found; the search replays it before it is anything more.

    Attributes:
        problem: with the chunks of the schedule; the problem asked, or a quotient of it.
        engine: what found it.
        size_bytes: the message size that it was made for; 0: none in particular.
        supersedes: whether the engine's earlier candidates for that size are not worth keeping beside it.
        load_us: how long it keeps each resource busy at that size, shape (nresources,), where the engine knows.
    """

    problem: Problem
    schedule: Schedule
    engine: str
    size_bytes: int = 0
    supersedes: bool = False
    load_us: Floats | None = None


@dataclass(frozen=True)
class Progress:
    """What an engine does now, in words."""

    text: str


@dataclass(frozen=True)
class Refusal:
    """Why no schedule of the pinned shape exists, where that was proved."""

    text: str


@dataclass(frozen=True)
class Shape:
    """(S, R, C) of the k-synchronous model: steps, rounds, chunks a block."""

    steps: int
    rounds: int
    chunks: int

    @property
    def ratio(self) -> Fraction:
        """Rounds a chunk."""
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Decision:
    """What is known of a shape: a schedule, or that none exists and what says so, or neither."""

    shape: Shape
    schedule: Schedule | None
    status: str  # sat, unsat, unknown
    by: str


@dataclass(frozen=True)
class StepBound:
    """Fewest rounds a chunk in a number of steps, over all numbers of chunks, with the prices that prove it."""

    steps: int
    ratio: float
    prices: tuple[dict[int, float], ...]


@dataclass(frozen=True)
class StepClaim:
    """What is proved of a number of steps: at least `at_least` rounds a chunk, and by what.

    `best` is the shape found, if any. `complete`: no better shape with this many steps exists: for any number of
    chunks (by the relaxation or a cut), or if `chunks` is set for up to so many (each better one was refuted).
    `refuted` are the shapes for which a solver proved that there is no schedule.
    `exactly`: it is about just `chunks` chunks, not about fewer too.
    `part` names the phase of the collective that it is about, where that is not the whole.
    """

    steps: int
    at_least: float
    by: str
    best: Decision | None
    complete: bool
    chunks: int | None
    bound: StepBound | None
    refuted: tuple[Shape, ...] = ()
    part: str = ""
    exactly: bool = False


@dataclass(frozen=True)
class SlotClaim:
    """No schedule with so many chunks a block is faster than `bound_us` for messages of `size` bytes."""

    size: int
    chunks: int
    bound_us: float
    solver: str


# what an engine yields
Outcome = Algorithm | Candidate | StepClaim | SlotClaim | Refusal | Progress
