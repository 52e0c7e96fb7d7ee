"""The search where an executor's costs are on: each protocol is a network of its own, and a call has one protocol.

Every protocol's problem is searched as any other, at those sizes at which its bound is near the least; what was found
then competes, each algorithm under the protocol that it was found for: what wins by its schedule's time is lowered,
until all winners are. The bound is the least of the protocols'.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from synth.bounds.prove import Bound, prove
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.search.contest import Contest, Executor
from synth.search.portfolio import compiled_interrupts
from synth.search.result import Report, SearchResult
from synth.search.search import TUNING, Tuning, search
from synth.solvers.workers import Workers
from topologies.errors import InputError


@dataclass(frozen=True)
class ProtocolTuning:
    """Which protocols are searched at which sizes.

    Attributes:
        sizes: message sizes in bytes, the largest first, of which each protocol's are chosen.
        near: a protocol's bound over the least of all, up to which it is searched at a size: what is found above its
            bound is seldom further from it than this.
        most: sizes of a protocol.
        searching: the part of the budget in which schedules are looked for, where an executor's programs are made in
            the rest.
    """

    sizes: tuple[int, ...] = (LARGEST, 16 << 20, 1 << 20, 128 << 10, 16 << 10, SMALLEST)
    near: float = 1.3
    most: int = 3
    searching: float = 0.6


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
    asked = _sizes(bounds, able, chosen.sizes if options.size is None else (options.size,), chosen)
    found: dict[str, SearchResult] = {}
    for place, (name, sizes) in enumerate(asked.items()):
        if found and now() >= until:
            break
        share = replace(options, begun=now(), budget_s=max(until - now(), 0.05) / (len(asked) - place), rank_sends=most)
        try:
            found[name] = search(problems[name], share, workers, report, replace(tuning, sizes=sizes))
        except (InputError, KeyboardInterrupt) as error:
            if not found:
                raise  # what cannot be under this protocol cannot be at all, or there is nothing to show yet
            if isinstance(error, KeyboardInterrupt):
                list(found.values())[-1].ended = "interrupted"
        if name in found and found[name].ended == "interrupted":
            break
    contest = Contest(executor, lambda text: report and report(text, None), begun + options.budget_s)
    contest.contenders = [c for one in found.values() for c in (*(r.contender for r in one.ranges), *one.others)]
    contest.contenders = list({id(c): c for c in contest.contenders}.values())
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
        other_engines=tuple(dict.fromkeys(name for one in found.values() for name in one.other_engines)),
        ended=next((why for why in ("interrupted", "budget") if why in ended), ""),
    )
