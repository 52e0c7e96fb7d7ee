"""The request that an engine gets, and the outcomes that it yields: candidates, claims and progress."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from synth.bounds.prove import Bound
from synth.model.collective import Floats
from synth.model.numbers import MOST_SECONDS
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.model.text import format_count
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

SEEDS = 2**31  # Every solver accepts a seed below this number.


@dataclass(frozen=True)
class Options:
    """The question's options that the user pins, and the budget.

    Attributes:
        size: Message size in bytes; None for a range of sizes.
        chunks: Chunks in one block; None for any number.
        steps: Number of steps; None for any number.
        rounds: Number of rounds; None for any number.
        engine: Value of `--engine`.
        budget_s: Time for the search in seconds.
        seed: Seed of all random choices, below SEEDS.
        rank_sends: Sends in which a rank may take part, on average; None for any number.
        least_bytes: Chunk size in bytes below which engines do not refine, because an executor keeps no more of smaller
            chunks in flight; None for any size.
        stated_s: Seconds of the whole command's budget, of which `budget_s` may be a share; None for `budget_s`.
        begun: Time on the clock `synth.model.deadline.now` from which the budget counts; None for the start of the
            search.
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
    stated_s: float | None = None
    begun: float | None = None

    def check(self) -> None:
        """Check the size, the pinned numbers, the budget and the seed; the other options are not checked.

        `size`, `chunks`, `steps` and `rounds` must be None or 1 or more, `budget_s` above 0 and below MOST_SECONDS, and
        `seed` in 0..SEEDS - 1.

        Raises:
            InputError: If one is out of its range; the message names it and its range.
        """
        for name in ("size", "chunks", "steps", "rounds"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name}: {value} is not possible; it must be 1 or more")
        if not 0 < self.budget_s < MOST_SECONDS:
            right = f"more than 0 seconds and less than {MOST_SECONDS:g}"
            raise InputError(f"budget: {self.budget_s:g} s is not possible; it must be {right}")
        if not 0 <= self.seed < SEEDS:
            raise InputError(f"seed: {self.seed} is not possible; it must be 0 to {SEEDS - 1}")

    @property
    def pinned(self) -> bool:
        """Return True if the user pins chunks, steps or rounds."""
        return (self.chunks, self.steps, self.rounds) != (None, None, None)

    @property
    def shape(self) -> str:
        """Return the pinned shape as text, such as `3 steps, 1 chunk`; empty where nothing is pinned."""
        pinned = (("step", self.steps), ("round", self.rounds), ("chunk", self.chunks))
        return ", ".join(format_count(value, name) for name, value in pinned if value is not None)


class SearchKnowledge(Protocol):
    """The knowledge of the search while an engine runs. It can change each time the engine yields."""

    def best_us(self, size_bytes: float) -> float:
        """Return the best time so far for messages of `size_bytes`, in µs; inf where there is none."""

    def time_us(self, candidate: Candidate) -> float:
        """Return the time of the candidate that an engine yielded last, at its size, in µs; inf where it is useless."""

    def fewest_steps(self) -> int | None:
        """Return the fewest steps of any algorithm so far; None where there is no algorithm."""

    def shown_bytes(self) -> list[int]:
        """Return the message sizes in bytes that the question is about, or at which the answers so far would be shown.

        There is at least one.
        """


@dataclass(frozen=True)
class Request:
    """The request to an engine, besides the problem.

    Attributes:
        options: What the user pins.
        sizes: Message sizes in bytes to find schedules for, the most important first.
        deadline: Time on the clock `synth.model.deadline.now`, soon after which the engine ends; it may end without an
            answer.
        workers: Solver processes.
        knowledge: Best results of the search so far.
        bound: Bound on the time of any algorithm.
        work_s: Seconds of work for an engine that counts its work instead of reading the clock.
        solvers: Solvers that the engine calls, in this order.
        most_sends: Number of sends up to which an engine may refine chunks; 0 for any number.
    """

    options: Options
    sizes: tuple[int, ...]
    deadline: float
    workers: Workers
    knowledge: SearchKnowledge
    bound: Bound
    work_s: float = 3.0
    solvers: tuple[str, ...] = ()
    most_sends: int = 0


