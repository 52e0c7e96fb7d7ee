"""The engine `steiner`: trees through relays and over shared links at the throughput optimum, pipelined.

Bytes go over trees of links, through relays too where these help (Steiner trees), sums up a tree and from where it ends
down another. How to share the message out among all trees of some depth is a linear program (`packing`); shallow trees
have less latency, deep ones spread the load better; at middle sizes other trees fill what is idle at the beginning and
the end (`over_time`). Fractions become whole chunks (`whole_trees`), as many as the size
wants, and all their sends one list schedule, so that what goes up and down different trees at a time shares the links.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.engines.steiner.over_time import OverTime
from synth.engines.steiner.packing import Packing, demands
from synth.engines.steiner.tuning import TUNING, Tuning
from synth.engines.steiner.whole_trees import sends_of, shared_out
from synth.model.compiled import Runner
from synth.model.deadline import now
from synth.model.problem import Problem

STEINER = "steiner"
_MET = 1.0005  # time / bound that is not improved
_ROUND_OFF = 1e-9


def accepts(problem: Problem, options: Options) -> str:
    """Groups of few ranks with few sets of chunks that have the same ends; no shape."""
    if options.pinned:
        return "steiner pins no chunks, steps or rounds; leave --chunks, --steps and --rounds out"
    if problem.quotient is not None or problem.allowed is not None or problem.protocols or len(problem.network.gap_us):
        return "it knows no quotients, no shared networks and no executor's costs"
    if problem.nranks > TUNING.most_ranks:
        return f"it is for {TUNING.most_ranks} ranks at most, relays too; there are {problem.nranks}"
    wanted = demands(problem) if problem.collective.nchunks <= TUNING.most_chunks else []
    if not 0 < len(wanted) <= TUNING.most_demands:
        return f"it is for up to {TUNING.most_demands} sets of chunks with the same ends; there are {len(wanted)}"
    if min(d.amount for d in wanted) < TUNING.least_amount:
        return f"it is for sets of {TUNING.least_amount:g} of the message at least; solvers lose less"
    ends = {*np.concatenate([[*d.goals, *(d.holders if d.sums else ())] for d in wanted]).tolist()}
    if len(ends) > TUNING.most_ends:
        return f"it looks at all sets of {TUNING.most_ends} ranks at most; here {len(ends)} send or receive"
    return ""


def solve(problem: Problem, request: Request, tuning: Tuning = TUNING, run: Runner | None = None) -> Iterator[Outcome]:
    """Schedules of more and more chunks for each size, as long as they gain."""
    for size in request.sizes:
        bulk = request.bound.at(size)[0] > tuning.bulk * request.bound.at(0)[0]
        packing = Packing(problem, run or Runner(interpreted=False), request.workers, tuning, bulk)
        yield from _refined(problem, packing, request, size, tuning)


def _refined(problem: Problem, packing: Packing, request: Request, size: int, tuning: Tuning) -> Iterator[Outcome]:
    """Of one size; times are without what a call takes before it sends."""
    net, starts_us = problem.network, problem.network.start_us
    largest_kb = float(problem.collective.fraction.max()) * size * 1e-3
    best_us, time_us, idle = np.inf, request.bound.at(size)[0] - starts_us, 0
    hold = float((1 / net.bandwidth_gbs).mean())
    each = sum(len(d.chunks) * (len(d.goals) + len(d.holders)) for d in packing.demands)
    most_sends = request.most_sends or tuning.most_sends
    counts = _counts(tuning, most_sends // max(1, each))
    for parts in counts:
        known_us, least_us = request.known.best_us(size) - starts_us, request.bound.at(size)[0] - starts_us
        sends = parts * each
        too_small = largest_kb * 1e3 / parts < (request.options.least_bytes or 0)
        late = now() + sends * tuning.s_a_send > request.deadline
        if known_us <= _MET * least_us:
            return
        if parts > 1 and (too_small or late):
            break
        if tuning.hops * largest_kb / parts * hold > tuning.under_way * least_us:
            continue  # what comes last is too long under way
        packing.retime(net.alpha_us + largest_kb / parts / net.bandwidth_gbs)
        until = min(request.deadline, now() + tuning.patience * request.options.budget_s)
        time_us = packing.least_us(size, min(time_us, 2 * known_us), until)
        if not np.isfinite(time_us):
            return
        yield Progress(f"Steiner trees: {parts} chunks, {time_us / max(least_us, 1e-9):.4f} × the bound as flows")
        if time_us > tuning.hopeful * known_us:
            continue
        cut = problem.with_chunks(parts)
        planned = sends_of(packing, cut, parts, size, shared_out(packing, parts, tuning.swaps))[0]
        if planned.busiest_us >= known_us:
            continue
        took_us, schedule = planned.ordered(least_us, tuning.orders, request.deadline)
        if took_us < known_us * (1 - _ROUND_OFF):
            yield Candidate(cut, schedule, STEINER, size, True)
        idle = 0 if took_us < best_us / tuning.near_count else idle + 1
        best_us = min(best_us, took_us)
        if idle > tuning.idle:
            break
    under_way_us = float(packing.part @ packing.latency_us) / max(float(packing.part.sum()), _ROUND_OFF)
    if not packing.bulk and under_way_us > tuning.unsteady * packing.time_us:
        # chunks that are under way for so short that it is worth looking at time
        fine = [parts for parts in counts if tuning.hops * largest_kb / parts * hold < tuning.fine * time_us]
        least_bytes = request.options.least_bytes or 0
        yield from _over_time(
            packing, request, size, [parts for parts in fine if largest_kb * 1e3 / parts >= least_bytes]
        )


def _counts(tuning: Tuning, most: int) -> list[int]:
    """Numbers of chunks, and as the last the most that there may be, where that is many more than the one before."""
    fit = [count for count in tuning.counts if count <= max(1, most)]
    return [*fit, most] if fit[-1] < tuning.counts[-1] and most > tuning.many_more * fit[-1] else fit


def _over_time(packing: Packing, request: Request, size: int, counts: list[int]) -> Iterator[Outcome]:
    """Schedules of trees that change over time, where those at a steady rate have been made."""
    problem, net, tuning, starts_us = packing.problem, packing.net, packing.tuning, packing.net.start_us
    largest_kb = float(problem.collective.fraction.max()) * size * 1e-3
    over_time, best_us = OverTime(packing, size), np.inf
    until = min(request.deadline, now() + request.options.budget_s)
    for parts in counts:
        packing.retime(net.alpha_us + largest_kb / parts / net.bandwidth_gbs)
        least_us = request.bound.at(size)[0] - starts_us
        from_us = min(packing.time_us, over_time.time_us)  # shorter chunks are under way for less
        for _ in over_time.steps(from_us, least_us, until):
            ahead = over_time.time_us / max(least_us, 1e-9)
            yield Progress(f"Steiner trees over time: {parts} chunks, {ahead:.4f} × the bound as flows")
        known_us = request.known.best_us(size) - starts_us
        if known_us <= _MET * least_us or not over_time.time_us < known_us:
            return
        cut, begun = problem.with_chunks(parts), over_time.begun(parts)
        planned, begins_us = sends_of(
            packing, cut, parts, size, [one.trees for one in begun], [one.at_us for one in begun]
        )  # fmt: skip
        took_us, schedule = planned.ordered(least_us, tuning.orders, request.deadline, begins_us)
        if took_us < known_us * (1 - _ROUND_OFF):
            yield Candidate(cut, schedule, STEINER, size, True)
        if now() + len(schedule) * 3 * tuning.s_a_send > request.deadline or took_us * tuning.near_count > best_us:
            return
        best_us = took_us
