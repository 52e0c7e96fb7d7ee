"""What is known during a search: its algorithms, its bound and its claims, and what each answer adds to them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from synth.bounds.lengths import lengths_by_loads
from synth.bounds.prove import OPTIMAL, Bound, tighten
from synth.engines.flow.tuning import SEARCH as FLOW
from synth.engines.registry import AUTO
from synth.engines.request import Candidate, Options, Outcome, Progress, Refusal, SlotClaim, StepClaim
from synth.model.collective import Floats
from synth.model.deadline import now
from synth.model.problem import LARGEST, Problem
from synth.search.budget import Budget
from synth.search.executor import Executor
from synth.search.frontier import POWERS
from synth.search.offer import Offer
from synth.search.plans import SearchPlan
from synth.search.pool import Pool
from synth.search.result import Report, SearchResult
from synth.solvers.workers import Workers
from synth.symmetry.quotient import expand
from synth.timing.simulate import resource_loads_us, timed
from synth.verify.algorithm import Algorithm


class SearchState:
    """The knowledge about one problem while it is searched; engines read it as `SearchKnowledge`.

    Attributes:
        problem: The problem, with one chunk a block.
        options: What the user pins.
        plan: The plan that is run.
        workers: Solver processes.
        report: Receives what is tried and the best algorithm so far.
        budget: The time of the search.
        sizes: Message sizes in bytes that schedules are searched for, the most important first.
        pool: The algorithms found.
        result: The bound, the claims and what else the search returns.
        source_of: The engine (a row of the registry) that an algorithm came from, by the name in the algorithm.
    """

    def __init__(
        self,
        problem: Problem,
        options: Options,
        plan: SearchPlan,
        workers: Workers,
        report: Report,
        executor: Executor | None,
    ) -> None:
        """Start with nothing known; arguments as those of `synth.search.search.search`."""
        self.problem, self.options, self.plan, self.workers, self.report = problem, options, plan, workers, report
        self.budget = Budget.of(options)
        # A patient search ignores the clock while it lowers, so that its files are reproducible.
        lowering = self.budget.patient(plan.patience) if plan.patient else self.budget
        self.pool = Pool(executor, lowering, self.say, least_bytes=options.least_bytes or 0)
        self.pool.programs = plan.programs
        self.sizes = plan.sizes if options.size is None else (options.size,)
        self.result = SearchResult(problem, engine=options.engine)
        self.source_of: dict[str, str] = {}
        self._best_at_size: dict[tuple[str, int], Algorithm] = {}  # By engine and size, if it supersedes its answers.
        self._yielded: dict[str, tuple[Candidate, float]] = {}  # Each engine's last candidate, with its time in µs.
        self._load_us: Floats | None = None  # The loads of the last schedule whose engine stated them.

    def say(self, text: str) -> None:
        """Report what is tried, with the best algorithm at the first of `sizes`; None if there is none."""
        best = min(self.pool.all_offers(), key=lambda offer: offer.rank_at(self.sizes[0]), default=None)
        self.report(text, None if best is None else best.algorithm)

    def raise_bound(self, bound: Bound) -> None:
        """Replace the bound by one that has its witnesses and maybe more, found now."""
        self.result.raise_bound(bound, now() - self.budget.begun)

    # What engines may read.

    @property
    def answered(self) -> bool:
        """Return whether there is an algorithm."""
        return bool(self.pool.all_offers())

    @property
    def proved(self) -> bool:
        """Return whether the answer for every size is proved optimal, so that nothing is left to do.

        It never is if the user pinned a shape or an engine, because then the question is not for the fastest. Programs
        may be lowered to see it.
        """
        if self.options.pinned or self.options.engine != AUTO or not self.answered:
            return False
        sizes = (*self.sizes, *(() if self.options.size else POWERS))
        return all(
            time_us(size) <= self.result.bound.at(size)[0] * OPTIMAL
            for time_us in (self.scheduled_us, self.best_us)  # The second lowers programs.
            for size in sizes
        )

    def best_us(self, size_bytes: float) -> float:
        """Return the best time so far for messages of `size_bytes`, in µs; inf if there is none.

        Programs may be lowered for it, as by `Pool.best`.
        """
        return self.pool.best_us(size_bytes)

    def scheduled_us(self, size_bytes: float) -> float:
        """Return the time of the best schedule so far at a size, in µs, without lowering any; inf if there is none."""
        return self.pool.scheduled_us(size_bytes)

    def time_us(self, candidate: Candidate) -> float:
        """Return the time of a candidate at its size, in µs; inf if it was of no use.

        It is known only for the last candidate that each engine yielded; for all others it is inf too.
        """
        return next((us for last, us in self._yielded.values() if last is candidate), math.inf)

    def fewest_steps(self) -> int | None:
        """Return the fewest steps of any algorithm so far; None if there is none."""
        return min((offer.algorithm.steps for offer in self.pool.all_offers()), default=None)

    def shown_bytes(self) -> list[int]:
        """Return the message sizes in bytes that the question is about, or at which its answers would be shown.

        Programs may be lowered to see which are shown. Without an algorithm it is the largest size only.
        """
        if self.plan.only_sizes:
            return list(self.sizes)
        return [offer.shown for offer in self.pool.frontier()] or [LARGEST]

    # Answers.

    def take(self, answer: Outcome, source: str) -> float:
        """Keep an answer of an engine after replaying it.

        A claim is dropped where switches multicast or reduce, because it is about links only. An Algorithm counts only
        if no shape is pinned.

        Args:
            answer: A schedule, a claim, a refusal, or a text about progress, which is only reported.
            source: Name of the engine, a row of the registry; "baseline" also adds an Algorithm to the result's
                baselines.

        Returns:
            What the answer gained: the part (0 to 1) by which a candidate is faster than the best schedule before, at
            the size at which that is most. It is 0 for all other answers.

        Raises:
            VerificationError: The schedule does not do the collective, or breaks the model.
        """
        result = self.result
        if isinstance(answer, Candidate | Algorithm):
            self.source_of[answer.engine] = source
        if isinstance(answer, Progress):
            self.say(answer.text)
        elif isinstance(answer, StepClaim | SlotClaim) and self.problem.network.hyperlinks is not None:
            pass  # The claim is about sends over links alone.
        elif isinstance(answer, StepClaim):
            result.claims.append(answer)
        elif isinstance(answer, SlotClaim):
            result.slots.append(answer)
        elif isinstance(answer, Refusal):
            where = "" if self.problem.network.hyperlinks is None else ", where switches only forward"
            result.impossible = answer.text + where
        elif isinstance(answer, Candidate):
            sizes = (answer.size_bytes,) if answer.size_bytes else self.sizes
            before_us = [self.scheduled_us(size) for size in sizes]
            time_us = self._keep(answer)
            self._yielded[source] = answer, time_us
            # Only what beats all engines is a gain.
            after_us = [min(self.scheduled_us(size), us) for size, us in zip(sizes, before_us, strict=True)]
            return max(0.0 if after == us else 1.0 - after / us for after, us in zip(after_us, before_us, strict=True))
        else:
            if source == "baseline":
                result.baselines.append(answer)
            if not self.options.pinned:
                self._add(answer, self.sizes[0])
        return 0.0

    def _keep(self, candidate: Candidate) -> float:
        """Replay a candidate and keep it if it is of use; return its time in µs at its size, or inf.

        A candidate for no particular size counts at the first of `sizes`. The schedule of a quotient is expanded; if it
        would be too large, or no program holds the algorithm, the time is inf. A candidate that supersedes stays only
        if it is faster than its engine's best one for the same size, which it may replace.
        """
        problem, schedule = candidate.problem, candidate.schedule
        if problem.quotient is not None and self.problem.quotient is None:
            if len(schedule) * problem.quotient.order > FLOW.expanded:
                return math.inf
            problem, schedule = expand(problem, schedule)
        elif candidate.load_us is not None:
            self._load_us = candidate.load_us
        algorithm = Algorithm(problem, schedule, candidate.engine, size_bytes=candidate.size_bytes)
        size = candidate.size_bytes or self.sizes[0]
        if not candidate.supersedes:
            return self._add(algorithm, size)
        best = self._best_at_size.get((candidate.engine, size))
        before = None if best is None else self.pool.offer_of(best)
        schedule_us = algorithm.time_us(size)
        if before is not None and schedule_us >= before.time_us(size):
            return schedule_us
        time_us = self._add(algorithm, size)
        before = None if best is None else self.pool.offer_of(best)  # It may have a program now.
        if before is not None and time_us >= before.time_us(size):
            self.pool.remove(algorithm)
        elif before is not None and not self._is_of_use_still(before, algorithm):
            self.pool.remove(before.algorithm)
        if before is None or time_us < before.time_us(size):
            self._best_at_size[candidate.engine, size] = algorithm
        return time_us

    def _is_of_use_still(self, before: Offer, algorithm: Algorithm) -> bool:
        """Return whether an offer stays though a superseding algorithm is faster, whose program may come late or never.

        The offer goes once the faster algorithm has a program. Before that, the offer stays if it has a program itself,
        or if the faster algorithm takes much longer to lower.
        """
        if self.pool.offer_of(algorithm).execution is not None:
            return False
        return before.execution is not None or self.pool.pace.takes_much_longer(algorithm, before.algorithm)

    def _add(self, algorithm: Algorithm, size: int) -> float:
        """Add an algorithm; return its time in µs at a size, or inf if no program holds it."""
        offer = self.pool.add(algorithm, size)
        return math.inf if offer.refused else offer.time_us(size)

    # Bounds.

    def tighten_bound(self) -> None:
        """Raise the bound, at the pinned or the largest size, if the best algorithm there is not near it yet.

        Without an algorithm nothing happens. Programs may be lowered to find the best one.
        """
        size, met = self.options.size or LARGEST, self.plan.met
        best = self.pool.best(size)
        if best is None:
            return
        best_us, near = best.time_us(size), max(met, FLOW.close_enough(len(best.algorithm.schedule)) - (met - 1))
        if np.isinf(best_us) or best_us <= self.result.bound.at(size)[0] * near:
            return
        loads: Callable[[], Floats] | None = None
        if self.plan.quick_bounds:
            algorithms = [offer.algorithm for offer in self.pool.offers or self.pool.refused]
            fastest = min(algorithms, key=lambda algorithm: (algorithm.time_us(size), len(algorithm.schedule)))
            loads = partial(resource_loads_us, fastest.problem, timed(fastest.problem, fastest.schedule, size))
            self.raise_bound(self.result.bound.merged(lengths_by_loads(self.problem, loads)))
        elif self._load_us is not None:
            loads = partial(np.asarray, self._load_us)
        effort = replace(self.plan.effort, max_flow=not self.options.pinned)
        for bound in tighten(
            self.problem, self.result.bound, loads, size, best_us / met, self.workers, self.budget.deadline,
            self.say, effort,
        ):  # fmt: skip
            self.raise_bound(bound)
