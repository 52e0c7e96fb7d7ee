"""The search for concurrent groups: the runner of single searches, with plans for all groups as its answers.

Three plans always exist: isolated schedules begun at once, the same in turn, and direct plans. Plans of the engine for
the union of all groups come on top, so the answer is never slower than any of the three. All times are those of
`synth.timing.simulate`. Every plan is replayed as one schedule of the union; if chunks may not leave their group, that
is checked too. With an executor's costs, all groups use one protocol, and the promising ones are searched in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from synth.bounds.prove import prove
from synth.concurrent import plans
from synth.concurrent.executable import GroupExecutor, choose_executable
from synth.concurrent.isolated import engine_of, own_witnesses, run_each_isolated
from synth.concurrent.plans import REORDERED, ConcurrentPlan
from synth.concurrent.result import ConcurrentResult
from synth.concurrent.state import GroupsOptions, GroupsState
from synth.concurrent.union import Member, Relays, UnionProblem, union_problem
from synth.engines.estimates import estimated_sends
from synth.engines.registry import ENGINES
from synth.engines.request import Candidate, Options, Outcome, Request
from synth.model.deadline import now
from synth.model.defects import collected, contained, raise_first_defect
from synth.search.budget import Budget
from synth.search.plans import AT_ONCE, DIRECT, GROUPS, IN_TURN, JOINT, WITHIN, Stage
from synth.search.result import Report
from synth.search.run.protocols import search_protocols
from synth.search.run.runner import EngineRun, compiled_interrupts, race, run_to_end
from synth.solvers.workers import Workers
from topologies.costed import protocols_of, with_protocol, with_protocols
from topologies.costs import ANY
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.faults.notation import dead_ranks, live_ranks
from topologies.load import load
from topologies.topology import Topology, without_switch_ops


def plan(  # It has many parameters because callers state each option by its name.
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
    """Return a plan for one or more groups that share a network.

    Args:
        topo: A machine, a family, a file, or a Topology.
        members: The groups, each with a collective (one chunk a block) and a size of its own.
        relays: Ranks that may forward chunks of a group besides its members: "none"; "all" for every living rank; or
            ranks, which may relay like the members of all groups.
        without: Dead parts, as texts (see `topologies.faults.apply`).
        degrade: Slow parts, as texts.
        objective: "makespan" for the end of the last group; "fair" for the largest slowdown of a group (see
            `synth.concurrent.plans.fairer`), then the makespan.
        chunks: Chunks of every block; any number if None.
        engine: "flow" or "auto", which lets other constructive engines search isolated runs too. Plans that a vendor
            library would run are tried in both cases.
        budget: Seconds for the search, more than 0.
        seed: Checked like that of other questions; these engines draw nothing at random.
        workers: Solver processes to use again; None for new ones, which end with the search.
        progress: Receives what is tried, and the latest algorithm or None; None for no reports.
        executor: The lowering of plans; None if only schedules count.
        begun: Reading of `synth.model.deadline.now` since which the budget counts; None for now.
        first: Plans that exist already, of the same groups under the same rule for relays.

    Raises:
        InputError: The question cannot be answered; the message is one line.
        KeyboardInterrupt: Ctrl-C came a second time before there was a plan; otherwise the result says "interrupted".
    """
    for name, value, allowed in (("objective", objective, ("makespan", "fair")), ("engine", engine, ("auto", "flow"))):
        if value not in allowed:
            raise InputError(f"{name}: {value!r} is not known for several groups; it is {' or '.join(allowed)}")
    options = GroupsOptions(
        chunks=chunks, engine=engine, budget_s=budget, seed=seed, begun=now() if begun is None else begun,
        relays=relays, objective=objective,
    )  # fmt: skip
    options.check()
    healthy = without_switch_ops(topo if isinstance(topo, Topology) else load(topo))  # Plans use links only.
    options = replace(options, dead=dead_ranks(healthy, without))
    for member in members:
        live_ranks(healthy, options.dead, member.ranks, f"group {member.label}" if member.ranks else "group")
    topology = apply_faults(healthy, without, degrade)
    with ExitStack() as stack, collected() as defects:
        workers = workers or stack.enter_context(Workers())

        def searched(problem: UnionProblem, own_options: GroupsOptions) -> ConcurrentResult:
            """Search plans under the protocol of a problem."""
            rank_sends = None if executor is None else executor.rank_sends(problem)
            state = GroupsState(
                problem, replace(own_options, rank_sends=rank_sends), GROUPS, workers,
                progress or (lambda _, __: None), has_programs=executor is not None, known_plans=first,
            )  # fmt: skip
            return ConcurrentSearch(state, executor).run()

        if topology.protocol == ANY:
            unions = _unions(topology, members, relays, options.dead)
            # What the executor does not have is no part of the answer's costs, so that the bound does not count it.
            executors = {name: None if executor is None else executor.isolated(union) for name, union in unions.items()}
            own_names = [name for name, own in executors.items() if own is None or own.able([name])]
            if 0 < len(own_names) < len(unions):
                unions = _unions(with_protocols(topology, own_names), members, relays, options.dead)
            answer = _search_protocols(unions, options, executor, searched)
        else:
            answer = searched(union_problem(topology, members, relays, options.dead), options)
    return replace(answer, defects=tuple(defects.values()))


def _unions(
    topology: Topology, members: Sequence[Member], relays: Relays, dead: Sequence[int]
) -> dict[str, UnionProblem]:
    """Return the groups as one problem under each protocol of a topology; arguments and errors of `union_problem`."""
    return {
        name: union_problem(with_protocol(topology, name), members, relays, dead) for name in protocols_of(topology)
    }


def _search_protocols(
    unions: Mapping[str, UnionProblem],
    options: GroupsOptions,
    executor: GroupExecutor | None,
    search_union: Callable[[UnionProblem, GroupsOptions], ConcurrentResult],
) -> ConcurrentResult:
    """Return the result under the best protocol, with the bounds of all protocols.

    Protocols that the executor does not have are not searched.

    Args:
        unions: The groups as one problem, by protocol.
        options: What the question pins.
        executor: The lowering of plans; None for schedules.
        search_union: Searches plans under one protocol.

    Raises:
        InputError: The executor has none of the protocols, or the groups cannot do their collectives.
        KeyboardInterrupt: Ctrl-C came before there was an answer.
    """
    bounds = {name: prove(union, max_flow=False) for name, union in unions.items()}
    executors = {name: None if executor is None else executor.isolated(union) for name, union in unions.items()}
    able = [name for name, own in executors.items() if own is None or own.able([name])]
    if not able:
        raise InputError(f"costs: of {' '.join(unions)}; it must be a --target that has one of them")
    sizes = GROUPS.protocols.sizes_of(bounds, able, [next(iter(unions.values())).size_bytes])
    assert options.begun is not None
    budget = Budget.of(options)
    results: dict[str, ConcurrentResult] = {}

    def search_protocol(name: str, budget_s: float) -> ConcurrentResult:
        """Search plans under one protocol in so many seconds."""
        return search_union(unions[name], replace(options, budget_s=budget_s, begun=now()))

    def conclude(_: str, __: bool) -> ConcurrentResult:
        """Return the fastest result, with the bounds of the other protocols.

        Raises:
            KeyboardInterrupt: There is no result yet.
        """
        if not results:
            raise KeyboardInterrupt
        best = min(results, key=lambda name: _time_us(results[name], executor))
        rivals = [name for name in unions if name != best]
        proved = tuple((results[name].bound if name in results else bounds[name]).of_protocol(name) for name in rivals)
        return replace(results[best], rivals=proved)

    work = partial(
        search_protocols, list(sizes), results, search_protocol, budget, GROUPS.protocols,
    )  # fmt: skip
    result, stop_reason = run_to_end(budget, work, conclude)
    stop_reason = stop_reason or next((own.stop_reason for own in results.values() if own.stop_reason), "")
    return replace(result, stop_reason=stop_reason, seconds=now() - budget.begun)


def _time_us(result: ConcurrentResult, executor: GroupExecutor | None) -> float:
    """Return the time of a result's programs in µs, or far more than any time if the executor can hold none.

    Without an executor it is the time of the schedule.
    """
    if executor is None:
        return result.makespan_us
    try:
        return executor.time_us(result.problem, result.algorithm)
    except InputError:
        return float(np.finfo(float).max) / 2 + result.makespan_us


class ConcurrentSearch:
    """The run of the plan `GROUPS` for one question about concurrent groups.

    Attributes:
        state: What is known so far.
    """

    def __init__(self, state: GroupsState, executor: GroupExecutor | None) -> None:
        self.state, self._executor = state, executor
        self._makers: dict[str, Callable[[Stage], Iterator[Iterator[Outcome]]]] = {
            WITHIN: self._within,
            AT_ONCE: self._merged,
            IN_TURN: self._merged,
            DIRECT: self._direct,
            JOINT: self._search_jointly,
        }

    def run(self) -> ConcurrentResult:
        """Make plans until one is near its bound, nothing more is to be tried, the budget ends or Ctrl-C.

        Errors as those of `plan`.
        """
        state, options = self.state, self.state.options
        until = state.budget.after(state.plan.isolated)
        executor_of = (lambda _: None) if self._executor is None else self._executor.isolated
        state.isolated, interrupted = run_each_isolated(
            state.problem, options, state.workers, until, state.say, executor_of
        )
        work = partial(self._work, interrupted=interrupted)
        chosen, stop_reason = run_to_end(
            state.budget, work, self._conclude, lambda: state.deadline if state.has_simple_plans else np.inf
        )
        by_method: dict[str, tuple[float, float]] = {}
        for plan in state.ranked(options.objective):
            by_method.setdefault(plan.method, (plan.makespan_us, plan.slowdown(state.isolated_us())))
        stop_reason = stop_reason or ("budget" if state.budget.left_s <= 0 else "")
        relay = options.relays if isinstance(options.relays, str) else ",".join(map(str, options.relays)) or "none"
        return ConcurrentResult(
            chosen.problem, chosen.algorithm, chosen.method, options.objective, relay, tuple(state.isolated),
            state.bound, by_method, stop_reason, now() - state.budget.begun,
        )  # fmt: skip

    # Stages.

    def _work(self, *, interrupted: bool) -> None:
        """Run the stages of the plan, then raise their bound.

        Args:
            interrupted: Whether Ctrl-C came before; then nothing is done.

        Raises:
            KeyboardInterrupt: Ctrl-C came, or had come before.
        """
        if interrupted:
            raise KeyboardInterrupt
        race(self._stage_runs(), self.state, self.state.deadline)
        with compiled_interrupts():
            contained("search for bounds", self.state.tighten_bound, None)

    def _stage_runs(self) -> Iterator[EngineRun]:
        """Yield the makers of plans in the order of the stages; only those of the union make several plans."""
        for stage in self.state.plan.stages:
            for answers in self._makers[stage.engine](stage):
                yield EngineRun(stage.engine, answers, np.inf)

    def _within(self, stage: Stage) -> Iterator[Iterator[Outcome]]:
        """Yield the maker of isolated schedules without relays, if others may relay."""
        if len(self.state.problem.members) > 1 and self.state.problem.allowed_holders is None:
            yield self._plans_within(stage)

    def _plans_within(self, stage: Stage) -> Iterator[Outcome]:
        """Yield the plan of isolated schedules without relays, if every group is connected by itself.

        Then replace isolated runs by parts of that plan that beat them.

        Raises:
            KeyboardInterrupt: Ctrl-C came while the schedules were searched; the plan is yielded before.
        """
        state = self.state
        try:
            within = union_problem(state.problem.topology, state.problem.members)
        except InputError:
            return
        until = min(state.budget.stage_deadline(stage), state.deadline)
        isolated, interrupted = run_each_isolated(within, state.options, state.workers, until, state.say)
        yield Candidate(*plans.within_groups(within, isolated, state.restated), engine_of(isolated))
        state.learn_from(state.plans[-1])
        if interrupted:
            raise KeyboardInterrupt

    def _merged(self, stage: Stage) -> Iterator[Iterator[Outcome]]:
        """Yield the plan that merges the isolated schedules, at once or one after another, as the stage's name says.

        One group has no plan of the second kind.
        """
        isolated, merge = self.state.isolated, plans.at_once if stage.engine == AT_ONCE else plans.in_turn
        if stage.engine == AT_ONCE or len(isolated) > 1:
            yield iter([Candidate(*merge(isolated, self.state.restated), engine_of(isolated))])

    def _direct(self, _: Stage) -> Iterator[Iterator[Outcome]]:
        """Yield the direct plan, if there is one."""
        state = self.state
        state.say("direct")
        make = partial(plans.direct, state.problem, state.restated, state.options.chunks)
        if (direct_plan := contained("direct plan", make, None)) is not None:
            yield iter([Candidate(*direct_plan, DIRECT)])

    def _search_jointly(self, stage: Stage) -> Iterator[Iterator[Outcome]]:
        """Prove a bound; yield the engine's runs on all groups as one problem if the plans so far are far from it.

        From its start on, the search ends at its deadline. For one group, without a plan, or if there are more chunks
        than the memory holds, nothing is yielded.
        """
        state = self.state
        state.has_simple_plans = True
        state.bound = prove(state.problem, max_flow=state.problem.nranks <= state.plan.max_flow_ranks)
        if len(state.problem.members) == 1 or not state.plans:
            return
        contained("search for bounds", partial(state.tighten_bound, quick=True), None)
        if state.best("makespan").makespan_us <= state.least_us() * state.plan.met:
            return
        until = state.budget.stage_deadline(stage)
        try:
            yield from self._union(until)
        except InputError:
            return  # There are more chunks than the memory holds; other plans exist.

    def _union(self, until: float) -> Iterator[Iterator[Outcome]]:
        """Yield the engine's runs on all groups as one problem, from a likely number of chunks to more.

        Args:
            until: When they end, a reading of `now`.
        """
        state = self.state
        refined = plans.refined_union(state.problem, state.restated, state.options.chunks)
        if state.options.chunks is not None:
            yield self._search_plans(refined, until, pinned=True)
        elif state.problem.allowed_holders is not None:
            yield from self._finer_and_finer(refined, 1, until)
        else:
            yield self._search_plans(refined, until)
            parts = [plan.parts_of(refined) for plan in state.plans if plan.method == JOINT]
            finest = 4 * max(parts, default=1)
            # Go beyond the number of sends that is only estimated.
            if parts and finest * estimated_sends(refined) > state.plan.most_sends:
                yield from self._finer_and_finer(refined, finest, until)

    def _finer_and_finer(self, refined: UnionProblem, parts: int, until: float) -> Iterator[Iterator[Outcome]]:
        """Yield runs with more and more parts of every chunk, while that gains.

        The parts grow by a factor of 4. It ends after two runs in sequence that do not gain, after one without a plan,
        or if a plan is near its bound, the sends would be too many, or the time is over.

        Args:
            refined: The groups as one problem, whose chunks are cut.
            parts: Parts of each chunk in the first run.
            until: When they end, a reading of `now`.
        """
        state = self.state
        enough_us = state.least_us() * state.plan.met
        idle = 0
        while idle < 2:
            union_plans = [plan for plan in state.plans if plan.method == JOINT]
            best_us = min((plan.makespan_us for plan in union_plans), default=np.inf)
            sends = min((len(plan.algorithm.schedule) // plan.parts_of(refined) for plan in union_plans), default=0)
            late = now() >= until
            if best_us <= enough_us or sends * parts > state.plan.most_sends or (union_plans and late):
                break
            before = len(state.plans)
            yield self._search_plans(refined.with_chunks(parts), until, pinned=True)
            took_us = min((plan.makespan_us for plan in state.plans[before:]), default=np.inf)
            if np.isinf(took_us):
                break  # Sums need links in both directions; other plans exist.
            idle = 0 if took_us < best_us * (1 - state.plan.worth) else idle + 1
            parts *= 4

    def _search_plans(self, problem: UnionProblem, until: float, pinned: bool = False) -> Iterator[Outcome]:
        """Ask the engine for plans with the chunks of `problem`, or with more unless they are pinned."""
        state = self.state
        (size,) = state.shown_bytes()
        request = Request(
            Options(size, problem.collective.chunks if pinned else None, budget_s=state.options.budget_s),
            sizes=(size,),
            deadline=until,
            workers=state.workers,
            knowledge=state,
            bound=state.bound.merged(own_witnesses(state.isolated, state.problem.size_bytes)),
            most_sends=state.plan.most_sends if self._executor else 0,
        )
        return ENGINES["flow"].solve(problem, request)

    # The end.

    def _conclude(self, _stop_reason: str, hurried: bool) -> ConcurrentPlan:
        """Return the best plan that can be executed, and prove a bound if there is none yet.

        Without the plan of isolated schedules begun at once, make it first.

        Args:
            hurried: True after a second Ctrl-C: no plan is made fairer or lowered.

        Raises:
            DefectError: There is no plan, because a part failed.
        """
        state, objective = self.state, self.state.options.objective
        if not any(plan.method == AT_ONCE for plan in state.plans):
            contained("plan of isolated schedules", self._take_isolated, None)
        if not state.plans:
            raise_first_defect()
        if not state.bound.witnesses:
            state.bound = prove(state.problem, max_flow=False)
        settled = state.best(objective) if hurried else self._settled()
        if self._executor is None:
            return settled
        ranked, fair = state.ranked(objective), objective == "fair"
        # With isolated schedules, isomorphic groups are lowered only once, so that these programs are there first.
        first = [] if fair else [plan for plan in ranked if plan.method in (AT_ONCE, WITHIN)][:1]
        until = -np.inf if hurried else state.budget.deadline
        most = 1 if fair else state.plan.lowered
        return choose_executable([*first, settled, *ranked], settled, self._executor, most, until, state.say)

    def _take_isolated(self) -> None:
        """Take the plans that merge isolated schedules, at once and, for two or more groups, one after another."""
        for method in (AT_ONCE, IN_TURN):
            for candidates in self._makers[method](Stage(method)):
                for candidate in candidates:
                    self.state.take(candidate, method)

    def _settled(self) -> ConcurrentPlan:
        """Return the best plan by the objective once no plan's part beats an isolated run, or after some attempts.

        Isolated runs are replaced by such parts, and merged to new plans. If the objective is "fair", plans are
        reordered first.
        """
        objective = self.state.options.objective
        for _ in range(self.state.plan.settling):
            if objective == "fair":
                self._reorder()
            if not self.state.learn_from(self.state.best(objective)):
                break
            self._take_isolated()
        return self.state.best(objective)

    def _reorder(self) -> None:
        """Add the plan of least makespan and the fairest plans again, with the sends of slowed groups earlier.

        A plan is added only if the new order is fairer.
        """
        state = self.state
        for plan in dict.fromkeys([state.best("makespan"), *state.ranked("fair")[: state.plan.reordered]]):
            state.say("fairer order")
            better = plans.fairer(plan.problem, plan.algorithm.schedule, state.problem.size_bytes, state.isolated_us())
            if better is not None:
                state.add(plan.problem, better, plan.algorithm.engine, plan.method.removesuffix(REORDERED) + REORDERED)
