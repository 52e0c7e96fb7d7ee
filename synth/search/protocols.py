"""The search where an executor's costs are on: each protocol is a network of its own, and a call has one protocol.

The first protocol's problem is searched as any other, at those sizes at which its bound is near the least. The others
differ from it in times alone: they get what it found, and what constructive engines make for their own latencies. All
that was found then competes, each algorithm under the protocol that it was found for: what wins by its schedule's time
is lowered, until all winners are. The bound is the least of the protocols'.
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
from synth.search.contest import Contest, Executor, contender
from synth.search.frontier import Contender
from synth.search.portfolio import Turn, compiled_interrupts
from synth.search.result import Report, SearchResult
from synth.search.search import search
from synth.search.tuning import TUNING, Tuning
from synth.solvers.workers import Workers
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError

_AHEAD = Turn("flow", share=0.15, once=True, refined=1_500, most_ranks=8, gap=1.05)


@dataclass(frozen=True)
class ProtocolTuning:
    """Which protocols are searched at which sizes.

    Attributes:
        sizes: message sizes in bytes, the largest first, of which each protocol's are chosen.
        near: a protocol's bound over the least of all, up to which it is searched at a size: what is found above its
            bound is seldom further from it than this.
        most: sizes of a protocol.
        searching: the part of the budget in which schedules are looked for, where an executor's programs are made in
            the rest. first: the part of it that is the first protocol's. exact: of
            this, what exact search may take.
        others: engines that are asked under the others, too.
        taken_over: sends of the schedules that these get from the first.
        ahead: before exact search, which counts steps and rounds and knows nothing of latencies and gaps.
    """

    sizes: tuple[int, ...] = (LARGEST, 16 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10, 16 << 10, SMALLEST)
    near: float = 1.3
    most: int = 4
    searching: float = 0.6
    first: float = 0.75
    exact: float = 0.8
    others: tuple[str, ...] = ("route", "baseline", "switch", "closed", "two-hops", "flow", "lns")
    taken_over: int = 3_000
    ahead: Turn = _AHEAD


PROTOCOL_TUNING = ProtocolTuning()


def search_protocols(
    problem: Problem,
    options: Options,
    workers: Workers,
    report: Report | None = None,
    tuning: Tuning = TUNING,
    executor: Executor | None = None,
    chosen: ProtocolTuning = PROTOCOL_TUNING,
) -> SearchResult:
    """`search` of a problem on which costs are on and no protocol is chosen (`Problem.protocols`).

    executor: what is to run the answers; protocols that it cannot are not searched.  Raises InputError as `search`, and
    where the executor can none of the protocols.
    """
    with collected() as defects:
        result = _search_each(problem, options, workers, report, tuning, executor, chosen)
    result.defects = tuple(defects.values())
    return result


def _search_each(
    problem: Problem,
    options: Options,
    workers: Workers,
    report: Report | None,
    tuning: Tuning,
    executor: Executor | None,
    chosen: ProtocolTuning,
) -> SearchResult:
    """Search the protocols one by one and join what was found."""
    begun = now() if options.begun is None else options.begun
    able = problem.protocols if executor is None else executor.able(problem.protocols)
    if not able:
        names = " ".join(problem.protocols)
        raise InputError(
            f"costs: of {problem.topology.name} are of {names}; it must be a --target that has one of them"
        )
    problems = {name: problem.under(name) for name in problem.protocols}
    bounds = {name: prove(one, max_flow=False) for name, one in problems.items()}
    until = begun + options.budget_s * (1.0 if executor is None else chosen.searching)
    most = None if executor is None else executor.rank_sends
    least = {name: 0 if executor is None else executor.least_bytes(one) for name, one in problems.items()}
    asked = _sizes(bounds, able, chosen.sizes if options.size is None else (options.size,), chosen)
    found: dict[str, SearchResult] = {}
    for place, (name, sizes) in enumerate(asked.items()):
        if found and now() >= until:
            break
        part = 1.0 / (len(asked) - place) if found or len(asked) == 1 else chosen.first
        share = replace(
            options, begun=now(), budget_s=max(until - now(), 0.05) * part, rank_sends=most, least_bytes=least[name]
        )
        its = _tuning(replace(tuning, sizes=sizes, only_sizes=True), options, bool(found), chosen)
        try:
            found[name] = search(problems[name], share, workers, report, its)
        except (InputError, KeyboardInterrupt) as error:
            if not found:
                raise  # what cannot be under this protocol cannot be at all, or there is nothing to show yet
            if isinstance(error, KeyboardInterrupt):
                list(found.values())[-1].ended = "interrupted"
        if name in found and found[name].ended == "interrupted":
            break
    deadline = math.inf if tuning.patient else begun + options.budget_s
    contest = Contest(executor, lambda text: report and report(text, None), deadline)
    contest.contenders = [c for one in found.values() for c in _contenders(one)]
    contest.contenders += _taken_over(problems, found, able, chosen, least)
    contest.begun = begun
    result = _merged(problem, options, found, bounds, contest)
    result.seconds = now() - begun
    return result


def _sizes(
    bounds: dict[str, Bound], able: Sequence[str], sizes: Sequence[int], chosen: ProtocolTuning
) -> dict[str, tuple[int, ...]]:
    """The sizes at which each protocol is searched, the protocol of the least bound at the first size first."""
    least = {size: min(bounds[name].at(size)[0] for name in able) for size in sizes}
    near = {
        name: [size for size in sizes if bounds[name].at(size)[0] <= chosen.near * least[size]][: chosen.most]
        for name in able
    }
    order = sorted((name for name in able if near[name]), key=lambda name: bounds[name].at(near[name][0])[0])
    return {name: tuple(near[name]) for name in sorted(order, key=lambda name: -near[name][0])}


def _tuning(tuning: Tuning, options: Options, again: bool, chosen: ProtocolTuning) -> Tuning:
    """How a protocol is searched: the first with all engines, one `again` with those that mind latencies."""
    if options.engine != AUTO or options.pinned:
        return tuning
    if again:
        turns = tuple(turn for turn in tuning.turns if turn.engine in chosen.others)
        return replace(tuning, turns=turns, others=False)
    # what all protocols share is worth more than what fits the latencies of one
    order = [replace(t, share=chosen.exact) if t.engine == "ksync" else t for t in tuning.turns]
    order.sort(key=lambda turn: turn.engine == "lns")
    at = next((place for place, turn in enumerate(order) if turn.engine == "ksync"), len(order))
    return replace(tuning, turns=(*order[:at], chosen.ahead, *order[at:]))


def _contenders(found: SearchResult) -> list[Contender]:
    """All that a search found and that can be shown, each once."""
    return list({id(c): c for c in (*(served.contender for served in found.ranges), *found.others)}.values())


def _taken_over(
    problems: dict[str, Problem],
    found: dict[str, SearchResult],
    able: Sequence[str],
    chosen: ProtocolTuning,
    least_bytes: dict[str, int],
) -> list[Contender]:
    """What was found under the first protocol, under the others: the same sends at other times."""
    first = next(iter(found))
    made = []
    for one in _contenders(found[first]):
        algorithm = one.algorithm
        if algorithm.problem.quotient is not None or len(algorithm.schedule) > chosen.taken_over:
            continue
        for name in able:
            # what switches sum or multicast may be no part of its network
            if name != first and max(algorithm.schedule.link, default=0) < problems[name].network.ncarriers:
                problem = replace(problems[name], collective=algorithm.problem.collective)
                same = Algorithm(problem, algorithm.schedule, algorithm.engine, "", algorithm.size_bytes)
                made.append(contender(same, least_bytes[name]))
    return made


def _merged(
    problem: Problem, options: Options, found: dict[str, SearchResult], bounds: dict[str, Bound], contest: Contest
) -> SearchResult:
    """All that was found, by size the fastest, under the bound over all protocols."""
    each = [(found[name].bound if name in found else bounds[name]).of_protocol(name) for name in bounds]
    first = next(iter(found.values()))
    ended = {one.ended for one in found.values()}
    if "interrupted" in ended:
        contest.stop()
    try:
        with compiled_interrupts():
            ranges = contest.files(options.size)
    except KeyboardInterrupt:
        ended.add("interrupted")
        contest.stop()
        ranges = contest.files(options.size)
    if now() >= contest.deadline:
        ended.add("budget")
    served = {one.algorithm for one in ranges}
    return SearchResult(
        problem,
        ranges=ranges,
        others=[c for c in contest.contenders if c.algorithm not in served],
        bound=Bound(tuple(w for bound in each for w in bound.witnesses)),
        baselines=[algorithm for one in found.values() for algorithm in one.baselines],
        claims=first.claims,
        impossible=next((one.impossible for one in found.values() if one.impossible), ""),
        refused=contest.refused,
        engine=first.engine,
        queue=tuple(dict.fromkeys(name for one in found.values() for name in one.queue)),
        other_engines=tuple(dict.fromkeys(name for one in found.values() for name in one.other_engines)),
        ended=next((why for why in ("interrupted", "budget") if why in ended), ""),
    )
