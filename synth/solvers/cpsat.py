"""Solve a BooleanModel with CP-SAT (OR-tools)."""

from __future__ import annotations

import math
import time

import numpy as np
from ortools.sat.python import cp_model

from synth.solvers.boolean_model import BooleanModel
from synth.solvers.result import Result, Solution

NAME = "cp-sat"
_FIRST_TRY = 0.05  # CP-SAT's deterministic seconds
_LONGER = 1.5
_MOST_TRIES = 64


def solve(model: BooleanModel, budget_s: float, seed: int, effort: float = math.inf) -> Result:
    """Solve a model: find an assignment or prove that there is none.

    Args:
        model: The model.
        budget_s: Budget in seconds by the clock; a first attempt of at least 0.01 s is made in any case.
        seed: The same model, seed and effort give the same answer, unless the budget ends first.
        effort: Limit of the work in CP-SAT's deterministic seconds (about three by the clock each).

    Returns:
        `feasible` with the values of the first `nasked` variables, `infeasible` (also for fewer rounds than steps,
        where `solver` is not CP-SAT's name but says so), or `unknown` where budget or effort ended.
    """
    start_s = time.monotonic()
    if model.most_rounds < 1:
        return Result("infeasible", None, "fewer rounds than steps")
    cp = cp_model.CpModel()
    rounds = [cp.new_int_var(1, model.most_rounds, "") for _ in range(model.nsteps)]
    cp.add(sum(rounds) == model.nrounds)
    x = [cp.new_bool_var("") for _ in range(model.nvars)]
    for variables in model.exactly_one:
        cp.add_exactly_one([x[v] for v in variables])
    for variables in model.at_most_one:
        if len(variables) > 1:
            cp.add_at_most_one([x[v] for v in variables])
    for v, alternatives in model.implies:
        cp.add_bool_or([x[v].Not(), *(x[y] for y in alternatives)])
    for clause in model.clauses:
        cp.add_bool_or([x[v] if sign else x[v].Not() for v, sign in clause])
    for variables, weights, step, capacity in model.loads:
        load = cp_model.LinearExpr.weighted_sum([x[v] for v in variables], weights)
        cp.add(load <= capacity * rounds[step])
    status = cp_model.UNKNOWN
    spent = 0.0
    for attempt in range(_MOST_TRIES):
        left_s = budget_s - (time.monotonic() - start_s)
        if status != cp_model.UNKNOWN or (attempt and (left_s <= 0 or spent >= effort)):
            break
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = max(0.01, left_s)
        # Some seeds are unlucky by a factor of twenty, so each seed gets a little longer than the one before it.
        limit = min(_FIRST_TRY * _LONGER**attempt, effort - spent)
        solver.parameters.max_deterministic_time = limit
        spent += limit
        solver.parameters.random_seed = seed + attempt
        # Interleaved subsolvers are as quick on these models as racing ones, and give the same answer every time.
        solver.parameters.num_workers = 8
        solver.parameters.interleave_search = True
        status = solver.solve(cp)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        values = np.array([solver.boolean_value(x[v]) for v in range(model.nasked)], dtype=bool)
        return Result("feasible", Solution(values), NAME)
    return Result("infeasible" if status == cp_model.INFEASIBLE else "unknown", None, NAME)
