"""Solve a LinearProgram with HiGHS, also one with binary variables."""

from __future__ import annotations

import highspy
import numpy as np

from synth.solvers.linear_program import LinearProgram
from synth.solvers.result import Result, Solution

NAME = "HiGHS"
_MOST_NODES = 20_000  # of the tree of a program with binary variables, so that its bound is the same each time


def solve(program: LinearProgram, budget_s: float, interior: bool = False, seed: int = 0) -> Result:
    """Solve a program by the simplex method, or by an interior-point method; with binary variables by branch and bound.

    The simplex method ends in a vertex with nearly exact dual prices.

    Args:
        program: The linear program.
        budget_s: Budget in seconds, at least 0.01.
        interior: Use an interior-point method. It ends only near a solution, but large programs take far less time.
        seed: Seed of branch and bound. The same program and seed give the same answer, unless the budget ends first.

    Returns:
        `optimal` with values, dual prices and the objective as `dual_bound` (near them for `interior`); `infeasible`;
        or `unknown` without a solution, also where the budget ended or the program is unbounded. With binary variables
        `feasible` takes the place of `optimal`: the best solution without dual prices, and a dual bound that holds for
        every solution.
    """
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("time_limit", max(0.01, budget_s))
    if interior:
        highs.setOptionValue("solver", "ipm")
        highs.setOptionValue("run_crossover", "off")
        # The presolve of HiGHS 1.16 may take seconds on programs that it solves in hundredths, and lose dual prices.
        highs.setOptionValue("presolve", "off")
    has_binary = bool(program.binary.any())
    if has_binary:
        highs.setOptionValue("mip_max_nodes", _MOST_NODES)
        highs.setOptionValue("random_seed", seed)
    highs.passModel(_model(program))
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    feasible = info.primal_solution_status == int(highspy.kSolutionStatusFeasible)
    # From 1.16 on HiGHS reports `unknown` for a run without crossover that ends near a solution.
    near = interior and feasible and status == highspy.HighsModelStatus.kUnknown
    if not (feasible if has_binary else near or status == highspy.HighsModelStatus.kOptimal):
        infeasible = status == highspy.HighsModelStatus.kInfeasible
        return Result("infeasible" if infeasible else "unknown", None, NAME)
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    if has_binary:
        return Result("feasible", Solution(values), NAME, info.mip_dual_bound)
    return Result("optimal", Solution(values, np.array(solution.row_dual)), NAME, info.objective_function_value)


def _model(program: LinearProgram) -> highspy.HighsLp:
    """Return a program as a model of HiGHS, whose integer variables are the binary ones."""
    order = np.lexsort((program.row, program.column))
    starts = np.searchsorted(program.column[order], np.arange(len(program.cost) + 1))
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = len(program.cost), len(program.least)
    model.col_cost_ = program.cost
    model.col_lower_ = np.where(program.binary, 0.0, program.low)
    model.col_upper_ = np.where(program.binary, 1.0, program.high)
    model.row_lower_, model.row_upper_ = program.least, program.most
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_ = starts.astype(np.int32)
    model.a_matrix_.index_ = program.row[order].astype(np.int32)
    model.a_matrix_.value_ = program.value[order]
    if program.binary.any():
        kinds = highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger
        model.integrality_ = [kinds[int(is_binary)] for is_binary in program.binary]
    return model
