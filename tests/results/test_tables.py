"""Tests of the scripts that write the tables of results/, each on a tiny case; no elapsed time is asserted."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from results.measuring import measure, points
from results.scripts import exact_rows, sccl_tables


def test_rows_are_measured_and_summarized() -> None:
    questions = [
        exact_rows.Row("allgather", "ring:4", 1, 2, 2, 3.0),
        exact_rows.Row("allgather", "ring:4", 1, 1, 1, 3.0, "unsat"),
        exact_rows.Row("allreduce", "ring:4", 4, 4, 4, 1.0, "none"),
    ]
    rows = exact_rows.measured(questions, times=1, peer_limit_s=60)
    assert [(m.verdict, m.peer) for m in rows] == [("sat", "sat"), ("unsat", "unsat"), ("sat", "")]
    assert "(1,1,1) | proved impossible" in exact_rows.table(rows)
    further_rows = [
        *rows,
        exact_rows.Measured(exact_rows.Row("alltoall", "dgx1", 3, 2, 8, 150, "none"), "none", "no", 9.0),
    ]
    long = [exact_rows.Measured(exact_rows.Row("allgather", "dgx1", 6, 3, 7, 8.0), "unsat", "no", 2.0, "sat", 32.0)] * 2
    said = exact_rows.summary([*further_rows, *long])
    assert "(3,2,8) 9.0 s" in said
    assert "allgather dgx1 (6,3,7): synth unsat, reference sat" in said


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
def test_verdicts_are_checked(out: str, word: str) -> None:
    row = exact_rows.Row("allgather", "ring:4", 1, 2, 2, 3.0)
    assert exact_rows.verdict(row, measure.Timed(0.1, 0, out, "broken"))[0] == word


def test_published_rows_are_complete() -> None:
    assert len(exact_rows.ROWS) == 34
    assert sum(row.published == "unsat" for row in exact_rows.ROWS) == 3
    assert sum(row.published == "none" for row in exact_rows.ROWS) == 5


def test_points_of_an_all_reduce_cover_both_phases() -> None:
    claim = {
        "steps": 2,
        "rounds": 3,
        "chunks": 2,
        "proved": True,
        "proof": "for any number of chunks, by a cut",
    }
    open_claim = {**claim, "chunks": 4, "rounds": 2, "proved": False, "least_rounds_a_chunk": "1/3"}
    output: dict[str, Any] = {
        "collective": "allreduce",
        "group": [0, 1, 2, 3],
        "k_synchronous": [
            {**claim, "part": points.PHASE},
            {**open_claim, "part": points.DIRECT},
            {**claim, "rounds": None, "part": ""},
        ],
        "algorithms": [{"chunks": 64, "steps": 9, "rounds": 20, "engine": "route"}],
    }
    all_points = points.points(output)
    assert [p.shape for p in all_points] == [(4, 2, 2), (64, 9, 20)]
    assert "at least 1/3" in all_points[0].proof
    assert "route" in all_points[1].proof
    output["k_synchronous"].pop(1)
    assert [p.shape for p in points.points(output)] == [(8, 4, 6), (64, 9, 20)]


def test_parts_of_an_all_reduce_are_known() -> None:
    _, output = sccl_tables.measured("allreduce", "ring:4", "--engine", "ksync", "--budget", "60s")
    assert {claim["part"] for claim in output["k_synchronous"]} == {points.PHASE, points.DIRECT}
    assert points.points(output)
    with pytest.raises(ValueError, match="unknown part"):
        points.points({**output, "k_synchronous": [{**output["k_synchronous"][0], "rounds": 1, "part": "other"}]})


def test_marks() -> None:
    reached_points = [points.Point((2, 2, 3)), points.Point((6, 3, 7))]
    assert points.mark((4, 2, 6), reached_points) == "same"
    assert points.mark((2, 3, 3), reached_points) == "better: (2,2,3)"
    assert points.mark((9, 4, 9), reached_points) == "not reached"
    assert points.pareto([*reached_points, points.Point((1, 3, 2))]) == reached_points
    assert reached_points[1].ratio == Fraction(7, 6)


def test_lines_of_a_collective() -> None:
    timed, output = sccl_tables.measured("allgather", "ring:4", "--engine", "ksync", "--budget", "60s")
    lines = sccl_tables.lines("allgather", "ring:4", timed.seconds, output)
    assert lines[0][:2] == ["allgather", "(2,2,3)"]
    assert lines[0][-1] == "–"


def test_files_are_written_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    measure.save(path, "α\n")
    measure.save(path, "β\n")
    assert path.read_text(encoding="utf-8") == "β\n"
    assert list(tmp_path.iterdir()) == [path]
    assert measure.grid(["a", "b"], [[1, "x|y"]]) == "| a | b |\n| --- | --- |\n| 1 | x∣y |"
    assert "cores" in measure.machine()


def test_a_hanging_command_is_killed() -> None:
    assert measure.run(["sleep", "30"], 0.1).code is None
    assert measure.median_run(["true"]).code == 0
