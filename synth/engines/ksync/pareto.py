"""The Pareto set of a copying problem in the k-synchronous model (SCCL, section 3.3), with proofs.

For each number of steps the linear relaxation gives the least rounds a chunk, for all numbers of chunks at once. From
there on solvers decide shapes (rounds, chunks) upwards, until one has a schedule.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import islice

import numpy as np

from synth.bounds.relaxation import dual_prices, variables
from synth.bounds.search import DEFAULT
from synth.engines.ksync.encoding import read_schedule, step_model
from synth.engines.ksync.step_bounds import lockstep, safe_value
from synth.engines.request import Decision, Progress, Shape, StepBound, StepClaim
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.text import format_count, format_shape
from synth.solvers.boolean_model import BooleanModel
from synth.solvers.result import Result
from synth.solvers.workers import Ticket, Workers
from synth.symmetry.relabelling import Symmetry, free_symmetry, trivial
from synth.timing.rounds import rounds as rounds_of

_ROUND_OFF = 1e-7
REFUTED = "solvers"  # A record does not name the solver that was first.
DIRECT = "direct all-reduce"  # the part that claims about a direct all-reduce name


@dataclass(frozen=True)
class ParetoTuning:
    """Limits on the shapes that are searched, and on the work of the solvers.

    Attributes:
        most_ranks: Most ranks for which steps are searched; no solver decides larger models within a budget.
        most_chunks: Chunks a block that are tried where none are pinned (the relaxation holds for all numbers).
        most_shapes: Shapes of one number of steps that are decided before the next number of steps.
        most_extra_steps: Steps beyond the fewest; a further step seldom pays, and each costs a search.
        most_extra_rounds: Rounds of a direct all-reduce above its bound; with more there is no reason to have so few
            steps.
        largest_model: Most variables of a model that a solver gets.
        largest_direct: Most links × ranks × steps × chunks × symmetry of a direct all-reduce.
        head_start_s: Seconds of the first solver, before the second starts on the other core.
        effort: Work for the decision about one shape among many, as a part of the budget.
        direct_effort: The same for a direct all-reduce.
        lucky_s: Seconds of routing that may show a pinned shape before a solver is called.
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
    """A search that decides shapes of one problem, within one deadline.

    Attributes:
        workers: Solver processes.
        stated: Returns the problem (one that copies, or an all-reduce) with a number of chunks a block.
        deadline: Time on the clock `synth.model.deadline.now`.
        effort: Work for the decision about one shape among many, as `cpsat` counts it.
        solvers: Solvers to call, in this order; the second starts a little later.
        seed: Seed of the solvers.
        tuning: Settings of the engine.
    """

    workers: Workers
    stated: Callable[[int], Problem]
    deadline: float
    effort: float = math.inf
    solvers: Sequence[str] = ("cpsat", "smt")
    seed: int = 0
    tuning: ParetoTuning = ParetoTuning()

    @cached_property
    def symmetry(self) -> Callable[[Problem], Symmetry]:
        """Return the function that finds the symmetry of a problem and remembers it."""
        return lru_cache(64)(free_symmetry)

    def left_s(self) -> float:
        """Return the seconds to the deadline, less than 0 after it."""
        return self.deadline - now()

    def bound(self, steps: int) -> StepBound | None:
        """Return the relaxation's bound for a number of steps; None where it is too large or the time is up.

        Its ratio is inf where some chunk has a longer path than the number of steps.
        """
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
        """Return a schedule of this shape, or a proof that none exists, or neither after `effort` work (see `cpsat`).

        A schedule that keeps the symmetry is searched for first; a proof holds for all schedules. A schedule may have
        more rounds than the shape, where a bandwidth was rounded for the solver; then the decision's shape has them.
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
                # The schedule has more rounds than the shape where a bandwidth was rounded for the solver.
                rounds = max(shape.rounds, rounds_of(problem, schedule))
                return Decision(replace(shape, rounds=rounds), schedule, "sat", result.solver)
            if result.status == "infeasible" and symmetry is symmetries[-1]:
                return Decision(shape, None, "unsat", REFUTED)
        return Decision(shape, None, "unknown", "")

    def _race(self, model: BooleanModel, effort: float) -> Result:
        """Return the result of CP-SAT and, a little later, Z3: a proof from either, a schedule from CP-SAT first.

        The result must not depend on the process that the machine favoured: both solvers get a fixed effort, not a
        time.
        """
        tickets: list[Ticket] = []

        def ask(name: str) -> None:
            """Start a solver, and append its ticket to `tickets`."""
            remaining_s = max(0.05, self.left_s())
            tickets.append(self.workers.ask(name, model, remaining_s, self.seed, effort))

        ask(self.solvers[0])
        first = self.workers.first(tickets, min(self.deadline, now() + self.tuning.head_start_s))
        fallback = Result("unknown", None, "")
        try:
            if first is None or first.reply is None or first.reply.status == "unknown":
                for name in self.solvers[1:]:
                    ask(name)
            waiting = list(tickets)
            while waiting:
                ticket_done = self.workers.first(waiting, self.deadline + 0.5)
                if ticket_done is None:
                    break
                waiting.remove(ticket_done)
                if ticket_done.reply is None:
                    continue
                if ticket_done.reply.status == "infeasible" or (
                    ticket_done.reply.solution and ticket_done is tickets[0]
                ):
                    return ticket_done.reply
                if ticket_done.reply.solution is not None:
                    fallback = ticket_done.reply
            return fallback
        finally:
            for ticket in tickets:
                self.workers.drop(ticket)


def shapes(steps: int, at_least: float, below: Fraction | None, numbers_of_chunks: Iterable[int]) -> Iterator[Shape]:
    """Yield all shapes of these numbers of chunks from the bound up, by rising rounds a chunk (then chunks).

    They end below `below` rounds a chunk (if it is not None), or a little above the need of one chunk, for all numbers
    of chunks.
    """
    ceiling = Fraction(max(steps, _ceil(at_least)) + 2)
    if below is not None:
        ceiling = min(ceiling, below)

    def of(chunks: int) -> Iterator[Shape]:
        """Yield the shapes of one number of chunks."""
        rounds = max(steps, _ceil(at_least * chunks))
        while Fraction(rounds, chunks) < ceiling:
            yield Shape(steps, rounds, chunks)
            rounds += 1

    return heapq.merge(*map(of, numbers_of_chunks), key=lambda s: (s.ratio, s.chunks))


def _ceil(value: float) -> int:
    """Return a value rounded up, with a tolerance for rounding errors."""
    return -int(-(value - _ROUND_OFF) // 1)


@dataclass(frozen=True)
class Pins:
    """Numbers that the user pinned.

    Attributes:
        steps: Number of steps, or None.
        chunks: Chunks a block, or None.
        rounds: Number of rounds, or None.
    """

    steps: int | None = None
    chunks: int | None = None
    rounds: int | None = None


def pareto(search: ShapeSearch, fewest_steps: int, ratio_bound: float, pins: Pins) -> Iterator[StepClaim | Progress]:
    """Yield claims for rising numbers of steps, until no further step can help, the deadline, or the most steps.

    Args:
        search: The search for shapes.
        fewest_steps: Fewest steps of any schedule.
        ratio_bound: Rounds a chunk that no number of steps can beat (from cuts).
        pins: Numbers that the user pinned.
    """
    best: Fraction | None = None
    most_steps = fewest_steps + search.tuning.most_extra_steps
    for count in range(fewest_steps, most_steps + 1) if pins.steps is None else [pins.steps]:
        if search.left_s() <= 0 or (best is not None and float(best) <= ratio_bound * (1 + _ROUND_OFF)):
            return
        yield Progress(format_count(count, "step"))
        bound = search.bound(count)
        floor = max(ratio_bound, bound.ratio if bound else 0.0)
        if best is not None and floor >= float(best) * (1 - _ROUND_OFF):
            continue  # More steps with as many rounds a chunk are never faster.
        claim = yield from _best_shape(search, count, floor, best, pins, bound)
        if claim.best is not None:
            best = claim.best.shape.ratio
        yield claim


def _pinned_shapes(count: int, floor: float, below: Fraction | None, pins: Pins, most_chunks: int) -> Iterator[Shape]:
    """Yield shapes of `count` steps that the pins allow and the bound does not rule out, the best first.

    Without pinned rounds they are those of `shapes`; with pinned rounds the most chunks come first.

    Args:
        count: Number of steps.
        floor: Lower bound on rounds a chunk.
        below: Rounds a chunk that a shape must be below, without pinned rounds; None without such a limit.
        pins: Numbers that the user pinned.
        most_chunks: Largest number of chunks where none is pinned.
    """
    if pins.rounds is None:
        numbers = range(1, most_chunks + 1) if pins.chunks is None else [pins.chunks]
        return shapes(count, floor, below, numbers)
    most_that_fit = most_chunks if floor <= 0 else min(most_chunks, int(pins.rounds / floor + _ROUND_OFF))
    numbers = range(most_that_fit, 0, -1) if pins.chunks is None else [pins.chunks]
    pinned = (Shape(count, pins.rounds, chunks) for chunks in numbers)
    return (s for s in pinned if s.rounds >= count and float(s.ratio) >= floor * (1 - _ROUND_OFF))


def _best_shape(
    search: ShapeSearch, count: int, floor: float, below: Fraction | None, pins: Pins, bound: StepBound | None
) -> Generator[Progress, None, StepClaim]:
    """Return a claim: the best shape of `count` steps that a solver finds, and a proof about the other shapes.

    It yields progress before each of up to `most_shapes` shapes, the fewest rounds a chunk first, and stops at the
    first that has a schedule or at the deadline.

    Args:
        search: The search for shapes.
        count: Number of steps.
        floor: Proved lower bound on rounds a chunk; inf where some chunk has a longer path than the steps.
        below: Rounds a chunk that a shape must be below; None without such a limit.
        pins: Numbers that the user pinned.
        bound: The relaxation's bound, or None.
    """
    by = "relaxation" if bound is not None and bound.ratio >= floor else "cut"
    if floor == math.inf:
        return StepClaim(count, floor, "distance", None, True, None, bound)
    most_shapes = search.tuning.most_shapes
    most_chunks = search.tuning.most_chunks if pins.chunks is None else pins.chunks
    # One more shape than is tried shows whether any remain.
    candidates = _pinned_shapes(count, floor, below, pins, search.tuning.most_chunks)
    shapes_to_try = list(islice(candidates, most_shapes + 1))
    refuted: list[Shape] = []
    for ntried, shape in enumerate(shapes_to_try):
        if ntried >= most_shapes or search.left_s() <= 0:
            break
        yield Progress(format_shape(count, shape.rounds, shape.chunks))
        decision = search.decide(shape, math.inf if len(shapes_to_try) == 1 else search.effort)
        if decision.status == "sat":
            exact = float(decision.shape.ratio) <= floor * (1 + _ROUND_OFF)
            is_complete = len(refuted) == ntried and decision.shape == shape and pins == Pins(pins.steps)
            if exact:
                return StepClaim(count, floor, by, decision, True, None, bound, tuple(refuted))
            by, chunks = REFUTED if refuted else by, most_chunks if is_complete else None
            return StepClaim(count, floor, by, decision, is_complete, chunks, bound, tuple(refuted))
        if decision.status == "unsat":
            refuted.append(shape)
            by = REFUTED
    all_refuted = pins.rounds is not None and len(refuted) == len(shapes_to_try)
    chunks = most_chunks if shapes_to_try else None
    return StepClaim(count, floor, by, None, all_refuted, chunks, bound, tuple(refuted))


def direct_allreduce(
    search: ShapeSearch, steps: int, chunks: int, ratio_bound: float, pins: Pins
) -> Generator[Progress, None, StepClaim]:
    """Return a claim about a direct all-reduce with the fewest rounds that are found, by bisection.

    A number of rounds that is too small rules out all smaller ones. If none is found, the claim has no `best`, and is
    complete if the pinned number of rounds was refuted.

    Args:
        search: The search for shapes.
        steps: Number of steps.
        chunks: Chunks a block.
        ratio_bound: Rounds a chunk that no number of steps can beat.
        pins: Numbers that the user pinned; the search ends at pinned rounds.
    """
    problem = search.stated(chunks)
    low = max(steps, int(np.ceil(ratio_bound * chunks - 1e-9)))
    high = low + search.tuning.most_extra_rounds if pins.rounds is None else pins.rounds
    if pins.rounds is not None and pins.chunks is not None:
        low = max(low, pins.rounds)  # Only this shape is tried, unless the bound rules it out.
    best: Decision | None = None
    refuted: list[Shape] = []
    proved_rounds = low
    effort = math.inf if low == high else search.effort
    rounds = high
    while low <= high and search.left_s() > 0:
        yield Progress(f"direct all-reduce: {format_shape(steps, rounds, chunks)}")
        decision = search.decide(Shape(steps, rounds, chunks), effort)
        if decision.schedule is not None:
            rounds = min(rounds, rounds_of(problem, decision.schedule))
            best = replace(decision, shape=Shape(steps, rounds, chunks))
            high = rounds - 1
        else:
            if decision.status == "unsat":
                refuted.append(decision.shape)
                proved_rounds = rounds + 1
            low = rounds + 1
        rounds = (low + high) // 2
    # Without a solver, either every step takes a round, or the bound excludes fewer rounds.
    solver_free = "rounds ≥ steps" if steps >= ratio_bound * chunks else "cut"
    by = REFUTED if refuted else solver_free
    if best is None:
        complete = pins.rounds is not None and proved_rounds > pins.rounds
    else:
        complete = pins.rounds is None and best.shape.rounds <= proved_rounds
    return StepClaim(steps, proved_rounds / chunks, by, best, complete, chunks, None, tuple(refuted), DIRECT, True)
