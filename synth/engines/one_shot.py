"""The engine `one-shot`: an all-reduce as a sum of its own for every rank, for short messages on any network.

Sums that meet at one place and are spread from there need the way there and back. Where every rank adds up its own, no
contribution goes further than the longest shortest path, and partial sums are added on the way (where all ranks are
linked that is the one-shot all-reduce of TensorRT-LLM and MSCCL++). It sends more: a tree for every rank. Trees of few
ranks are improved together with their times (`lns`); those of many are routed as the ones of a reduce-scatter whose
shares are whole messages, which the network's symmetry folds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from synth.engines.flow.quotients import quotient_of
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
_DEPTHS = (1.0, 0.5)  # of routed trees: short paths first, then some that mind the load
_MOST_PARTS = 8  # that a message is cut into, for many ranks
_PASSES, _ORDERS = 6, 6  # of routing, and of list scheduling
_NEAR = 1.003  # time / bound that is not improved
_WORTH = 0.99  # of the time that half as many parts take: what parts must come to


def accepts(problem: Problem, options: Options) -> str:
    """All-reduce of one group, not planned by its symmetry; no shape."""
    if not problem.collective.kind.in_shares:
        return f"{NAME} is for allreduce"
    if problem.nranks <= lns.TUNING.most_ranks:
        return lns.accepts(problem, options).replace(lns.NAME, NAME)
    if problem.quotient is not None or problem.allowed is not None or _sends(problem) > FLOW.expanded:
        return f"{NAME} is for one group with {FLOW.expanded} pairs of ranks at most, not planned by its symmetry"
    return f"{NAME} takes no shape; leave --chunks, --steps and --rounds out" if options.pinned else ""


def solve(problem: Problem, request: Request) -> Iterator[Outcome]:
    """Trees for all sums, for sizes at which so many sends may be worth it."""
    bytes_a_us = float(problem.network.bandwidth_gbs.sum()) * 1e3
    sizes = [size for size in request.sizes if _sends(problem) * size / bytes_a_us < request.known.best_us(size)]
    if not sizes:
        return
    apart = replace(problem, collective=one_shot(problem.collective))
    if problem.nranks > lns.TUNING.most_ranks:
        yield from _routed(problem, apart, replace(request, sizes=tuple(sizes)))
        return
    for found in lns.solve(apart, replace(request, sizes=tuple(sizes))):
        yield replace(found, engine=NAME) if isinstance(found, Candidate) else found


def _sends(problem: Problem) -> int:
    """At the least, with one chunk a message."""
    return problem.collective.nranks * (problem.collective.nranks - 1)


def _routed(problem: Problem, apart: Problem, request: Request) -> Iterator[Outcome]:
    """For each size the best trees of more and more parts.

    apart: the problem with a sum for every rank, whose chunks are numbered as a reduce-scatter's: rank, then part.
    """
    shares = make_problem(problem.topology, "reducescatter", problem.group, problem.relays)
    folded = quotient_of(shares) or shares
    for size in request.sizes:
        most = min(_MOST_PARTS, (request.most_sends or FLOW.expanded) // _sends(problem))
        if request.options.least_bytes:
            most = min(most, size // request.options.least_bytes)
        parts, before_us, enough_us = 1, np.inf, request.bound.at(size)[0] * _NEAR
        while parts <= max(1, most):
            took_us, found = _best(folded.with_chunks(parts), size, request)
            yield Progress(f"a sum a rank: {parts} parts, {took_us / request.bound.at(size)[0]:.3f} × the bound")
            if took_us < min(before_us * _WORTH, request.known.best_us(size)):
                yield Candidate(apart.with_chunks(parts), found, NAME, size, supersedes=True)
            if not enough_us < took_us < before_us * _WORTH or now() >= request.deadline:
                break
            before_us, parts = took_us, 2 * parts


def _best(shares: Problem, size: int, request: Request) -> tuple[float, Schedule]:
    """(µs, the schedule of all chunks) of the best trees for a message of `size` bytes; shares: whole messages."""
    starts_us, latency_us = shares.network.start_us, request.bound.at(0.0)[0]
    enough_us, size = request.bound.at(size)[0] * _NEAR - starts_us, size * shares.collective.nranks
    found: list[FlowSchedule] = []
    for depth in _DEPTHS:
        if not found or now() < request.deadline:
            one = best_of(
                shares, size, depth=depth, passes=_PASSES, orders=_ORDERS, enough_us=enough_us,
                latency_us=latency_us - starts_us, deadline=request.deadline,
            )  # fmt: skip
            found.append(one)
    best = min(found, key=lambda one: one.took_us)
    schedule = best.schedule
    if shares.quotient is not None:
        _, schedule = expand(shares, timed(shares, schedule, size))
    return best.took_us + starts_us, schedule
