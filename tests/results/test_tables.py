"""The scripts that make the tables of results/, each on a tiny case; no wall time is asserted."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from results.measuring import measure, points
from results.scripts import exact_rows, sccl_tables


def test_a_row_is_measured_and_told() -> None:
    asked = [
        exact_rows.Row("allgather", "ring:4", 1, 2, 2, 3.0),
        exact_rows.Row("allgather", "ring:4", 1, 1, 1, 3.0, "unsat"),
        exact_rows.Row("allreduce", "ring:4", 4, 4, 4, 1.0, "none"),
    ]
    rows = exact_rows.measured(asked, times=1, peer_limit_s=60)
    assert [(m.verdict, m.peer) for m in rows] == [("sat", "sat"), ("unsat", "unsat"), ("sat", "")]
    assert "(1,1,1) | proved impossible" in exact_rows.table(rows)
    many = [
        *rows,
        exact_rows.Measured(exact_rows.Row("alltoall", "dgx1", 3, 2, 8, 150, "none"), "none", "no", 9.0),
    ]
    long = [exact_rows.Measured(exact_rows.Row("allgather", "dgx1", 6, 3, 7, 8.0), "unsat", "no", 2.0, "sat", 32.0)] * 2
    said = exact_rows.summary([*many, *long])
    assert "(3,2,8) 9.0 s" in said
    assert "allgather dgx1 (6,3,7): synth unsat, peer sat" in said


@pytest.mark.parametrize(
    ("out", "word"),
    [
        ("", "failed"),
        ('{"impossible": "no schedule: refuted", "algorithms": []}', "unsat"),
        ('{"impossible": "", "algorithms": []}', "none"),
        ('{"impossible": "", "algorithms": [{"chunks": 1, "steps": 9, "rounds": 2, "file": "x"}]}', "wrong"),
        (
            '{"impossible": "", "algorithms": [{"chunks": 1, "steps": 2, "rounds": 2, "file": "/no.xml"}]}',
            "wrong",
        ),
    ],
)
def test_no_verdict_is_taken_on_trust(out: str, word: str) -> None:
    row = exact_rows.Row("allgather", "ring:4", 1, 2, 2, 3.0)
    assert exact_rows.verdict(row, measure.Timed(0.1, 0, out, "broken"))[0] == word


def test_all_published_rows_are_there() -> None:
    assert len(exact_rows.ROWS) == 34
    assert sum(row.published == "unsat" for row in exact_rows.ROWS) == 3
    assert sum(row.published == "none" for row in exact_rows.ROWS) == 5


def test_the_points_of_an_all_reduce_are_of_the_whole() -> None:
    claim = {
        "steps": 2,
        "rounds": 3,
        "chunks": 2,
        "proved": True,
        "proof": "for any number of chunks, by a cut",
    }
    open_claim = {**claim, "chunks": 4, "rounds": 2, "proved": False, "least_rounds_a_chunk": "1/3"}
    said: dict[str, Any] = {
        "collective": "allreduce",
        "group": [0, 1, 2, 3],
        "k_synchronous": [
            {**claim, "part": points.HALF},
            {**open_claim, "part": points.ONE_GO},
            {**claim, "rounds": None, "part": ""},
        ],
        "algorithms": [{"chunks": 64, "steps": 9, "rounds": 20, "engine": "route"}],
    }
    found = points.points(said)
    assert [p.shape for p in found] == [(4, 2, 2), (64, 9, 20)]
    assert "at least 1/3" in found[0].proof
    assert "route" in found[1].proof
    said["k_synchronous"].pop(1)
    assert [p.shape for p in points.points(said)] == [(8, 4, 6), (64, 9, 20)]


def test_an_all_reduce_is_told_in_parts_that_are_known() -> None:
    _, said = sccl_tables.measured("allreduce", "ring:4", "--engine", "ksync", "--budget", "60s")
    assert {claim["part"] for claim in said["k_synchronous"]} == {points.HALF, points.ONE_GO}
    assert points.points(said)
    with pytest.raises(ValueError, match="not known here"):
        points.points({**said, "k_synchronous": [{**said["k_synchronous"][0], "rounds": 1, "part": "other"}]})


def test_marks() -> None:
    found = [points.Point((2, 2, 3)), points.Point((6, 3, 7))]
    assert points.mark((4, 2, 6), found) == "same"
    assert points.mark((2, 3, 3), found) == "better: (2,2,3)"
    assert points.mark((9, 4, 9), found) == "not reached"
    assert points.pareto([*found, points.Point((1, 3, 2))]) == found
    assert found[1].ratio == Fraction(7, 6)


def test_lines_of_a_collective() -> None:
    timed, said = sccl_tables.measured("allgather", "ring:4", "--budget", "4s")
    lines = sccl_tables.lines("allgather", "ring:4", timed.seconds, said)
    assert lines[0][:2] == ["allgather", "(2,2,3)"]
    assert lines[0][-1] == "–"


def test_files_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    measure.save(path, "α\n")
    measure.save(path, "β\n")
    assert path.read_text(encoding="utf-8") == "β\n"
    assert list(tmp_path.iterdir()) == [path]
    assert measure.grid(["a", "b"], [[1, "x|y"]]) == "| a | b |\n| --- | --- |\n| 1 | x∣y |"
    assert "cores" in measure.machine()


def test_a_command_that_hangs_is_killed() -> None:
    assert measure.run(["sleep", "30"], 0.1).code is None
    assert measure.median_run(["true"]).code == 0
