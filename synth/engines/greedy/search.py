"""The engine `route`: shallow trees for small messages, deeper trees of more chunks for large messages, at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from synth.engines.greedy import route
from synth.engines.greedy.list_scheduling import order_sends
from synth.engines.request import Candidate, Options, Outcome, Progress, Request
from synth.model.problem import LARGEST, SMALLEST, Problem
from synth.phases.split import join, phases


@dataclass(frozen=True)
class GreedyTuning:
    """Settings of the engine.

    Attributes:
        chunks: Chunks a block that are tried for large messages.
        chunks_of_few: The same for few sources, which leave links idle unless their chunks follow each other closely.
        few_sources: Number of sources up to which they are few.
        depths: How much a tree counts the whole path from its root, from 0 (only the load counts) to 1.
        passes: Number of times that all chunks are routed.
    """

    chunks: tuple[int, ...] = (4, 16)
    chunks_of_few: tuple[int, ...] = (8, 64)
    few_sources: int = 2
    depths: tuple[float, ...] = (0.0, 0.5, 1.0)
    passes: int = 3


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for one group without a pinned shape."""
    if problem.quotient is not None or problem.allowed is not None:
        return "route takes one group, and no quotient problems"
    return "route takes no shape; leave --chunks, --steps and --rounds out" if options.pinned else ""


def solve(problem: Problem, request: Request, tuning: GreedyTuning = GreedyTuning()) -> Iterator[Outcome]:
    """Yield a schedule for small messages, and several schedules for large ones.

    The trials follow counted work, not the clock, so that the same question gets the same answer.
    """
    large, small = request.options.size or LARGEST, request.options.size or SMALLEST
    phases_of_problem = phases(problem)
    sources = len(np.unique(phases_of_problem[0].apply(1).collective.pre[:, 0]))
    counts = tuning.chunks_of_few if sources <= tuning.few_sources else tuning.chunks
    trials = [(1, small, 1.0, 1), (1, large, 1.0, tuning.passes), (1, large, 0.5, tuning.passes)]
    trials += [(chunks, large, depth, tuning.passes) for chunks in counts for depth in tuning.depths]
    spent_s, answered = 0.0, False
    for chunks, size, depth, passes in trials:
        spent_s += sum(route.work(phase.apply(chunks)) for phase in phases_of_problem) * passes
        if spent_s > request.work_s and answered:
            continue
        parts = [
            phase.invert(chunks, route.solve(phase.apply(chunks), size, depth, passes)) for phase in phases_of_problem
        ]
        problem_of_chunks = problem.with_chunks(phases_of_problem[0].whole_chunks(chunks))
        schedule = parts[0] if len(parts) == 1 else order_sends(problem_of_chunks, join(*parts), size)
        yield Candidate(problem_of_chunks, schedule, route.NAME, size)
        answered = True
        yield Progress("greedy routing")
