"""The engine `one-shot`: an all-reduce in which every rank sums for itself, for short messages on any network.

Sums that meet at one rank and are spread from there cost a path to that rank and a path back. Where every rank adds up
its own sum, no contribution goes further than the longest shortest path, and partial sums are added on the path (where
all ranks are linked, that is the one-shot all-reduce of TensorRT-LLM and MSCCL++). It sends more: a tree for every
rank. For few ranks the trees and their times are improved jointly (`lns`). For many ranks they are routed as the trees
of a reduce-scatter whose shares are whole messages, which the network's symmetry reduces to a quotient.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from synth.bounds.resource_cover import gbs_by_end
from synth.engines.flow.quotients import quotient_of
from synth.engines.flow.routes import ExpectedTime, RouteShape
from synth.engines.flow.search import best_of
from synth.engines.flow.time_expanded_matching import FlowSchedule
from synth.engines.flow.tuning import SEARCH as FLOW
from synth.engines.lns import search as lns
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.collective import one_shot
from synth.model.deadline import now
from synth.model.problem import Problem, make_problem
from synth.model.schedule import Schedule
from synth.symmetry.quotient import expand
from synth.timing.simulate import timed

NAME = "one-shot"
_DEPTHS = (1.0, 0.5)  # of routed trees: 1 prefers short paths, 0.5 balances them with the load
_MOST_PARTS = 8  # of a message, for many ranks
_PASSES, _ORDERS = 6, 6  # of routing, and of list scheduling
_NEAR = 1.003  # time / bound up to which a schedule is not improved
_WORTH = 0.99  # time / time of half as many parts, below which more parts are worth it


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for an all-reduce of one group without a pinned shape.

    A group of many ranks must also have few enough sends.
    """
    if not problem.collective.kind.in_shares:
        return f"{NAME} is for allreduce"
    if problem.nranks <= lns.TUNING.most_ranks:
        return lns.accepts(problem, options).replace(lns.NAME, NAME)
    if problem.quotient is not None or problem.allowed_holders is not None or _sends(problem) > FLOW.expanded:
        return f"{NAME} takes one group with {FLOW.expanded} pairs of ranks at most, and no quotient problems"
    return f"{NAME} takes no shape; leave --chunks, --steps and --rounds out" if options.pinned else ""


def solve(problem: Problem, request: Request) -> Iterator[Outcome]:
    """Yield schedules with a tree for every rank's sum, and progress.

    A size is left out if so many sends would take longer than the best time so far.
    """
    latency_us, us_per_byte = least_time(problem)
    sizes = [size for size in request.sizes if latency_us + us_per_byte * size < request.knowledge.best_us(size)]
    if not sizes:
        return
    problem_of_sums = replace(problem, collective=one_shot(problem.collective))
    if problem.nranks > lns.TUNING.most_ranks:
        yield from _route_sizes(problem, problem_of_sums, replace(request, sizes=tuple(sizes)))
        return
    for outcome in lns.solve(problem_of_sums, replace(request, sizes=tuple(sizes))):
        yield replace(outcome, engine=NAME) if isinstance(outcome, Candidate) else outcome


def _sends(problem: Problem) -> int:
    """Return the least number of sends of a schedule, with one chunk a message."""
    return problem.collective.nranks * (problem.collective.nranks - 1)


def least_time(problem: Problem) -> tuple[float, float]:
    """Return a latency in µs and a time in µs per byte of the message that every schedule of the engine takes.

    Each rank's buffer must leave it for every other rank's sum. Its links carry no more than what they share.
    """
    net, nranks = problem.network, problem.collective.nranks
    of_ranks = (nranks - 1) / (gbs_by_end(net, net.src, net.nranks)[:nranks] * 1e3)
    slowest = max(float(of_ranks.max()), float(_sends(problem) / (net.bandwidth_gbs.sum() * 1e3)))
    return net.start_us + float(net.alpha_us.min()), slowest


def _route_sizes(problem: Problem, problem_of_sums: Problem, request: Request) -> Iterator[Outcome]:
    """Yield for each size a schedule of 1, 2, 4, … parts of the message, where it is faster than all before.

    A size ends when more parts gain too little, the bound is met or the deadline has passed.

    Args:
        problem: The all-reduce.
        problem_of_sums: The same with a sum for every rank, whose chunks are numbered as a reduce-scatter's: rank, then
            part.
        request: The request, with the sizes that are worth a trial.
    """
    shares = make_problem(problem.topology, "reducescatter", problem.group, problem.relays)
    quotient = quotient_of(shares) or shares
    for size in request.sizes:
        most = min(_MOST_PARTS, (request.most_sends or FLOW.expanded) // _sends(problem))
        if request.options.least_bytes:
            most = min(most, size // request.options.least_bytes)
        parts, before_us, enough_us = 1, np.inf, request.bound.at(size)[0] * _NEAR
        while parts <= max(1, most):
            time_us, schedule = _best(quotient.with_chunks(parts), size, request)
            yield Progress(f"one-shot: {parts} parts, {time_us / request.bound.at(size)[0]:.3f} × the bound")
            if time_us < min(before_us * _WORTH, request.knowledge.best_us(size)):
                yield Candidate(problem_of_sums.with_chunks(parts), schedule, NAME, size, supersedes=True)
            if not enough_us < time_us < before_us * _WORTH or now() >= request.deadline:
                break
            before_us, parts = time_us, 2 * parts


def _best(shares: Problem, size: int, request: Request) -> tuple[float, Schedule]:
    """Return the time in µs, with the start of a call, and the schedule of all chunks for the best trees at a size.

    Args:
        shares: Reduce-scatter whose shares are whole messages, or its quotient.
        size: Message size in bytes.
        request: The request.
    """
    starts_us, latency_us = shares.network.start_us, request.bound.at(0.0)[0]
    enough_us, size = request.bound.at(size)[0] * _NEAR - starts_us, size * shares.collective.nranks
    expected = ExpectedTime(latency_us=latency_us - starts_us, enough_us=enough_us)
    schedules: list[FlowSchedule] = []
    for depth in _DEPTHS:
        if not schedules or now() < request.deadline:
            flow_schedule = best_of(
                shares, size, shape=RouteShape(depth), expected=expected, passes=_PASSES, orders=_ORDERS,
                deadline=request.deadline,
            )  # fmt: skip
            schedules.append(flow_schedule)
    best = min(schedules, key=lambda flow_schedule: flow_schedule.took_us)
    schedule = best.schedule
    if shares.quotient is not None:
        _, schedule = expand(shares, timed(shares, schedule, size))
    return best.took_us + starts_us, schedule
