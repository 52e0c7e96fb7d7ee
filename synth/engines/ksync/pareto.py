"""The Pareto set of a copying problem in the k-synchronous model (SCCL, section 3.3), with proofs.

For each number of steps the linear relaxation says how few rounds a chunk there can be, for all numbers of chunks
at once; shapes (rounds, chunks) from there upwards are decided by solvers until one has a schedule.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice

import numpy as np

from synth.bounds.relaxation import dual_prices, variables
from synth.bounds.search import DEFAULT
from synth.engines.ksync.encoding import read_schedule, step_model
from synth.engines.ksync.step_bounds import lockstep, safe_value
from synth.engines.request import Decision, Progress, Shape, StepBound, StepClaim
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.solvers.boolean_model import BooleanModel
from synth.solvers.result import Result
from synth.solvers.workers import Ticket, Workers
from synth.symmetry.relabelling import Symmetry, trivial
from synth.timing.rounds import rounds as rounds_of

_ROUND_OFF = 1e-7
REFUTED = "solvers"  # which of them was first is not for the record
DIRECT = "sums exchanged"  # what claims about a direct all-reduce are about


@dataclass(frozen=True)
class Tuning:
    """How much is asked of the solvers.

    Attributes:
        most_ranks: up to which steps are searched at all: larger models are decided by nobody within a budget.
        most_chunks: chunks a block that are tried where none are pinned (the relaxation speaks of all).
        most_shapes: of one number of steps that are decided before going on to the next.
        most_extra_steps: beyond the fewest: a step more seldom pays, and each costs a search.
        most_extra_rounds: of a direct all-reduce above its bound; with more there is no reason to have so few steps.
        largest_model: variables of a model that a solver is asked to decide.
        largest_direct: links × ranks × steps × chunks × symmetry of a direct all-reduce.
        head_start_s: of the first solver, before the second starts on the other core.
        effort, direct_effort: of a decision about one shape among many, as a part of the budget.
        lucky_s: seconds of routing that may show a pinned shape before a solver is asked.
    """

    most_ranks: int = 32
    most_chunks: int = 8
    most_shapes: int = 10
    most_extra_steps: int = 4
    most_extra_rounds: int = 12
    largest_model: int = 150_000
    largest_direct: int = 400_000
    head_start_s: float = 1.5
    effort: float = 1 / 50
    direct_effort: float = 1 / 150
    lucky_s: float = 0.1


@dataclass(frozen=True)
class ShapeSearch:
    """Decides shapes of one problem, within one deadline.

    Attributes:
        stated: the problem, one that copies or an all-reduce, with so many chunks a block.
        symmetry: of the problem with so many chunks a block.
        deadline: of `now`.
        effort: of a decision about one shape among many, as `cpsat` counts it.
        solvers: asked in this order; the second starts a little later.
    """

    workers: Workers
    stated: Callable[[int], Problem]
    symmetry: Callable[[Problem], Symmetry]
    deadline: float
    effort: float = math.inf
    solvers: Sequence[str] = ("cpsat", "smt")
    seed: int = 0
    tuning: Tuning = Tuning()

    def left_s(self) -> float:
        """Seconds to the deadline."""
        return self.deadline - now()

    def bound(self, steps: int) -> StepBound | None:
        """The relaxation's bound for so many steps; None where it is too large or the time is up."""
        problem = self.stated(1)
        symmetry = self.symmetry(problem)
        if variables(problem, steps, symmetry) > DEFAULT.program_variables:
            return None
        relaxation = lockstep(problem, steps, symmetry)
        if relaxation is None:
            return StepBound(steps, float("inf"), ())
        result = self.workers.answer(self.deadline, "linear", relaxation.program, self.left_s())
        if result is None or result.solution is None:
            return None
        row_prices = result.solution.dual_prices
        ratio = safe_value(relaxation, row_prices)
        return StepBound(steps, ratio, tuple(dual_prices(problem, relaxation, row_prices, symmetry)))

    def decide(self, shape: Shape, effort: float) -> Decision:
        """A schedule of this shape, or a proof that there is none, or neither with so much effort (see `cpsat`).

        A schedule that keeps the symmetry is looked for first; only without it does `unsat` mean that none exists.
        """
        problem = self.stated(shape.chunks)
        symmetries = [self.symmetry(problem)]
        if symmetries[0].order > 1:
            symmetries.append(trivial(problem))
        for symmetry in symmetries:
            if len(symmetry.orbits) * problem.network.nlinks * shape.steps > self.tuning.largest_model:
                break
            model = step_model(problem, shape.steps, shape.rounds, symmetry)
            if model.impossible:
                return Decision(shape, None, "unsat", model.impossible)
            result = self._race(model.constraints, effort)
            if result.solution is not None:
                schedule = read_schedule(problem, model, np.flatnonzero(result.solution.values), symmetry)
                # more than asked where a bandwidth had to be rounded for the solver
                rounds = max(shape.rounds, rounds_of(problem, schedule))
                return Decision(replace(shape, rounds=rounds), schedule, "sat", result.solver)
            if result.status == "infeasible" and symmetry is symmetries[-1]:
                return Decision(shape, None, "unsat", REFUTED)
        return Decision(shape, None, "unknown", "")

    def _race(self, model: BooleanModel, effort: float) -> Result:
        """CP-SAT, and after a moment Z3 beside it; a proof counts from either, a schedule from CP-SAT first.

        What comes out must not depend on which process the machine favoured: both have their effort, not a time.
        """
        tickets: list[Ticket] = []

        def ask(name: str) -> None:
            left = max(0.05, self.left_s())
            tickets.append(self.workers.ask(name, model, left, self.seed, effort))

        ask(self.solvers[0])
        first = self.workers.first(tickets, min(self.deadline, now() + self.tuning.head_start_s))
        spare = Result("unknown", None, "")
        try:
            if first is None or first.reply is None or first.reply.status == "unknown":
                for name in self.solvers[1:]:
                    ask(name)
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


