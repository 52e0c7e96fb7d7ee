"""The engine `ksync`: exact search in the k-synchronous model (SCCL, PPoPP'21), for problems of a few ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from synth.bounds.prove import Bound, prove
from synth.engines.edge_colouring import slotted
from synth.engines.flow.search import interpreted_s
from synth.engines.ksync.encoding import fewest_steps
from synth.engines.ksync.pareto import DIRECT, ParetoTuning, Pins, ShapeSearch, direct_allreduce, pareto
from synth.engines.ksync.step_bounds import MOST_GOALS, check_step_bound
from synth.engines.request import Candidate, Decision, Options, Outcome, Progress, Refusal, Request, Shape, StepClaim
from synth.engines.route import NAME as ROUTE
from synth.engines.route import RouteTuning, quick_schedule
from synth.model.deadline import now
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.model.schedule import Schedule
from synth.phases.reversal import mirror_links
from synth.phases.split import Phase, join, phases
from synth.symmetry.relabelling import free_symmetry
from synth.timing.rounds import rounds as rounds_of
from synth.timing.rounds import unit_gbs


def accepts(problem: Problem, options: Options) -> str:  # noqa: ARG001 - All shapes are accepted.
    """Return why the engine refuses a problem, empty where it accepts the problem.

    It accepts one process group with up to `ParetoTuning.most_ranks` ranks and no quotient, with any pinned shape.
    """
    if problem.nranks > ParetoTuning.most_ranks or problem.quotient is not None or problem.allowed_holders is not None:
        return (
            f"--steps, --rounds and the exact engines are for {ParetoTuning.most_ranks} ranks at most; this problem has"
            f" {problem.nranks}"
        )
    return ""


def solve(problem: Problem, request: Request, tuning: ParetoTuning | None = None) -> Iterator[Outcome]:
    """Yield the composed Pareto set of every phase, and for all-reduce the schedules of fewer steps, with proofs.

    Where fewer steps or rounds are pinned than any schedule has, there is only a refusal. Where a routed schedule has
    the pinned shape, there is only that schedule.

    Args:
        problem: The problem.
        request: The request to the engine.
        tuning: Settings of the engine; None for the usual ones.
    """
    options, least = request.options, fewest_steps(problem)
    pinned = [number for number in (options.steps, options.rounds) if number is not None]
    if pinned and min(pinned) < least:
        yield Refusal(f"no schedule has {options.shape}: it takes {least} steps at least, each of a round or more")
        return
    exact = _Exact(problem, request, tuning or ParetoTuning())
    if (yield from exact.by_routing()):
        return
    yield from exact.by_phases()
    if problem.collective.kind.in_shares:
        yield from exact.direct()


@dataclass
class _Exact:
    """The exact search for one problem.

    Attributes:
        problem: The problem.
        request: The request to the engine.
        tuning: Settings of the engine.
    """

    problem: Problem
    request: Request
    tuning: ParetoTuning

    def by_routing(self) -> Generator[Outcome, None, bool]:
        """Yield routed schedules of the pinned shape, and return True if there are any, as it then needs no solver.

        Schedules of one shape differ in their times, so that those for small and for large messages compete. It tries
        only under `auto`, for a collective of one phase, where steps, rounds and chunks are all pinned and
        routing takes less than `tuning.lucky_s`.
        """
        options = self.request.options
        first, *later_phases = phases(self.problem)
        if options.engine != "auto" or options.steps is None or options.rounds is None or options.chunks is None:
            return False
        if later_phases:
            return False
        problem = self.problem.with_chunks(options.chunks)
        copying = first.apply(options.chunks)
        if interpreted_s(copying, RouteTuning.passes, RouteTuning.orders) > self.tuning.lucky_s:
            return False
        has_shape = False
        sizes = dict.fromkeys(size for size in (options.size, SMALLEST, LARGEST) if size is not None)
        for size, depth in product(sizes, (1.0, 0.5)):
            schedule = first.invert(options.chunks, quick_schedule(copying, size, depth))
            if schedule.nsteps == options.steps and rounds_of(problem, schedule) <= options.rounds:
                yield Candidate(problem, schedule, ROUTE)
                has_shape = True
        return has_shape

    def by_phases(self) -> Iterator[Outcome]:
        """Yield the Pareto set of the first phase, composed with the other phase if there is one.

        Each claim is about a phase, and its best schedule follows it as a candidate for the whole. A refusal follows a
        claim that refutes the pinned steps of a collective of one phase. There is nothing where the pinned numbers do
        not divide by the phases.

        Raises:
            BadWitness: If a bound's prices do not prove it, which is a defect.
        """
        phases_of_problem = phases(self.problem)
        pins = self._pins_of_a_phase(phases_of_problem)
        if pins is None:
            return
        phase_problem = phases_of_problem[0].apply(1)
        part_name = "each phase" if len(phases_of_problem) == 2 else ""
        ratio = _ratio_bound(phase_problem, prove(phase_problem, max_flow=False))
        for outcome in pareto(self._shapes_of_phase(phases_of_problem[0]), fewest_steps(phase_problem), ratio, pins):
            if isinstance(outcome, Progress):
                yield outcome
                continue
            self._recheck(phase_problem, outcome)
            yield replace(outcome, part=part_name)
            if outcome.best is not None and outcome.best.schedule is not None:
                yield self._compose(phases_of_problem, outcome.best)
                shape = outcome.best.shape
                yield Progress(f"found ({shape.chunks}, {shape.steps}, {shape.rounds})")
            elif pins.steps is not None and outcome.complete and outcome.best is None and len(phases_of_problem) == 1:
                # An all-reduce may still be possible with a direct exchange, or with another number of steps.
                yield Refusal(_refusal(outcome, self.request.options))

    def _pins_of_a_phase(self, phases_of_problem: list[Phase]) -> Pins | None:
        """Return the pinned steps, chunks and rounds of one phase; None if those of the whole cannot be divided so."""
        options, unit = self.request.options, phases_of_problem[0].whole_chunks(1)
        parts = (
            (options.steps, len(phases_of_problem)),
            (options.chunks, unit),
            (options.rounds, len(phases_of_problem)),
        )
        if any(number is not None and number % parts_of for number, parts_of in parts):
            return None
        return Pins(*(None if number is None else number // parts_of for number, parts_of in parts))

    def _shapes_of_phase(self, phase: Phase) -> ShapeSearch:
        """Return the search for shapes of a phase."""
        return self._shapes(phase.apply, self.tuning.effort)

    def _shapes(self, stated: Callable[[int], Problem], share: float) -> ShapeSearch:
        """Return a search for shapes of the problem with any number of chunks.

        Args:
            stated: Returns the problem with a number of chunks a block.
            share: Part of the budget for each decision.
        """
        request, tuning = self.request, self.tuning
        effort, seed = request.options.budget_s * share, request.options.seed
        return ShapeSearch(
            request.workers, lru_cache(64)(stated), request.deadline, effort, request.solvers, seed, tuning
        )

    def _compose(self, phases_of_problem: list[Phase], decision: Decision) -> Candidate:
        """Return the whole schedule, composed from that of its first phase, as a candidate for the whole problem."""
        shape, schedule = decision.shape, decision.schedule
        assert schedule is not None
        problem = self.problem.with_chunks(phases_of_problem[0].whole_chunks(shape.chunks))
        whole = phases_of_problem[0].invert(shape.chunks, schedule)
        if len(phases_of_problem) == 2:
            second = self._second(phases_of_problem, shape, schedule)
            whole = join(whole, phases_of_problem[1].invert(shape.chunks, second))
        return Candidate(problem, slotted(problem, whole), decision.by)

    def _second(self, phases_of_problem: list[Phase], shape: Shape, schedule: Schedule) -> Schedule:
        """Return the second phase's schedule, from that of the first where both phases are mirror images.

        Otherwise it has the same shape, or if no solver finds that, up to `steps` more rounds, or any routed shape.
        """
        mirror = mirror_links(self.problem.network)
        first, second = (phase.apply(shape.chunks).collective for phase in phases_of_problem)
        if mirror is not None and np.array_equal(first.pre, second.pre) and np.array_equal(first.post, second.post):
            return replace(schedule, link=mirror[schedule.link])
        search = self._shapes_of_phase(phases_of_problem[1])
        for extra in range(shape.steps + 1):
            decision = search.decide(replace(shape, rounds=shape.rounds + extra), search.effort)
            if decision.schedule is not None:
                return decision.schedule
        return quick_schedule(phases_of_problem[1].apply(shape.chunks), LARGEST)

    def direct(self) -> Iterator[Outcome]:
        """Yield direct all-reduces of fewer steps than a reduce-scatter and an all-gather, with progress and claims.

        It tries 1 and k chunks a block, or the pinned number. It leaves out a model that is too large, and ends when
        the time is over or a pinned question is answered. A refusal follows a proof that a fully pinned shape does not
        exist.
        """
        problem, options, best_so_far = self.problem, self.request.options, self.request.knowledge
        k, diameter = problem.collective.nranks, fewest_steps(problem)
        search = self._shapes(problem.with_chunks, self.tuning.direct_effort)
        composed = best_so_far.fewest_steps()
        stop = max(diameter + 1, 2 * diameter if composed is None else composed)
        pins = Pins(options.steps, options.chunks, options.rounds)
        shape_is_pinned = None not in (options.steps, options.chunks, options.rounds)
        for steps in range(diameter, stop) if options.steps is None else [options.steps]:
            for chunks in (1, k) if options.chunks is None else (options.chunks,):
                work = problem.network.nlinks * k * steps * chunks * free_symmetry(problem).order
                is_answered = options.pinned and best_so_far.fewest_steps() is not None
                if is_answered or search.left_s() <= 0 or work > self.tuning.largest_direct:
                    continue
                ratio = _ratio_bound(problem, self.request.bound)
                claim = yield from direct_allreduce(search, steps, chunks, ratio, pins)
                if claim.best is not None and claim.best.schedule is not None:
                    finer = problem.with_chunks(chunks)
                    yield Candidate(finer, slotted(finer, claim.best.schedule), claim.best.by)
                    yield claim
                elif claim.complete and shape_is_pinned:
                    yield Refusal(_refusal(claim, options))

    def _recheck(self, problem: Problem, claim: StepClaim) -> None:
        """Check a step bound again, from its prices alone, for few ranks and before the deadline.

        Raises:
            BadWitness: If it does not hold, which is a defect.
        """
        few = problem.collective.nranks <= MOST_GOALS + 1 and now() < self.request.deadline
        if few and claim.bound is not None and np.isfinite(claim.bound.ratio):
            check_step_bound(problem, claim.bound)


def _ratio_bound(problem: Problem, bound: Bound) -> float:
    """Return rounds a chunk that no algorithm can beat, from the bound for large messages (one chunk a block)."""
    smallest = float(problem.collective.fraction.min()) * problem.collective.chunks
    return bound.per_byte_us * 1e3 * unit_gbs(problem) / smallest


def _refusal(claim: StepClaim, options: Options) -> str:
    """Return as text why no schedule of the pinned shape exists, from a claim that proves it."""
    reason = {
        "relaxation": f"{claim.steps} steps need at least {claim.at_least:.6g} rounds a chunk (relaxation)",
        "cut": f"any number of steps needs at least {claim.at_least:.6g} rounds a chunk (cut)",
        "distance": "some chunk has a longer path than the number of steps",
        "rounds ≥ steps": "every step takes a round",
    }.get(claim.by, f"refuted by {claim.by}")
    one_sum = claim.part == DIRECT and claim.by != "cut"
    subject = "all-reduce with one sum a rank and chunk" if one_sum else "schedule"
    return f"no {subject} has {options.shape}: {reason}"
