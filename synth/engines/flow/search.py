"""The engine `flow`: routing first, then scheduling, for problems of any size, thousands of devices too.

It tries numbers of chunks, kinds of trees and passes of routing until the gap closes. In every trial each chunk gets a
path, a tree to its goals, or a tree from its contributors and one to its goals (`routes`); the order of the sends comes
afterwards (`list_scheduling`) and matters less. A sum is a reversed tree, so a chunk may be spread while other chunks
are still added up. Chunks that most ranks want are also matched in time (`time_expanded_matching`), and the better of
the two schedules counts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.engines.estimates import estimated_sends
from synth.engines.flow.ordering import OrderedSends
from synth.engines.flow.quotients import quotient_of
from synth.engines.flow.routes import UNKNOWN_TIME, USUAL_SHAPE, ExpectedTime, FlowRouter, RouteShape, Routing
from synth.engines.flow.time_expanded_matching import FlowSchedule, is_matchable, match_schedule, matching_s
from synth.engines.flow.tree_sends import Sends, tree_sends
from synth.engines.flow.tuning import SEARCH, TUNING, FlowTuning, SearchTuning
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.compiled import Runner, choose_runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.text import format_count
from topologies.arrays import positions

FLOW = "flow"


def accepts(problem: Problem, options: Options) -> str:  # noqa: ARG001 - All problems are accepted.
    """Return why the engine refuses a problem, empty where no steps or rounds are pinned."""
    if options.steps is not None or options.rounds is not None:
        return "flow pins no steps and no rounds; leave --steps and --rounds out"
    return ""


def solve(problem: Problem, request: Request, tuning: SearchTuning = SEARCH) -> Iterator[Outcome]:
    """Yield schedules of the quotient problem first, where the network's symmetry has one, then of the whole.

    The search of the whole is left out if the time so far is near the bound for the first of the request's sizes.

    Args:
        problem: The problem.
        request: The request to the engine.
        tuning: Settings of the search; `request.most_sends` lowers their `most_sends`.
    """
    size = request.sizes[0]
    if request.most_sends:
        tuning = replace(tuning, most_sends=min(tuning.most_sends, request.most_sends))
    quotient = quotient_of(problem)
    if quotient is not None and quotient.quotient is not None:
        order = quotient.quotient.order
        most_sends = min(tuning.expanded // order, request.most_sends // order or tuning.expanded)
        yield from _FlowSearch(quotient, request, replace(tuning, most_sends=most_sends)).run()
        whole_is_quick = estimated_sends(problem) < tuning.sends_of_seconds
        near = tuning.close_enough(0) if whole_is_quick else tuning.near_whole
        if request.knowledge.best_us(size) <= request.bound.at(size)[0] * near:
            return
    yield from _FlowSearch(problem, request, tuning).run()


@dataclass(frozen=True, eq=False)
class Trial:
    """The settings of one run of the router and the scheduler; see `best_of`.

    Attributes:
        size: Message size in bytes.
        chunks: Chunks a block.
        passes: Number of times that all chunks are routed.
        shape: The shape of routes to prefer.
    """

    size: int
    chunks: int
    passes: int
    shape: RouteShape


class _FlowSearch:
    """The search for schedules of one problem at one or a few message sizes.

    Attributes:
        problem: The problem.
        request: The request to the engine.
        tuning: Settings of the search.
        chunks: Pinned chunks a block, or None.
        sizes: Message sizes in bytes.
        unit: Number of chunks into which a block is cut at least.
        sends: Estimated sends of a schedule with `unit` chunks a block.
    """

    def __init__(self, problem: Problem, request: Request, tuning: SearchTuning) -> None:
        self.problem, self.request, self.tuning = problem, request, tuning
        self.bound, self.chunks = request.bound, request.options.chunks
        self.sizes: Sequence[int] = request.sizes
        sends = estimated_sends(problem)
        if request.options.size is None and sends > tuning.expanded:
            self.sizes = self.sizes[:1]  # An answer of this size is built only once.
        # An all-reduce is cut into one share a rank. The chunks of a quotient are shares already.
        shares = problem.collective.kind.in_shares and problem.quotient is None and self.chunks is None
        self.unit = problem.collective.nranks if shares else 1
        self.sends = sends * self.unit

    def run(self) -> Iterator[Outcome]:
        """Yield candidates and progress for each size until the gap is closed, no trial is left, or the time is over.

        For each size the search goes on after the deadline until a first candidate is useful.
        """
        for size in self.sizes:
            best_us = np.inf
            enough_us = self.bound.at(size)[0] * self.tuning.close_enough(self.sends)
            for trial in self._trials(size):
                is_late = np.isfinite(best_us) and now() >= self.request.deadline
                if best_us <= enough_us or is_late:
                    break
                best_us = min(best_us, (yield from self._try(trial, best_us)))

    def _trials(self, size: int) -> Iterator[Trial]:
        """Yield trials from a likely number of chunks to more, then to fewer, each while that gains.

        At last every variant is repeated with more passes, at twice, once and half the best number of chunks, or only
        at the pinned one. A variant that is much slower than the best is left out before that. Refined chunks stay
        within `most_sends` and the user's `least_bytes`.

        The caller runs each trial by `_try`, which sets `took_us`, before it takes the next one.
        """
        tuning = self.tuning
        variants = self._variants(size)
        lists = self._counts(size)
        best_us, best_chunks = np.inf, 1 if self.chunks is None or not lists else lists[0][0]
        for counts in lists:
            idle = 0
            for chunks in counts:
                before_us = best_us
                passes, most_variants = self._effort(self.sends * chunks)
                for variant in variants[:most_variants]:
                    self.took_us = np.inf
                    yield replace(variant, chunks=chunks, passes=passes)
                    if self.took_us > 1.3 * best_us and len(variants) > 2:
                        # This variant is hopeless for the problem.
                        variants = [rival for rival in variants if rival is not variant]
                    if self.took_us < best_us:
                        best_us, best_chunks = self.took_us, chunks
                # Before the first useful schedule, a trial without a gain is no reason to stop.
                idle = 0 if np.isinf(best_us) or best_us < before_us * (1 - tuning.worth) else idle + 1
                if idle > 1:
                    break
        near = [best_chunks] if lists else []
        if self.chunks is None:
            near = [2 * best_chunks, best_chunks, max(1, best_chunks // 2)]
        for chunks in dict.fromkeys(near):
            is_large_enough = self._bytes_each(size) / chunks >= (self.request.options.least_bytes or 0)
            if self.sends * chunks <= tuning.most_sends and (is_large_enough or chunks == best_chunks):
                for variant in self._variants(size):
                    yield replace(variant, chunks=chunks, passes=tuning.passes_at_last)

    def _effort(self, sends: int) -> tuple[int, int]:
        """Return (passes, variants to try) for a number of sends: 4, 2 or 1 variants, fewer for more sends."""
        tuning = self.tuning
        if sends > 3 * SEARCH.most_sends:
            return tuning.passes_of_most, 1
        passes = tuning.passes_of_many if sends > tuning.sends_of_few_orders else tuning.passes
        return passes, 4 if sends <= tuning.sends_of_all_variants else 2

    def _variants(self, size: int) -> list[Trial]:
        """Return the four variants of routing, the most promising first, each with 1 chunk and 1 pass.

        The caller replaces these two numbers. The variants depend on whether every chunk is a value with one goal, and
        else on whether `size` is 4 MiB or more.
        """
        collective = self.problem.collective
        is_path = len(collective.post) == collective.nchunks and not collective.reducing
        if is_path:
            kinds = [(0.5, False, 0.05), (0.5, True, 0.05), (0.5, False, 0.01), (0.5, False, 0.2)]
        elif size >= 1 << 22:
            kinds = [(0.5, False, 0.05), (0.0, False, 0.05), (0.1, False, 0.01), (0.75, False, 0.1)]
        else:
            kinds = [(0.0, False, 0.05), (1.0, False, 0.05), (0.5, False, 0.05), (0.0, False, 0.2)]
        return [Trial(size, 1, 1, RouteShape(*kind)) for kind in kinds]

    def _counts(self, size: int) -> list[list[int]]:
        """Return lists of numbers of chunks to try (in units of `unit`), each list as long as it gains.

        The first list rises from a likely power of 4, the second falls from below it to 1. Pinned chunks give one list
        with one number, or no list where they are no multiple of the problem's chunks.
        """
        tuning = self.tuning
        if self.chunks is not None:
            multiple, remainder = divmod(self.chunks, self.problem.collective.chunks)
            return [] if remainder else [[multiple]]
        # A chunk whose transfer is short relative to its latency need not be refined.
        net, bytes_each = self.problem.network, self._bytes_each(size)
        latency_bytes = float(net.alpha_us.min()) * float(net.bandwidth_gbs.max()) * 1e3
        counts = [1]
        least_bytes = max(tuning.least_busy * latency_bytes, self.request.options.least_bytes or 0)
        while self.sends * counts[-1] * 4 <= tuning.most_sends and bytes_each / (counts[-1] * 4) >= least_bytes:
            counts.append(counts[-1] * 4)
        nlikely = sum(
            bytes_each / chunks >= tuning.bulk * latency_bytes and self.sends * chunks <= tuning.bulk_sends
            for chunks in counts[1:]
        )
        return [counts[nlikely:], counts[:nlikely][::-1]]

    def _bytes_each(self, size: int) -> float:
        """Return the bytes of the largest chunk at a message size in bytes, with one chunk a block.

        In an all-reduce without pinned chunks it is one chunk a rank's share.
        """
        return float(self.problem.collective.fraction.max()) * size / self.unit

    def _try(self, trial: Trial, best_us: float) -> Generator[Outcome, None, float]:
        """Run one trial, and yield its candidate if it takes less than `best_us`, then progress.

        Returns:
            Its time in µs with the start of a call, also as `took_us`; inf if the search has no use for the candidate.
        """
        tuning = self.tuning
        problem = self.problem.with_chunks(trial.chunks * self.unit)
        sends = self.sends * trial.chunks
        least_us = self.bound.at(trial.size)[0]
        starts_us = problem.network.start_us  # Bounds and clocks count the start of a call, and `best_of` does not.
        orders = tuning.orders_of_many if sends > tuning.sends_of_few_orders else tuning.orders
        answer = best_of(
            problem,
            trial.size,
            shape=trial.shape,
            expected=ExpectedTime.of(self.bound, trial.size, tuning.close_enough(sends), starts_us),
            passes=trial.passes,
            orders=1 if sends > tuning.sends_of_one_order else orders,
            deadline=self.request.deadline,
        )
        self.took_us = answer.took_us + starts_us
        if self.took_us < best_us * (1 - 1e-9):
            load_us = answer.load_us if trial.size == self.sizes[0] else None
            candidate = Candidate(problem, answer.schedule, FLOW, trial.size, True, load_us)
            yield candidate
            self.took_us = self.request.knowledge.time_us(candidate)
        # The bound is 0 where no rank sends.
        yield Progress(
            f"routing: {format_count(trial.chunks, 'chunk')}, {self.took_us / (least_us or np.inf):.3f} × the bound"
        )
        return self.took_us


def best_of(
    problem: Problem,
    size_bytes: float,
    *,
    shape: RouteShape = USUAL_SHAPE,
    expected: ExpectedTime = UNKNOWN_TIME,
    passes: int = 4,
    orders: int = 8,
    deadline: float = np.inf,
    run: Runner | None = None,
    tuning: FlowTuning = TUNING,
) -> FlowSchedule:
    """Return the best schedule of a few passes, for messages of `size_bytes`, untimed.

    Its time leaves out the time of a call before its first send, except for sums that `match_schedule` answers.

    Args:
        problem: The problem.
        size_bytes: Message size in bytes.
        shape: The shape of routes to prefer.
        expected: What is known of the time; the search ends at a time that need not be improved.
        passes: Most times that all chunks are routed.
        orders: Most list schedules for the best routes.
        deadline: Time on the clock `synth.model.deadline.now` at which the best schedule so far is the answer; one pass
            and one list schedule are made even after it.
        run: Runner of the loops; None to interpret them while that takes less time than to load the compiled ones. The
            answers are the same.
        tuning: Settings of routing.

    Raises:
        InputError: If a chunk cannot reach a goal over the ranks that may hold it.
    """
    run = run or choose_runner(interpreted_s(problem, passes, orders))
    best: FlowSchedule | None = None
    has_time = now() + matching_s(problem) < deadline  # Matching does not look at the clock.
    if problem.allowed_holders is None and has_time and is_matchable(problem, tuning):
        best = match_schedule(problem, size_bytes, run)
        if best is not None and best.took_us <= expected.enough_us:
            return best
    router = FlowRouter(problem, size_bytes, run, shape, expected, tuning)
    routing = router.improve()
    level = max(expected.likely_us, expected.enough_us - expected.latency_us) * 1.002
    for _ in range(passes - 1):
        is_late = float((routing.load_us / router.in_time).max(initial=0.0)) > level + expected.latency_us
        if (routing.busiest_us <= level and not is_late) or now() >= deadline:
            break
        routing = router.improve()
    if best is None or routing.busiest_us < best.took_us:
        time_us, schedule = routed(router, routing).ordered(expected.enough_us, orders, deadline)
        if best is None or time_us < best.took_us * (1 - 1e-9):
            best = FlowSchedule(time_us, schedule, routing.load_us)
    return best


def interpreted_s(problem: Problem, passes: int, orders: int) -> float:
    """Estimate the seconds that `best_of` takes in the interpreter: 2 µs to look at a link, 10 µs to list a send."""
    links_seen = passes * problem.collective.nchunks * problem.network.nlinks
    sends = len(problem.collective.pre) + 2 * len(problem.collective.post)
    return 2e-6 * links_seen + 1e-5 * orders * sends


def routed(router: FlowRouter, routing: Routing) -> OrderedSends:
    """Return the sends of a routing of this router, and what each waits for.

    Where each chunk has one holder and one goal, and no sum is gathered, the sends are path by path, the longest path
    first. Otherwise all gathers stand before all spreads, each chunk by chunk.
    """
    if router.single and not len(routing.gather[1]):
        sends = _paths(router, routing)
    else:
        sends = tree_sends(router.run, router.net, routing.gather, routing.spread)
    return OrderedSends(
        router.problem, router.size_bytes, sends, router.run, router.net, routing.busiest_us, router.tuning
    )


def _paths(router: FlowRouter, routing: Routing) -> Sends:
    """Return the sends of paths, for one holder and one goal a chunk, the longest path first.

    The rows of a path follow each other, and each waits for the row before; no send reduces.
    """
    ptr, links = routing.spread
    length = np.diff(ptr)
    # Long paths come first, so that sends in flight at one time are adjacent in memory, too.
    order = router.order[np.argsort(-length[router.order], kind="stable")]
    length = length[order]
    chunk = np.repeat(order, length)
    step = positions(length)
    inner = np.ones(len(chunk), dtype=bool)
    inner[np.cumsum(length)[length > 0] - 1] = False
    before = np.flatnonzero(inner)
    return Sends(chunk, links[ptr[chunk] + step], step, np.zeros(len(chunk), dtype=bool), before, before + 1)
