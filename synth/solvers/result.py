"""Define the result that every solver returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from synth.model.collective import Floats


@dataclass(frozen=True)
class Solution:
    """A point that meets all constraints.

    Attributes:
        values: Value of each variable of a LinearProgram, float, shape (nvars,); of the first variables of a
            BooleanModel, bool, shape (nasked,).
        dual_prices: Dual price of each row, shape (nrows,): ≥ 0 for a lower limit, ≤ 0 for an upper one, up to
            rounding; empty where the solver has none.
    """

    values: NDArray[Any]
    dual_prices: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Result:
    """A solver's answer.

    Attributes:
        status: `optimal` and `feasible` come with a solution; `infeasible` is a proof that there is none; `unknown`
            means that the budget ended or the solver gave up.
        solution: The solution, or None.
        solver: The solver's name as claims cite it.
        dual_bound: Lower bound on the objective of every solution; nan where none is known or nothing is minimised.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    solution: Solution | None
    solver: str
    dual_bound: float = np.nan
