"""The search for concurrent groups: one more portfolio, whose answers are plans for all groups at once.

Three plans are always there: every group as it is best in isolation, all begun at once; the same one after another;
and direct. The engine's plans for the union of all groups come on top, so that the answer is never slower than any of
these. All times are those of `synth.timing.simulate`; every plan is replayed as one schedule of the union, and where
chunks may not leave their group that is checked too.
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
from synth.concurrent.plans import AT_ONCE, DIRECT, IN_TURN, REORDERED, TOGETHER, WITHIN, ConcurrentPlan
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.tuning import Tuning
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
from topologies.faults.apply import degraded
from topologies.faults.notation import dead_ranks, live_ranks
from topologies.load import load
from topologies.topology import Topology, without_switch_ops


@dataclass(frozen=True)
class Asked(Options):
    """What is asked beside the groups; see `plan`. dead: ranks that are no relays."""

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
    """Plan several groups together.

    Args:
        topo: a machine, a family, a file, or a Topology.
        members: the groups, each with a collective (one chunk a block) and a size of its own.
        relays: who may forward chunks of a group beside its members: "none"; "all": every rank that lives; or
            ranks, then these and the members of all groups.
        without, degrade: dead and slow parts, as texts (see `topologies.faults.apply`).
        objective: makespan: the end of the last group; fair: the largest slowdown of a group (see
            `synth.concurrent.plans.fairer`), then the makespan.
        chunks: of every block; any when None.
        engine: flow; or auto, which also tries what a vendor library would run.
        budget: seconds.
        seed: taken for likeness with other questions: these engines draw nothing at random.
        workers: solver processes to use again.
        progress: called with what is tried and the best so far.
        executor: what is to run the plan; None: its schedule is all that counts.
        begun: of `synth.model.deadline.now`, since when the budget counts; None: since now.
        first: plans that there are already, of the same groups under the same rule for relays.

    Raises InputError: anything that cannot be, in one line.
    """
    for name, value, known in (("objective", objective, ("makespan", "fair")), ("engine", engine, ("auto", "flow"))):
        if value not in known:
            raise InputError(f"{name}: {value!r} is not known for several groups; it is {' or '.join(known)}")
    Options(chunks=chunks, budget_s=budget, seed=seed).check()
    begun = now() if begun is None else begun
    healthy = without_switch_ops(topo if isinstance(topo, Topology) else load(topo))  # plans have sends by links only
    dead = dead_ranks(healthy, without)
    for member in members:
        live_ranks(healthy, dead, member.ranks, f"group {member.label}" if member.ranks else "group")
    problem = union_problem(degraded(healthy, without, degrade), members, relays, dead)
    asked = Asked(
        chunks=chunks, engine=engine, budget_s=budget, relays=relays, dead=dead, objective=objective,
        rank_sends=None if executor is None else executor.rank_sends(problem),
    )  # fmt: skip
    with ExitStack() as stack, collected() as defects:
        workers = workers or stack.enter_context(Workers())
        answer = ConcurrentSearch(problem, asked, workers, progress, executor, begun, first).run()
    return replace(answer, defects=tuple(defects.values()))


class ConcurrentSearch:
    """One question on its way to its answer; where its engines answer, and what they know.

    Attributes:
        isolated: each group's isolated run.
        plans: every plan made. bound: on the union's time.
    """

    proved = False  # plans are shown beside each other, so that all are made

    def __init__(
        self,
        problem: UnionProblem,
        asked: Asked,
        workers: Workers,
        report: Report | None,
        executor: GroupExecutor | None = None,
        begun: float | None = None,
        first: Sequence[ConcurrentPlan] = (),
    ) -> None:
        self.problem, self.asked, self.workers = problem, asked, workers
        self.report, self.executor = report or (lambda _, __: None), executor
        self.tuning = Tuning().limited(asked.rank_sends, problem.nranks)
        self.isolated: list[Isolated] = []
        self.plans: list[ConcurrentPlan] = list(first)
        self.bound = Bound(())
        self.yielded: dict[str, tuple[Candidate, float]] = {}
        self.priced: ConcurrentPlan | None = None
        self.begun = now() if begun is None else begun
        self.end = self.begun + asked.budget_s
        self.size = problem.size_bytes
        self.deadline = self.end - (self.tuning.lowering if executor else self.tuning.writing) * asked.budget_s

    def run(self) -> ConcurrentResult:
        """Make plans until one is near its bound, nothing more is to be tried, the budget ends or Ctrl-C."""
        asked, ended = self.asked, ""
        until = self.begun + self.tuning.isolated * asked.budget_s
        executor_of = (lambda _: None) if self.executor is None else self.executor.isolated
        self.isolated, interrupted = run_each_isolated(self.problem, asked, self.workers, until, self._say, executor_of)
        try:
            if interrupted:
                raise KeyboardInterrupt
            limited(lambda: self.deadline if self.plans else np.inf, self._work)
        except KeyboardInterrupt as interrupt:
            ended = "budget" if isinstance(interrupt, TimeUp) else "interrupted"
        try:
            chosen = self._conclude()
        except KeyboardInterrupt:
            ended, chosen = "interrupted", self._conclude(hurried=True)
        others: dict[str, tuple[float, float]] = {}
        for made in sorted(self.plans, key=partial(self._key, asked.objective)):
            others.setdefault(made.method, (made.makespan_us, made.slowdown(self._isolated_us())))
        seconds = now() - self.begun
        ended = ended or ("budget" if seconds >= asked.budget_s else "")
        relay = asked.relays if isinstance(asked.relays, str) else ",".join(map(str, asked.relays)) or "none"
        best, each = (chosen.problem, chosen.algorithm, chosen.method), tuple(self.isolated)
        return ConcurrentResult(*best, asked.objective, relay, each, self.bound, others, ended, seconds)

    # the race

    def _work(self) -> None:
        """Plans, and bounds on them."""
        race(self._runs(), self, self.deadline)
        with compiled_interrupts():
            contained("search for bounds", self._tighten, None)

    def _runs(self) -> Iterator[EngineRun]:
        """Who is asked, each when its turn has come; all but the last are done at once."""
        several = len(self.problem.members) > 1
        if several and self.problem.allowed is None:
            yield EngineRun(WITHIN, self._within(), np.inf)
        for method, candidate in self._from_isolated():
            yield EngineRun(method, iter([candidate]), np.inf)
        self._say("direct")
        direct = partial(plans.direct, self.problem, self._restated, self.asked.chunks)
        if (made := contained("direct plan", direct, None)) is not None:
            yield EngineRun(DIRECT, iter([Candidate(*made, DIRECT)]), np.inf)
        self.bound = prove(self.problem, max_flow=self.problem.nranks <= self.tuning.max_flow_ranks)
        if several and self.plans:
            contained("search for bounds", partial(self._tighten, quick=True), None)
            if self._best("makespan").makespan_us > self._least_us() * SEARCH.near:
                try:
                    for answers in self._union():
                        yield EngineRun(TOGETHER, answers, np.inf)
                except InputError:
                    return  # more chunks than is held in memory; other plans are there

    def take(self, answer: Outcome, source: str) -> float:
        """Replay and keep a plan; what it gained: by how much of the best makespan it is faster."""
        if isinstance(answer, Progress):
            self._say(f"together: {answer.text}")
        elif isinstance(answer, Candidate):
            before_us = self.best_us(self.size)
            makespan_us = self._add(answer.problem, answer.schedule, answer.engine, source)
            self.yielded[source] = answer, makespan_us
            return max(0.0, 1.0 - makespan_us / before_us) if np.isfinite(before_us) else 1.0
        return 0.0

    def _add(self, problem: Problem, schedule: Schedule, engine: str, method: str) -> float:
        """Take a plan; its makespan in µs."""
        assert isinstance(problem, UnionProblem)
        check_within_groups(problem, schedule)
        self.plans.append(ConcurrentPlan(problem, Algorithm(problem, schedule, engine), method))
        return self.plans[-1].makespan_us

    # what engines may know

    @property
    def answered(self) -> bool:
        """Whether there is a plan already."""
        return bool(self.plans)

    def best_us(self, _size_bytes: float) -> float:
        """The best makespan so far, in µs; inf where there is none."""
        return min((plan.makespan_us for plan in self.plans), default=np.inf)

    def time_us(self, candidate: Candidate) -> float:
        """The makespan of the plan that was yielded last, in µs; inf where it was of no use."""
        return next((us for last, us in self.yielded.values() if last is candidate), np.inf)

    def fewest_steps(self) -> int | None:
        """The fewest steps of any plan so far; None where there is none."""
        return min((plan.algorithm.steps for plan in self.plans), default=None)

    def shown_bytes(self) -> list[int]:
        """The union's size."""
        return [max(1, round(self.size))]

    def _within(self) -> Iterator[Outcome]:
        """Where relays are allowed: every group as it is best within itself, if it is connected; all at once."""
        try:
            within = union_problem(self.problem.topology, self.problem.members)
        except InputError:
            return
        until = min(now() + self.tuning.within * self.asked.budget_s, self.deadline)
        found, interrupted = run_each_isolated(within, self.asked, self.workers, until, self._say)
        yield Candidate(*plans.within_groups(within, found, self._restated), engine_of(found))
        self._learn_from(self.plans[-1])
        if interrupted:
            raise KeyboardInterrupt

    def _from_isolated(self) -> Iterator[tuple[str, Candidate]]:
        """The plans that put isolated schedules together, with their methods."""
        for method, make in ((AT_ONCE, plans.at_once), (IN_TURN, plans.in_turn)):
            if method == AT_ONCE or len(self.isolated) > 1:
                yield method, Candidate(*make(self.isolated, self._restated), engine_of(self.isolated))

    def _take_isolated(self) -> None:
        for method, candidate in self._from_isolated():
            self.take(candidate, method)

    def _learn_from(self, plan: ConcurrentPlan) -> bool:
        """Take over what a plan does better for a group than its isolated run did. Whether anything was."""
        late = now() >= self.deadline
        own_plans = plan.method.removesuffix(REORDERED) in (AT_ONCE, IN_TURN)
        some = [
            group
            for group, own in enumerate(self.isolated)
            if plan.times_us[group] < own.time_us * (1 - 1e-9)
            or not (late or own_plans or own.time_us <= own.bound_us * SEARCH.near)
        ]
        faster = plans.faster_parts(plan, {group: self.isolated[group] for group in some})
        self.isolated = [faster.get(group, own) for group, own in enumerate(self.isolated)]
        return bool(faster)

    def _union(self) -> Iterator[Iterator[Outcome]]:
        """The engine's plans for all groups as one problem, from a likely number of chunks to more."""
        refined = plans.refined_union(self.problem, self._restated, self.asked.chunks)
        if self.asked.chunks is not None:
            yield self._searched(refined, pinned=True)
        elif self.problem.allowed is not None:
            yield from self._finer_and_finer(refined, 1)
        else:
            yield self._searched(refined)
            made = [plan.parts_of(refined) for plan in self.plans if plan.method == TOGETHER]
            finest = 4 * max(made, default=1)
            # beyond the number of sends that is only estimated
            if made and finest * estimated_sends(refined) > self.tuning.most_sends:
                yield from self._finer_and_finer(refined, finest)

    def _finer_and_finer(self, refined: UnionProblem, parts: int) -> Iterator[Iterator[Outcome]]:
        """From so many parts of every chunk on to more, one number at a time, while that gains."""
        until = self.begun + self.tuning.union * self.asked.budget_s
        enough_us = self._least_us() * SEARCH.near
        idle = 0
        while idle < 2:
            made = [plan for plan in self.plans if plan.method == TOGETHER]
            best_us = min((plan.makespan_us for plan in made), default=np.inf)
            sends = min((len(plan.algorithm.schedule) // plan.parts_of(refined) for plan in made), default=0)
            late = now() >= until
            if best_us <= enough_us or sends * parts > self.tuning.most_sends or (made and late):
                break
            before = len(self.plans)
            yield self._searched(refined.with_chunks(parts), pinned=True)
            took_us = min((plan.makespan_us for plan in self.plans[before:]), default=np.inf)
            if np.isinf(took_us):
                break  # of sums where links go one way only; other plans are there
            idle = 0 if took_us < best_us * (1 - self.tuning.worth) else idle + 1
            parts *= 4

    def _searched(self, problem: UnionProblem, pinned: bool = False) -> Iterator[Outcome]:
        """Plans by the engine, with the chunks of `problem` or, where they are not pinned, more."""
        (size,) = self.shown_bytes()
        request = Request(
            Options(size, problem.collective.chunks if pinned else None, budget_s=self.asked.budget_s),
            sizes=(size,),
            deadline=self.begun + self.tuning.union * self.asked.budget_s,
            workers=self.workers,
            known=self,
            bound=self.bound.merged(own_witnesses(self.isolated, self.size)),
            most_sends=self.tuning.most_sends if self.executor else 0,
        )
        return ENGINES["flow"].solve(problem, request)

    def _tighten(self, quick: bool = False) -> None:
        """Work on the bound where neither it nor a group's own is near the best plan."""
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
        """The highest bound on the makespan so far."""
        own = max(one.bound_us for one in self.isolated)
        return max(own, self.bound.at(self.size)[0]) if self.bound.witnesses else own

    def _conclude(self, *, hurried: bool = False) -> ConcurrentPlan:
        """The best plan that can be executed, and a bound if there is none yet; hurried: the first that can be."""
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
        # groups that are alike become programs once where each is as it is by itself
        first = [] if fair else [plan for plan in ranked if plan.method == AT_ONCE][:1]
        until = -np.inf if hurried else self.end
        most = 1 if fair else self.tuning.lowered
        return choose_executable([*first, settled, *ranked], self.executor, most, until, self._say)

    def _settled(self) -> ConcurrentPlan:
        """The best plan, by isolated times that no plan's own part beats."""
        for _ in range(self.tuning.settling):
            if self.asked.objective == "fair":
                self._reorder()
            if not self._learn_from(self._best(self.asked.objective)):
                break
            self._take_isolated()
        return self._best(self.asked.objective)

    def _reorder(self) -> None:
        """More plans: the best ones with the sends of slowed groups earlier."""
        ranked = sorted(self.plans, key=partial(self._key, "fair"))
        for plan in dict.fromkeys([self._best("makespan"), *ranked[: self.tuning.reordered]]):
            self._say("fairer order")
            better = plans.fairer(plan.problem, plan.algorithm.schedule, self.size, self._isolated_us())
            if better is not None:
                self._add(plan.problem, better, plan.algorithm.engine, plan.method.removesuffix(REORDERED) + REORDERED)

    def _key(self, objective: str, plan: ConcurrentPlan) -> tuple[float, float]:
        """Less is better; what rounding alone keeps apart is equal."""
        makespan, slow = (float(f"{x:.9g}") for x in (plan.makespan_us, plan.slowdown(self._isolated_us())))
        return (slow, makespan) if objective == "fair" else (makespan, slow)

    def _best(self, objective: str) -> ConcurrentPlan:
        return min(self.plans, key=partial(self._key, objective))

    def _isolated_us(self) -> Floats:
        return np.array([one.time_us for one in self.isolated])

    def _restated(self, collectives: Sequence[Collective]) -> UnionProblem:
        return self.problem.restated(collectives, self.asked.relays, self.asked.dead)

    def _say(self, text: str) -> None:
        self.report(text, self.plans[-1].algorithm if self.plans else None)
