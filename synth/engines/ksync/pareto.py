"""The Pareto set of a copying problem in the k-synchronous model (SCCL, section 3.3), with proofs.

For each number of steps the linear relaxation says how few rounds a chunk there can be, for all numbers of chunks
at once; shapes (rounds, chunks) from there upwards are decided by solvers until one has a schedule.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

import numpy as np

from synth.bounds.kind import DEFAULT
from synth.bounds.relaxation import dual_prices, variables
from synth.engines.ksync import direct_encoding as direct
from synth.engines.ksync import encoding as ksync
from synth.engines.ksync.relaxation import lockstep, safe_value
from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.solvers.boolean_model import BooleanModel
from synth.solvers.result import Report, Result
from synth.solvers.workers import Ticket, Workers
from synth.symmetry.relabelling import Symmetry, trivial
from synth.timing.rounds import rounds as rounds_of

LARGEST_MODEL = 150_000  # variables that a solver is asked to decide
MOST_CHUNKS = 8
_TRIES = 10  # shapes of one number of steps that are decided before going on to the next
_ROUND_OFF = 1e-7
_ALONE_S = 1.5  # before the second solver starts
REFUTED = "solvers"  # which of them was first is not for the record


@dataclass(frozen=True)
class Shape:
    """(S, R, C)."""

    steps: int
    rounds: int
    chunks: int

    @property
    def ratio(self) -> Fraction:
        return Fraction(self.rounds, self.chunks)


@dataclass(frozen=True)
class Verdict:
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


Builder = Callable[[Problem, int, int, Symmetry], ksync.StepModel]
Reader = Callable[[Problem, ksync.StepModel, Ints, Symmetry], Schedule]


class StepSearch:
    """Decides shapes of one problem, within one deadline.

    Args:
        copying: the problem with so many chunks a block.
        symmetry: of the problem with so many chunks a block.
        effort: of a decision about one shape among many, as `cpsat` counts it.
        combining: whether sends may add (the all-reduce model of `engines.direct`).
    """

    def __init__(
        self,
        workers: Workers,
        copying: Callable[[int], Problem],
        symmetry: Callable[[Problem], Symmetry],
        *,
        deadline: float,
        effort: float = math.inf,
        engine: str = "auto",
        seed: int = 0,
        combining: bool = False,
    ) -> None:
        self.workers, self.copying, self._symmetry = workers, copying, symmetry
        self.deadline, self.effort, self.engine, self.seed = deadline, effort, engine, seed
        self.build: Builder = direct.step_model if combining else ksync.step_model
        self.read: Reader = direct.read_schedule if combining else ksync.read_schedule

    def left(self) -> float:
        return self.deadline - time.monotonic()

    def bound(self, steps: int) -> StepBound | None:
        """The relaxation's bound for so many steps; None where it is too large or the time is up."""
        problem = self.copying(1)
        symmetry = self._symmetry(problem)
        if variables(problem, steps, symmetry) > DEFAULT.program_variables:
            return None
        relaxation = lockstep(problem, steps, symmetry)
        if relaxation is None:
            return StepBound(steps, float("inf"), ())
        result = self.workers.answer(self.deadline, "linear", relaxation.program, self.left())
        if result is None or result.solution is None:
            return None
        row_prices = result.solution.dual_prices
        ratio = safe_value(relaxation, row_prices)
        return StepBound(steps, ratio, tuple(dual_prices(problem, relaxation, row_prices, symmetry)))

    def decide(self, shape: Shape, effort: float) -> Verdict:
        """A schedule of this shape, or a proof that there is none, or neither with so much effort (see `cpsat`).

        A schedule that keeps the symmetry is looked for first; only without it does `unsat` mean that none exists.
        """
        problem = self.copying(shape.chunks)
        symmetries = [self._symmetry(problem)]
        if symmetries[0].order > 1:
            symmetries.append(trivial(problem))
        for symmetry in symmetries:
            if _size(problem, shape.steps, symmetry) > LARGEST_MODEL:
                break
            model = self.build(problem, shape.steps, shape.rounds, symmetry)
            if model.impossible:
                return Verdict(shape, None, "unsat", model.impossible)
            result = self._race(model.constraints, effort)
            if result.solution is not None:
                schedule = self.read(problem, model, np.flatnonzero(result.solution.values), symmetry)
                # more than asked where a bandwidth had to be rounded for the solver
                rounds = max(shape.rounds, rounds_of(problem, schedule))
                return Verdict(replace(shape, rounds=rounds), schedule, "sat", result.solver)
            if result.status == "infeasible" and symmetry is symmetries[-1]:
                return Verdict(shape, None, "unsat", REFUTED)
        return Verdict(shape, None, "unknown", "")

    def _race(self, model: BooleanModel, effort: float) -> Result:
        """CP-SAT, and after a moment Z3 beside it; a proof counts from either, a schedule from CP-SAT first.

        What comes out must not depend on which process the machine favoured: both have their effort, not a time.
        """
        names = {"cpsat": ["cpsat"], "smt": ["smt"]}.get(self.engine, ["cpsat", "smt"])
        tickets: list[Ticket] = []

        def ask(name: str) -> None:
            left = max(0.05, self.left())
            tickets.append(self.workers.ask(name, model, left, self.seed, effort))

        ask(names[0])
        first = self.workers.first(tickets, min(self.deadline, time.monotonic() + _ALONE_S))
        spare = Result("unknown", None, "", Report(0.0))
        try:
            if len(names) > 1 and (first is None or first.reply is None or first.reply.status == "unknown"):
                ask(names[1])
            waiting = list(tickets)
            while waiting:
                done = self.workers.first(waiting, self.deadline + 0.5)
                if done is None:
                    break
                waiting.remove(done)
                if done.reply is None:
                    continue
                if done.reply.status == "infeasible" or (done.reply.solution and done is tickets[0]):
                    return done.reply
                if done.reply.solution is not None:
                    spare = done.reply
            return spare
        finally:
            for ticket in tickets:
                self.workers.drop(ticket)


