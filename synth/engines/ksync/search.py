"""Exact search in the k-synchronous model and in time slots, for problems of a few ranks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from synth.bounds.prove import Bound, prove
from synth.engines.greedy import route
from synth.engines.ksync.direct_allreduce import PART, fewest_rounds
from synth.engines.ksync.pareto import Claim, Pins, Shape, StepSearch, Verdict, pareto
from synth.engines.ksync.recheck import MOST_GOALS, check_step_bound
from synth.engines.time_slots.search import NAME as TIME_SLOTS
from synth.engines.time_slots.search import in_slots
from synth.model.collective import Ints
from synth.model.problem import Problem, hops
from synth.model.schedule import Schedule
from synth.phases.phases import Phase, phases
from synth.phases.reversal import mirror_links
from synth.phases.split import join
from synth.search.frontier import LARGEST, frontier
from synth.search.result import Found, Options
from synth.solvers.workers import Workers
from synth.symmetry.relabelling import Symmetry, free_symmetry
from synth.timing.rounds import rounds as rounds_of
from synth.timing.rounds import unit_gbs
from synth.verify.algorithm import Algorithm

_MOST_EXTRA_STEPS = 4  # beyond the fewest: a step more seldom pays, and each costs a search
_COMBINING_SIZE = 400_000


class ExactSearch:
    """Fills a Found with what solvers find and prove.

    Attributes:
        algorithms: all so far, whoever found them; `add` puts a new one there.
    """

    def __init__(
        self,
        found: Found,
        options: Options,
        workers: Workers,
        deadline: float,
        algorithms: list[Algorithm],
        add: Callable[[Problem, Schedule, str], None],
        say: Callable[[str], None],
    ) -> None:
        self.problem, self.found, self.options, self.workers = found.problem, found, options, workers
        self.deadline, self.algorithms, self._add, self._say = deadline, algorithms, add, say
        self.claimed: dict[str, Problem] = {}  # the problem that claims of a part are about

    def run(self) -> None:
        """Steps, sums exchanged at one go, time slots; all that the options ask for."""
        if self.options.engine in ("auto", "cpsat", "smt") and not self._lucky():
            self._exact()
            if self.problem.collective.kind.in_shares:
                self._combining()
        if self.options.engine in ("auto", "milp"):
            self._timed()

    def _lucky(self) -> bool:
        """Whether routing happens to meet a pinned shape, which then needs no solver."""
        options = self.options
        if options.engine != "auto" or None in (options.steps, options.rounds, options.chunks):
            return False
        halves = phases(self.problem)
        if len(halves) == 2 or options.chunks is None:
            return False
        problem = self.problem.with_chunks(options.chunks)
        copying = halves[0].apply(options.chunks)
        if route.work(copying) > 0.1:
            return False
        for depth in (1.0, 0.5):
            schedule = halves[0].invert(options.chunks, route.solve(copying, LARGEST, depth))
            if schedule.nsteps == options.steps and rounds_of(problem, schedule) <= (options.rounds or 0):
                self._add(problem, schedule, route.NAME)
                return True
        return False

    def _exact(self) -> None:
        """The Pareto set of every copying half, put together."""
        halves = phases(self.problem)
        options = self.options
        chunks, steps, rounds = options.chunks, options.steps, options.rounds
        if len(halves) == 2:  # the user's numbers are of the whole
            unit = halves[0].asked_chunks(1)
            if any(x is not None and x % d for x, d in ((chunks, unit), (steps, 2), (rounds, 2))):
                return
            chunks, steps, rounds = (
                None if x is None else x // d for x, d in ((chunks, unit), (steps, 2), (rounds, 2))
            )
        first = self._stepper(halves[0])
        whole = halves[0].apply(1)
        part = "each half" if len(halves) == 2 else ""
        self.claimed[part] = whole
        net = whole.network
        distance = hops(net.nranks, net.src, net.dst)
        fewest = _fewest_steps(whole, distance)
        ratio = _ratio_bound(whole, prove(whole, max_flow=False))
        for claim in pareto(
            first,
            fewest,
            ratio,
            most_steps=fewest + _MOST_EXTRA_STEPS,
            pins=Pins(steps, chunks, rounds),
            say=self._say,
        ):
            self.found.claims.append(replace(claim, part=part))
            if claim.best is None or claim.best.schedule is None:
                # of an all-reduce this is only one way to do it
                if options.pinned and claim.complete and claim.best is None and len(halves) == 1:
                    self.found.impossible = _refusal(claim, options)
                continue
            self._compose(halves, claim.best)

    def _stepper(self, form: Phase) -> StepSearch:
        @lru_cache(maxsize=64)
        def copying(chunks: int) -> Problem:
            return form.apply(chunks)

        known: dict[int, Symmetry] = {}

        def symmetry(problem: Problem) -> Symmetry:
            return known.setdefault(problem.collective.nchunks, free_symmetry(problem))

        return StepSearch(
            self.workers,
            copying,
            symmetry,
            deadline=self.deadline,
            effort=self.options.budget_s / 50,
            engine=self.options.engine,
            seed=self.options.seed,
        )

    def _compose(self, halves: list[Phase], verdict: Verdict) -> None:
        shape, schedule = verdict.shape, verdict.schedule
        assert schedule is not None
        problem = self.problem.with_chunks(halves[0].asked_chunks(shape.chunks))
        parts = [halves[0].invert(shape.chunks, schedule)]
        if len(halves) == 2:
            other = self._other_half(halves, shape, schedule)
            parts.append(halves[1].invert(shape.chunks, other))
        self._add(problem, _joined(parts), verdict.by)
        self._say(f"found ({shape.chunks}, {shape.steps}, {shape.rounds})")

    def _other_half(self, halves: list[Phase], shape: Shape, schedule: Schedule) -> Schedule:
        """The second half's schedule from the first's: the same where both ask the same of like networks."""
        form = halves[1]
        mirror = mirror_links(self.problem.network)
        one, two = (half.apply(shape.chunks).collective for half in halves)
        if mirror is not None and np.array_equal(one.pre, two.pre) and np.array_equal(one.post, two.post):
            return replace(schedule, link=mirror[schedule.link])
        stepper = self._stepper(form)
        for extra in range(shape.steps + 1):
            verdict = stepper.decide(replace(shape, rounds=shape.rounds + extra), stepper.effort)
            if verdict.schedule is not None:
                return verdict.schedule
        return route.solve(form.apply(shape.chunks), LARGEST)

    def _combining(self) -> None:
        """All-reduce in fewer steps than a reduce-scatter and an all-gather need."""
        problem, options = self.problem, self.options
        net, k = problem.network, problem.collective.nranks
        distance = hops(net.nranks, net.src, net.dst)
        diameter = int(distance[:k, :k].max())
        search = StepSearch(
            self.workers,
            problem.with_chunks,
            free_symmetry,
            deadline=self.deadline,
            effort=options.budget_s / 150,
            engine=options.engine,
            seed=options.seed,
            combining=True,
        )
        if options.steps is not None and options.steps < diameter:
            claim = Claim(options.steps, np.inf, "distance", None, True, None, None)
            self.found.impossible = _refusal(claim, options)
            return
        composed = min((a.steps for a in self.algorithms), default=2 * diameter)
        numbers = range(diameter, max(diameter + 1, composed)) if options.steps is None else [options.steps]
        for steps in numbers:
            for chunks in (1, k) if options.chunks is None else (options.chunks,):
                work = net.nlinks * k * steps * chunks * free_symmetry(problem).order
                if (options.pinned and self.algorithms) or search.left() <= 0 or work > _COMBINING_SIZE:
                    continue
                self._at_one_go(search, steps, chunks)

    def _at_one_go(self, search: StepSearch, steps: int, chunks: int) -> None:
        ratio = _ratio_bound(self.problem, self.found.bound)
        pins = Pins(steps, self.options.chunks, self.options.rounds)
        claim = fewest_rounds(search, steps, chunks, ratio, pins, self._say)
        if claim.best is not None and claim.best.schedule is not None:
            self._add(self.problem.with_chunks(chunks), claim.best.schedule, claim.best.by)
            self.found.claims.append(claim)
        elif claim.complete and None not in (self.options.steps, self.options.chunks, self.options.rounds):
            self.found.impossible = _refusal(claim, self.options)

    def _timed(self) -> None:
        """Time slots in place of steps, where no one step suits all links (or this engine is asked for)."""
        net, options = self.problem.network, self.options
        halves = phases(self.problem)
        alike = np.ptp(net.alpha_us) == 0
        if len(halves) == 2 or (options.engine == "auto" and (alike or options.pinned)):
            return
        sizes = [options.size] if options.size else [r.shown for r in frontier(self.algorithms)]
        for size in sizes or [LARGEST]:
            best = min((a.time_us(size) for a in self.algorithms), default=np.inf)
            if options.engine == "auto" and best <= self.found.bound.at(size)[0] * 1.01:
                continue
            for chunks in (1, 2) if options.chunks is None else (options.chunks,):
                self._say(f"time slots: {chunks} chunks")
                answer = in_slots(self.workers, halves[0], chunks, size, self._slot_budget(), options.seed)
                if answer is not None:
                    schedule, claim = answer
                    self._add(self.problem.with_chunks(claim.chunks), schedule, TIME_SLOTS)
                    self.found.slots.append(claim)

    def _slot_budget(self) -> float:
        left = self.deadline - time.monotonic()
        return left * (0.9 if self.options.engine == "milp" else 0.2)

    def recheck(self) -> None:
        """Step bounds again from their prices alone; one that does not hold is a defect and is not hidden."""
        for claim in self.found.claims:
            problem = self.claimed.get(claim.part)
            if claim.bound is None or problem is None or time.monotonic() >= self.deadline:
                continue
            if problem.collective.nranks <= MOST_GOALS + 1 and np.isfinite(claim.bound.ratio):
                check_step_bound(problem, claim.bound)


def _joined(parts: list[Schedule]) -> Schedule:
    return parts[0] if len(parts) == 1 else join(parts[0], parts[1])


def _fewest_steps(problem: Problem, distance: Ints) -> int:
    """Hops that some chunk must go."""
    collective = problem.collective
    holds, wants = collective.holds, collective.wants
    k = collective.nranks
    far = 0
    for chunk in range(collective.nchunks):
        goals = np.flatnonzero(wants[chunk] & ~holds[chunk])
        if len(goals):
            far = max(far, int(distance[:k, :k][holds[chunk]][:, goals].min(axis=0).max()))
    return far


def _ratio_bound(problem: Problem, bound: Bound) -> float:
    """Rounds a chunk that no algorithm can beat, from the bound for large messages (one chunk a block)."""
    smallest = float(problem.collective.fraction.min()) * problem.collective.chunks
    return bound.per_byte_us * 1e3 * unit_gbs(problem) / smallest


def _refusal(claim: Claim, options: Options) -> str:
    pinned = (("steps", options.steps), ("rounds", options.rounds), ("chunks", options.chunks))
    shape = ", ".join(
        f"{value} {name if value > 1 else name[:-1]}" for name, value in pinned if value is not None
    )
    why = {
        "relaxation": f"{claim.steps} steps need at least {claim.at_least:.6g} rounds a chunk (relaxation)",
        "cut": f"any number of steps needs at least {claim.at_least:.6g} rounds a chunk (cut)",
        "distance": "some chunk has further to go than there are steps",
        "rounds ≥ steps": "every step takes a round",
    }.get(claim.by, f"refuted by {claim.by}")
    what = (
        "schedule" if claim.part != PART or claim.by == "cut" else "all-reduce with one sum a rank and chunk"
    )
    return f"no {what} has {shape}: {why}"
