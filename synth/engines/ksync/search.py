"""The engine `ksync`: exact search in the k-synchronous model (SCCL, PPoPP'21), for problems of a few ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from synth.bounds.prove import Bound, prove
from synth.engines.edge_colouring import slotted
from synth.engines.greedy import route
from synth.engines.ksync.encoding import fewest_steps
from synth.engines.ksync.pareto import DIRECT, Pins, ShapeSearch, Tuning, direct_allreduce, pareto
from synth.engines.ksync.step_bounds import MOST_GOALS, check_step_bound
from synth.engines.request import Candidate, Decision, Options, Outcome, Progress, Refusal, Request, Shape, StepClaim
from synth.model.deadline import now
from synth.model.problem import LARGEST, Problem
from synth.model.schedule import Schedule
from synth.phases.reversal import mirror_links
from synth.phases.split import Phase, join, phases
from synth.symmetry.relabelling import Symmetry, free_symmetry
from synth.timing.rounds import rounds as rounds_of
from synth.timing.rounds import unit_gbs


def accepts(problem: Problem, options: Options) -> str:  # noqa: ARG001 - all shapes are accepted
    """Few ranks, one group."""
    if problem.nranks > Tuning.most_ranks or problem.quotient is not None or problem.allowed is not None:
        return (
            f"--steps, --rounds and the exact engines are for {Tuning.most_ranks} ranks at most; this problem has"
            f" {problem.nranks}"
        )
    return ""


def solve(problem: Problem, request: Request, tuning: Tuning | None = None) -> Iterator[Outcome]:
    """The Pareto set of every phase, put together, and for all-reduce what fewer steps allow; with proofs."""
    options, least = request.options, fewest_steps(problem)
    pinned = [number for number in (options.steps, options.rounds) if number is not None]
    if pinned and min(pinned) < least:
        yield Refusal(f"no schedule has {options.shape}: it takes {least} steps at least, each of a round or more")
        return
    exact = _Exact(problem, request, tuning or Tuning())
    if (yield from exact.by_routing()):
        return
    yield from exact.by_phases()
    if problem.collective.kind.in_shares:
        yield from exact.direct()


@dataclass
class _Exact:
    problem: Problem
    request: Request
    tuning: Tuning

    def by_routing(self) -> Generator[Outcome, None, bool]:
        """Whether routing happens to meet a pinned shape, which then needs no solver."""
        options = self.request.options
        first, *others = phases(self.problem)
        if options.engine != "auto" or options.steps is None or options.rounds is None or options.chunks is None:
            return False
        if others:
            return False
        problem = self.problem.with_chunks(options.chunks)
        copying = first.apply(options.chunks)
        if route.work(copying) > self.tuning.lucky_s:
            return False
        for depth in (1.0, 0.5):
            schedule = first.invert(options.chunks, route.solve(copying, LARGEST, depth))
            if schedule.nsteps == options.steps and rounds_of(problem, schedule) <= options.rounds:
                yield Candidate(problem, schedule, route.NAME)
                return True
        return False

    def by_phases(self) -> Iterator[Outcome]:
        """The Pareto set of the first copying phase; the others follow it."""
        both = phases(self.problem)
        pins = self._pins_of_a_phase(both)
        if pins is None:
            return
        whole = both[0].apply(1)
        part = "each half" if len(both) == 2 else ""
        ratio = _ratio_bound(whole, prove(whole, max_flow=False))
        for found in pareto(self._shapes_of_phase(both[0]), fewest_steps(whole), ratio, pins):
            if isinstance(found, Progress):
                yield found
                continue
            self._recheck(whole, found)
            yield replace(found, part=part)
            if found.best is not None and found.best.schedule is not None:
                yield self._composed(both, found.best)
                shape = found.best.shape
                yield Progress(f"found ({shape.chunks}, {shape.steps}, {shape.rounds})")
            elif pins.steps is not None and found.complete and found.best is None and len(both) == 1:
                # of an all-reduce this is only one way to do it; other numbers of steps may do where none is pinned
                yield Refusal(_refusal(found, self.request.options))

    def _pins_of_a_phase(self, both: list[Phase]) -> Pins | None:
        """The user's numbers, which are of the whole, for one phase; None where they do not divide."""
        options, unit = self.request.options, both[0].asked_chunks(1)
        parts = ((options.steps, len(both)), (options.chunks, unit), (options.rounds, len(both)))
        if any(number is not None and number % parts_of for number, parts_of in parts):
            return None
        return Pins(*(None if number is None else number // parts_of for number, parts_of in parts))

    def _shapes_of_phase(self, phase: Phase) -> ShapeSearch:
        return self._shapes(lru_cache(64)(phase.apply), lru_cache(64)(free_symmetry), self.tuning.effort)

    def _shapes(
        self, stated: Callable[[int], Problem], symmetry: Callable[[Problem], Symmetry], share: float
    ) -> ShapeSearch:
        asked, seed, effort = self.request, self.request.options.seed, self.request.options.budget_s * share
        return ShapeSearch(asked.workers, stated, symmetry, asked.deadline, effort, asked.solvers, seed, self.tuning)

    def _composed(self, both: list[Phase], decision: Decision) -> Candidate:
        """The whole schedule from that of its first phase."""
        shape, schedule = decision.shape, decision.schedule
        assert schedule is not None
        problem = self.problem.with_chunks(both[0].asked_chunks(shape.chunks))
        whole = both[0].invert(shape.chunks, schedule)
        if len(both) == 2:
            second = self._second(both, shape, schedule)
            whole = join(whole, both[1].invert(shape.chunks, second))
        return Candidate(problem, slotted(problem, whole), decision.by)

    def _second(self, both: list[Phase], shape: Shape, schedule: Schedule) -> Schedule:
        """The second phase's schedule from the first's: the same where both ask the same of like networks."""
        mirror = mirror_links(self.problem.network)
        one, two = (phase.apply(shape.chunks).collective for phase in both)
        if mirror is not None and np.array_equal(one.pre, two.pre) and np.array_equal(one.post, two.post):
            return replace(schedule, link=mirror[schedule.link])
        search = self._shapes_of_phase(both[1])
        for extra in range(shape.steps + 1):
            decision = search.decide(replace(shape, rounds=shape.rounds + extra), search.effort)
            if decision.schedule is not None:
                return decision.schedule
        return route.solve(both[1].apply(shape.chunks), LARGEST)

    def direct(self) -> Iterator[Outcome]:
        """All-reduce in fewer steps than a reduce-scatter and an all-gather need: partial sums exchanged."""
        problem, options, known = self.problem, self.request.options, self.request.known
        k, diameter = problem.collective.nranks, fewest_steps(problem)
        search = self._shapes(problem.with_chunks, free_symmetry, self.tuning.direct_effort)
        composed = known.fewest_steps()
        last = max(diameter + 1, 2 * diameter if composed is None else composed)
        pins = Pins(options.steps, options.chunks, options.rounds)
        shape_is_pinned = None not in (options.steps, options.chunks, options.rounds)
        for steps in range(diameter, last) if options.steps is None else [options.steps]:
            for chunks in (1, k) if options.chunks is None else (options.chunks,):
                work = problem.network.nlinks * k * steps * chunks * free_symmetry(problem).order
                found = options.pinned and known.fewest_steps() is not None
                if found or search.left_s() <= 0 or work > self.tuning.largest_direct:
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
        """A step bound again, from its prices alone; one that does not hold is a defect and is not hidden."""
        few = problem.collective.nranks <= MOST_GOALS + 1 and now() < self.request.deadline
        if few and claim.bound is not None and np.isfinite(claim.bound.ratio):
            check_step_bound(problem, claim.bound)


def _ratio_bound(problem: Problem, bound: Bound) -> float:
    """Rounds a chunk that no algorithm can beat, from the bound for large messages (one chunk a block)."""
    smallest = float(problem.collective.fraction.min()) * problem.collective.chunks
    return bound.per_byte_us * 1e3 * unit_gbs(problem) / smallest


def _refusal(claim: StepClaim, options: Options) -> str:
    why = {
        "relaxation": f"{claim.steps} steps need at least {claim.at_least:.6g} rounds a chunk (relaxation)",
        "cut": f"any number of steps needs at least {claim.at_least:.6g} rounds a chunk (cut)",
        "distance": "some chunk has further to go than there are steps",
        "rounds ≥ steps": "every step takes a round",
    }.get(claim.by, f"refuted by {claim.by}")
    one_sum = claim.part == DIRECT and claim.by != "cut"
    what = "all-reduce with one sum a rank and chunk" if one_sum else "schedule"
    return f"no {what} has {options.shape}: {why}"
