"""The engine `closed`: algorithms that papers state by formula, without a search; and one engine for each of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from synth.baselines import BASELINES, CLOSED_FORMS
from synth.baselines.algorithms.tree import NAME as TREE
from synth.baselines.fifo import Unordered
from synth.engines.baselines import accepts as is_whole
from synth.engines.request import Options, Outcome, Request
from synth.model.deadline import now
from synth.model.problem import Problem
from topologies.errors import NoRoute, TooManySends

_SENDS_A_SECOND = 200_000  # ordered, replayed and timed, on a slow machine
_MOST_SENDS = 5_000_000  # about 1 GB of memory


@dataclass(frozen=True)
class ClosedForms:
    """The engine of one closed form, or of all.

    Attributes:
        form: Name of one of `BASELINES`; empty for all closed forms, of which none need suit the problem.
    """

    form: str

    def accepts(self, problem: Problem, options: Options) -> str:
        """Return why the form does not suit a problem, empty for a whole problem that it suits.

        A form with too many sends is accepted, but `solve` leaves it out.
        """
        refused = is_whole(problem, options)
        if refused or not self.form:
            return refused
        with suppress(TooManySends):
            if not _plans(problem, self.form, _MOST_SENDS):
                return (
                    f"{self.form} is not for {problem.collective.name} among these {problem.collective.nranks} ranks; "
                    "--engine closed takes the forms that are"
                )
        return ""

    def solve(self, problem: Problem, request: Request) -> Iterator[Outcome]:
        """Yield the algorithms of the form, or of all closed forms and double binary trees.

        A form with more sends than the remaining time allows is left out.
        """
        for name in (self.form,) if self.form else (*CLOSED_FORMS, TREE):
            most = int(min(_MOST_SENDS, _SENDS_A_SECOND * max(0.0, request.deadline - now())))
            try:  # Not `suppress`: an interrupt while its `with` block ends on a closed generator would be lost.
                for plan in _plans(problem, name, most):
                    yield from plan.algorithms(request.options.size)
            except TooManySends:
                pass


def _plans(problem: Problem, name: str, most: int) -> list[Unordered]:
    """Return the plans of one of `BASELINES`, none where the network lacks a route that the baseline needs.

    Raises:
        TooManySends: If a plan has more than `most` sends.
    """
    try:
        return BASELINES[name](problem, most)
    except NoRoute:
        return []
