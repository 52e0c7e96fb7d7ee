"""Solve a LinearProgram without binary variables with HiGHS."""

from __future__ import annotations

import highspy
import numpy as np

from synth.solvers.linear_program import LinearProgram
from synth.solvers.result import Result, Solution

NAME = "HiGHS"


def solve(program: LinearProgram, budget_s: float, interior: bool = False) -> Result:
    """Solve a program by the simplex method, or by an interior-point method.

    The simplex method ends in a vertex with nearly exact dual prices.

    Args:
        program: The linear program; which of its variables are binary is ignored.
        budget_s: Budget in seconds, at least 0.01.
        interior: Use an interior-point method. It ends only near a solution, but large programs take far less time.

    Returns:
        `optimal` with values, dual prices and the objective as `dual_bound` (near them for `interior`); `infeasible`;
        or `unknown` without a solution, also where the budget ended or the program is unbounded.
    """
    order = np.lexsort((program.row, program.column))
    starts = np.searchsorted(program.column[order], np.arange(len(program.cost) + 1))
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(program.cost), len(program.least)
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = program.cost, program.low, program.high
    lp.row_lower_, lp.row_upper_ = program.least, program.most
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = starts.astype(np.int32)
    lp.a_matrix_.index_ = program.row[order].astype(np.int32)
    lp.a_matrix_.value_ = program.value[order]
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", max(0.01, budget_s))
    if interior:
        highs.setOptionValue("solver", "ipm")
        highs.setOptionValue("run_crossover", "off")
        # The presolve of HiGHS 1.16 may take seconds on programs that it solves in hundredths, and lose dual prices.
        highs.setOptionValue("presolve", "off")
    highs.passModel(lp)
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    # From 1.16 on HiGHS reports `unknown` for a run without crossover that ends near a solution.
    feasible = info.primal_solution_status == int(highspy.kSolutionStatusFeasible)
    near = interior and feasible and status == highspy.HighsModelStatus.kUnknown
    if status != highspy.HighsModelStatus.kOptimal and not near:
        infeasible = status == highspy.HighsModelStatus.kInfeasible
        return Result("infeasible" if infeasible else "unknown", None, NAME)
    solution = highs.getSolution()
    point = Solution(np.array(solution.col_value), np.array(solution.row_dual))
    return Result("optimal", point, NAME, info.objective_function_value)
