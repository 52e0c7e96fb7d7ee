"""Call CP-SAT, Z3 and HiGHS behind one Result, in child processes that can be killed (`SOLVERS`: a row for each).

Each module of a solver loads its library when it is imported and has one function, `solve(question, budget_s, …)
-> Result`. Only a child process (`synth.solvers.worker`) imports it: HiGHS and OR-tools cannot share a process.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec


@dataclass(frozen=True)
class Solver:
    """A solver.

    Attributes:
        module: Name of the module that holds `solve`.
        library: Name of the library that it imports.
    """

    module: str
    library: str


SOLVERS = {
    "cpsat": Solver("synth.solvers.cpsat", "ortools"),  # BooleanModel
    "smt": Solver("synth.solvers.smt", "z3"),  # BooleanModel
    "linear": Solver("synth.solvers.linear", "highspy"),  # LinearProgram
}


def is_available(name: str) -> bool:
    """Return whether the library of a solver, named as in `SOLVERS`, is installed; it is not loaded."""
    return find_spec(SOLVERS[name].library) is not None
