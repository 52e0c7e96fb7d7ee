"""The engine `steiner`: trees through relays and over shared links at the throughput optimum, pipelined.

Bytes go over trees of links, through relays too where these help (Steiner trees). Sums go up one tree, and results go
down another tree from its root. A linear program shares the message out among all trees of some depth (`packing`):
shallow trees have less latency, deep trees balance the load better. At middle sizes other trees fill the idle time at
the beginning and the end (`over_time`). Fractions become whole chunks (`whole_trees`), as many as suit the size. All
their sends are one list schedule, so that sends up and down different trees share the links at any time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from synth.engines.estimates import estimated_sends
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.engines.steiner.over_time import OverTime
from synth.engines.steiner.packing import Packing, demands
from synth.engines.steiner.tuning import TUNING, SteinerTuning
from synth.engines.steiner.whole_trees import chunks_of_demands, sends_of, shared_out
from synth.model.compiled import Runner, choose_runner
from synth.model.deadline import now
from synth.model.problem import Problem
from synth.model.text import format_count

STEINER = "steiner"
_MET = 1.0005  # time / bound up to which a schedule is not improved
_ROUND_OFF = 1e-9
_SEND_S = 0.02  # Seconds that the interpreter takes for one size and each send of whole blocks, over all trials.


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty where it accepts the problem.

    It accepts few ranks with few sets of chunks with the same ends (`TUNING` has the limits), without pinned chunks,
    steps or rounds, quotient, shared network or choice of protocols.
    """
    if options.pinned:
        return "steiner pins no chunks, steps or rounds; leave --chunks, --steps and --rounds out"
    if problem.quotient is not None or problem.allowed_holders is not None or problem.protocols:
        return "steiner takes no quotients, no shared networks and one protocol of an executor's costs at a time"
    if problem.nranks > TUNING.most_ranks:
        return f"steiner takes at most {TUNING.most_ranks} ranks, relays included; this problem has {problem.nranks}"
    chunk_sets = demands(problem) if problem.collective.nchunks <= TUNING.most_chunks else []
    if not 0 < len(chunk_sets) <= TUNING.most_demands:
        return (
            f"steiner takes up to {TUNING.most_demands} sets of chunks with the same ends; here are {len(chunk_sets)}"
        )
    ends = {*np.concatenate([[*d.goals, *(d.holders if d.sums else ())] for d in chunk_sets]).tolist()}
    if len(ends) > TUNING.most_ends:
        return f"steiner takes at most {TUNING.most_ends} ranks that send or receive; here are {len(ends)}"
    return ""


def solve(
    problem: Problem, request: Request, tuning: SteinerTuning = TUNING, run: Runner | None = None
) -> Iterator[Outcome]:
    """Yield schedules of more and more chunks for each size, as long as they gain, and progress.

    Args:
        problem: The problem.
        request: The request.
        tuning: Settings of the engine.
        run: Runner of the loops; None to interpret them while that takes less time than to load the compiled ones.
    """
    run = run or choose_runner(_SEND_S * min(estimated_sends(problem), tuning.most_sends) * len(request.sizes))
    for size in request.sizes:
        bulk = request.bound.at(size)[0] > tuning.bulk * request.bound.at(0)[0]
        packing = Packing(problem, run, request.workers, tuning, bulk)
        yield from _solve_size(problem, packing, request, size, tuning)


