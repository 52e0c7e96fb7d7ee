"""Solve a BooleanModel with Z3 (finite-domain solver, pseudo-boolean loads)."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import z3

from synth.solvers.boolean_model import BooleanModel
from synth.solvers.result import Result, Solution

NAME = "z3"
_UNITS_OF_EFFORT = 3_000_000  # of Z3's resource count


def solve(model: BooleanModel, budget_s: float, seed: int, effort: float = math.inf) -> Result:
    """Solve a model: find an assignment or prove that there is none.

    Args:
        model: The model.
        budget_s: Budget in seconds by the clock.
        seed: Seed of Z3's random choices.
        effort: Limit of the work in the unit of `synth.solvers.cpsat`, so that the answer does not depend on the clock.

    Returns:
        `feasible` with the values of the first `nasked` variables, `infeasible` (also for fewer rounds than steps,
        where `solver` is not Z3's name but says so), or `unknown` where budget or effort ended.
    """
    most = model.most_rounds
    if most < 1:
        return Result("infeasible", None, "fewer rounds than steps")
    solver = z3.SolverFor("QF_FD")
    solver.set("timeout", max(1, int(budget_s * 1000)))
    solver.set("random_seed", seed)
    if effort < math.inf:
        solver.set("rlimit", int(effort * _UNITS_OF_EFFORT))
    x = [z3.Bool(f"x{v}") for v in range(model.nvars)]
    # rounds_exceed[s][k] is true if step s has at least k + 2 rounds.
    rounds_exceed = [[z3.Bool(f"r{s}_{k}") for k in range(most - 1)] for s in range(model.nsteps)]
    for row in rounds_exceed:
        for fewer_rounds, more_rounds in pairwise(row):
            solver.add(z3.Implies(more_rounds, fewer_rounds))
    if most > 1:
        solver.add(z3.PbEq([(b, 1) for row in rounds_exceed for b in row], most - 1))
    for variables in model.exactly_one:
        solver.add(z3.PbEq([(x[v], 1) for v in variables], 1))
    for variables in model.at_most_one:
        if len(variables) > 1:
            solver.add(z3.AtMost(*(x[v] for v in variables), 1))
    for v, alternatives in model.implies:
        solver.add(z3.Or([z3.Not(x[v]), *(x[y] for y in alternatives)]))
    for clause in model.clauses:
        solver.add(z3.Or([x[v] if sign else z3.Not(x[v]) for v, sign in clause]))
    for variables, weights, step, capacity in model.loads:
        unused = [(z3.Not(b), capacity) for b in rounds_exceed[step]]
        terms = [(x[v], w) for v, w in zip(variables, weights, strict=True)]
        solver.add(z3.PbLe(terms + unused, capacity * most))
    status = solver.check()
    if status == z3.sat:
        assignment = solver.model()
        values = np.array([z3.is_true(assignment.eval(x[v])) for v in range(model.nasked)], dtype=bool)
        return Result("feasible", Solution(values), NAME)
    return Result("infeasible" if status == z3.unsat else "unknown", None, NAME)
