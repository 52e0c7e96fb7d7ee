"""The engine `route`: shallow trees for small messages, deeper trees of more chunks for large messages, at once.

A trial is a few passes of the router of the engine `flow`, and a few list schedules of its sends.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from synth.engines.estimates import estimated_sends
from synth.engines.flow.routes import ExpectedTime, RouteShape
from synth.engines.flow.search import best_of, interpreted_s
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.model.schedule import Schedule
from synth.phases.split import phases

NAME = "route"
_MET = 1.0005  # time / bound up to which a schedule is not improved
_QUICKER = 0.05  # part of the interpreter's time that a trial takes, as large trials are compiled


@dataclass(frozen=True)
class RouteTuning:
    """Settings of the engine.

    Attributes:
        chunks: Chunks a block, or a share of it, that are tried for large messages.
        chunks_of_few: The same for few sources, which leave links idle unless their chunks follow each other closely.
        few_sources: Number of sources up to which they are few.
        depths: How much a tree counts the whole path from its root, from 0 (only the load counts) to 1.
        passes: Number of times that all chunks are routed.
        even_passes: The same for loads that are as even as possible, without regard to latency.
        even_bias: Cost of a byte on an idle link in these passes, as a fraction of its cost on the busiest link.
        orders: Most list schedules of a trial.
    """

    chunks: tuple[int, ...] = (4, 16)
    chunks_of_few: tuple[int, ...] = (8, 64)
    few_sources: int = 2
    depths: tuple[float, ...] = (0.0, 0.5, 1.0)
    passes: int = 3
    even_passes: int = 12
    even_bias: float = 0.01
    orders: int = 8


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for one group without a pinned shape."""
    if problem.quotient is not None or problem.allowed_holders is not None:
        return "route takes one group, and no quotient problems"
    return "route takes no shape; leave --chunks, --steps and --rounds out" if options.pinned else ""


def solve(problem: Problem, request: Request, tuning: RouteTuning = RouteTuning()) -> Iterator[Outcome]:
    """Yield a schedule of few links in a row for small messages, then schedules of more and more chunks for large ones.

    The question's size takes the place of both sizes. The trials follow counted work, not the clock, so that the same
    question gets the same answer. Once there is an answer, trials beyond `request.work_s` are left out, as are refined
    chunks beyond `request.most_sends`. Progress follows every schedule.
    """
    large, small = request.options.size or LARGEST, request.options.size or SMALLEST
    first = phases(problem)[0]
    sources = len(np.unique(first.apply(1).collective.pre[:, 0]))
    counts = tuning.chunks_of_few if sources <= tuning.few_sources else tuning.chunks
    trials = [(1, small, 1.0, 1), (1, large, 1.0, tuning.passes), (1, large, 0.5, tuning.passes)]
    trials += [(chunks, large, depth, tuning.passes) for chunks in counts for depth in tuning.depths]
    spent_s, answered = 0.0, False
    for chunks, size, depth, passes in trials:
        problem_of_chunks = problem.with_chunks(first.whole_chunks(chunks))
        if chunks > 1 and request.most_sends and estimated_sends(problem_of_chunks) > request.most_sends:
            continue
        spent_s += _QUICKER * interpreted_s(problem_of_chunks, passes, tuning.orders)
        if spent_s > request.work_s and answered:
            continue
        shape = RouteShape(depth, narrow=False)
        expected = ExpectedTime.of(request.bound, size, _MET, problem.network.start_us)
        answer = best_of(problem_of_chunks, size, shape=shape, expected=expected, passes=passes, orders=tuning.orders)
        if chunks > 1 and answer.took_us > expected.enough_us:
            # Where latency hardly counts, even loads are better than short paths.
            even_answer = best_of(
                problem_of_chunks,
                size,
                shape=replace(shape, bias=tuning.even_bias),
                expected=ExpectedTime(enough_us=expected.enough_us),
                passes=tuning.even_passes,
                orders=tuning.orders,
            )
            answer = min(answer, even_answer, key=lambda flow_schedule: flow_schedule.took_us)
        yield Candidate(problem_of_chunks, answer.schedule, NAME, size)
        answered = True
        yield Progress("routing for few ranks")


def quick_schedule(problem: Problem, size_bytes: float, depth: float = 0.5) -> Schedule:
    """Return an untimed schedule that is good for messages of `size_bytes`, without a look at the bound.

    Args:
        problem: The problem.
        size_bytes: Message size in bytes.
        depth: 0 for trees that only follow the load, 1 for trees that also count the whole path from the root.

    Raises:
        InputError: If a chunk cannot reach a goal.
    """
    shape = RouteShape(depth, narrow=False)
    return best_of(problem, size_bytes, shape=shape, passes=RouteTuning.passes, orders=RouteTuning.orders).schedule
