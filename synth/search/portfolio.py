"""Which engines answer a problem, in which order, for how long."""

from __future__ import annotations

import time

import numpy as np

from synth.baselines import baseline
from synth.bounds.prove import TighteningEffort, prove, tighten
from synth.engines.flow.search import (
    EXPANDED,
    FLOW,
    MOST_SENDS,
    SEVERAL,
    FlowSearch,
    close_enough,
    estimated_sends,
    quotient_of,
)
from synth.engines.greedy import route
from synth.engines.greedy.list_scheduling import dispatched
from synth.engines.ksync.edge_colouring import slotted
from synth.engines.ksync.search import ExactSearch
from synth.model.allowed import Allowed
from synth.model.collective import Floats
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.phases.phases import phases
from synth.phases.split import join
from synth.search.frontier import LARGEST, SMALLEST, Range, frontier
from synth.search.result import Found, Options, Progress
from synth.solvers.workers import Workers
from synth.symmetry.quotient import expand
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

WARM = ("cpsat", "linear")
_CONSTRUCTIVE_SHARE = 0.1  # of the budget
_FEW = 8  # ranks up to which the compiled engine is not worth loading: exact search ends there
_EXACT = 32  # ranks up to which exact search is tried
_COMPARED = 15_000  # sends up to which baselines are run beside the answer


def search(
    problem: Problem,
    options: Options,
    workers: Workers,
    progress: Progress | None = None,
    allowed: Allowed | None = None,
) -> Found:
    """Search a problem (one chunk a block) until everything is proved, the budget ends or Ctrl-C.

    There is an answer however it ends: a constructive engine gives one before the solvers start.

    Args:
        allowed: who may hold which chunks, where not everybody may hold all.
    """
    return _Search(problem, options, workers, progress or (lambda _, __: None), allowed).run()


