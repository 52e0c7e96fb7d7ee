"""Solver processes: killed when late, noticed when dead, gone when the pool is closed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from synth import synthesize
from synth.model.deadline import now
from synth.solvers.boolean_model import BooleanModel
from synth.solvers.workers import Ticket, Workers

pytestmark = pytest.mark.usefixtures("plain_pools")


def _hard() -> BooleanModel:
    """Build a pigeonhole model, which resolution needs exponential time to refute."""
    holes, pigeons = 14, 15
    x = np.arange(holes * pigeons).reshape(pigeons, holes)
    model = BooleanModel(1, 1, x.size, x.size)
    model.clauses = [[(int(v), True) for v in row] for row in x]
    model.clauses += [
        [(int(x[a, h]), False), (int(x[b, h]), False)] for h in range(holes) for a in range(pigeons) for b in range(a)
    ]
    return model


def test_a_late_solver_is_dropped_and_the_pool_goes_on() -> None:
    with Workers() as pool:
        ticket = pool.ask("smt", _hard(), 1e5, 0)
        assert pool.first([ticket], time.monotonic() + 0.5) is None
        pool.drop(ticket)
        easy = BooleanModel(1, 1, 1, 1, [[0]])
        again = pool.ask("smt", easy, 5.0, 0)
        ready = pool.first([again], time.monotonic() + 20)
        assert ready is again
        assert again.reply is not None
        assert again.reply.status == "feasible"


def test_a_dead_solver_is_noticed() -> None:
    with Workers() as pool:
        ticket = pool.ask("smt", _hard(), 1e5, 0)
        os.kill(pool._busy[ticket].process.pid, 9)
        ready = pool.first([ticket], time.monotonic() + 20)
        assert ready is ticket
        assert "died" in ticket.failure


def test_solvers_that_always_fail_cost_no_answer() -> None:
    class Broken(Workers):
        def ask(self, solver: str, *_: object) -> Ticket:
            return super().ask(solver, "no question")

    with Broken() as pool:
        answer = synthesize("allgather", "ring:4", budget=1, workers=pool)
    assert answer.result.ranges
    assert not any(claim.best for claim in answer.result.claims)


def test_two_idle_children_of_a_solver_are_kept() -> None:
    with Workers() as pool:
        first = [pool.ask("smt", "no question") for _ in range(3)]
        used = {child.process.pid for child in pool._busy.values()}
        for ticket in first:
            assert pool.first([ticket], now() + 60) is ticket
        idle = [child.process.pid for child in pool._idle["smt"]]
        assert len(idle) == 2
        assert set(idle) < used
        again = [pool.ask("smt", "no question") for _ in range(2)]
        assert {pool._busy[ticket].process.pid for ticket in again} == set(idle)


def test_closing_the_pool_leaves_no_process() -> None:
    with Workers(("smt", "linear")) as pool:
        pool.ask("smt", _hard(), 1e5, 0)
        processes = [c.process for c in [*chain.from_iterable(pool._idle.values()), *pool._busy.values()]]
        assert len(processes) == 2  # One is idle.
    assert all(p.poll() is not None for p in processes)


# It prints whether pandas was loaded with a solver's module, and with one that needs pandas.
_IMPORTS = """
import sys
from synth.solvers.worker import _import_fast
_import_fast("synth.solvers.cpsat")
print("pandas" in sys.modules)
sys.path.insert(0, sys.argv[1])
print(_import_fast("needs_pandas").frame)
"""


def test_pandas_is_loaded_only_for_what_needs_it(tmp_path: Path) -> None:
    (tmp_path / "needs_pandas.py").write_text("import pandas\nframe = pandas.DataFrame.__name__\n")
    completed = subprocess.run([sys.executable, "-c", _IMPORTS, tmp_path], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["False", "DataFrame"]
