"""What HiGHS and CBC minimise."""

from __future__ import annotations

from dataclasses import dataclass

from synth.model.collective import Bools, Floats, Ints


@dataclass(frozen=True)
class LinearProgram:
    """Minimise cost·x subject to least ≤ rows·x ≤ most, low ≤ x ≤ high.

    Attributes:
        cost, low, high: shape (nvars,).
        least, most: shape (nrows,); `most` is None where no row has a limit above, either may hold infinities.
        row, column, value: the entries of `rows`, shape (nentries,).
        binary: shape (nvars,): variables that are 0 or 1; None where there are none.
    """

    cost: Floats
    low: Floats
    high: Floats
    least: Floats
    row: Ints
    column: Ints
    value: Floats
    most: Floats | None = None
    binary: Bools | None = None
