"""The engine `baseline`: the algorithms that a vendor's library would run, as one more source of candidates."""

from __future__ import annotations

from collections.abc import Iterator

from synth.baselines import each_baseline
from synth.engines.request import Options, Outcome, Request
from synth.model.problem import Problem


def accepts(problem: Problem, options: Options) -> str:
    """Return why the engine refuses a problem, empty where it accepts the problem.

    It accepts a problem of one process group that is no quotient and has one chunk a block, without pinned steps or
    rounds.
    """
    if problem.quotient is not None or problem.allowed_holders is not None or problem.collective.chunks != 1:
        return "a library's algorithms need one group, no quotient problem and one chunk a block"
    if options.steps is not None or options.rounds is not None:
        return "a library's algorithms have fixed steps and rounds; leave --steps and --rounds out"
    return ""


def solve(problem: Problem, _request: Request) -> Iterator[Outcome]:
    """Yield the algorithms of the baselines that suit the problem: rings, recursive doubling, direct sends and more."""
    yield from each_baseline(problem)