def _solve_size(
    problem: Problem, packing: Packing, request: Request, size: int, tuning: SteinerTuning
) -> Iterator[Outcome]:
    """Yield schedules of more and more chunks for one message size, at last of trees over time, and progress.

    It ends where a time is near the bound, the deadline comes, or more chunks gain nothing. Its own times leave out the
    time of a call before its first send.

    Args:
        problem: The problem.
        packing: The packing for this size; changes.
        request: The request.
        size: Message size in bytes.
        tuning: Settings of the engine.
    """
    net, starts_us = problem.network, problem.network.start_us
    largest_kb = float(problem.collective.fraction.max()) * size * 1e-3
    best_us, time_us, idle = np.inf, request.bound.at(size)[0] - starts_us, 0
    hold = float((1 / net.bandwidth_gbs).mean())
    sends_of_part = sum(len(d.chunks) * (len(d.goals) + len(d.holders)) for d in packing.demands)
    most_sends = request.most_sends or tuning.most_sends
    counts = _counts(tuning, most_sends // max(1, sends_of_part), for_programs=request.most_sends > 0)
    for parts in counts:
        best_known_us, least_us = request.knowledge.best_us(size) - starts_us, request.bound.at(size)[0] - starts_us
        sends = parts * sends_of_part
        too_small = largest_kb * 1e3 / parts < (request.options.least_bytes or 0)
        is_late = now() + sends * tuning.s_a_send > request.deadline
        if best_known_us <= _MET * least_us:
            return
        if parts > 1 and (too_small or is_late):
            break
        if tuning.hops * largest_kb / parts * hold > tuning.under_way * least_us:
            continue  # The last chunks would be in flight for too long.
        packing.retime(net.alpha_us + largest_kb / parts / net.bandwidth_gbs)
        stop = min(request.deadline, now() + tuning.patience * request.options.budget_s)
        time_us = packing.least_us(size, min(time_us, 2 * best_known_us), stop)
        if not np.isfinite(time_us):
            return
        yield Progress(
            f"Steiner trees: {format_count(parts, 'chunk')}, {time_us / max(least_us, 1e-9):.4f} × the bound, as a flow"
        )
        if time_us > tuning.hopeful * best_known_us:
            continue
        problem_of_parts = problem.with_chunks(parts)
        chunks = chunks_of_demands(packing, problem_of_parts)
        tree_sends = sends_of(packing, problem_of_parts, chunks, size, shared_out(packing, chunks, tuning.swaps))[0]
        if tree_sends.busiest_us >= best_known_us:
            continue
        schedule_us, schedule = tree_sends.ordered(least_us, tuning.orders, request.deadline)
        if schedule_us < best_known_us * (1 - _ROUND_OFF):
            yield Candidate(problem_of_parts, schedule, STEINER, size, True)
        idle = 0 if schedule_us < best_us / tuning.near_count else idle + 1
        best_us = min(best_us, schedule_us)
        if idle > tuning.idle:
            break
    under_way_us = float(packing.part @ packing.latency_us) / max(float(packing.part.sum()), _ROUND_OFF)
    if not packing.bulk and under_way_us > tuning.unsteady * packing.time_us:
        # Chunks that are in flight so shortly that trees over time are worth a search.
        fine = [parts for parts in counts if tuning.hops * largest_kb / parts * hold < tuning.fine * time_us]
        least_bytes = request.options.least_bytes or 0
        yield from _over_time(
            packing, request, size, [parts for parts in fine if largest_kb * 1e3 / parts >= least_bytes]
        )


def _counts(tuning: SteinerTuning, most: int, for_programs: bool) -> list[int]:
    """Return numbers of chunks, and as the last the most that fit, if that is many more than the one before.

    For programs all are powers of two, because programs need chunks that divide the usual message sizes.
    """
    counts = tuning.program_counts if for_programs else tuning.counts
    fitting = [count for count in counts if count <= max(1, most)]
    last = 1 << most.bit_length() - 1 if for_programs and most else most
    return [*fitting, last] if fitting[-1] < counts[-1] and last > tuning.many_more * fitting[-1] else fitting


def _over_time(packing: Packing, request: Request, size: int, counts: list[int]) -> Iterator[Outcome]:
    """Yield schedules of trees that change over time, after the schedules of trees at a steady rate.

    Args:
        packing: The packing, with the trees for the steady rate.
        request: The request.
        size: Message size in bytes.
        counts: Numbers of chunks a block to try, ascending.
    """
    problem, net, tuning, starts_us = packing.problem, packing.net, packing.tuning, packing.net.start_us
    largest_kb = float(problem.collective.fraction.max()) * size * 1e-3
    over_time, best_us = OverTime(packing, size), np.inf
    stop = min(request.deadline, now() + request.options.budget_s)
    for parts in counts:
        packing.retime(net.alpha_us + largest_kb / parts / net.bandwidth_gbs)
        least_us = request.bound.at(size)[0] - starts_us
        from_us = min(packing.time_us, over_time.time_us)  # Smaller chunks are in flight for less time.
        for _ in over_time.steps(from_us, least_us, stop):
            ratio = over_time.time_us / max(least_us, 1e-9)
            yield Progress(
                f"Steiner trees over time: {format_count(parts, 'chunk')}, {ratio:.4f} × the bound, as a flow"
            )
        best_known_us = request.knowledge.best_us(size) - starts_us
        if best_known_us <= _MET * least_us or not over_time.time_us < best_known_us:
            return
        problem_of_parts = problem.with_chunks(parts)
        chunks = chunks_of_demands(packing, problem_of_parts)
        tree_sends, begins_us = sends_of(packing, problem_of_parts, chunks, size, *over_time.begun(chunks))
        schedule_us, schedule = tree_sends.ordered(least_us, tuning.orders, request.deadline, begins_us)
        if schedule_us < best_known_us * (1 - _ROUND_OFF):
            yield Candidate(problem_of_parts, schedule, STEINER, size, True)
        if now() + len(schedule) * 3 * tuning.s_a_send > request.deadline or schedule_us * tuning.near_count > best_us:
            return
        best_us = schedule_us