def _size(problem: Problem, steps: int, symmetry: Symmetry) -> int:
    return len(symmetry.orbits) * problem.network.nlinks * steps


def shapes(
    steps: int, at_least: float, below: Fraction | None, numbers_of_chunks: Iterable[int]
) -> Iterator[Shape]:
    """All shapes of these numbers of chunks from the bound up, by rising rounds a chunk (then chunks).

    They end below `below`, or a little above what one chunk needs, for all numbers of chunks alike.
    """
    ceiling = Fraction(max(steps, _ceil(at_least)) + 2)
    if below is not None:
        ceiling = min(ceiling, below)

    def of(chunks: int) -> Iterator[Shape]:
        rounds = max(steps, _ceil(at_least * chunks))
        while Fraction(rounds, chunks) < ceiling:
            yield Shape(steps, rounds, chunks)
            rounds += 1

    return heapq.merge(*map(of, numbers_of_chunks), key=lambda s: (s.ratio, s.chunks))


def _ceil(value: float) -> int:
    return -int(-(value - _ROUND_OFF) // 1)


@dataclass(frozen=True)
class Claim:
    """What is proved of a number of steps: at least `at_least` rounds a chunk, and by what.

    `best` is the shape found, if any. `complete`: no better shape with this many steps exists: for any number of
    chunks (by the relaxation or a cut), or if `chunks` is set for up to so many (each better one was refuted).
    `refuted` are the shapes for which a solver proved that there is no schedule.
    `exactly`: it is about just `chunks` chunks, not about fewer too.
    `part` names the half of the collective that it is about, where that is not the whole.
    """

    steps: int
    at_least: float
    by: str
    best: Verdict | None
    complete: bool
    chunks: int | None
    bound: StepBound | None
    refuted: tuple[Shape, ...] = ()
    part: str = ""
    exactly: bool = False


@dataclass(frozen=True)
class Pins:
    """Numbers of steps, chunks a block and rounds that the user pinned."""

    steps: int | None = None
    chunks: int | None = None
    rounds: int | None = None


def pareto(
    search: StepSearch,
    fewest_steps: int,
    ratio_bound: float,
    *,
    most_steps: int,
    pins: Pins,
    say: Callable[[str], None],
) -> Iterator[Claim]:
    """Claims for rising numbers of steps, until no further step can help, the deadline, or `most_steps`.

    `ratio_bound`: rounds a chunk that no number of steps can beat (from cuts).
    """
    best: Fraction | None = None
    for count in range(fewest_steps, most_steps + 1) if pins.steps is None else [pins.steps]:
        if search.left() <= 0 or (best is not None and float(best) <= ratio_bound * (1 + _ROUND_OFF)):
            return
        say(f"{count} steps")
        bound = search.bound(count)
        floor = max(ratio_bound, bound.ratio if bound else 0.0)
        if best is not None and floor >= float(best) * (1 - _ROUND_OFF):
            continue  # as many rounds a chunk with more steps: never faster
        claim = _best_shape(search, count, floor, best, pins, bound, say)
        if claim.best is not None:
            best = claim.best.shape.ratio
        yield claim


def _asked(count: int, floor: float, below: Fraction | None, pins: Pins) -> Iterator[Shape]:
    """Shapes of `count` steps that the pins admit and the bound does not rule out, the best first."""
    if pins.rounds is None:
        numbers = range(1, MOST_CHUNKS + 1) if pins.chunks is None else [pins.chunks]
        return shapes(count, floor, below, numbers)
    fit = MOST_CHUNKS if floor <= 0 else min(MOST_CHUNKS, int(pins.rounds / floor + _ROUND_OFF))
    numbers = range(fit, 0, -1) if pins.chunks is None else [pins.chunks]
    pinned = (Shape(count, pins.rounds, chunks) for chunks in numbers)
    return (s for s in pinned if s.rounds >= count and float(s.ratio) >= floor * (1 - _ROUND_OFF))


def _best_shape(
    search: StepSearch,
    count: int,
    floor: float,
    below: Fraction | None,
    pins: Pins,
    bound: StepBound | None,
    say: Callable[[str], None],
) -> Claim:
    by = "relaxation" if bound is not None and bound.ratio >= floor else "cut"
    if floor == float("inf"):
        return Claim(count, floor, "distance", None, True, None, bound)
    most_chunks = MOST_CHUNKS if pins.chunks is None else pins.chunks
    # one more than is tried, to know whether any were left
    asked = list(islice(_asked(count, floor, below, pins), _TRIES + 1))
    refuted: list[Shape] = []
    for tried, shape in enumerate(asked):
        if tried >= _TRIES or search.left() <= 0:
            break
        say(f"{count} steps, {shape.rounds} rounds, {shape.chunks} chunks")
        verdict = search.decide(shape, math.inf if len(asked) == 1 else search.effort)
        if verdict.status == "sat":
            exact = float(verdict.shape.ratio) <= floor * (1 + _ROUND_OFF)
            whole = len(refuted) == tried and verdict.shape == shape and pins == Pins(pins.steps)
            if exact:
                return Claim(count, floor, by, verdict, True, None, bound, tuple(refuted))
            return Claim(
                count,
                floor,
                REFUTED if refuted else by,
                verdict,
                whole,
                most_chunks if whole else None,
                bound,
                tuple(refuted),
            )
        if verdict.status == "unsat":
            refuted.append(shape)
            by = REFUTED
    none_left = pins.rounds is not None and len(refuted) == len(asked)
    return Claim(count, floor, by, None, none_left, most_chunks if asked else None, bound, tuple(refuted))