@dataclass(frozen=True, eq=False)
class Candidate:
    """A schedule that an engine yields. The search replays it before it counts as an algorithm.

    Attributes:
        problem: Problem with the chunks of the schedule: the question's problem, or a quotient of it.
        schedule: The schedule.
        engine: Name of the engine.
        size_bytes: Message size in bytes that the schedule is for; 0 for no particular size.
        supersedes: Whether this candidate replaces the engine's earlier candidates for the same size.
        load_us: Time in µs that the schedule keeps each resource busy at that size, shape (nresources,); None where the
            engine does not know it.
    """

    problem: Problem
    schedule: Schedule
    engine: str
    size_bytes: int = 0
    supersedes: bool = False
    load_us: Floats | None = None


@dataclass(frozen=True)
class Progress:
    """The present work of an engine, in words."""

    text: str


@dataclass(frozen=True)
class Refusal:
    """The reason why no schedule of the pinned shape exists, where that is proved."""

    text: str


@dataclass(frozen=True)
class Shape:
    """A triple (S, R, C) of the k-synchronous model: steps, rounds, chunks in one block."""

    steps: int
    rounds: int
    chunks: int

    @property
    def ratio(self) -> Fraction:
        """Return rounds / chunks as an exact fraction."""
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Decision:
    """The answer for a shape: a schedule, a proof that no schedule exists, or neither.

    Attributes:
        shape: Steps, rounds and chunks.
        schedule: A schedule of this shape, or None.
        status: `sat`, `unsat` or `unknown`.
        by: The solver or the proof that decided.
    """

    shape: Shape
    schedule: Schedule | None
    status: str  # sat, unsat, unknown
    by: str


@dataclass(frozen=True)
class StepBound:
    """A lower bound on the rounds a chunk in a number of steps, for any number of chunks, and the prices behind it.

    Attributes:
        steps: The number of steps.
        ratio: Lower bound on rounds a chunk; inf where no schedule has so few steps.
        prices: For each step the dual price of each resource with one; link i is resource nresources + i. It is empty
            where the ratio is inf.
    """

    steps: int
    ratio: float
    prices: tuple[dict[int, float], ...]


@dataclass(frozen=True)
class StepClaim:
    """A proved lower bound on the rounds a chunk of every schedule with a number of steps.

    Attributes:
        steps: The number of steps.
        at_least: Lower bound on rounds a chunk.
        by: The solver or the proof behind the bound.
        best: The best decided shape, or None.
        complete: True if no better shape with this many steps exists: for any number of chunks (by the relaxation or a
            cut), or, if `chunks` is set, for up to so many chunks (each better shape was refuted).
        chunks: Number of chunks up to which the claim holds; None for any number.
        bound: Bound from the relaxation, or None.
        refuted: Shapes for which a solver proved that no schedule exists.
        part: Phase of the collective that the claim is about; empty for the whole collective.
        exactly: True if the claim is about exactly `chunks` chunks, and not about fewer.
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
    """A claim that no schedule with `chunks` chunks a block is faster than `bound_us` for messages of `size` bytes."""

    size: int
    chunks: int
    bound_us: float
    solver: str


# Everything that an engine yields.
Outcome = Algorithm | Candidate | StepClaim | SlotClaim | Refusal | Progress


class Engine(Protocol):
    """A source of schedules: a module with these two functions, or an object with these two methods."""

    def accepts(self, problem: Problem, options: Options, /) -> str:
        """Return the reason why the engine cannot work on a problem, empty where it can.

        The reason is words that can stand in an error.
        """

    def solve(self, problem: Problem, request: Request, /) -> Iterator[Outcome]:
        """Return an iterator over candidates, claims and progress.

        It ends when nothing is left to try, or soon after the deadline, except for an engine that counts its work.
        """
