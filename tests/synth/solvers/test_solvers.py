"""One Result behind every solver: a feasible model comes with a point, an infeasible one with a proof."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from synth.solvers import SOLVERS, Solver, is_available
from synth.solvers.boolean_model import BooleanModel
from synth.solvers.linear_program import LinearProgram, ProgramBuilder
from synth.solvers.result import Result
from synth.solvers.workers import Workers


def answer(workers: Workers, solver: str, *question: object) -> Result:
    result = workers.answer(time.monotonic() + 60, solver, *question)
    assert result is not None
    return result


def loads(capacity: int) -> BooleanModel:
    """Build a model of two variables of weight 2 and 3 in two steps of one round each, exactly one of each pair."""
    model = BooleanModel(2, 2, 4, 4, exactly_one=[[0, 1], [2, 3]])
    model.loads = [([0, 2], [2, 3], 0, capacity), ([1, 3], [2, 3], 1, capacity)]
    return model


@pytest.mark.parametrize("solver", ["cpsat", "smt"])
def test_boolean_models(workers: Workers, solver: str) -> None:
    result = answer(workers, solver, loads(3), 20.0, 0)
    assert result.status == "feasible"
    assert result.solution is not None
    a, b, c, d = result.solution.values.tolist()
    assert (a, b) != (c, d)
    assert a != b
    assert c != d
    assert np.isnan(result.dual_bound)
    refuted = answer(workers, solver, loads(2), 20.0, 0)
    assert (refuted.status, refuted.solution) == ("infeasible", None)
    too_few = answer(workers, solver, BooleanModel(3, 2), 20.0, 0)
    assert too_few.status == "infeasible"


def knapsack(binary: bool) -> LinearProgram:
    """Build a knapsack of capacity 5 for items of weight 2, 3 and 4; fractions are allowed where not binary."""
    program = ProgramBuilder()
    things = np.concatenate([program.add_variables(1, 1.0, cost=-worth, binary=binary) for worth in (3, 4, 6)])
    program.add_rows(np.array([-np.inf]), (np.zeros(3, dtype=np.int64), things, np.array([2.0, 3.0, 4.0])), most=5.0)
    return program.build()


@pytest.mark.parametrize(("binary", "least"), [(False, -7.5), (True, -7.0)])
def test_linear_programs(workers: Workers, binary: bool, least: float) -> None:
    program = knapsack(binary)
    result = answer(workers, "linear", program, 20.0)
    assert result.status == ("feasible" if binary else "optimal")
    assert result.solution is not None
    assert program.cost @ result.solution.values == pytest.approx(least)
    assert result.dual_bound == pytest.approx(least)
    assert result.solution.dual_prices == pytest.approx([] if binary else [-1.5])
    never = replace(program, least=np.array([30.0]), most=np.array([40.0]))
    assert answer(workers, "linear", never, 20.0).status == "infeasible"


def test_binary_variables_have_limits_of_their_own(workers: Workers) -> None:
    """Check that a variable is 0 or 1 whatever its limits say, next to one with fractions."""
    program = ProgramBuilder()
    program.add_variables(1, 9.0, low=-9.0, cost=-1.0, binary=True)
    program.add_variables(1, 2.5, cost=-1.0)
    result = answer(workers, "linear", program.build(), 20.0)
    assert result.solution is not None
    assert result.solution.values == pytest.approx([1.0, 2.5])
    assert result.dual_bound == pytest.approx(-3.5)


def test_a_solver_that_is_not_installed_fails_at_once(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(is_available(name) for name in SOLVERS)
    monkeypatch.setitem(SOLVERS, "other", Solver("synth.solvers.other", "no_such_library"))
    assert not is_available("other")
    ticket = workers.ask("other", 1)
    assert workers.first([ticket], time.monotonic()) is ticket
    assert ticket.failure == "no_such_library is not installed"
    assert workers.answer(time.monotonic() + 5, "other", 1) is None
