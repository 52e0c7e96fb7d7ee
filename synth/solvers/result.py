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
        dual_prices: one a row ≥ 0, shape (nrows,); empty where the solver has none.
    """

    values: NDArray[Any]
    dual_prices: Floats = field(default_factory=lambda: np.zeros(0))


@dataclass(frozen=True)
class Result:
    """A solver's answer.

    Attributes:
        status: `optimal` and `feasible` come with a solution, `infeasible` is a proof that there is none,
            `unknown` is neither (the budget ended, or the solver gave up).
        solver: the name that claims cite.
        dual_bound: what no solution's objective is below; nan where nothing is known or minimised.
    """

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    solution: Solution | None
    solver: str
    dual_bound: float = np.nan
