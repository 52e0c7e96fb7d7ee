"""What every solver answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import Floats


@dataclass(frozen=True)
class Solution:
    """A point that keeps all constraints.

    Attributes:
        values: one a variable, shape (nvars,): bool for a BooleanModel, float for a LinearProgram.
        objective: of the point; nan where nothing is minimised.
        dual_prices: one a row ≥ 0, shape (nrows,); empty where the solver has none.
    """

    values: NDArray[Any]
    objective: float = np.nan
    dual_prices: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Report:
    """How it went: seconds by the clock, and what no solution's objective is below (nan: nothing is known)."""

    runtime_s: float
    dual_bound: float = np.nan


@dataclass(frozen=True)
class Result:
    """A solver's answer.

    Attributes:
        status: `optimal` and `feasible` come with a solution, `infeasible` is a proof that there is none,
            `unknown` is neither (the budget ended, or the solver gave up).
        solver: the name that claims cite.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    solution: Solution | None
    solver: str
    report: Report

    @property
    def gap(self) -> float:
        """(objective - dual bound) / |objective|; nan where one of them is not known."""
        if self.solution is None or self.solution.objective == 0:
            return np.nan
        return (self.solution.objective - self.report.dual_bound) / abs(self.solution.objective)
