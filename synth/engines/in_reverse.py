"""Find sums of unlike blocks as copies: an engine solves the reverse problem, and its answers are turned back.

A rank passes a copy on once it has it, a sum only when all of its contributions have come. So list scheduling forward
in time leaves links idle before large sums, but not after large copies. Between nodes that differs by a quarter of the
time; where all blocks have one size, sums do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from synth.engines.request import Candidate, Outcome, Request, SearchKnowledge
from synth.model.problem import Problem
from synth.phases.reversal import reverse, reversible, unreverse


def solved(
    solve: Callable[[Problem, Request], Iterator[Outcome]], problem: Problem, request: Request
) -> Iterator[Outcome]:
    """Yield what an engine finds, for the reverse of a problem where that gains, with every schedule turned back.

    Args:
        solve: The engine.
        problem: The problem.
        request: The request to the engine.
    """
    if not _gains(problem):
        yield from solve(problem, request)
        return
    knowledge = _KnowledgeInReverse(request.knowledge)
    for outcome in solve(reverse(problem), replace(request, knowledge=knowledge)):
        if not isinstance(outcome, Candidate):
            yield outcome
            continue
        whole = problem.with_chunks(outcome.problem.collective.chunks)
        turned = replace(outcome, problem=whole, schedule=unreverse(whole, outcome.schedule))
        knowledge.latest = outcome, turned
        yield turned


def _gains(problem: Problem) -> bool:
    """Return whether the reverse problem is likely to be solved better.

    That is so for sums with one goal each, in blocks of unlike sizes, in a network where messages have gaps.
    """
    is_uneven = problem.quotient is None and problem.collective.block is not None
    return is_uneven and bool(len(problem.network.gap_us)) and reversible(problem.collective)


@dataclass
class _KnowledgeInReverse(SearchKnowledge):
    """What is known of a problem, for an engine that solves the reverse.

    Attributes:
        known: What is known of the problem.
        latest: The engine's latest candidate, and the same turned back; None before the first.
    """

    known: SearchKnowledge
    latest: tuple[Candidate, Candidate] | None = None

    def best_us(self, size_bytes: float) -> float:
        """Return the best time so far, in µs; inf where there is none."""
        return self.known.best_us(size_bytes)

    def time_us(self, candidate: Candidate) -> float:
        """Return the time of the latest candidate, in µs; inf where it is useless, and for all others."""
        if self.latest is None or candidate is not self.latest[0]:
            return float("inf")
        return self.known.time_us(self.latest[1])

    def fewest_steps(self) -> int | None:
        """Return the fewest steps of any algorithm so far; None where there is no algorithm."""
        return self.known.fewest_steps()

    def shown_bytes(self) -> list[int]:
        """Return the message sizes in bytes at which answers are shown."""
        return self.known.shown_bytes()
