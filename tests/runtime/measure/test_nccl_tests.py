"""What nccl-tests and rccl-tests print is read as people paste it, and broken pastes are refused in one line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from runtime.measure.nccl_tests import read_runs
from topologies.errors import InputError

PASTED: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("pasted.toml").read_text())["pasted"]
HEADS = "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong"
ROW = "1048576 262144 float sum -1 27.76 37.78 66.11 0 27.49 38.15 66.76 0"


def test_there_are_twenty_outputs() -> None:
    assert len({entry["source"] for entry in PASTED}) >= 20


@pytest.mark.parametrize("entry", PASTED, ids=lambda entry: entry["source"].rsplit("/", 1)[-1])
def test_pasted_outputs_are_read(entry: dict[str, Any]) -> None:
    runs = read_runs(entry["text"], "pasted")
    assert [run.collective for run in runs] == entry["collectives"]
    assert [run.ranks for run in runs] == entry["ranks"]
    assert [len(run.rows) for run in runs] == entry["rows"]
    assert all(row.out_of_place_us > 0 and row.wrong == 0 for run in runs for row in run.rows if row.size_bytes != 32)
    if "ran" in entry:
        assert " ".join(runs[0].ran[runs[0].rows[0].size_bytes]) == entry["ran"]


@pytest.mark.parametrize(
    ("log", "ran"),
    [
        (
            "h:1:2 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
            "NVLS Simple",
        ),
        ("h:1:2 [0] NCCL INFO 1048576 Bytes -> Algo 0 proto 1 time 31.5", "tree LL128"),
        ("h:1:2 [0] NCCL INFO 1048576 Bytes -> Algo 99 proto 7 time 31.5", "99 7"),
    ],
)
def test_the_log_says_what_ran(log: str, ran: str) -> None:
    (run,) = read_runs(f"{HEADS}\n{log}\n{ROW}", "x")
    assert " ".join(run.ran[1 << 20]) == ran


def test_a_row_has_the_times_of_both_forms() -> None:
    (run,) = read_runs(f"{HEADS}\n{ROW}\n", "x")
    (row,) = run.rows
    assert (row.size_bytes, row.out_of_place_us, row.in_place_us) == (1 << 20, 27.76, 27.49)
    assert (run.type, run.operation, run.root) == ("float", "sum", -1)
    (wrong,) = read_runs(f"{HEADS}\n{ROW.replace(' 0 27', ' 3 27')}\n", "x")[0].rows
    assert wrong.wrong == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "x: no table of nccl-tests in it"),
        ("# Avg bus bandwidth : 3\n", "x: no table of nccl-tests in it"),
        (HEADS, "x: no table of nccl-tests in it"),
        (ROW, "x: no table of nccl-tests in it"),
        (f"{HEADS}\n{ROW[:30]}", "x: line 2: the row ends too early"),
        (f"{HEADS}\n{ROW}\n{ROW.replace('27.76', '0.00')}", "x: line 3: times must be numbers above 0"),
        (f"{HEADS}\n{'9' * 20}{ROW[7:]}", "x: line 2: times must be numbers above 0, and sizes at most"),
    ],
)
def test_broken_pastes_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_runs(text, "x")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
