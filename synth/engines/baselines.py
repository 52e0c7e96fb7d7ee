"""The engine `baseline`: the algorithms that a vendor's library would run, as one more source of candidates."""

from __future__ import annotations

from collections.abc import Iterator

from synth.baselines import each_baseline
from synth.engines.request import Options, Outcome, Request
from synth.model.problem import Problem


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty for one group, one chunk a block, and free steps and rounds."""
    if problem.quotient is not None or problem.allowed_holders is not None or problem.collective.chunks != 1:
        return "a library's algorithms need one group, no quotient problem and one chunk a block"
    if options.steps is not None or options.rounds is not None:
        return "a library's algorithms have fixed steps and rounds; leave --steps and --rounds out"
    return ""


def solve(problem: Problem, _request: Request) -> Iterator[Outcome]:
    """Yield rings, recursive doubling, two levels and direct sends, as far as they suit this problem."""
    yield from each_baseline(problem)
