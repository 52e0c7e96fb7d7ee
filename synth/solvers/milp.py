"""Solve a LinearProgram with binary variables by HiGHS, or by CBC where HiGHS is not installed, through PuLP."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from synth.solvers.linear_program import LinearProgram
from synth.solvers.result import Result, Solution

HIGHS, CBC = "HiGHS", "CBC"
_MOST_NODES = 20_000  # of HiGHS's tree, so that its bound is the same each time unless the budget ends first


def solve(program: LinearProgram, budget_s: float, seed: int, solver: str = "") -> Result:
    """Solve a program and return its solution with a dual bound that holds for every solution.

    Args:
        program: A program with binary variables; HiGHS states no dual bound without them.
        budget_s: Budget in seconds.
        seed: The same program and seed give the same answer, unless the budget ends first.
        solver: HiGHS or CBC; "" for HiGHS. CBC also stands in where HiGHS is not installed.

    Returns:
        `feasible` with the best solution, which may be optimal (compare its cost with `dual_bound`), `infeasible`, or
        `unknown` without a solution. There are no dual prices. `solver` is the one that ran. The dual bound is 0 where
        CBC logs none, which is true only of objectives that cannot be negative.
    """
    model, variables = _build_model(program)
    if (solver or HIGHS) == HIGHS and pulp.HiGHS().available():
        solver = HIGHS
        bound, status = _run_highs(model, budget_s, seed)
    else:
        solver = CBC
        bound, status = _run_cbc(model, budget_s, seed)
    values = [v.value() for v in variables]
    if status == "infeasible":
        return Result("infeasible", None, solver, bound)
    if status == "unknown" or None in values:
        return Result("unknown", None, solver, bound)
    return Result("feasible", Solution(np.array(values, dtype=np.float64)), solver, bound)


def _build_model(program: LinearProgram) -> tuple[Any, list[Any]]:
    """Return PuLP's model and its variables; PuLP orders them by name, continuous ones before binary ones."""
    nvars, nrows = len(program.cost), len(program.least)
    model = pulp.LpProblem("program", pulp.LpMinimize)
    variables = [
        model.add_variable(f"x{v}", cat="Binary")
        if program.binary[v]
        else model.add_variable(f"c{v}", float(program.low[v]), float(program.high[v]))
        for v in range(nvars)
    ]
    model += pulp.LpAffineExpression([(variables[v], float(program.cost[v])) for v in np.flatnonzero(program.cost)])
    order = np.argsort(program.row, kind="stable")
    ends = np.searchsorted(program.row[order], np.arange(nrows + 1))
    for row, (low, high) in enumerate(zip(program.least.tolist(), program.most.tolist(), strict=True)):
        entries = order[ends[row] : ends[row + 1]]
        terms = zip(program.column[entries].tolist(), program.value[entries].tolist(), strict=True)
        total = pulp.LpAffineExpression([(variables[v], value) for v, value in terms])
        if low == high:
            model += total == low
            continue
        if np.isfinite(low):
            model += total >= low
        if np.isfinite(high):
            model += total <= high
    return model, variables


def _run_highs(model: Any, budget_s: float, seed: int) -> tuple[float, str]:
    """Run HiGHS and return (dual bound, "feasible" | "infeasible" | "unknown")."""
    model.solve(pulp.HiGHS(msg=False, timeLimit=budget_s, threads=1, random_seed=seed, mip_max_nodes=_MOST_NODES))
    info = model.solverModel.getInfo()
    status = {1: "feasible", -1: "infeasible"}.get(model.status, "unknown")
    return float(info.mip_dual_bound), "feasible" if info.primal_solution_status == 2 else status


def _run_cbc(model: Any, budget_s: float, seed: int) -> tuple[float, str]:
    """Run CBC and return (dual bound, "feasible" | "infeasible" | "unknown").

    PuLP leaves the dual bound in CBC's log.
    """
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        cbc = pulp.COIN_CMD(
            path=pulp.PULP_CBC_CMD.pulp_cbc_path,
            msg=False,
            timeLimit=budget_s,
            threads=1,
            logPath=log.name,
            options=[f"randomSeed {seed}"],
        )
        model.solve(cbc)
        text = Path(log.name).read_text(encoding="utf-8", errors="replace")
    if model.status == -1:
        return 0.0, "infeasible"
    bounds = re.findall(r"Lower bound:\s+([-0-9.e+]+)", text)
    if model.sol_status == 1 and not bounds:
        return float(model.objective.value()), "feasible"  # CBC logs no bound when it solves the program completely.
    return float(bounds[-1]) if bounds else 0.0, "feasible" if model.sol_status > 0 else "unknown"
