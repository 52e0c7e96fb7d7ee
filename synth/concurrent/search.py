"""The search for concurrent groups: the runner of single searches, with plans for all groups as its answers.

Three plans always exist: isolated schedules begun at once, the same in turn, and direct plans. Plans of the engine for
the union of all groups come on top, so the answer is never slower than any of the three. All times are those of
`synth.timing.simulate`. Every plan is replayed as one schedule of the union; if chunks may not leave their group, that
is checked too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from synth.bounds.lengths import from_loads
from synth.bounds.prove import Bound, prove, tighten
from synth.concurrent import plans
from synth.concurrent.executable import GroupExecutor, choose_executable
from synth.concurrent.isolated import Isolated, engine_of, own_witnesses, run_each_isolated
from synth.concurrent.plans import AT_ONCE, DIRECT, IN_TURN, JOINT, REORDERED, WITHIN, ConcurrentPlan
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.tuning import ConcurrentTuning
from synth.concurrent.union import Member, Relays, UnionProblem, check_within_groups, union_problem
from synth.engines.estimates import estimated_sends
from synth.engines.flow.tuning import SEARCH
from synth.engines.registry import ENGINES
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Collective, Floats
from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import collected, contained, raise_first_defect
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.result import Report
from synth.search.runner import EngineRun, compiled_interrupts, race
from synth.solvers.workers import Workers
from synth.timing.simulate import resource_loads_us
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks, live_ranks
from topologies.load import load
from topologies.topology import Topology, without_switch_ops


@dataclass(frozen=True)
class Asked(Options):
    """A question about concurrent groups beside the groups themselves; see `plan`.

    Attributes:
        relays: Ranks that may relay: "none", "all", or ranks.
        dead: Ranks that are no relays.
        objective: "makespan" or "fair".
    """

    relays: Relays = "none"
    dead: Sequence[int] = ()
    objective: str = "makespan"


def plan(
    topo: str | Path | Topology,
    members: Sequence[Member],
    *,
    relays: Sequence[int] | str = "none",
    without: Sequence[str] = (),
    degrade: Sequence[str] = (),
    objective: str = "makespan",
    chunks: int | None = None,
    engine: str = "auto",
    budget: float = 30.0,
    seed: int = 0,
    workers: Workers | None = None,
    progress: Report | None = None,
    executor: GroupExecutor | None = None,
    begun: float | None = None,
    first: Sequence[ConcurrentPlan] = (),
) -> ConcurrentResult:
    """Return a plan for several groups that share a network.

    Args:
        topo: A machine, a family, a file, or a Topology.
        members: The groups, each with a collective (one chunk a block) and a size of its own.
        relays: Ranks that may forward chunks of a group beside its members: "none"; "all" for every living rank; or
            ranks, which may relay like the members of all groups.
        without: Dead parts, as texts (see `topologies.faults.apply`).
        degrade: Slow parts, as texts.
        objective: "makespan" for the end of the last group; "fair" for the largest slowdown of a group (see
            `synth.concurrent.plans.fairer`), then the makespan.
        chunks: Chunks of every block; any number if None.
        engine: "flow"; or "auto", which also tries what a vendor library would run.
        budget: Seconds.
        seed: Checked like that of other questions; these engines draw nothing at random.
        workers: Solver processes to use again.
        progress: Receives what is tried and the best algorithm so far.
        executor: The lowering of plans; None if only schedules count.
        begun: Reading of `synth.model.deadline.now` since which the budget counts; None for now.
        first: Plans that exist already, of the same groups under the same rule for relays.

    Raises:
        InputError: The question cannot be answered; the message is one line.
    """
    for name, value, allowed in (("objective", objective, ("makespan", "fair")), ("engine", engine, ("auto", "flow"))):
        if value not in allowed:
            raise InputError(f"{name}: {value!r} is not known for several groups; it is {' or '.join(allowed)}")
    Options(chunks=chunks, budget_s=budget, seed=seed).check()
    begun = now() if begun is None else begun
    healthy = without_switch_ops(topo if isinstance(topo, Topology) else load(topo))  # Plans use links only.
    dead = dead_ranks(healthy, without)
    for member in members:
        live_ranks(healthy, dead, member.ranks, f"group {member.label}" if member.ranks else "group")
    problem = union_problem(apply_faults(healthy, without, degrade), members, relays, dead)
    question = Asked(
        chunks=chunks, engine=engine, budget_s=budget, relays=relays, dead=dead, objective=objective,
        rank_sends=None if executor is None else executor.rank_sends(problem),
    )  # fmt: skip
    with ExitStack() as stack, collected() as defects:
        workers = workers or stack.enter_context(Workers())
        answer = ConcurrentSearch(problem, question, workers, progress, executor, begun, first).run()
    return replace(answer, defects=tuple(defects.values()))


class ConcurrentSearch:
    """The search for one question about concurrent groups.

    Engines read it as `SearchKnowledge`, and the race gives it answers.

    Attributes:
        isolated: Each group's isolated run.
        plans: Every plan so far.
        bound: Lower limit on the union's time.
        has_simple_plans: Whether the plans that always exist were made; only then the search looks at its deadline.
    """

    proved = False  # All plans are made, because the table shows them.

    def __init__(
        self,
        problem: UnionProblem,
        question: Asked,
        workers: Workers,
        report: Report | None,
        executor: GroupExecutor | None = None,
        begun: float | None = None,
        first: Sequence[ConcurrentPlan] = (),
    ) -> None:
        self.problem, self.asked, self.workers = problem, question, workers
        self.report, self.executor = report or (lambda _, __: None), executor
        self.tuning = ConcurrentTuning().limited(question.rank_sends, problem.nranks)
        self.isolated: list[Isolated] = []
        self.plans: list[ConcurrentPlan] = list(first)
        self.bound = Bound(())
        self.has_simple_plans = False
        self.yielded: dict[str, tuple[Candidate, float]] = {}
        self.priced: ConcurrentPlan | None = None
        self.begun = now() if begun is None else begun
        self.end = self.begun + question.budget_s
        self.size = problem.size_bytes
        self.deadline = self.end - (self.tuning.lowering if executor else self.tuning.writing) * question.budget_s

    def run(self) -> ConcurrentResult:
        """Make plans until one is near its bound, nothing more is to be tried, the budget ends or Ctrl-C."""
        question, ended = self.asked, ""
        until = self.begun + self.tuning.isolated * question.budget_s
        executor_of = (lambda _: None) if self.executor is None else self.executor.isolated
        self.isolated, interrupted = run_each_isolated(
            self.problem, question, self.workers, until, self._say, executor_of
        )
        try:
            if interrupted:
                raise KeyboardInterrupt
            limited(lambda: self.deadline if self.has_simple_plans else np.inf, self._work)
        except TimeUp:
            ended = "budget"
        except KeyboardInterrupt:
            ended = "interrupted"
        try:
            chosen = self._conclude()
        except KeyboardInterrupt:
            ended, chosen = "interrupted", self._conclude(hurried=True)
        by_method: dict[str, tuple[float, float]] = {}
        for plan in sorted(self.plans, key=partial(self._key, question.objective)):
            by_method.setdefault(plan.method, (plan.makespan_us, plan.slowdown(self._isolated_us())))
        seconds = now() - self.begun
        ended = ended or ("budget" if seconds >= question.budget_s else "")
        relay = question.relays if isinstance(question.relays, str) else ",".join(map(str, question.relays)) or "none"
        best, isolated = (chosen.problem, chosen.algorithm, chosen.method), tuple(self.isolated)
        return ConcurrentResult(*best, question.objective, relay, isolated, self.bound, by_method, ended, seconds)

    # The race.

    def _work(self) -> None:
        """Run the race of plans, then raise their bound."""
        race(self._runs(), self, self.deadline)
        with compiled_interrupts():
            contained("search for bounds", self._tighten, None)

    def _runs(self) -> Iterator[EngineRun]:
        """Yield the makers of plans in order; all but those of the union end with their first plan."""
        has_several = len(self.problem.members) > 1
        if has_several and self.problem.allowed is None:
            yield EngineRun(WITHIN, self._within(), np.inf)
        for method, candidate in self._from_isolated():
            yield EngineRun(method, iter([candidate]), np.inf)
        self._say("direct")
        direct = partial(plans.direct, self.problem, self._restated, self.asked.chunks)
        if (direct_plan := contained("direct plan", direct, None)) is not None:
            yield EngineRun(DIRECT, iter([Candidate(*direct_plan, DIRECT)]), np.inf)
        self.has_simple_plans = True
        self.bound = prove(self.problem, max_flow=self.problem.nranks <= self.tuning.max_flow_ranks)
        if has_several and self.plans:
            contained("search for bounds", partial(self._tighten, quick=True), None)
            if self._best("makespan").makespan_us > self._least_us() * SEARCH.near:
                try:
                    for answers in self._union():
                        yield EngineRun(JOINT, answers, np.inf)
                except InputError:
                    return  # There are more chunks than the memory holds; other plans exist.

    def take(self, answer: Outcome, source: str) -> float:
        """Keep a plan after replaying it; return the part by which it is faster than the best plan before."""
        if isinstance(answer, Progress):
            self._say(f"together: {answer.text}")
        elif isinstance(answer, Candidate):
            before_us = self.best_us(self.size)
            makespan_us = self._add(answer.problem, answer.schedule, answer.engine, source)
            self.yielded[source] = answer, makespan_us
            return max(0.0, 1.0 - makespan_us / before_us) if np.isfinite(before_us) else 1.0
        return 0.0

    def _add(self, problem: Problem, schedule: Schedule, engine: str, method: str) -> float:
        """Add a plan; return its makespan in µs."""
        assert isinstance(problem, UnionProblem)
        check_within_groups(problem, schedule)
        self.plans.append(ConcurrentPlan(problem, Algorithm(problem, schedule, engine), method))
        return self.plans[-1].makespan_us

    # What engines may read.

    @property
    def answered(self) -> bool:
        """Return whether there is a plan."""
        return bool(self.plans)

    def best_us(self, _size_bytes: float) -> float:
        """Return the best makespan so far, in µs; inf if there is none."""
        return min((plan.makespan_us for plan in self.plans), default=np.inf)

    def time_us(self, candidate: Candidate) -> float:
        """Return the makespan of the plan that was yielded last, in µs; inf if it was of no use."""
        return next((us for last, us in self.yielded.values() if last is candidate), np.inf)

    def fewest_steps(self) -> int | None:
        """Return the fewest steps of any plan so far; None if there is none."""
        return min((plan.algorithm.steps for plan in self.plans), default=None)

    def shown_bytes(self) -> list[int]:
        """Return the union's message size in bytes."""
        return [max(1, round(self.size))]

    def _within(self) -> Iterator[Outcome]:
        """Yield the plan of isolated schedules without relays, if every group is connected by itself."""
        try:
            within = union_problem(self.problem.topology, self.problem.members)
        except InputError:
            return
        until = min(now() + self.tuning.within * self.asked.budget_s, self.deadline)
        isolated, interrupted = run_each_isolated(within, self.asked, self.workers, until, self._say)
        yield Candidate(*plans.within_groups(within, isolated, self._restated), engine_of(isolated))
        self._learn_from(self.plans[-1])
        if interrupted:
            raise KeyboardInterrupt

    def _from_isolated(self) -> Iterator[tuple[str, Candidate]]:
        """Yield the plans that merge isolated schedules, with their methods."""
        for method, make in ((AT_ONCE, plans.at_once), (IN_TURN, plans.in_turn)):
            if method == AT_ONCE or len(self.isolated) > 1:
                yield method, Candidate(*make(self.isolated, self._restated), engine_of(self.isolated))

    def _take_isolated(self) -> None:
        """Take the plans that merge isolated schedules."""
        for method, candidate in self._from_isolated():
            self.take(candidate, method)

    def _learn_from(self, plan: ConcurrentPlan) -> bool:
        """Replace isolated runs by parts of a plan that beat them; return whether there were any."""
        late = now() >= self.deadline
        own_plans = plan.method.removesuffix(REORDERED) in (AT_ONCE, IN_TURN)
        groups = [
            group
            for group, own in enumerate(self.isolated)
            if plan.times_us[group] < own.time_us * (1 - 1e-9)
            or not (late or own_plans or own.time_us <= own.bound_us * SEARCH.near)
        ]
        faster = plans.faster_parts(plan, {group: self.isolated[group] for group in groups})
        self.isolated = [faster.get(group, own) for group, own in enumerate(self.isolated)]
        return bool(faster)

    def _union(self) -> Iterator[Iterator[Outcome]]:
        """Yield the engine's runs on all groups as one problem, from a likely number of chunks to more."""
        refined = plans.refined_union(self.problem, self._restated, self.asked.chunks)
        if self.asked.chunks is not None:
            yield self._searched(refined, pinned=True)
        elif self.problem.allowed is not None:
            yield from self._finer_and_finer(refined, 1)
        else:
            yield self._searched(refined)
            parts = [plan.parts_of(refined) for plan in self.plans if plan.method == JOINT]
            finest = 4 * max(parts, default=1)
            # Go beyond the number of sends that is only estimated.
            if parts and finest * estimated_sends(refined) > self.tuning.most_sends:
                yield from self._finer_and_finer(refined, finest)

    def _finer_and_finer(self, refined: UnionProblem, parts: int) -> Iterator[Iterator[Outcome]]:
        """Yield runs with more and more parts of every chunk, while that gains."""
        until = self.begun + self.tuning.union * self.asked.budget_s
        enough_us = self._least_us() * SEARCH.near
        idle = 0
        while idle < 2:
            union_plans = [plan for plan in self.plans if plan.method == JOINT]
            best_us = min((plan.makespan_us for plan in union_plans), default=np.inf)
            sends = min((len(plan.algorithm.schedule) // plan.parts_of(refined) for plan in union_plans), default=0)
            late = now() >= until
            if best_us <= enough_us or sends * parts > self.tuning.most_sends or (union_plans and late):
                break
            before = len(self.plans)
            yield self._searched(refined.with_chunks(parts), pinned=True)
            took_us = min((plan.makespan_us for plan in self.plans[before:]), default=np.inf)
            if np.isinf(took_us):
                break  # Sums need links in both directions; other plans exist.
            idle = 0 if took_us < best_us * (1 - self.tuning.worth) else idle + 1
            parts *= 4

    def _searched(self, problem: UnionProblem, pinned: bool = False) -> Iterator[Outcome]:
        """Ask the engine for plans with the chunks of `problem`, or with more unless they are pinned."""
        (size,) = self.shown_bytes()
        request = Request(
            Options(size, problem.collective.chunks if pinned else None, budget_s=self.asked.budget_s),
            sizes=(size,),
            deadline=self.begun + self.tuning.union * self.asked.budget_s,
            workers=self.workers,
            knowledge=self,
            bound=self.bound.merged(own_witnesses(self.isolated, self.size)),
            most_sends=self.tuning.most_sends if self.executor else 0,
        )
        return ENGINES["flow"].solve(problem, request)

    def _tighten(self, quick: bool = False) -> None:
        """Raise the bound if neither it nor a group's own bound is near the best plan."""
        best = self._best("makespan")
        enough_us = best.makespan_us / SEARCH.near
        if self._least_us() >= enough_us:
            return
        loads = partial(resource_loads_us, best.problem, best.at_size)
        if best is not self.priced:
            self._say("bound: loads")
            self.bound = self.bound.merged([from_loads(self.problem, loads())])
            self.priced = best
        if not quick:
            for better in tighten(
                self.problem, self.bound, loads, self.size, enough_us, self.workers, self.deadline, self._say
            ):
                self.bound = better

    def _least_us(self) -> float:
        """Return the highest bound on the makespan so far, in µs."""
        own = max(answer.bound_us for answer in self.isolated)
        return max(own, self.bound.at(self.size)[0]) if self.bound.witnesses else own

    def _conclude(self, *, hurried: bool = False) -> ConcurrentPlan:
        """Return the best plan that can be executed, and prove a bound if there is none yet.

        Args:
            hurried: Whether the first plan that can be executed is enough.
        """
        if not any(plan.method == AT_ONCE for plan in self.plans):
            contained("plan of isolated schedules", self._take_isolated, None)
        if not self.plans:
            raise_first_defect()
        if not self.bound.witnesses:
            self.bound = prove(self.problem, max_flow=False)
        settled = self._best(self.asked.objective) if hurried else self._settled()
        if self.executor is None:
            return settled
        ranked = sorted(self.plans, key=partial(self._key, self.asked.objective))
        fair = self.asked.objective == "fair"
        # With isolated schedules, isomorphic groups are lowered only once.
        first = [] if fair else [plan for plan in ranked if plan.method == AT_ONCE][:1]
        until = -np.inf if hurried else self.end
        most = 1 if fair else self.tuning.lowered
        return choose_executable([*first, settled, *ranked], self.executor, most, until, self._say)

    def _settled(self) -> ConcurrentPlan:
        """Return the best plan once no plan's part beats an isolated run."""
        for _ in range(self.tuning.settling):
            if self.asked.objective == "fair":
                self._reorder()
            if not self._learn_from(self._best(self.asked.objective)):
                break
            self._take_isolated()
        return self._best(self.asked.objective)

    def _reorder(self) -> None:
        """Add the best plans again with the sends of slowed groups earlier."""
        ranked = sorted(self.plans, key=partial(self._key, "fair"))
        for plan in dict.fromkeys([self._best("makespan"), *ranked[: self.tuning.reordered]]):
            self._say("fairer order")
            better = plans.fairer(plan.problem, plan.algorithm.schedule, self.size, self._isolated_us())
            if better is not None:
                self._add(plan.problem, better, plan.algorithm.engine, plan.method.removesuffix(REORDERED) + REORDERED)

    def _key(self, objective: str, plan: ConcurrentPlan) -> tuple[float, float]:
        """Return a key that is smaller for a better plan; differences of rounding do not count."""
        makespan, slow = (float(f"{x:.9g}") for x in (plan.makespan_us, plan.slowdown(self._isolated_us())))
        return (slow, makespan) if objective == "fair" else (makespan, slow)

    def _best(self, objective: str) -> ConcurrentPlan:
        """Return the best plan by an objective."""
        return min(self.plans, key=partial(self._key, objective))

    def _isolated_us(self) -> Floats:
        """Return the time of each group's isolated run in µs, shape (groups,)."""
        return np.array([answer.time_us for answer in self.isolated])

    def _restated(self, collectives: Sequence[Collective]) -> UnionProblem:
        """Return the union of the same groups with other collectives."""
        return self.problem.restated(collectives, self.asked.relays, self.asked.dead)

    def _say(self, text: str) -> None:
        """Report what is tried, with the latest plan."""
        self.report(text, self.plans[-1].algorithm if self.plans else None)
