"""What is known during a search for concurrent groups: its plans, each group's isolated run, and the bound."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from synth.bounds.lengths import lengths_by_loads
from synth.bounds.prove import Bound, tighten
from synth.concurrent.isolated import Isolated
from synth.concurrent.plans import REORDERED, ConcurrentPlan, faster_parts
from synth.concurrent.union import Relays, UnionProblem, check_within_groups
from synth.engines.request import Candidate, Options, Outcome, Progress
from synth.model.collective import Collective, Floats
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.budget import Budget
from synth.search.plans import AT_ONCE, IN_TURN, GroupsPlan
from synth.search.result import Report
from synth.solvers.workers import Workers
from synth.timing.simulate import resource_loads_us
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError


@dataclass(frozen=True)
class GroupsOptions(Options):
    """What a question about concurrent groups pins, besides the groups themselves.

    Attributes:
        relays: Ranks that may relay: "none", "all", or ranks.
        dead: Ranks that are no relays.
        objective: "makespan" or "fair".
    """

    relays: Relays = "none"
    dead: Sequence[int] = ()
    objective: str = "makespan"


class GroupsState:
    """The knowledge about one question while it is searched; engines read it as `SearchKnowledge`.

    Attributes:
        problem: The groups as one problem.
        options: What the question pins.
        plan: The plan of the search.
        workers: Solver processes.
        report: Receives what is tried and the latest algorithm.
        budget: The time of the search.
        deadline: When plans must be made, so that there is time for programs and files; a reading of `now`.
        isolated: Each group's isolated run.
        plans: Every plan so far.
        bound: Lower limit on the union's time.
        has_simple_plans: Whether the plans that always exist were made; only then the search looks at its deadline.
    """

    proved = False  # All plans are made, because the table shows them.

    def __init__(
        self,
        problem: UnionProblem,
        options: GroupsOptions,
        plan: GroupsPlan,
        workers: Workers,
        report: Report,
        *,
        has_programs: bool,
        known_plans: Sequence[ConcurrentPlan] = (),
    ) -> None:
        """Start with plans that exist already.

        Args:
            problem: See the class.
            options: See the class.
            plan: The plan before it is limited to the sends of `options.rank_sends`.
            workers: See the class.
            report: See the class.
            has_programs: Whether an executor's programs are made at the end, for which time is kept.
            known_plans: Plans of the same groups under the same rule for relays.
        """
        self.problem, self.options, self.workers, self.report = problem, options, workers, report
        self.plan = plan.limited(options.rank_sends, problem.nranks)
        self.budget = Budget.of(options)
        self.deadline = self.budget.without_last(plan.lowering if has_programs else plan.writing)
        self.isolated: list[Isolated] = []
        self.plans: list[ConcurrentPlan] = list(known_plans)
        self.bound = Bound(())
        self.has_simple_plans = False
        self._yielded: dict[str, tuple[Candidate, float]] = {}  # Each method's last candidate, with its makespan.
        self._priced: ConcurrentPlan | None = None  # The plan whose loads were prices of a bound last.

    def say(self, text: str) -> None:
        """Report what is tried, with the plan of the least makespan; None if there is none."""
        best = min(self.plans, key=lambda plan: plan.makespan_us, default=None)
        self.report(text, None if best is None else best.algorithm)

    def restated(self, collectives: Sequence[Collective]) -> UnionProblem:
        """Return the union of the same groups with other collectives."""
        return self.problem.restated(collectives, self.options.relays, self.options.dead)

    # What engines may read.

    @property
    def answered(self) -> bool:
        """Return whether there is a plan."""
        return bool(self.plans)

    def best_us(self, _size_bytes: float) -> float:
        """Return the best makespan so far, in µs; inf if there is none."""
        return min((plan.makespan_us for plan in self.plans), default=np.inf)

    def time_us(self, candidate: Candidate) -> float:
        """Return the makespan of a candidate's plan, in µs; inf unless it is the last one that some method yielded."""
        return next((us for last, us in self._yielded.values() if last is candidate), np.inf)

    def fewest_steps(self) -> int | None:
        """Return the fewest steps of any plan so far; None if there is none."""
        return min((plan.algorithm.steps for plan in self.plans), default=None)

    def shown_bytes(self) -> list[int]:
        """Return the union's message size in bytes, rounded to a whole number of at least 1, as the only one."""
        return [max(1, round(self.problem.size_bytes))]

    # Plans.

    def take(self, answer: Outcome, source: str) -> float:
        """Keep a plan after replaying it; return the part (0 to 1) by which it is faster than the best plan before.

        The first plan gains 1, and an answer that is no plan gains 0.

        Args:
            answer: A candidate, or a text about progress, which is only reported.
            source: Method of the plan.

        Raises:
            VerificationError: The schedule does not do the collectives, or a chunk is where its group's may not be.
        """
        if isinstance(answer, Progress):
            self.say(f"together: {answer.text}")
        elif isinstance(answer, Candidate):
            before_us = self.best_us(self.problem.size_bytes)
            makespan_us = self.add(answer.problem, answer.schedule, answer.engine, source)
            self._yielded[source] = answer, makespan_us
            return max(0.0, 1.0 - makespan_us / before_us) if np.isfinite(before_us) else 1.0
        return 0.0

    def refuse(self, source: str, error: InputError) -> None:
        """Report that a method cannot make a plan; the others go on."""
        self.say(f"{source} is left out: {error}")

    def add(self, problem: Problem, schedule: Schedule, engine: str, method: str) -> float:
        """Add a plan after replaying it, as slow as it may be; return its makespan in µs. Errors as those of `take`."""
        assert isinstance(problem, UnionProblem)
        check_within_groups(problem, schedule)
        self.plans.append(ConcurrentPlan(problem, Algorithm(problem, schedule, engine), method))
        return self.plans[-1].makespan_us

    def ranked(self, objective: str) -> list[ConcurrentPlan]:
        """Return all plans, the best by an objective, "makespan" or "fair", first; see `_key`."""
        return sorted(self.plans, key=partial(self._key, objective))

    def best(self, objective: str) -> ConcurrentPlan:
        """Return the best plan by an objective, "makespan" or "fair"; there must be a plan."""
        return min(self.plans, key=partial(self._key, objective))

    def _key(self, objective: str, plan: ConcurrentPlan) -> tuple[float, float]:
        """Return a key that is smaller for a better plan; differences of rounding do not count.

        It has the makespan in µs and the largest slowdown: for "fair" the slowdown first, else the makespan.
        """
        makespan, slow = (float(f"{x:.9g}") for x in (plan.makespan_us, plan.slowdown(self.isolated_us())))
        return (slow, makespan) if objective == "fair" else (makespan, slow)

    def isolated_us(self) -> Floats:
        """Return the time of each group's isolated run in µs, shape (groups,)."""
        return np.array([answer.time_us for answer in self.isolated])

    def learn_from(self, plan: ConcurrentPlan) -> bool:
        """Replace isolated runs by parts of a plan that beat them; return whether there were any.

        A part counts by its time without the other groups. Once the deadline has passed, or if the plan merges isolated
        runs itself or the run is near its bound, only a part that is faster in the plan too is looked at.
        """
        late = now() >= self.deadline
        own_plans = plan.method.removesuffix(REORDERED) in (AT_ONCE, IN_TURN)
        groups = [
            group
            for group, own in enumerate(self.isolated)
            if plan.times_us[group] < own.time_us * (1 - 1e-9)
            or not (late or own_plans or own.time_us <= own.bound_us * self.plan.met)
        ]
        faster = faster_parts(plan, {group: self.isolated[group] for group in groups})
        self.isolated = [faster.get(group, own) for group, own in enumerate(self.isolated)]
        return bool(faster)

    # Bounds.

    def least_us(self) -> float:
        """Return the highest bound on the makespan so far, in µs: the union's or the highest of the groups' own."""
        own = max(answer.bound_us for answer in self.isolated)
        return max(own, self.bound.at(self.problem.size_bytes)[0]) if self.bound.witnesses else own

    def tighten_bound(self, *, quick: bool = False) -> None:
        """Raise the bound if neither it nor a group's own bound is near the best plan; there must be a plan.

        Args:
            quick: Whether only the loads of the best plan are tried as prices; otherwise bounds are searched until the
                deadline.
        """
        best = self.best("makespan")
        enough_us = best.makespan_us / self.plan.met
        if self.least_us() >= enough_us:
            return
        loads = partial(resource_loads_us, best.problem, best.at_size)
        if best is not self._priced:
            self.say("bound: loads")
            self.bound = self.bound.merged(lengths_by_loads(self.problem, loads))
            self._priced = best
        if not quick:
            for better in tighten(
                self.problem, self.bound, loads, self.problem.size_bytes, enough_us, self.workers, self.deadline,
                self.say,
            ):  # fmt: skip
                self.bound = better
