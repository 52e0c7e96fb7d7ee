"""The search for concurrent groups: one more portfolio, whose answers are plans for all groups at once.

Three plans are always there: every group as it is best in isolation, all begun at once; the same one after another;
and direct. The engine's plans for the union of all groups come on top, so that the answer is never slower than any of
these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from synth.bounds.lengths import from_loads
from synth.bounds.prove import Bound, prove, tighten
from synth.bounds.witness import Witness
from synth.concurrent import plans
from synth.concurrent.isolated import Isolated, isolated_parts, run_each_isolated
from synth.concurrent.plans import ConcurrentPlan
from synth.concurrent.union import Relays, UnionProblem, check_within_groups, times_by_group, union_problem
from synth.engines.estimates import estimated_sends
from synth.engines.flow.tuning import SEARCH
from synth.engines.registry import ENGINES
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import Collective, Floats, subdivided
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.search.portfolio import Run, compiled_interrupts, race
from synth.search.result import Report
from synth.solvers.workers import Workers
from synth.timing.simulate import resource_loads_us, time_us, timed
from synth.verify.algorithm import Algorithm
from synth.verify.replay import replay
from topologies.errors import InputError

TOGETHER, DIRECT = "planned together", "direct"
AT_ONCE, IN_TURN, WITHIN = "each alone, at once", "in turn, overlapped", "each without relays"
REORDERED = ", reordered"


@dataclass(frozen=True)
class Tuning:
    """Shares of the budget, and when to stop.

    Attributes:
        isolated, within: the part of the budget for isolated runs, and for those without relays.
        union: the part of it by which the union's search is over; the rest is for the bound.
        max_flow_ranks: up to which the worst cut is looked for before there is a plan.
        most_sends: to which chunks are refined.
        worth: what refined chunks must gain.
        reordered: plans whose order is made fairer.
        settling: times that a plan may teach how a group is faster in isolation.
    """

    isolated: float = 0.3
    within: float = 0.1
    union: float = 0.85
    max_flow_ranks: int = 256
    most_sends: int = 400_000
    worth: float = 0.003
    reordered: int = 4
    settling: int = 4


@dataclass(frozen=True)
class Asked:
    """What is asked beside the groups; see `synth.concurrent.plan`. dead: ranks that are no relays."""

    relays: Relays = "none"
    dead: Sequence[int] = ()
    objective: str = "makespan"
    chunks: int | None = None
    engine: str = "auto"
    budget_s: float = 30.0


class ConcurrentSearch:
    """One question on its way to its answer; where its engines answer, and what they know.

    Attributes:
        isolated: each group's isolated run.
        plans: every plan made.
        bound: on the union's time.
        ended, seconds: as in `synth.search.result.SearchResult`.
    """

    def __init__(
        self, problem: UnionProblem, asked: Asked, workers: Workers, report: Report | None, tuning: Tuning | None = None
    ) -> None:
        self.problem, self.asked, self.workers, self.report = problem, asked, workers, report
        self.tuning = tuning or Tuning()
        self.isolated: list[Isolated] = []
        self.plans: list[ConcurrentPlan] = []
        self.bound = Bound(())
        self.latest: Algorithm | None = None
        self.yielded: dict[str, tuple[Candidate, float]] = {}
        self.priced: ConcurrentPlan | None = None
        self.ended = ""
        self.seconds = 0.0
        self.begun = time.monotonic()
        self.deadline = self.begun + asked.budget_s
        self.size = problem.size_bytes

    def run(self) -> ConcurrentPlan:
        """Make plans until one is near its bound, nothing more is to be tried, the budget ends or Ctrl-C."""
        until = self.begun + self.tuning.isolated * self.asked.budget_s
        self.isolated, interrupted = self._each(self.problem, until)
        try:
            if interrupted:
                raise KeyboardInterrupt
            race(self._runs(), self, self.deadline)
            with compiled_interrupts():
                self._tighten()
        except KeyboardInterrupt:
            self.ended = "interrupted"
        if not any(plan.method == AT_ONCE for plan in self.plans):
            self._from_isolated()
        if not self.bound.witnesses:
            self.bound = prove(self.problem, max_flow=False)
        chosen = self._settled()
        self.seconds = time.monotonic() - self.begun
        if not self.ended and self.seconds >= self.asked.budget_s:
            self.ended = "budget"
        return chosen

    def by_method(self) -> dict[str, tuple[float, float]]:
        """(makespan in µs, largest slowdown) of the best plan of every method."""
        found: dict[str, tuple[float, float]] = {}
        for plan in sorted(self.plans, key=partial(self._key, self.asked.objective)):
            found.setdefault(plan.method, (plan.makespan_us, plan.slowdown(self._isolated_us())))
        return found

    # the race

    def _runs(self) -> Iterator[Run]:
        """Who is asked, each when its turn has come; all but the last are done at once."""
        several = len(self.problem.members) > 1
        if several and self.problem.allowed is None:
            yield Run(WITHIN, self._within(), np.inf)
        yield Run(AT_ONCE, iter([self._candidate(plans.at_once)]), np.inf)
        if several:
            yield Run(IN_TURN, iter([self._candidate(plans.in_turn)]), np.inf)
        self._say("direct")
        plan = plans.direct(self.problem, self._restated, self.asked.chunks)
        if plan is not None:
            yield Run(DIRECT, iter([Candidate(*plan, DIRECT)]), np.inf)
        self.bound = prove(self.problem, max_flow=self.problem.nranks <= self.tuning.max_flow_ranks)
        if several:
            self._tighten(quick=True)
            if self._best("makespan").makespan_us > self._least_us() * SEARCH.near:
                with suppress(InputError):  # more chunks than is held in memory; other plans are there
                    for answers in self._union():
                        yield Run(TOGETHER, answers, np.inf)

    def take(self, answer: Outcome, source: str) -> float:
        """Replay and keep a plan; what it gained: by how much of the best makespan it is faster."""
        if isinstance(answer, Progress):
            self._say(f"together: {answer.text}")
        elif isinstance(answer, Candidate):
            before_us = min((plan.makespan_us for plan in self.plans), default=np.inf)
            makespan_us = self._add(answer.problem, answer.schedule, answer.engine, source)
            self.yielded[source] = answer, makespan_us
            return max(0.0, 1.0 - makespan_us / before_us) if np.isfinite(before_us) else 1.0
        return 0.0

    def _add(self, problem: Problem, schedule: Schedule, engine: str, method: str) -> float:
        """Take a plan; its makespan in µs."""
        assert isinstance(problem, UnionProblem)
        check_within_groups(problem, schedule)
        algorithm = Algorithm(problem, schedule, engine)
        at_size = timed(problem, algorithm.schedule, self.size)
        self.plans.append(ConcurrentPlan(problem, algorithm, method, times_by_group(problem, at_size)))
        self.latest = algorithm
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

    # isolated runs

    def _each(self, problem: UnionProblem, until: float) -> tuple[list[Isolated], bool]:
        asked = self.asked
        return run_each_isolated(
            problem, self.workers, chunks=asked.chunks, engine=asked.engine, until=until, report=self._say
        )

    def _within(self) -> Iterator[Outcome]:
        """Where relays are allowed: every group as it is best within itself, if it is connected; all at once."""
        try:
            within = union_problem(self.problem.topology, self.problem.members)
        except InputError:
            return
        until = min(time.monotonic() + self.tuning.within * self.asked.budget_s, self.deadline)
        found, interrupted = self._each(within, until)
        yield Candidate(*plans.within_groups(within, found, self._restated), _engine_of(found))
        self._learn_from(self.plans[-1])
        if interrupted:
            raise KeyboardInterrupt

    def _candidate(self, make: Callable[[Sequence[Isolated], plans.Restate], plans.Plan]) -> Candidate:
        return Candidate(*make(self.isolated, self._restated), _engine_of(self.isolated))

    def _from_isolated(self) -> None:
        for method, make in ((AT_ONCE, plans.at_once), (IN_TURN, plans.in_turn)):
            if method == AT_ONCE or len(self.isolated) > 1:
                self.take(self._candidate(make), method)

    def _learn_from(self, plan: ConcurrentPlan) -> bool:
        """Take over what a plan does better for a group than its isolated run did. Whether anything was."""
        late = time.monotonic() >= self.deadline
        own_plans = plan.method.removesuffix(REORDERED) in (AT_ONCE, IN_TURN)
        some = [
            group
            for group, own in enumerate(self.isolated)
            if plan.times_us[group] < own.time_us * (1 - 1e-9)
            or not (late or own_plans or own.time_us <= own.bound_us * SEARCH.near)
        ]
        learned = False
        at_size = timed(plan.problem, plan.algorithm.schedule, self.size)
        for group, (problem, part) in zip(some, isolated_parts(plan.problem, at_size, some), strict=True):
            own = self.isolated[group]
            # beside no others it is as fast at least, but a greedy clock may not see that
            both = [timed(problem, part, own.size_bytes), part]
            best = min(both, key=partial(time_us, problem))
            if time_us(problem, best) < own.time_us * (1 - 1e-9):
                replay(problem, best)
                self.isolated[group] = Isolated(problem, best, plan.algorithm.engine, own.bound)
                learned = True
        return learned

    # the union

    def _refined(self) -> UnionProblem:
        """The union with the chunks from which the engine begins."""
        members, chunks = self.problem.members, self.asked.chunks
        counts = plans.even_counts(members) if chunks is None else [chunks] * len(members)
        known: dict[tuple[int, int], Collective] = {}  # many groups have one collective
        for member, count in zip(members, counts, strict=True):
            known[id(member.collective), count] = subdivided(member.collective, count)
        refined = self._restated([known[id(m.collective), count] for m, count in zip(members, counts, strict=True)])
        # a block is what the engine asks for part by part
        return replace(refined, collective=replace(refined.collective, chunks=chunks or 1))

    def _union(self) -> Iterator[Iterator[Outcome]]:
        """The engine's plans for all groups as one problem, from a likely number of chunks to more."""
        refined = self._refined()
        if self.asked.chunks is not None:
            yield self._searched(refined, pinned=True)
        elif self.problem.allowed is not None:
            yield from self._finer_and_finer(refined, 1)
        else:
            yield self._searched(refined)
            made = [_parts(plan, refined) for plan in self.plans if plan.method == TOGETHER]
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
            sends = min((len(plan.algorithm.schedule) // _parts(plan, refined) for plan in made), default=0)
            late = len(made) > 0 and time.monotonic() >= until
            if best_us <= enough_us or sends * parts > self.tuning.most_sends or late:
                break
            before = len(self.plans)
            yield self._searched(refined.with_chunks(parts), pinned=True)
            if len(self.plans) == before:
                break  # of sums where links go one way only; other plans are there
            took_us = min(plan.makespan_us for plan in self.plans if plan.method == TOGETHER)
            idle = 0 if took_us < best_us * (1 - self.tuning.worth) else idle + 1
            parts *= 4

    def _searched(self, problem: UnionProblem, pinned: bool = False) -> Iterator[Outcome]:
        """Plans by the engine, with the chunks of `problem` or, where they are not pinned, more."""
        chunks = problem.collective.chunks if pinned else None
        size = max(1, round(self.size))
        request = Request(
            Options(size=size, chunks=chunks, budget_s=self.asked.budget_s),
            sizes=(size,),
            deadline=self.begun + self.tuning.union * self.asked.budget_s,
            workers=self.workers,
            known=self,
            bound=self.bound.merged(self._own_witnesses()),
        )
        return ENGINES["flow"].solve(problem, request)

    # bounds

    def _tighten(self, quick: bool = False) -> None:
        """Work on the bound where neither it nor a group's own is near the best plan."""
        best = self._best("makespan")
        enough_us = best.makespan_us / SEARCH.near
        if self._least_us() >= enough_us:
            return
        at_size = timed(best.problem, best.algorithm.schedule, self.size)
        loads = partial(resource_loads_us, best.problem, at_size)
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

    def _own_witnesses(self) -> list[Witness]:
        """The groups' own bounds at the union's sizes; good for their numbers only."""
        found = []
        for one in dict.fromkeys(self.isolated):
            ratio = one.size_bytes / self.size
            found += [replace(w, per_byte_us=w.per_byte_us * ratio) for w in one.bound.witnesses]
        return found

    # the choice

    def _settled(self) -> ConcurrentPlan:
        """The best plan, by isolated times that no plan's own part beats."""
        for _ in range(self.tuning.settling):
            if self.asked.objective == "fair":
                self._reorder()
            if not self._learn_from(self._best(self.asked.objective)):
                break
            self._from_isolated()
        return self._best(self.asked.objective)

    def _reorder(self) -> None:
        """More plans: the best ones with the sends of slowed groups earlier."""
        isolated_us = self._isolated_us()
        ranked = sorted(self.plans, key=partial(self._key, "fair"))
        for plan in dict.fromkeys([self._best("makespan"), *ranked[: self.tuning.reordered]]):
            self._say("fairer order")
            better = plans.fairer(plan.problem, plan.algorithm.schedule, self.size, isolated_us)
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
        if self.report is not None:
            self.report(text, self.latest)


def _engine_of(answers: Sequence[Isolated]) -> str:
    names = {one.engine for one in answers}
    return names.pop() if len(names) == 1 else "several"


def _parts(plan: ConcurrentPlan, refined: UnionProblem) -> int:
    """Into how many parts a plan cuts the chunks of `refined`."""
    return plan.problem.collective.nchunks // refined.collective.nchunks
