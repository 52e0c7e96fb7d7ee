"""Linear programs with HiGHS, in a child process."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.collective import Floats, Ints


@dataclass(frozen=True)
class LinearProgram:
    """Minimise cost·x subject to rows·x ≥ least, low ≤ x ≤ high; rows as triplets (row, column, value)."""

    cost: Floats
    low: Floats
    high: Floats
    least: Floats
    row: Ints
    column: Ints
    value: Floats


@dataclass(frozen=True)
class LinearAnswer:
    """Optimum, point and row prices (duals, ≥ 0); `solved` is False when the budget ended first."""

    solved: bool
    infeasible: bool
    value: float
    x: Floats
    price: Floats


def warm() -> None:
    """Load the solver ahead of the first question."""
    import highspy  # noqa: F401


def solve(program: LinearProgram, budget_s: float) -> LinearAnswer:
    """Solve with the simplex method, which ends in a vertex and exact-looking prices."""
    import highspy

    order = np.lexsort((program.row, program.column))
    starts = np.searchsorted(program.column[order], np.arange(len(program.cost) + 1))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.least)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.low, program.high
    lp.row_lower_, lp.row_upper_ = program.least, np.full(len(program.least), highspy.kHighsInf)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = starts.astype(np.int32)
    lp.a_matrix_.index_ = program.row[order].astype(np.int32)
    lp.a_matrix_.value_ = program.value[order]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", max(0.01, budget_s))
    highs.passModel(lp)
    highs.run()
    status = highs.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        none = np.zeros(0)
        return LinearAnswer(False, status == highspy.HighsModelStatus.kInfeasible, 0.0, none, none)
    solution = highs.getSolution()
    return LinearAnswer(
        True,
        False,
        highs.getInfo().objective_function_value,
        np.array(solution.col_value),
        np.array(solution.row_dual),
    )
