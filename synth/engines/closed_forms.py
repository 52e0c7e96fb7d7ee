"""The engine `closed`: algorithms that papers state by formula, without a search; and an engine for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from synth.baselines import BASELINES, CLOSED_FORMS
from synth.baselines.fifo import Unordered
from synth.baselines.tree import NAME as TREE
from synth.engines.library import accepts as is_whole
from synth.engines.request import Options, Outcome, Request
from synth.model.deadline import now
from synth.model.problem import Problem
from topologies.errors import NoRoute, TooManySends

_SENDS_A_SECOND = 200_000  # that are ordered, replayed and timed, on a slow machine
_MOST_SENDS = 5_000_000  # some 1 GB


def accepts(problem: Problem, options: Options, form: str = "") -> str:
    """Whole problems of one group, stated with one chunk a block; a form that is named must be for this problem."""
    refused = is_whole(problem, options)
    if refused or not form:
        return refused
    with suppress(TooManySends):
        if not _plans(problem, form, _MOST_SENDS):
            return f"{form} is not for {problem.collective.name} among these {problem.collective.nranks} ranks"
    return ""


def solve(problem: Problem, request: Request, form: str = "") -> Iterator[Outcome]:
    """One form, or all, double binary trees too: the likeliest first, as far as the time is."""
    for name in (form,) if form else (*CLOSED_FORMS, TREE):
        most = int(min(_MOST_SENDS, _SENDS_A_SECOND * max(0.0, request.deadline - now())))
        try:  # no `with`: what interrupts its end where the generator is closed would be raised to nobody
            for plan in _plans(problem, name, most):
                yield from plan.algorithms(request.options.size)
        except TooManySends:
            pass


def _plans(problem: Problem, name: str, most: int) -> list[Unordered]:
    try:
        return BASELINES[name](problem, most)
    except NoRoute:
        return []
