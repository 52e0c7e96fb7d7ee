"""The search for one group: the engines of a portfolio, then the bounds, then the frontier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from synth.bounds.lengths import from_loads
from synth.bounds.prove import OPTIMAL, Bound, prove, tighten
from synth.bounds.search import DEFAULT as BOUNDS
from synth.engines.estimates import estimated_sends
from synth.engines.flow.tuning import SEARCH as FLOW
from synth.engines.registry import AUTO, ENGINES, Engine, chosen
from synth.engines.request import SEEDS, Candidate, Options, Outcome, Progress, Refusal, Request, SlotClaim, StepClaim
from synth.model.collective import Floats
from synth.model.deadline import TimeUp, limited, now
from synth.model.defects import collected, contained, raise_first_defect
from synth.model.problem import LARGEST, Problem
from synth.search.contest import Contest, Executor
from synth.search.farthest import Farthest
from synth.search.frontier import POWERS, Contender
from synth.search.least_budget import GRACE_S, check_budget, too_short
from synth.search.portfolio import Run, Turn, compiled_interrupts, in_order, race
from synth.search.result import Report, SearchResult
from synth.search.suited import is_for
from synth.search.tuning import TUNING, Tuning
from synth.search.windows import Windows
from synth.solvers.workers import Workers
from synth.symmetry.quotient import expand
from synth.timing.simulate import resource_loads_us, timed
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

_LATE = {"steiner", "flow", "lns"}  # engines after whose first answer bounds are looked for beside them


def search(
    problem: Problem,
    options: Options,
    workers: Workers,
    report: Report | None = None,
    tuning: Tuning = TUNING,
    executor: Executor | None = None,
) -> SearchResult:
    """Search a problem (one chunk a block) until everything is proved, the budget ends or Ctrl-C.

    There is an answer however it ends: constructive engines give one before the solvers start.
    executor: what is to run the answers; times, ranges and gaps are then its programs'. None: the schedules'.

    Raises:
        InputError: an engine that is not known, or that does not accept the problem.
    """
    with collected() as defects:
        found = _Search(problem, options, workers, report or (lambda _, __: None), tuning, executor).run()
    found.defects = tuple(defects.values())
    return found


class _Search:
    """One question on its way to its answer; what its engines know of it (`Known`), and where they answer."""

    def __init__(
        self,
        problem: Problem,
        options: Options,
        workers: Workers,
        report: Report,
        tuning: Tuning,
        executor: Executor | None,
    ) -> None:
        self.problem, self.options, self.workers, self.report = problem, options, workers, report
        self.tuning, self.most_sends = tuning, self._most_sends(executor)
        self.begun = now() if options.begun is None else options.begun
        self.deadline = self.begun + options.budget_s
        self.engines_until = self.deadline  # of `now`, when engines must have ended
        self.sends = estimated_sends(problem)
        self.sizes = tuning.sizes if options.size is None else (options.size,)
        self.result = SearchResult(problem, engine=options.engine)
        # who waits for an answer, however long, lowers without a look at the clock: it must be the same each time
        until = np.inf if tuning.patient else self.deadline
        self.contest = Contest(executor, lambda text: report(text, self.latest), until)
        self.contest.begun, self.contest.least_bytes = self.begun, options.least_bytes or 0
        self.asked: Counter[str] = Counter()  # how often, by engine
        # the best of an engine that made many for one size
        self.at_size: dict[tuple[str, int], Contender] = {}
        self.yielded: dict[str, tuple[Candidate, float]] = {}  # the last of each engine, with its time
        self.row_of: dict[str, str] = {}  # by what an algorithm says found it, the engine's row that was asked
        self.load_us: Floats | None = None
        self.latest: Algorithm | None = None
        self.asking = options  # as engines are asked now
        once = options.pinned or options.engine != AUTO or tuning.only_sizes or self.sends > tuning.again_sends
        # those that are left; where one size is asked for all others had their turns alone
        self.rounds = [] if once else list(tuning.again[-1:] if options.size else tuning.again)
        every = POWERS if self.rounds and options.size is None else self.sizes
        self.again = Farthest(self, every, tuning.again_gap)
        self.windows = Windows(self, every, tuning.windows_gap)
        self.turns, self.waiting = list(tuning.turns), list[Run]()  # to come; engines that have not ended

    def run(self) -> SearchResult:
        result, options = self.result, self.options
        asked = chosen(options.engine)
        if options.engine != AUTO:
            reason = asked[0].accepts(self.problem, options)
            if reason:
                raise InputError(reason if reason.startswith("-") else f"--engine {options.engine}: {reason}")
        if not self.tuning.patient:
            check_budget(self.problem.topology, self.sends, options.budget_s)
        try:
            limited(self._until, partial(self._work, asked))
        except TimeUp:
            result.ended = "budget"
        except KeyboardInterrupt:
            result.ended = "interrupted"
            self.contest.stop()
        if not result.ended and now() >= self.deadline:
            result.ended = "budget"
        if not self.answered and not options.pinned:
            if result.ended == "interrupted":
                raise KeyboardInterrupt  # nothing to show yet
            raise_first_defect()
            raise InputError(too_short(self.problem.topology, self.sends, options.budget_s))
        try:
            with compiled_interrupts():
                self._conclude()
        except KeyboardInterrupt:
            result.ended = "interrupted"
            self.contest.stop()
            self._conclude()
        if not self.proved:
            running = [run.engine for run in self.waiting[-1:] if result.ended and self.turns]
            unasked = [turn.engine for turn in self.turns if self._is_asked(turn, asked) and self._sizes_for(turn)]
            unasked = [name for name in unasked if self._accepts(name, options)]
            later = [run.engine for run in in_order(self.waiting)]
            result.queue = tuple(dict.fromkeys([*running, *unasked, *later]))
            result.refutable = self.windows.farthest.size() if self._refutes else None
        shown = {served.algorithm for served in result.ranges}
        result.others = [one for one in self.contest.contenders if one.algorithm not in shown]
        result.refused = self.contest.refused
        if options.engine != AUTO:
            by = dict.fromkeys(served.algorithm.engine for served in result.ranges)
            result.other_engines = tuple(label for label in by if self.row_of[label] != options.engine)
        result.seconds = now() - self.begun
        return result

    def _work(self, asked: list[Engine]) -> None:
        """Bounds, engines, and bounds again."""
        self.contest.racing = True
        self.report("bounds", None)
        self._raise_bound(prove(self.problem, max_flow=self.problem.nranks <= self.tuning.max_flow_ranks))
        # then for windows of time, where these are tried
        self.engines_until = self.deadline - self.tuning.windows * self.options.budget_s * self._refutes
        race(self._runs(asked), self, self.engines_until, self.waiting)
        if not self.asked:
            raise InputError(ENGINES["ksync"].accepts(self.problem, self.options))
        with compiled_interrupts():
            contained("search for bounds", self._tighten, None)
            contained("search for bounds by windows of time", self._refute, None)
        self.engines_until = self.deadline  # what these have left, for who is asked anew
        race(self._runs_again(asked), self, self.engines_until, self.waiting)

    @property
    def _refutes(self) -> bool:
        """Whether bounds by windows of time are looked for."""
        return self.tuning.windows > 0 and self.problem.nranks <= BOUNDS.window_ranks and not self.options.pinned

    def _until(self) -> float:
        """When that is interrupted, of `now`."""
        first_until = np.inf if self.tuning.patient else self.deadline + GRACE_S
        return self.contest.until() if self.answered else first_until

    def _raise_bound(self, bound: Bound) -> None:
        self.result.raise_bound(bound, now() - self.begun)

    def _conclude(self) -> None:
        """The ranges of what was found, and a bound if there is none yet."""
        self.contest.racing = False
        if not self.result.bound.witnesses:
            self._raise_bound(prove(self.problem, max_flow=False))
        self.result.ranges = self.contest.files(self.options.size)

    def _most_sends(self, executor: Executor | None) -> int:
        """To which engines may refine chunks, as their programs then fit; 0: to any number."""
        given = (self.options.rank_sends, None if executor is None else executor.rank_sends)
        return min((one for one in given if one is not None), default=0) * self.problem.nranks

    # what engines may know

    @property
    def answered(self) -> bool:
        """Whether there is an algorithm."""
        return bool(self.contest.contenders or self.contest.refused)

    def best_us(self, size_bytes: float) -> float:
        """The best time so far for messages of `size_bytes`, in µs; inf where there is none."""
        return self.contest.best_us(size_bytes)

    @property
    def proved(self) -> bool:
        """Whether what is found for every size is proved optimal, so that nothing is left to do.

        Not where a shape or an engine is asked for: then more is asked than the fastest.
        """
        if self.options.pinned or self.options.engine != AUTO or not self.answered:
            return False
        sizes = (*self.sizes, *(() if self.options.size else POWERS))
        return all(
            time_us(size) <= self.result.bound.at(size)[0] * OPTIMAL
            for time_us in (self.scheduled_us, self.best_us)  # programs are made for the second
            for size in sizes
        )

    def scheduled_us(self, size_bytes: float) -> float:
        """The same of schedules: nothing is lowered for it."""
        return min((c.time_us(size_bytes) for c in self.contest.contenders + self.contest.refused), default=np.inf)

    def time_us(self, candidate: Candidate) -> float:
        """The time of the candidate that was yielded last, at its size, in µs; inf where it was of no use."""
        return next((us for last, us in self.yielded.values() if last is candidate), np.inf)

    def fewest_steps(self) -> int | None:
        """The fewest steps of any algorithm so far; None where there is none."""
        return min((c.algorithm.steps for c in self.contest.contenders + self.contest.refused), default=None)

    def shown_bytes(self) -> list[int]:
        """The message sizes at which the answers so far would be shown, or that are asked for."""
        if self.tuning.only_sizes:
            return list(self.sizes)
        return [served.shown for served in self.contest.frontier()] or [LARGEST]

    # the race

    def _runs(self, asked: list[Engine]) -> Iterator[Run]:
        """The engines that are to be asked, each when its turn has come."""
        planned = {turn.engine for turn in self.tuning.turns}
        self.turns += [Turn(engine.name) for engine in asked if engine.name not in planned and self.tuning.others]
        yield from self._turns(asked, self.options.budget_s)
        yield from self._runs_again(asked)

    def _runs_again(self, asked: list[Engine]) -> Iterator[Run]:
        """The same for one size after the other, where none is pinned, the largest gap first."""
        while self.rounds and now() < self.engines_until:
            if (size := self.again.size()) is None:
                del self.rounds[0]
                self.again.restart()
                continue
            self.again.done(size, for_good=True)
            self.result.asked_sizes.add(size)
            self.turns, self.asking = list(self.rounds[0]), replace(self.options, size=size)
            yield from self._turns(asked, self.tuning.again_share * (self.engines_until - now()))

    def _turns(self, asked: list[Engine], budget_s: float) -> Iterator[Run]:
        """Those that are left, each asked as `asking` says, for its share of so many seconds."""
        options = self.asking
        while self.turns and (options is self.options or now() < self.engines_until):
            turn = self.turns.pop(0)
            sizes = self._sizes_for(turn) if self._is_asked(turn, asked) else ()
            # last, since it loads the engine
            if not sizes or not self._accepts(turn.engine, options):
                continue
            self.asked[turn.engine] += 1
            request = Request(
                # who is asked again begins elsewhere
                options=replace(options, seed=(options.seed + self.asked[turn.engine] - 1) % SEEDS),
                sizes=sizes,
                deadline=self.engines_until,
                workers=self.workers,
                known=self,
                bound=self.result.bound,
                work_s=self.tuning.work_s or self.tuning.work_share * options.budget_s,
                most_sends=min(turn.refined or self.most_sends, self.most_sends or turn.refined),
                solvers=ENGINES[turn.engine].solvers,
            )
            solve = partial(ENGINES[turn.engine].solve, self.problem, request)
            no_answers: Iterator[Outcome] = iter(())
            answers = contained(f"engine {turn.engine}", solve, no_answers)
            yield Run(turn.engine, answers, turn.share * budget_s, turn.once, turn.always)

    def _accepts(self, name: str, options: Options) -> bool:
        """Return whether an engine can work on the problem."""
        return not contained(f"engine {name}", partial(ENGINES[name].accepts, self.problem, options), "has a defect")

    def _is_asked(self, turn: Turn, asked: list[Engine]) -> bool:
        """Whether an engine is asked now."""
        engine = ENGINES[turn.engine]
        if engine.name == self.options.engine:
            return engine.name not in self.asked
        if turn.as_first and not asked[0].constructive:
            return True
        late = turn.once and self.answered and now() >= self.deadline
        wanted = turn.always or (engine in asked and not self.proved)
        return wanted and is_for(turn, self.problem, self.asking.size, self.result.bound) and not late

    def _sizes_for(self, turn: Turn) -> tuple[int, ...]:
        """The message sizes that an engine is asked about; none where nothing is left for it."""
        size = self.asking.size
        if not (turn.gap and self.answered):
            return self.sizes if size is None else (size,)
        shown = self.shown_bytes() if size is None else [size]
        far = (size for size in shown if self.best_us(size) > self.result.bound.at(size)[0] * turn.gap)
        return tuple(sorted(far, reverse=True))

    def take(self, answer: Outcome, source: str) -> float:
        """Replay and keep an answer; what it gained: by how much of the best time for its size it is faster."""
        gained = self._take(answer, source)
        # the first answers' gaps say little of where bounds are wanting
        if self.asked.keys() & _LATE and self.answered and self._refutes:
            contained("search for bounds by windows of time", self.windows.step, False)
        return gained

    def _take(self, answer: Outcome, source: str) -> float:
        result = self.result
        if isinstance(answer, Candidate | Algorithm):
            self.row_of[answer.engine] = source
        if isinstance(answer, Progress):
            self.report(answer.text, self.latest)
        elif isinstance(answer, StepClaim | SlotClaim) and self.problem.network.hyperlinks is not None:
            pass  # it is about sends over links alone
        elif isinstance(answer, StepClaim):
            result.claims.append(answer)
        elif isinstance(answer, SlotClaim):
            result.slots.append(answer)
        elif isinstance(answer, Refusal):
            alone = "" if self.problem.network.hyperlinks is None else ", where switches only forward"
            result.impossible = answer.text + alone
        elif isinstance(answer, Candidate):
            sizes = (answer.size_bytes,) if answer.size_bytes else self.sizes
            before_us = [self.scheduled_us(size) for size in sizes]
            time_us = self._keep(answer)
            self.yielded[source] = answer, time_us
            # of the best of all engines: who comes second gains nothing
            after_us = [min(self.scheduled_us(size), us) for size, us in zip(sizes, before_us, strict=True)]
            return max(0.0 if after == us else 1.0 - after / us for after, us in zip(after_us, before_us, strict=True))
        else:
            if source == "baseline":
                result.baselines.append(answer)
            if not self.options.pinned:
                self._add(answer, self.sizes[0])
        return 0.0

    def _keep(self, found: Candidate) -> float:
        """Replay a candidate and keep it if it is of use; its time in µs at its size, inf where it is of none."""
        problem, schedule = found.problem, found.schedule
        if problem.quotient is not None and self.problem.quotient is None:
            if len(schedule) * problem.quotient.order > FLOW.expanded:
                return np.inf
            problem, schedule = expand(problem, schedule)
        elif found.load_us is not None:
            self.load_us = found.load_us
        algorithm = Algorithm(problem, schedule, found.engine, size_bytes=found.size_bytes)
        size = found.size_bytes or self.sizes[0]
        if not found.supersedes:
            return self._add(algorithm, size)[1]
        before = self.at_size.get((found.engine, size))
        schedule_us = algorithm.time_us(size)
        if before is not None and schedule_us >= before.time_us(size):
            return schedule_us
        one, time_us = self._add(algorithm, size)
        if before is not None and time_us >= before.time_us(size):
            self.contest.remove(one)
        elif before is not None and (before.execution is None or not self.contest.waits(one)):
            self.contest.remove(before)
        if before is None or time_us < before.time_us(size):
            self.at_size[found.engine, size] = one
        return time_us

    def _add(self, algorithm: Algorithm, size: int) -> tuple[Contender, float]:
        """Keep an algorithm; its time in µs at a size, as a program where it would be the best."""
        self.latest = algorithm
        one = self.contest.add(algorithm, size)
        return one, self.contest.time_us(one, size)

    # after the race

    def _tighten(self) -> None:
        """Work on the bound where the best algorithm does not meet it yet."""
        result = self.result
        size, met = self.options.size or LARGEST, self.tuning.met
        best_us = self.best_us(size)
        sends = len(self.latest.schedule) if self.latest is not None else 0
        near = max(met, FLOW.close_enough(sends) - (met - 1))
        if np.isinf(best_us) or best_us <= result.bound.at(size)[0] * near:
            return
        loads: Callable[[], Floats] | None = None
        if self.tuning.quick_bounds:
            made = self.contest.contenders or self.contest.refused
            best = min((c.algorithm for c in made), key=lambda a: (a.time_us(size), len(a.schedule)))
            loads = partial(resource_loads_us, best.problem, timed(best.problem, best.schedule, size))
            self._raise_bound(result.bound.merged([from_loads(self.problem, loads())]))
        elif self.load_us is not None:
            loads = partial(np.asarray, self.load_us)
        effort = replace(self.tuning.effort, max_flow=not self.options.pinned)
        for better in tighten(
            self.problem, result.bound, loads, size, best_us / met, self.workers, self.deadline,
            lambda text: self.report(text, self.latest), effort,
        ):  # fmt: skip
            self._raise_bound(better)

    def _refute(self) -> None:
        """Bounds by windows of time, as long as their part of the budget lasts, or half of what engines left."""
        if not self._refutes:
            return
        left_s = self.deadline - now()
        until = now() + min(left_s, max(self.tuning.windows * self.options.budget_s, left_s / 2))
        one_size = self.options.size is not None
        if self.windows.farthest.sizes is self.sizes and not one_size:
            self.windows.farthest.sizes = self.shown_bytes()
        self.windows.finish(until, self.tuning.windows_finer * self.options.budget_s * one_size)
