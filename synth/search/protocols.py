"""The search with an executor's costs: each protocol has a network of its own, and a call uses one protocol.

The problem of the most promising protocol is searched like any other, at the sizes at which its bound is near the least
bound. The other protocols differ in times alone, so they start from its algorithms, and only engines that mind
latencies run for them. Then all algorithms compete, each under its protocol. The bound is the least of the protocols'
bounds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.bounds.prove import Bound, prove
from synth.engines.registry import AUTO
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.defects import collected
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.search.budget import Budget
from synth.search.offer import Offer
from synth.search.plans import SINGLE, SearchPlan, Stage
from synth.search.pool import Executor, Pool, offer_of
from synth.search.result import Report, SearchResult
from synth.search.runner import compiled_interrupts
from synth.search.search import search
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

_AHEAD = Stage("flow", share=0.15, once=True, refined=1_500, most_ranks=8, gap=1.05)


@dataclass(frozen=True)
class ProtocolPlan:
    """The choice of the protocols and sizes that are searched, and their shares of the budget.

    Attributes:
        sizes: Message sizes in bytes, the largest first, from which those of each protocol are chosen.
        near: A protocol is searched at a size if its bound is at most this multiple of the least bound there.
        most: Most sizes of a protocol.
        searching: Share of the budget for schedules, if an executor's programs are made in the rest.
        first: Share of that for the first protocol.
        exact: Share of that for exact search.
        engines: Engines that run for the protocols after the first.
        taken_over: Most sends of a schedule that the other protocols take over from the first.
        ahead: Stage before exact search, which counts steps and rounds and ignores latencies and gaps.
        exact_engine: Engine of the exact search.
        last_engine: Engine that runs after all others.
    """

    sizes: tuple[int, ...] = (LARGEST, 16 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10, SMALLEST)
    near: float = 1.3
    most: int = 4
    searching: float = 0.6
    first: float = 0.75
    exact: float = 0.8
    engines: tuple[str, ...] = ("route", "baseline", "switch", "closed", "two-hops", "flow", "lns")
    taken_over: int = 3_000
    ahead: Stage = _AHEAD
    exact_engine: str = "ksync"
    last_engine: str = "lns"

    def sizes_of(
        self, bounds: dict[str, Bound], able: Sequence[str], sizes: Sequence[int]
    ) -> dict[str, tuple[int, ...]]:
        """Return the sizes in bytes at which each protocol is searched, the protocol with the largest size first.

        Among protocols with the same largest size, the one with the least bound there is first.
        """
        least_us = {size: min(bounds[name].at(size)[0] for name in able) for size in sizes}
        near = {
            name: [size for size in sizes if bounds[name].at(size)[0] <= self.near * least_us[size]][: self.most]
            for name in able
        }
        order = sorted((name for name in able if near[name]), key=lambda name: bounds[name].at(near[name][0])[0])
        return {name: tuple(near[name]) for name in sorted(order, key=lambda name: -near[name][0])}

    def plan_for(self, plan: SearchPlan, options: Options, is_first: bool) -> SearchPlan:
        """Return the plan for one protocol: all engines for the first one, those that mind latencies for the others."""
        if options.engine != AUTO or options.pinned:
            return plan
        if not is_first:
            stages = tuple(stage for stage in plan.stages if stage.engine in self.engines)
            return replace(plan, stages=stages, rest=False)
        # What all protocols can use is worth more than what fits the latencies of one.
        order = [replace(s, share=self.exact) if s.engine == self.exact_engine else s for s in plan.stages]
        order.sort(key=lambda stage: stage.engine == self.last_engine)
        at = next((place for place, stage in enumerate(order) if stage.engine == self.exact_engine), len(order))
        return replace(plan, stages=(*order[:at], self.ahead, *order[at:]))


PROTOCOLS = ProtocolPlan()


def search_protocols(
    problem: Problem,
    options: Options,
    workers: Workers,
    report: Report | None = None,
    plan: SearchPlan = SINGLE,
    executor: Executor | None = None,
    protocols: ProtocolPlan = PROTOCOLS,
) -> SearchResult:
    """Return the answer of a problem, searched under each of its protocols if its costs leave a choice of them.

    Args:
        problem: The problem, with one chunk a block.
        options: What the user pins.
        workers: Solver processes.
        report: Receives what is tried and the best algorithm so far.
        plan: The stages for one protocol.
        executor: Executor of the answers; protocols that it does not have are not searched. None for schedules.
        protocols: Which protocols are searched at which sizes.

    Raises:
        InputError: As `search`, or the executor has none of the protocols.
    """
    if not problem.protocols:
        return search(problem, options, workers, report, plan, executor)
    with collected() as defects:
        result = _search_each(problem, options, workers, report, plan, executor, protocols)
    result.defects = tuple(defects.values())
    return result


def _search_each(
    problem: Problem,
    options: Options,
    workers: Workers,
    report: Report | None,
    plan: SearchPlan,
    executor: Executor | None,
    protocols: ProtocolPlan,
) -> SearchResult:
    """Run a search for each protocol, one after another, and merge their results."""
    budget = Budget(options.budget_s, now() if options.begun is None else options.begun)
    able = problem.protocols if executor is None else executor.able(problem.protocols)
    if not able:
        names = " ".join(problem.protocols)
        raise InputError(
            f"costs: of {problem.topology.name} are of {names}; it must be a --target that has one of them"
        )
    problems = {name: problem.under(name) for name in problem.protocols}
    bounds = {name: prove(under, max_flow=False) for name, under in problems.items()}
    until = budget.begun + options.budget_s * (1.0 if executor is None else protocols.searching)
    rank_sends = None if executor is None else executor.rank_sends
    least_bytes = {name: 0 if executor is None else executor.least_bytes(under) for name, under in problems.items()}
    sizes = protocols.sizes_of(bounds, able, protocols.sizes if options.size is None else (options.size,))
    results: dict[str, SearchResult] = {}
    for place, name in enumerate(sizes):
        if results and now() >= until:
            break
        share = 1.0 / (len(sizes) - place) if results or len(sizes) == 1 else protocols.first
        budget_s = max(until - now(), 0.05) * share
        own_options = replace(
            options, begun=now(), budget_s=budget_s, rank_sends=rank_sends, least_bytes=least_bytes[name]
        )
        own_plan = replace(plan, sizes=sizes[name], only_sizes=True)
        own_plan = protocols.plan_for(own_plan, options, is_first=not results)
        try:
            results[name] = search(problems[name], own_options, workers, report, own_plan)
        except (InputError, KeyboardInterrupt) as error:
            if not results:
                raise  # What is impossible under this protocol is impossible at all; or there is nothing to show yet.
            if isinstance(error, KeyboardInterrupt):
                list(results.values())[-1].ended = "interrupted"
        if name in results and results[name].ended == "interrupted":
            break
    offers = [offer for result in results.values() for offer in _offers(result)]
    offers += _taken_over(problems, results, able, protocols.taken_over, least_bytes)
    lowering = Budget(math.inf, budget.begun) if plan.patient else budget
    pool = Pool(executor, lowering, lambda text: report and report(text, None), offers)
    merged = _merged(problem, options, results, bounds, pool)
    merged.seconds = now() - budget.begun
    return merged


def _offers(result: SearchResult) -> list[Offer]:
    """Return an offer of every algorithm of a result that can be shown, each once."""
    return list({offer.algorithm: offer for offer in (*result.ranges, *result.others)}.values())


def _taken_over(
    problems: dict[str, Problem],
    results: dict[str, SearchResult],
    able: Sequence[str],
    most_sends: int,
    least_bytes: dict[str, int],
) -> list[Offer]:
    """Return the algorithms of the first protocol under the other protocols: the same sends at other times."""
    first = next(iter(results))
    offers = []
    for algorithm in (offer.algorithm for offer in _offers(results[first])):
        if algorithm.problem.quotient is not None or len(algorithm.schedule) > most_sends:
            continue
        for name in able:
            # Another protocol's network may lack what switches reduce or multicast.
            if name != first and max(algorithm.schedule.link, default=0) < problems[name].network.ncarriers:
                problem = replace(problems[name], collective=algorithm.problem.collective)
                same_sends = Algorithm(problem, algorithm.schedule, algorithm.engine, "", algorithm.size_bytes)
                offers.append(offer_of(same_sends, least_bytes[name]))
    return offers


def _merged(
    problem: Problem, options: Options, results: dict[str, SearchResult], bounds: dict[str, Bound], pool: Pool
) -> SearchResult:
    """Return the fastest algorithm of all protocols by size, with the bound over all protocols."""
    proved = [(results[name].bound if name in results else bounds[name]).of_protocol(name) for name in bounds]
    first = next(iter(results.values()))
    ended = {result.ended for result in results.values()}
    if "interrupted" in ended:
        pool.stop()
    try:
        with compiled_interrupts():
            ranges = pool.files(options.size)
    except KeyboardInterrupt:
        ended.add("interrupted")
        pool.stop()
        ranges = pool.files(options.size)
    if pool.budget.left_s <= 0:
        ended.add("budget")
    shown = {served.algorithm for served in ranges}
    return SearchResult(
        problem,
        ranges=ranges,
        others=[offer for offer in pool.offers if offer.algorithm not in shown],
        bound=Bound(tuple(witness for bound in proved for witness in bound.witnesses)),
        baselines=[algorithm for result in results.values() for algorithm in result.baselines],
        claims=first.claims,
        impossible=next((result.impossible for result in results.values() if result.impossible), ""),
        refused=pool.refused,
        engine=first.engine,
        queue=tuple(dict.fromkeys(name for result in results.values() for name in result.queue)),
        other_engines=tuple(dict.fromkeys(name for result in results.values() for name in result.other_engines)),
        ended=next((reason for reason in ("interrupted", "budget") if reason in ended), ""),
    )
