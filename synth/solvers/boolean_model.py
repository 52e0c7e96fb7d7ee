"""State the models that CP-SAT and Z3 decide: boolean constraints, and linear loads under capacities of rounds."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class BooleanModel:
    """A set of constraints over boolean variables 0..nvars-1 and whole rounds r_1..r_S ≥ 1 with sum R.

    Attributes:
        nsteps: S.
        nrounds: R.
        nvars: Number of variables.
        nasked: Number of first variables that are the solution; the others only help to state the constraints.
        exactly_one: Lists of variables, of each of which exactly one is true.
        at_most_one: Lists of variables, of each of which at most one is true.
        implies: Pairs (x, ys): x implies that one of ys is true.
        clauses: Lists of (variable, sign), of each of which at least one holds.
        loads: Rows (variables, weights, step, capacity): Σ weight·variable ≤ capacity · r_step.
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
        """Return the most rounds that one step can have; below 1 no assignment exists."""
        return self.nrounds - self.nsteps + 1
