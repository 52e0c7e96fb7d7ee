"""The search for one process group: one run of a plan, or one for each protocol where an executor's costs are on.

With costs, the problem of the most promising protocol is searched like any other, at the sizes at which its bound is
near the least bound. The other protocols differ in times alone, so they start from its algorithms, and only engines
that mind latencies run for them. Then all algorithms compete, each under its protocol.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from synth.bounds.prove import Bound, prove
from synth.engines.estimates import estimated_sends
from synth.engines.registry import AUTO, engines_named
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.defects import collected
from synth.model.problem import SMALLEST, Problem
from synth.search.budget import WRITING, Budget, BudgetTooShort
from synth.search.executor import Executor
from synth.search.offer import Offer
from synth.search.plans import SINGLE, ProgramScope, ProtocolPlan, SearchPlan
from synth.search.pool import Pool, offer_of
from synth.search.result import Report, SearchResult
from synth.search.run.protocols import search_protocols
from synth.search.run.runner import run_to_end
from synth.search.run.staged import StagedSearch
from synth.search.run.state import SearchState
from synth.search.run.windows import Windows, allows_windows, finer_windows_s
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError


def search(
    problem: Problem,
    options: Options,
    workers: Workers,
    report: Report | None = None,
    plan: SearchPlan = SINGLE,
    executor: Executor | None = None,
    known: Sequence[Algorithm] = (),
) -> SearchResult:
    """Return the answer of a problem, searched until everything is proved, the budget ends or Ctrl-C.

    There is an answer however the search ends, because constructive engines give one before the solvers start. Only if
    steps, rounds or chunks are pinned, `ranges` of the answer may be empty, because no schedule has that shape or none
    was found in time.

    Args:
        problem: The problem, with one chunk a block. With costs for which no protocol is chosen (`Problem.protocols`),
            the answer is over all protocols that the executor has.
        options: What the user pins.
        workers: Solver processes.
        report: Receives what is tried, and the latest algorithm or None; None for no reports.
        plan: The stages, and what limits their work.
        executor: Executor whose programs are the answer, with their times, ranges and gaps; None for schedules.
        known: Algorithms of the problem with which the search begins; not read where it is over all protocols.

    Raises:
        InputError: The engine is not known or does not accept the problem, the budget is too short, or the executor has
            none of the protocols.
        KeyboardInterrupt: Ctrl-C came before there was an answer.
    """
    report = report or (lambda _, __: None)
    with collected() as defects:
        if problem.protocols:
            result = _ProtocolsSearch(problem, options, workers, report, plan, executor).run()
        else:
            if plan.programs is ProgramScope.ALL and not plan.patient and _has_files(problem, executor):
                stated_s = options.stated_s or options.budget_s
                options = replace(options, budget_s=(1.0 - WRITING) * options.budget_s, stated_s=stated_s)
            result = StagedSearch(SearchState(problem, options, plan, workers, report, executor), known).run()
    result.defects = tuple(defects.values())
    return result


def _has_files(problem: Problem, executor: Executor | None) -> bool:
    """Return whether there is an executor that can hold programs of as many sends as a problem needs, by estimate."""
    return executor is not None and estimated_sends(problem) <= executor.rank_sends * problem.nranks


class _ProtocolsSearch:
    """The search of one problem under each promising protocol.

    Attributes:
        able: Protocols that the executor has.
        problems: The problem under each protocol.
        bounds: What is proved of each protocol before its search.
        least_bytes: Smallest chunk of each protocol that is useful to the executor, in bytes.
        results: The result of each protocol that was searched, the most promising first.
        lowering: The time for the programs of the answer.
        pool: All algorithms, once the protocols are searched.
    """

    def __init__(
        self,
        problem: Problem,
        options: Options,
        workers: Workers,
        report: Report,
        plan: SearchPlan,
        executor: Executor | None,
    ) -> None:
        """Prove a bound for each protocol; arguments and errors as those of `search`."""
        self.budget = Budget.of(options)
        self.able = problem.protocols if executor is None else executor.able(problem.protocols)
        if not self.able:
            names = " ".join(problem.protocols)
            raise InputError(
                f"costs: of {problem.topology.name} are of {names}; it must be a --target that has one of them"
            )
        self._problem, self._workers, self._report, self._plan, self._executor = (
            problem, workers, report, plan, executor,
        )  # fmt: skip
        self._options = options
        self.problems = {name: problem.under(name) for name in problem.protocols}
        self.bounds = {
            name: prove(under, max_flow=False, size_bytes=options.size) for name, under in self.problems.items()
        }
        if options.engine != AUTO:  # If it refuses all protocols, the search of the last one, mostly Simple, says why.
            (engine,) = engines_named(options.engine)
            accepted = [name for name in self.able if not engine.accepts(self.problems[name], options)]
            self.able = accepted or self.able[-1:]
        self.least_bytes = {
            name: 0 if executor is None else executor.least_bytes(under) for name, under in self.problems.items()
        }
        self.results: dict[str, SearchResult] = {}
        lowering_s = self.budget.seconds * (1.0 if executor is None else 1.0 - WRITING)
        self.lowering = replace(self.budget, seconds=lowering_s).patient(plan.patience if plan.patient else 0.0)
        self.pool: Pool | None = None
        self._searched_sizes: tuple[int, ...] = ()  # Message sizes in bytes that any protocol is searched at.
        self._taken_over: dict[str, list[Offer]] = {}  # By protocol, once the first protocol is searched.

    def run(self) -> SearchResult:
        """Search one protocol after another and merge their results; errors as those of `search`."""
        protocols, size = self._plan.protocols, self._options.size
        if self._executor is None:
            protocols = replace(protocols, searching=1.0)
        if self._problem.nranks > protocols.first_ranks:
            protocols = replace(protocols, first=None)
        sizes = protocols.sizes_of(self.bounds, self.able, protocols.sizes if size is None else (size,))
        self._searched_sizes = tuple(dict.fromkeys(size for own in sizes.values() for size in own))
        work = partial(
            search_protocols, list(sizes), self.results, partial(self._search_protocol, sizes), self.budget, protocols,
            reserved_s=self._reserved_s,
        )  # fmt: skip
        result, stop_reason = run_to_end(self.lowering, work, self._conclude)
        if not stop_reason and (self.lowering.left_s <= 0 or any(own.stop_reason for own in self.results.values())):
            stop_reason = "budget"
        if self.pool is not None and self.pool.is_hurried:
            stop_reason = stop_reason or "budget"
        result.stop_reason, result.seconds = stop_reason, now() - self.budget.begun
        return result

    def _search_protocol(self, sizes: dict[str, tuple[int, ...]], name: str, budget_s: float) -> SearchResult:
        """Return the result of the schedules of one protocol, at its sizes in bytes, in so many seconds.

        While no protocol has a program, a first program is made as soon as possible, so that there is a file whatever
        comes; a patient plan makes none.

        Args:
            sizes: Message sizes in bytes of every protocol.
            name: The protocol.
            budget_s: Seconds for it.

        Raises:
            BudgetTooShort: There is no answer in time; the message speaks of the budget of all protocols.
            InputError: As `search` raises it.
        """
        options = replace(
            self._options,
            begun=now(),
            budget_s=budget_s,
            stated_s=self.budget.stated_s,
            least_bytes=self.least_bytes[name],
        )
        has_program = any(offer.execution for result in self.results.values() for offer in _offers(result))
        programs = ProgramScope.NONE if has_program or self._plan.patient else ProgramScope.FIRST
        plan = replace(self._plan, sizes=sizes[name], only_sizes=True, programs=programs)
        plan = self._plan.protocols.plan_for(plan, self._options, is_first=not self.results)
        try:
            taken_over = [offer.algorithm for offer in self._take_over(name)]
            return search(self.problems[name], options, self._workers, self._report, plan, self._executor, taken_over)
        except BudgetTooShort as error:  # The user knows the budget of all protocols.
            members = len(self._problem.ranks)
            seconds, stated_s = self.budget.seconds, self.budget.stated_s
            raise BudgetTooShort(self._problem.topology, error.sends, seconds, members, stated_s, members) from None

    def _reserved_s(self) -> float:
        """Return the seconds that the programs of the fastest schedules so far need; 0 in a patient budget."""
        if self.lowering.is_patient:
            return 0.0
        offers = [offer for result in self.results.values() for offer in result.ranges]
        return Pool(self._executor, self.lowering).reserved_s(offers)

    def _conclude(self, stop_reason: str, _hurried: bool) -> SearchResult:
        """Return the fastest algorithm of all protocols by size, with the bound over all protocols.

        Args:
            stop_reason: Why the search ended early; after "interrupted" nothing more is lowered.

        Raises:
            KeyboardInterrupt: Ctrl-C came before there was an answer.
        """
        if not self.results:
            raise KeyboardInterrupt
        results = self.results.values()
        if self.pool is None:
            offers = [offer for result in results for offer in _offers(result)]
            offers += [offer for name in self.able for offer in self._take_over(name)]
            offers = _unlike(offers, self._options.size)
            self.pool = Pool(self._executor, self.lowering, lambda text: self._report(text, None), offers)
        if stop_reason == "interrupted":
            self.pool.stop()
        proved = [
            (self.results[name].bound if name in self.results else bound).of_protocol(name)
            for name, bound in self.bounds.items()
        ]
        bounded = _Bounded(self._problem, self._workers, self.lowering, self.pool)
        bounded.result.bound = Bound(tuple(witness for bound in proved for witness in bound.witnesses))
        is_bounded = allows_windows(self._problem, self._plan, self._options)
        proves = is_bounded and self.pool.executor is not None and stop_reason != "interrupted"
        windows = Windows(bounded, self._searched_sizes, self._plan.windows_gap)
        finer_s = finer_windows_s(self._plan, self._options)
        with windows.beside(self.lowering.deadline, finer_s) if proves else nullcontext():
            ranges = self.pool.files(self._options.size)
        first = next(iter(results))
        shown = {served.algorithm for served in ranges}
        return SearchResult(
            self._problem,
            ranges=ranges,
            unused=[offer for offer in self.pool.offers if offer.algorithm not in shown],
            bound=bounded.result.bound,
            baselines=[algorithm for result in results for algorithm in result.baselines],
            claims=first.claims,
            impossible=next((result.impossible for result in results if result.impossible), ""),
            refused=[*(offer for result in results for offer in result.refused), *self.pool.refused],
            engine=first.engine,
            remaining_engines=tuple(dict.fromkeys(name for result in results for name in result.remaining_engines)),
            other_engines=tuple(dict.fromkeys(name for result in results for name in result.other_engines)),
        )

    def _take_over(self, name: str) -> list[Offer]:
        """Return the algorithms of the first protocol under another protocol: the same sends at other times.

        Left out are algorithms of a quotient, schedules of more sends than the plan's `taken_over`, and those that use
        links or switch operations which the other protocol's network lacks. There are none for the first protocol, and
        none before it is searched. They are made once.
        """
        first, problem = next(iter(self.results), name), self.problems[name]
        if name == first or name in self._taken_over:
            return self._taken_over.get(name, [])
        offers = self._taken_over[name] = list[Offer]()
        for algorithm in (offer.algorithm for offer in _offers(self.results[first])):
            is_large = len(algorithm.schedule) > self._plan.protocols.taken_over
            # Another protocol's network may lack what switches reduce or multicast.
            is_lacking = max(algorithm.schedule.link, default=0) >= problem.network.ncarriers
            if algorithm.problem.quotient is None and not is_large and not is_lacking:
                under = replace(problem, collective=algorithm.problem.collective)
                same_sends = Algorithm(under, algorithm.schedule, algorithm.engine, "", algorithm.size_bytes)
                offers.append(offer_of(same_sends, self.least_bytes[name]))
        return offers


class _Bounded:
    """What the search for bounds over all protocols reads and raises while programs are made.

    Attributes:
        result: The result whose bound is raised.
    """

    def __init__(self, problem: Problem, workers: Workers, budget: Budget, pool: Pool) -> None:
        """Start without a bound; the schedules are those of `pool`."""
        self.problem, self.workers, self.budget, self._pool = problem, workers, budget, pool
        self.result = SearchResult(problem)

    def scheduled_us(self, size_bytes: float) -> float:
        """Return the time in µs of the best schedule or program at a size."""
        return self._pool.scheduled_us(size_bytes)


def _offers(result: SearchResult) -> list[Offer]:
    """Return an offer of every algorithm of a result that can be shown, each once, the unused ones last."""
    return list({offer.algorithm: offer for offer in (*result.ranges, *result.unused)}.values())


def _unlike(offers: Sequence[Offer], size_bytes: int | None) -> list[Offer]:
    """Return the offers without those whose schedules are as large and as fast at all sizes as an earlier one.

    Schedules are compared within one protocol and number of chunks, by their sends and by their times, to nine digits:
    at the size of the question and the smallest size, or at the plan's sizes if the question has none. Engines often
    find the same schedule, and lowering it again takes time that other algorithms need. An offer with a program comes
    before those without one.
    """
    sizes = (SMALLEST, *(ProtocolPlan.sizes if size_bytes is None else (size_bytes,)))
    first: dict[tuple[object, ...], Offer] = {}
    for offer in sorted(offers, key=lambda offer: offer.execution is None):
        algorithm = offer.algorithm
        times_us = (f"{algorithm.time_us(size):.9g}" for size in sizes)
        protocol = algorithm.problem.topology.protocol
        chunks = algorithm.problem.collective.chunks
        first.setdefault((protocol, len(algorithm.schedule), chunks, *times_us), offer)
    return list(first.values())
