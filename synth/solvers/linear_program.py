"""State the linear programs that HiGHS minimises."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.collective import Bools, Floats, Ints


@dataclass(frozen=True)
class LinearProgram:
    """A linear program: minimise cost·x subject to least ≤ rows·x ≤ most, low ≤ x ≤ high.

    Attributes:
        cost: Cost of each variable, shape (nvars,).
        low: Lower limit of each variable, shape (nvars,); may be infinite.
        high: Upper limit of each variable, shape (nvars,); may be infinite.
        least: Lower limit of each row, shape (nrows,); may be infinite.
        most: Upper limit of each row, shape (nrows,); may be infinite.
        row: Row of each entry of `rows`, shape (nentries,).
        column: Variable of each entry of `rows`, shape (nentries,).
        value: Value of each entry of `rows`, shape (nentries,).
        binary: Whether each variable is 0 or 1, whatever its limits say, shape (nvars,).
    """

    cost: Floats
    low: Floats
    high: Floats
    least: Floats
    most: Floats
    row: Ints
    column: Ints
    value: Floats
    binary: Bools


class ProgramBuilder:
    """A linear program under construction, which grows by blocks of variables and of rows."""

    def __init__(self) -> None:
        self._nvars = self._nrows = 0
        self._variables: list[tuple[Floats, Floats, Floats, Bools]] = []
        self._limits: list[tuple[Floats, Floats]] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []

    def add_variables(
        self, count: int, high: Floats | float, low: Floats | float = 0.0, cost: float = 0.0, binary: bool = False
    ) -> Ints:
        """Add `count` variables and return their columns, shape (count,), which follow those of earlier variables.

        Args:
            count: Number of variables.
            high: Upper limit of each variable, or of all of them; may be infinite.
            low: Lower limit of each variable, or of all of them.
            cost: Cost of each variable.
            binary: Whether each variable must be 0 or 1.
        """
        self._variables.append(
            (np.full(count, cost), np.full(count, low), np.full(count, high), np.full(count, binary))
        )
        self._nvars += count
        return np.arange(self._nvars - count, self._nvars)

    def add_rows(self, least: Floats, *terms: tuple[Ints, Ints, float | Floats], most: float = np.inf) -> int:
        """Add rows least ≤ Σ value·x ≤ most and return the number of the first one; the others follow it.

        Args:
            least: Lower limit of each row, shape (new rows,).
            *terms: Each term is (rows within this call, columns, values) of as many entries; values may be one number
                for all. Entries of one row add up.
            most: Upper limit of all rows.
        """
        for row, column, value in terms:
            self._entries.append((row + self._nrows, column, np.full(row.shape, value)))
        self._limits.append((least, np.full(len(least), most)))
        self._nrows += len(least)
        return self._nrows - len(least)

    def build(self) -> LinearProgram:
        """Build the program of all variables and rows so far; it needs at least one variable, but no row."""
        cost, low, high, binary = (np.concatenate(part) for part in zip(*self._variables, strict=True))
        no_indices, no_values = np.zeros(0, dtype=np.int64), np.zeros(0)  # for a program without rows
        least, most = (np.concatenate(part) for part in zip((no_values, no_values), *self._limits, strict=True))
        row, column, value = (
            np.concatenate(part) for part in zip((no_indices, no_indices, no_values), *self._entries, strict=True)
        )
        return LinearProgram(cost, low, high, least, most, row, column, value, binary)
