"""The table of `synth bench` fits the terminal, and names the columns that it leaves out."""

from __future__ import annotations

from typing import Any

import pytest

from synth.app.present.bench import BenchTable

_TIMING = {"time_us": 1234.56, "algbw_gbs": 12.345, "busbw_gbs": 23.456, "wrong": 0}
_ROW: dict[str, Any] = {
    "size_bytes": 1 << 33, "count": 1 << 34, "type": "bfloat16", "redop": "sum", "root": -1,
    "out_of_place": _TIMING, "in_place": None, "predicted_us": None, "bound_us": 77.04, "algorithm": "ring",
}  # fmt: skip


@pytest.mark.parametrize("width", [*range(80, 220, 7), None])
def test_lines_fit_and_columns_stand_above_their_cells(width: int | None) -> None:
    table = BenchTable(width)
    forms, titles, units = table.heading().splitlines()
    line = table.line(_ROW)
    lines = [forms, titles, units, line]
    assert all(text[0] == "#" for text in lines[:-1])
    if width is not None:
        assert max(map(len, lines)) <= width
    assert len(line.split()) == len(titles[1:].split())
    assert sorted({*titles[1:].split(), *table.left_out()}) == sorted(
        {
            "size",
            "count",
            "type",
            "redop",
            "root",
            "time",
            "algbw",
            "busbw",
            "#wrong",
            "predicted",
            "bound",
            "algorithm",
        }
    )
    cells = dict(zip(titles[1:].split(), line.split(), strict=True))  # Of a repeated title, the last: in place.
    assert (cells["size"], cells["time"], cells["predicted"]) == (str(1 << 33), "N/A", "–")
    if "bound" in cells:
        assert line.index(cells["bound"]) + len(cells["bound"]) == titles.index("bound") + len("bound")


def test_all_columns_are_those_of_nccl_tests_and_ours() -> None:
    titles = BenchTable(None).heading().splitlines()[1]
    assert titles[1:].split() == [
        *("size", "count", "type", "redop", "root"),
        *("time", "algbw", "busbw", "#wrong") * 2,
        *("predicted", "bound", "algorithm"),
    ]
    assert BenchTable(None).left_out() == []