class _Search:
    def __init__(
        self,
        problem: Problem,
        options: Options,
        workers: Workers,
        progress: Progress,
        allowed: Allowed | None = None,
    ) -> None:
        self.allowed = allowed
        self.loads: Floats | None = None
        self.routed: dict[int, Algorithm] = {}  # by message size
        self.problem, self.options, self.workers, self.progress = problem, options, workers, progress
        self.begun = time.monotonic()
        self.deadline = self.begun + options.budget_s
        self.found = Found(problem)
        self.algorithms: list[Algorithm] = []
        self.latest: Algorithm | None = None

    def run(self) -> Found:
        found, options = self.found, self.options
        exact = self.problem.nranks <= _EXACT and self.problem.quotient is None and self.allowed is None
        try:
            found.bound = prove(self.problem, max_flow=False)
            self._answer_at_once()
            if exact:
                solvers = ExactSearch(
                    found, options, self.workers, self.deadline, self.algorithms, self._add, self._say
                )
                solvers.run()
                self._tighten()
                solvers.recheck()
            else:
                self._refuse_shape()
                self._tighten()
        except KeyboardInterrupt:
            found.ended = "interrupted"
        except SystemError as error:
            # so says a compiled function in which Ctrl-C was noticed
            if not _by_interrupt(error):
                raise
            found.ended = "interrupted"
        if not found.ended and time.monotonic() >= self.deadline:
            found.ended = "budget"
        if not self.algorithms and not options.pinned:
            if found.ended == "interrupted":
                raise KeyboardInterrupt  # nothing to show yet
            self._answer_at_once()
        if not found.bound.witnesses:
            found.bound = prove(self.problem, max_flow=False)
        if options.size is not None and self.algorithms:
            size = options.size
            best = min(self.algorithms, key=lambda a: (a.time_us(size), a.steps, len(a.schedule)))
            found.ranges = [Range(best, size, size, size)]
        else:
            found.ranges = frontier(self.algorithms)
        found.seconds = time.monotonic() - self.begun
        return found

    def _answer_at_once(self) -> None:
        """Constructive answers: by interpreted routing for a few ranks, by the compiled engine for more."""
        options, nranks = self.options, self.problem.nranks
        plain = self.problem.quotient is None and self.allowed is None
        if options.engine == "route" or (options.engine != "flow" and nranks <= 2 * _FEW and plain):
            if not options.pinned:
                self._construct()
                self._compare()
        else:
            self._compare()
        wanted = options.engine == "flow" or (options.engine == "auto" and (nranks > _FEW or not plain))
        if wanted and options.steps is None and options.rounds is None:
            self._flow()

    def _compare(self) -> None:
        """What a vendor library would run, where that is no work to speak of."""
        if (
            self.problem.quotient is None
            and self.allowed is None
            and estimated_sends(self.problem) <= _COMPARED
        ):
            self.found.baselines = baseline(self.problem)
            if not self.options.pinned:
                self.algorithms += self.found.baselines

    def _flow(self) -> None:
        """The engine for any size, on the quotient problem first where the network's symmetry has one."""
        options = self.options
        other = quotient_of(self.problem) if self.allowed is None else None
        size = options.size or LARGEST
        sends = estimated_sends(self.problem)
        for problem in (other, self.problem):
            best = min((a.time_us(size) for a in self.algorithms), default=np.inf)
            # what the quotient gave is good enough where the whole takes long
            near = best <= self.found.bound.at(size)[0] * (close_enough(0) if sends < SEVERAL else 1.03)
            if problem is None or (near and problem is self.problem and other is not None):
                continue
            search = FlowSearch(
                problem,
                self.found.bound,
                self._take,
                size=options.size,
                chunks=options.chunks,
                allowed=self.allowed if problem is self.problem else None,
                deadline=self.deadline,
                most_sends=MOST_SENDS if problem is self.problem else EXPANDED // copies(problem),
                say=self._say,
            )
            search.run()
            if problem is self.problem:
                self.loads = search.loads

    def _refuse_shape(self) -> None:
        options = self.options
        if (options.steps, options.rounds) != (None, None) or options.engine not in ("auto", "flow", "route"):
            raise InputError(
                f"--steps, --rounds and the exact engines are for {_EXACT} ranks at most; this problem has"
                f" {self.problem.nranks}"
            )

    def _take(self, problem: Problem, schedule: Schedule, size: int) -> float:
        """Keep the flow engine's best answer for a size; its time in µs there.

        That of a quotient is expanded, or left where that would be too long.
        """
        if problem.quotient is not None and self.problem.quotient is None:
            if len(schedule) * problem.quotient.order > EXPANDED:
                return np.inf
            problem, schedule = expand(problem, schedule)
        algorithm = Algorithm(problem, schedule, FLOW, size_bytes=size)
        before = self.routed.get(size)
        took = algorithm.time_us(size)
        if before is None or took < before.time_us(size):
            self.algorithms[:] = [*(a for a in self.algorithms if a is not before), algorithm]
            self.routed[size] = self.latest = algorithm
        return took

    def _add(self, problem: Problem, schedule: Schedule, engine: str) -> None:
        if engine != route.NAME:
            schedule = slotted(problem, schedule)
        algorithm = Algorithm(problem, schedule, engine)
        self.algorithms.append(algorithm)
        self.latest = algorithm

    def _say(self, text: str) -> None:
        self.progress(text, self.latest)

    def _construct(self) -> None:
        """Answers at once: shallow trees for small messages, deeper ones of more chunks for large."""
        large, small = self.options.size or LARGEST, self.options.size or SMALLEST
        halves = phases(self.problem)
        source = halves[0].apply(1).collective.pre[:, 0]
        # few sources leave links idle unless their chunks follow each other closely
        several = (8, 64) if len(np.unique(source)) <= 2 else (4, 16)
        plans = [(1, small, 1.0, 1), (1, large, 1.0, 3), (1, large, 0.5, 3)]
        plans += [(chunks, large, depth, 3) for chunks in several for depth in (0.0, 0.5, 1.0)]
        spent = 0.0
        for chunks, size, depth, passes in plans:
            # told by counting, not by the clock: the same question must get the same answer
            spent += sum(route.work(form.apply(chunks)) for form in halves) * passes
            if spent > _CONSTRUCTIVE_SHARE * self.options.budget_s and self.algorithms:
                continue
            parts = [
                form.invert(chunks, route.solve(form.apply(chunks), size, depth, passes)) for form in halves
            ]
            problem = self.problem.with_chunks(halves[0].asked_chunks(chunks))
            schedule = parts[0] if len(parts) == 1 else dispatched(problem, join(*parts), size)
            self._add(problem, schedule, route.NAME)
            self._say("constructive search")

    def _tighten(self) -> None:
        """Work on the bound where the best algorithm does not meet it yet."""
        size = self.options.size or LARGEST
        best = min((a.time_us(size) for a in self.algorithms), default=0.0)
        many = len(self.latest.schedule) if self.latest is not None else 0
        if best <= self.found.bound.at(size)[0] * max(1.001, close_enough(many) - 0.001):
            return
        loads = self.loads
        if loads is not None and len(loads) != self.problem.network.nresources:
            loads = None
        effort = TighteningEffort(
            not self.options.pinned, quick_ranks=np.inf, least_linear_s=2.0, most_linear_s=np.inf
        )
        for better in tighten(
            self.problem,
            self.found.bound,
            None if loads is None else lambda: loads,
            size,
            best / 1.001,
            self.workers,
            self.deadline,
            self._say,
            effort,
        ):
            self.found.bound = better


def copies(problem: Problem) -> int:
    """How many translated copies of its schedule a problem stands for."""
    return 1 if problem.quotient is None else problem.quotient.order


def _by_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C stands at the beginning of what raised an error."""
    cause = error.__cause__ or error.__context__
    return isinstance(cause, KeyboardInterrupt) or (cause is not None and _by_interrupt(cause))
