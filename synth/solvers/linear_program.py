"""What HiGHS and CBC minimise."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.collective import Bools, Floats, Ints


@dataclass(frozen=True)
class LinearProgram:
    """Minimise cost·x subject to least ≤ rows·x ≤ most, low ≤ x ≤ high.

    Attributes:
        cost, low, high: shape (nvars,).
        least, most: shape (nrows,); both may hold infinities.
        row, column, value: the entries of `rows`, shape (nentries,).
        binary: shape (nvars,): variables that are 0 or 1.
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
    """A linear program that grows by blocks of variables and of rows."""

    def __init__(self) -> None:
        self._nvars = self._nrows = 0
        self._variables: list[tuple[Floats, Floats, Floats, Bools]] = []
        self._limits: list[tuple[Floats, Floats]] = []
        self._entries: list[tuple[Ints, Ints, Floats]] = []

    def add_variables(
        self, count: int, high: Floats | float, low: Floats | float = 0.0, cost: float = 0.0, binary: bool = False
    ) -> Ints:
        """So many variables more; their columns."""
        self._variables.append(
            (np.full(count, cost), np.full(count, low), np.full(count, high), np.full(count, binary))
        )
        self._nvars += count
        return np.arange(self._nvars - count, self._nvars)

    def add_rows(self, least: Floats, *terms: tuple[Ints, Ints, float | Floats], most: float = np.inf) -> int:
        """Rows least ≤ Σ value·x ≤ most; a term is (rows within this call, columns, values). Gives the first row."""
        for row, column, value in terms:
            self._entries.append((row + self._nrows, column, np.full(row.shape, value)))
        self._limits.append((least, np.full(len(least), most)))
        self._nrows += len(least)
        return self._nrows - len(least)

    def build(self) -> LinearProgram:
        """The program."""
        cost, low, high, binary = (np.concatenate(part) for part in zip(*self._variables, strict=True))
        no, nothing = np.zeros(0, dtype=np.int64), np.zeros(0)  # of a program without rows
        least, most = (np.concatenate(part) for part in zip((nothing, nothing), *self._limits, strict=True))
        row, column, value = (np.concatenate(part) for part in zip((no, no, nothing), *self._entries, strict=True))
        return LinearProgram(cost, low, high, least, most, row, column, value, binary)