def shapes(steps: int, at_least: float, below: Fraction | None, numbers_of_chunks: Iterable[int]) -> Iterator[Shape]:
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
class Pins:
    """Numbers of steps, chunks a block and rounds that the user pinned."""

    steps: int | None = None
    chunks: int | None = None
    rounds: int | None = None


def pareto(search: ShapeSearch, fewest_steps: int, ratio_bound: float, pins: Pins) -> Iterator[StepClaim | Progress]:
    """Claims for rising numbers of steps, until no further step can help, the deadline, or the most steps.

    `ratio_bound`: rounds a chunk that no number of steps can beat (from cuts).
    """
    best: Fraction | None = None
    most_steps = fewest_steps + search.tuning.most_extra_steps
    for count in range(fewest_steps, most_steps + 1) if pins.steps is None else [pins.steps]:
        if search.left_s() <= 0 or (best is not None and float(best) <= ratio_bound * (1 + _ROUND_OFF)):
            return
        yield Progress(f"{count} steps")
        bound = search.bound(count)
        floor = max(ratio_bound, bound.ratio if bound else 0.0)
        if best is not None and floor >= float(best) * (1 - _ROUND_OFF):
            continue  # as many rounds a chunk with more steps: never faster
        claim = yield from _best_shape(search, count, floor, best, pins, bound)
        if claim.best is not None:
            best = claim.best.shape.ratio
        yield claim


def _pinned_shapes(count: int, floor: float, below: Fraction | None, pins: Pins, most_chunks: int) -> Iterator[Shape]:
    """Shapes of `count` steps that the pins admit and the bound does not rule out, the best first."""
    if pins.rounds is None:
        numbers = range(1, most_chunks + 1) if pins.chunks is None else [pins.chunks]
        return shapes(count, floor, below, numbers)
    fit = most_chunks if floor <= 0 else min(most_chunks, int(pins.rounds / floor + _ROUND_OFF))
    numbers = range(fit, 0, -1) if pins.chunks is None else [pins.chunks]
    pinned = (Shape(count, pins.rounds, chunks) for chunks in numbers)
    return (s for s in pinned if s.rounds >= count and float(s.ratio) >= floor * (1 - _ROUND_OFF))


