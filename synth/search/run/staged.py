"""The search for one process group under one protocol: run a plan, raise the bound, conclude with the frontier."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from synth.baselines import of_few_sends
from synth.bounds.prove import prove
from synth.engines.estimates import estimated_sends
from synth.engines.registry import AUTO, ENGINES, EngineRow, engines_named
from synth.engines.request import SEEDS, Options, Outcome, Request
from synth.model.deadline import now
from synth.model.defects import contained, raise_first_defect
from synth.model.problem import Problem
from synth.search.budget import GRACE_S, BudgetTooShort, check_budget
from synth.search.frontier import POWERS
from synth.search.gaps import LargestGap
from synth.search.plans import ProgramScope, Stage
from synth.search.result import SearchResult
from synth.search.run.runner import EngineRun, by_gain, compiled_interrupts, race, run_to_end
from synth.search.run.state import SearchState
from synth.search.run.windows import Windows, allows_windows, finer_windows_s
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError


def _answers(engine: EngineRow, problem: Problem, request: Request) -> Iterator[Outcome]:
    """Yield the answers of an engine, which begins to work when the first one is asked for."""
    yield from engine.solve(problem, request)


class StagedSearch:
    """The run of one search plan.

    Attributes:
        state: What is known so far.
    """

    def __init__(self, state: SearchState, known: Sequence[Algorithm] = ()) -> None:
        """Set up the run of a search that knows nothing yet but some algorithms of its problem, which it begins with.

        They are not read where the user pins a shape or names an engine.
        """
        self.state, self._plan, self._options = state, state.plan, state.options
        self._known = known
        self._sends = estimated_sends(state.problem)
        self._most_sends = self._limit_of_sends()
        self._engines = engines_named(state.options.engine)
        self._engines_deadline = state.budget.deadline
        self._runs_of: Counter[str] = Counter()  # How often each engine was asked.
        self._stages = list(self._plan.stages)  # The stages to come.
        self._waiting = list[EngineRun]()  # The engines that have not ended.
        self._refusals: dict[str, InputError] = {}  # Why engines that accepted the problem cannot do it.
        self._stage_options = state.options  # The options of the stages that run now.
        fixed = state.options.pinned or state.options.engine != AUTO or self._plan.only_sizes
        has_retries = not fixed and self._sends <= self._plan.retry_sends
        # If one size is given, the engines of all tuples but the last have had a stage for that size alone.
        retries = self._plan.retries[-1:] if state.options.size else self._plan.retries
        self._retries = list(retries) if has_retries else []
        sizes = POWERS if self._retries and state.options.size is None else state.sizes
        self._next_retry = LargestGap(state, sizes, self._plan.retry_gap)
        self._windows = Windows(state, sizes, self._plan.windows_gap)
        self._has_windows = allows_windows(state.problem, self._plan, state.options)

    def run(self) -> SearchResult:
        """Run the plan and conclude; errors as those of `search`."""
        state, options = self.state, self._options
        problem, result = state.problem, state.result
        if options.engine != AUTO:
            reason = self._engines[0].accepts(problem, options)
            if reason:
                raise InputError(reason if reason.startswith("-") else f"--engine {options.engine}: {reason}")
        if not self._plan.patient:
            check_budget(problem.topology, self._sends, options.budget_s)
        _, result.stop_reason = run_to_end(state.budget, self._work, self._conclude, self._interrupt_at)
        if state.pool.is_hurried:
            result.stop_reason = result.stop_reason or "budget"
        self._describe_rest()
        result.seconds = now() - state.budget.begun
        return result

    # Stages.

    def _work(self) -> None:
        """Prove a first bound, run the stages, raise the bound, and run the engines again for single sizes.

        Raises:
            InputError: No engine works on the problem.
        """
        state, budget = self.state, self.state.budget
        state.pool.searching = True
        state.report("bounds", None)
        max_flow, size = state.problem.nranks <= self._plan.max_flow_ranks, self._options.size
        state.raise_bound(prove(state.problem, max_flow=max_flow, size_bytes=size))
        self._engines_deadline = budget.without_last(self._plan.windows * self._has_windows)
        if not self._options.pinned and self._options.engine == AUTO:
            for algorithm in self._known:
                state.take(algorithm, algorithm.engine)
        contained("first answer", self._take_of_few_sends, None)
        race(self._first_runs(), self, self._engines_deadline, self._waiting)
        if not self._runs_of:
            exact = next(engine for engine in ENGINES.values() if not engine.constructive)
            raise InputError(exact.accepts(state.problem, self._options))
        with compiled_interrupts():
            contained("search for bounds", state.tighten_bound, None)
            contained("search for bounds by windows of time", self._finish_windows, None)
        self._engines_deadline = budget.deadline
        race(self._retry_runs(), self, self._engines_deadline, self._waiting)

    def _take_of_few_sends(self) -> None:
        """Take an algorithm of few sends if programs of the others take long, so that there is a file at once.

        Nothing happens for a patient plan, or if the user pins a shape or an engine.
        """
        state = self.state
        if self._plan.patient or self._options.pinned or self._options.engine != AUTO:
            return
        if state.pool.is_slow_to_lower(2 * state.problem.nranks * (state.problem.nranks - 1)):
            for algorithm in of_few_sends(state.problem):
                state.take(algorithm, "baseline")

    def _interrupt_at(self) -> float:
        """Return when the work is interrupted, as a reading of `now`.

        With an algorithm, that is when engines must end so that programs can be made. Without one, it is `GRACE_S`
        after the budget, or never for a patient plan.
        """
        if self.state.answered:
            return self.state.pool.search_deadline()
        return math.inf if self._plan.patient else self.state.budget.deadline + GRACE_S

    def _first_runs(self) -> Iterator[EngineRun]:
        """Yield the engines of the plan's stages, each when its stage begins, then those of the retries.

        If the plan says so (`rest`), engines without a stage follow the stages.
        """
        planned = {stage.engine for stage in self._plan.stages}
        if self._plan.rest:
            self._stages += [Stage(engine.name) for engine in self._engines if engine.name not in planned]
        yield from self._stage_runs(self._options.budget_s)
        yield from self._retry_runs()

    def _retry_runs(self) -> Iterator[EngineRun]:
        """Yield the engines of the retries, for one size after another, the largest gap first.

        Each size is tried once by a tuple of stages, and recorded in `retried_sizes`. It ends when no size is worth
        work for any tuple, or at the engines' deadline.
        """
        while self._retries and now() < self._engines_deadline:
            if (size := self._next_retry.size()) is None:
                del self._retries[0]
                self._next_retry.restart()
                continue
            self._next_retry.mark_tried(size, for_good=True)
            self.state.result.retried_sizes.add(size)
            self._stages, self._stage_options = list(self._retries[0]), replace(self._options, size=size)
            yield from self._stage_runs(self._plan.retry_share * (self._engines_deadline - now()))

    def _stage_runs(self, budget_s: float) -> Iterator[EngineRun]:
        """Yield the engines of the stages to come, each with its share of so many seconds.

        Stages are removed as they begin. Those that do not run now, have no size to work on, or whose engine does not
        accept the problem are passed over. The stages of a retry end at the engines' deadline.
        """
        options = self._stage_options
        while self._stages and (options is self._options or now() < self._engines_deadline):
            stage = self._stages.pop(0)
            sizes = self._sizes_for(stage) if self._runs_now(stage) else ()
            # The engine is asked last, because that imports it.
            if sizes and self._accepts(stage.engine, options):
                yield self._begin(stage, options, sizes, budget_s)

    def _begin(self, stage: Stage, options: Options, sizes: tuple[int, ...], budget_s: float) -> EngineRun:
        """Ask the engine of a stage, and return its run.

        An engine that is asked again gets another seed. It begins to work when the run is asked for an answer.

        Args:
            stage: The stage.
            options: What is pinned for it.
            sizes: Message sizes in bytes to find schedules for.
            budget_s: Seconds, of which the run gets the stage's share.
        """
        self._runs_of[stage.engine] += 1
        engine, limit = ENGINES[stage.engine], self._most_sends
        request = Request(
            # An engine that is asked again begins with another seed.
            options=replace(options, seed=(options.seed + self._runs_of[stage.engine] - 1) % SEEDS),
            sizes=sizes,
            deadline=self._engines_deadline,
            workers=self.state.workers,
            knowledge=self.state,
            bound=self.state.result.bound,
            work_s=self._plan.work_s or self._plan.work_share * options.budget_s,
            most_sends=min(stage.refined or limit, limit or stage.refined),
            solvers=engine.solvers,
        )
        answers = _answers(engine, self.state.problem, request)
        return EngineRun(engine.name, answers, stage.share * budget_s, stage.once, stage.always)

    def _accepts(self, name: str, options: Options) -> bool:
        """Return whether an engine can work on the problem; False also if it has a defect."""
        accepts = partial(ENGINES[name].accepts, self.state.problem, options)
        return not contained(f"engine {name}", accepts, "has a defect")

    def _runs_now(self, stage: Stage) -> bool:
        """Return whether a stage runs, by what the user named, what is known and how late it is.

        The engine that the user named runs, but once. An engine that is `as_first` runs if the named one is exact. Any
        other stage must suit the problem (`Stage.suits`), and be `always` or have an engine of the question while
        nothing is proved; if there is an answer, one that is `once` does not run after the budget, nor one that can
        hardly answer in its share.
        """
        state, engine = self.state, ENGINES[stage.engine]
        if engine.name == self._options.engine:
            return engine.name not in self._runs_of
        if stage.as_first and not self._engines[0].constructive:
            return True
        is_late = state.answered and (
            (stage.once and state.budget.left_s <= 0)
            or not stage.can_answer_in(self._stage_options.budget_s, state.problem)
        )
        is_wanted = stage.always or (engine in self._engines and not state.proved)
        return is_wanted and not is_late and stage.suits(state.problem, self._stage_options.size, state.result.bound)

    def _sizes_for(self, stage: Stage) -> tuple[int, ...]:
        """Return the message sizes in bytes that a stage works on.

        These are all sizes before the first answer, or if the stage has no gap. Otherwise they are those at which time
        / bound exceeds the stage's gap, the largest size first, and maybe none; programs may be lowered for these
        times.
        """
        state, size = self.state, self._stage_options.size
        if not (stage.gap and state.answered):
            return state.sizes if size is None else (size,)
        shown = state.shown_bytes() if size is None else [size]
        far = (size for size in shown if state.best_us(size) > state.result.bound.at(size)[0] * stage.gap)
        return tuple(sorted(far, reverse=True))

    def _limit_of_sends(self) -> int:
        """Return to how many sends engines may refine chunks so that programs hold them; 0 for any number.

        These are the sends of all ranks: the lower of the limits for one rank, of the options and of the executor,
        times the local ranks.
        """
        executor = self.state.pool.executor
        limits = (self._options.rank_sends, None if executor is None else executor.rank_sends)
        return min((limit for limit in limits if limit is not None), default=0) * self.state.problem.nranks

    # The ledger of the race.

    @property
    def answered(self) -> bool:
        """Return whether there is an algorithm."""
        return self.state.answered

    @property
    def proved(self) -> bool:
        """Return whether nothing is left to do."""
        return self.state.proved

    def take(self, answer: Outcome, source: str) -> float:
        """Keep an answer, let bounds advance while engines work, and return what the answer gained.

        Arguments, result and errors are those of `SearchState.take`.
        """
        gained = self.state.take(answer, source)
        if self._has_windows and self.state.answered and any(ENGINES[name].is_near for name in self._runs_of):
            contained("search for bounds by windows of time", self._windows.step, False)
        return gained

    def refuse(self, source: str, error: InputError) -> None:
        """Report once that an engine cannot do the problem, though it accepted it; the other engines go on.

        Raises:
            InputError: The user named this engine, and there is no answer yet.
        """
        if source == self._options.engine and not self.answered:
            raise error
        if source not in self._refusals:
            self._refusals[source] = error
            self.state.say(f"engine {source} is left out: {error}")

    # Bounds and the end.

    def _finish_windows(self) -> None:
        """Prove bounds by windows of time in their share of the budget, or in half of what engines left.

        Nothing happens if there are none (`_has_windows`). They get finer slots only if one size is given.
        """
        if not self._has_windows:
            return
        state = self.state
        deadline = state.budget.windows_deadline(self._plan.windows)
        if self._windows.next_gap.sizes is state.sizes and self._options.size is None:
            self._windows.next_gap.sizes = state.shown_bytes()
        self._windows.finish(deadline, finer_windows_s(self._plan, self._options))

    def _conclude(self, stop_reason: str, _hurried: bool) -> None:
        """Set the ranges of the answer, and a bound if there is none yet; after Ctrl-C lower nothing more.

        Programs are lowered and written for it. If the plan does not make all programs, schedules are compared.

        Raises:
            KeyboardInterrupt: Ctrl-C came before there was an answer.
            DefectError: There is no answer, and a part failed.
            InputError: There is no answer, though the engines ended in time, and one of them cannot do the problem.
            BudgetTooShort: There was no answer in time.
        """
        state = self.state
        if not state.answered and not self._options.pinned:
            if stop_reason == "interrupted":
                raise KeyboardInterrupt
            raise_first_defect()
            if self._refusals and not stop_reason:
                raise next(iter(self._refusals.values()))
            options = self._options
            raise BudgetTooShort(
                state.problem.topology, self._sends, options.budget_s, stated_s=options.stated_s,
                ranks=len(state.problem.ranks),
            )  # fmt: skip
        if stop_reason == "interrupted":
            state.pool.stop()
        if self._plan.programs is not ProgramScope.ALL:
            state.pool.executor = None
        state.pool.searching = False
        if not state.result.bound.witnesses:
            state.raise_bound(prove(state.problem, max_flow=False))
        proves = self._has_windows and state.pool.executor is not None and stop_reason != "interrupted"
        finer_s = finer_windows_s(self._plan, self._options)
        with self._windows.beside(state.budget.deadline, finer_s) if proves else nullcontext():
            state.result.ranges = state.pool.files(self._options.size)

    def _describe_rest(self) -> None:
        """Record in the result what a longer search would do, and the algorithms that are not shown or were refused.

        Programs may be lowered to see whether everything is proved. If the user named an engine, record those of other
        algorithms too.
        """
        state, result, options = self.state, self.state.result, self._options
        if not state.proved:
            cut_off = [run.engine for run in self._waiting[-1:] if result.stop_reason and self._stages]
            to_come = [stage.engine for stage in self._stages if self._runs_now(stage) and self._sizes_for(stage)]
            to_come = [name for name in to_come if self._accepts(name, options)]
            later = [run.engine for run in by_gain(self._waiting)]
            result.remaining_engines = tuple(dict.fromkeys([*cut_off, *to_come, *later]))
            result.next_window_size = self._windows.next_gap.size() if self._has_windows else None
        shown = {served.algorithm for served in result.ranges}
        result.unused = [offer for offer in state.pool.offers if offer.algorithm not in shown]
        result.refused = state.pool.refused
        if options.engine != AUTO:
            names = dict.fromkeys(served.algorithm.engine for served in result.ranges)
            result.other_engines = tuple(name for name in names if state.source_of[name] != options.engine)
