"""The table of `synth bench`: nccl-tests' columns, our predicted time and bound, and the algorithm's name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_FORMS = {"out_of_place": "out-of-place", "in_place": "in-place"}  # heading by the key of a form of calls


@dataclass(frozen=True)
class _BenchColumn:
    """A column; rows are printed as they are measured, so that its width is known before its cells.

    Attributes:
        title, unit: The two lines above the cells.
        width: Number of characters, with the space before the cell.
        importance: 0 for a column that is always shown; of the others, those with smaller numbers are shown first.
        key: Key of the cell in a row's JSON object.
        form: The form of calls in which the key is looked up; "" for a column of the row itself.
        decimals: Number of decimals; None for a cell that is printed as it is.
    """

    title: str
    unit: str
    width: int
    importance: int
    key: str
    form: str = ""
    decimals: int | None = None

    def cell(self, row: Mapping[str, Any]) -> str:
        """Return the cell of a row: "N/A" for a form of calls that was not run, "–" for a figure that is unknown."""
        source = row[self.form] if self.form else row
        value = "N/A" if source is None else source[self.key]
        if value is None:
            return "–"
        return str(value) if self.decimals is None or source is None else f"{value:.{self.decimals}f}"


_COLUMNS = (
    _BenchColumn("size", "(B)", 11, 0, "size_bytes"),
    _BenchColumn("count", "(elements)", 12, 4, "count"),
    _BenchColumn("type", "", 10, 5, "type"),
    _BenchColumn("redop", "", 7, 6, "redop"),
    _BenchColumn("root", "", 5, 7, "root"),
    *(
        column
        for form in _FORMS
        for column in (
            _BenchColumn("time", "(us)", 9, 0, "time_us", form, 1),
            _BenchColumn("algbw", "(GB/s)", 8, 3, "algbw_gbs", form, 2),
            _BenchColumn("busbw", "(GB/s)", 8, 0, "busbw_gbs", form, 2),
            _BenchColumn("#wrong", "", 7, 0, "wrong", form),
        )
    ),
    _BenchColumn("predicted", "(us)", 10, 1, "predicted_us", decimals=1),
    _BenchColumn("bound", "(us)", 10, 2, "bound_us", decimals=1),
    _BenchColumn("algorithm", "", 60, 8, "algorithm"),
)


class BenchTable:
    """The columns that fit a width, for rows that are printed one by one."""

    def __init__(self, width: int | None) -> None:
        """Choose the columns: as many as fit, the most important first; those of importance 0 in any case.

        Args:
            width: Most characters of a line; None for any number.
        """
        choices = [
            [column for column in _COLUMNS if column.importance <= importance]
            for importance in sorted({column.importance for column in _COLUMNS})
        ]
        fitting = (shown for shown in choices[1:] if width is None or 1 + sum(c.width for c in shown) <= width)
        self._shown = max(fitting, key=len, default=choices[0])

    def left_out(self) -> list[str]:
        """Return the titles of the columns for which there is no room, from left to right, each title once."""
        return list(dict.fromkeys(column.title for column in _COLUMNS if column not in self._shown))

    def heading(self) -> str:
        """Return the three lines above the rows, each of which begins with `#`."""
        before_forms = next(i for i, column in enumerate(self._shown) if column.form)
        forms = " " * sum(column.width for column in self._shown[:before_forms])
        for form, heading in _FORMS.items():
            forms += heading.center(sum(column.width for column in self._shown if column.form == form))
        titles = "".join(_aligned(column, column.title) for column in self._shown)
        units = "".join(_aligned(column, column.unit) for column in self._shown)
        return "\n".join(f"#{line.rstrip()}" for line in (forms, titles, units))

    def line(self, row: Mapping[str, Any]) -> str:
        """Return a row's JSON object as a line of the table."""
        return " " + "".join(_aligned(column, column.cell(row)) for column in self._shown)


def _aligned(column: _BenchColumn, text: str) -> str:
    """Return a text of a column with the spaces before it; only names of algorithms are flush left."""
    return f"  {text}" if column.key == "algorithm" else f" {text.rjust(column.width - 1)}"