def _best_shape(
    search: ShapeSearch, count: int, floor: float, below: Fraction | None, pins: Pins, bound: StepBound | None
) -> Generator[Progress, None, StepClaim]:
    """The best shape of `count` steps that is found, and what is proved of all others."""
    by = "relaxation" if bound is not None and bound.ratio >= floor else "cut"
    if floor == math.inf:
        return StepClaim(count, floor, "distance", None, True, None, bound)
    most_shapes = search.tuning.most_shapes
    most_chunks = search.tuning.most_chunks if pins.chunks is None else pins.chunks
    # one more than is tried, to know whether any were left
    candidates = _pinned_shapes(count, floor, below, pins, search.tuning.most_chunks)
    asked = list(islice(candidates, most_shapes + 1))
    refuted: list[Shape] = []
    for tried, shape in enumerate(asked):
        if tried >= most_shapes or search.left_s() <= 0:
            break
        yield Progress(f"{count} steps, {shape.rounds} rounds, {shape.chunks} chunks")
        decision = search.decide(shape, math.inf if len(asked) == 1 else search.effort)
        if decision.status == "sat":
            exact = float(decision.shape.ratio) <= floor * (1 + _ROUND_OFF)
            whole = len(refuted) == tried and decision.shape == shape and pins == Pins(pins.steps)
            if exact:
                return StepClaim(count, floor, by, decision, True, None, bound, tuple(refuted))
            by, chunks = REFUTED if refuted else by, most_chunks if whole else None
            return StepClaim(count, floor, by, decision, whole, chunks, bound, tuple(refuted))
        if decision.status == "unsat":
            refuted.append(shape)
            by = REFUTED
    none_left = pins.rounds is not None and len(refuted) == len(asked)
    chunks = most_chunks if asked else None
    return StepClaim(count, floor, by, None, none_left, chunks, bound, tuple(refuted))


def direct_allreduce(
    search: ShapeSearch, steps: int, chunks: int, ratio_bound: float, pins: Pins
) -> Generator[Progress, None, StepClaim]:
    """A direct all-reduce with the fewest rounds that are found, by bisection, and whether there are fewer.

    What cannot be done in so many rounds cannot be done in fewer. Without a shape the claim is complete if the
    pinned number of rounds was refuted.
    """
    problem = search.stated(chunks)
    low = max(steps, int(np.ceil(ratio_bound * chunks - 1e-9)))
    high = low + search.tuning.most_extra_rounds if pins.rounds is None else pins.rounds
    if pins.rounds is not None and pins.chunks is not None:
        low = max(low, pins.rounds)  # this one shape, unless the bound rules it out
    best: Decision | None = None
    refuted: list[Shape] = []
    least = low  # rounds that are proved to be needed
    effort = math.inf if low == high else search.effort
    asked = high
    while low <= high and search.left_s() > 0:
        yield Progress(f"direct all-reduce: {steps} steps, {asked} rounds, {chunks} chunks")
        decision = search.decide(Shape(steps, asked, chunks), effort)
        if decision.schedule is not None:
            asked = min(asked, rounds_of(problem, decision.schedule))
            best = replace(decision, shape=Shape(steps, asked, chunks))
            high = asked - 1
        else:
            if decision.status == "unsat":
                refuted.append(decision.shape)
                least = asked + 1
            low = asked + 1
        asked = (low + high) // 2
    # where no solver was needed: every step takes a round, or the bound leaves no fewer
    plain = "rounds ≥ steps" if steps >= ratio_bound * chunks else "cut"
    by = REFUTED if refuted else plain
    if best is None:
        complete = pins.rounds is not None and least > pins.rounds
    else:
        complete = pins.rounds is None and best.shape.rounds <= least
    return StepClaim(steps, least / chunks, by, best, complete, chunks, None, tuple(refuted), DIRECT, True)
