"""What CP-SAT and Z3 decide: boolean constraints, and linear loads under capacities that are shared out."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class BooleanModel:
    """Constraints over boolean variables 0..nvars-1 and whole rounds r_1..r_S ≥ 1 with sum R.

    Attributes:
        nsteps, nrounds: S and R.
        nvars: how many variables there are.
        nasked: the first so many variables are the solution; the others only help to state the constraints.
        exactly_one, at_most_one: lists of variables.
        implies: (x, ys): x only if one of ys.
        clauses: lists of (variable, sign).
        loads: (variables, weights, step, capacity): Σ weight·variable ≤ capacity · r_step.
    """

    nsteps: int
    nrounds: int
    nvars: int = 0
    nasked: int = 0
    exactly_one: list[list[int]] = field(default_factory=list)
    at_most_one: list[list[int]] = field(default_factory=list)
    implies: list[tuple[int, list[int]]] = field(default_factory=list)
    clauses: list[list[tuple[int, bool]]] = field(default_factory=list)
    loads: list[tuple[list[int], list[int], int, int]] = field(default_factory=list)

    @property
    def most_rounds(self) -> int:
        """The most rounds that one step can have; below 1 no assignment exists."""
        return self.nrounds - self.nsteps + 1
