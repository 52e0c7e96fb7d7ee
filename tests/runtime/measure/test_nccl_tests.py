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
        (f"{HEADS}\n{ROW[:30]}", "x: line 2: the row is not whole"),
        (f"{HEADS}\n{ROW}\n{ROW.replace('27.76', '0.00')}", "x: line 3: times must be 0.01 µs or more"),
        (f"{HEADS}\n{'9' * 20}{ROW[7:]}", "x: line 2: times must be 0.01 µs or more, and sizes at most"),
        (f"{HEADS}\n{ROW.replace('27.76', '1.2.3')}", "x: line 2: the row has something else than numbers"),
        (f"{HEADS}\n{ROW.replace('27.76', '1e999')}", "x: line 2: the row has something else than numbers"),
        (f"{HEADS}\n{ROW.replace('27.76', '9' * 400)}", "x: line 2: the row has something else than numbers"),
        (f"{HEADS}\n{ROW.replace('27.76', 'N/A')}", "x: line 2: times must be 0.01 µs or more"),
    ],
)
def test_broken_pastes_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError) as error:
        read_runs(text, "x")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_long_lines_take_no_time() -> None:
    """Check lines on which a careless pattern would look at every pair of places; each is passed over."""
    lines = [
        f"Rank 1 {'Rank 1 ' * 99_999}on x device 1 {'[' * 99_999}", "size count " * 99_999, "1" * 99_999,
        f"{'1 ' * 99_999}float", "a_perf" * 99_999,
    ]  # fmt: skip
    (run,) = read_runs("\n".join([HEADS, *lines, ROW]), "x")
    assert len(run.rows) == 1


def test_numbers_of_ranks_follow_from_the_bandwidths() -> None:
    """Check processes of mpirun without a list of devices, and that a number is not guessed where several fit."""
    begin = "# nThread 1 nGpus 1 minBytes 8\n./all_reduce_perf -g 1\n"
    for ranks in (2, 3, 8, 16):
        busbw = 100 * 2 * (ranks - 1) / ranks
        (run,) = read_runs(f"{begin}{HEADS}\n1048576 262144 float sum -1 10 100.00 {busbw:.2f} 0\n", "x")
        assert run.ranks == ranks
    (run,) = read_runs(f"{begin}{HEADS}\n1048576 262144 float sum -1 10 100.00 199.22 0\n", "x")
    assert run.ranks == 0  # 255 to 258 ranks print this.


def test_exponents_messages_without_bytes_and_algorithms_of_the_next_row() -> None:
    log = "h:1 [0] NCCL INFO AllGather: 131072 Bytes -> Algo {} proto LL128 channel{{Lo..Hi}}={{0..3}}"
    text = [
        HEADS, "0 0 float sum -1 0.00 0 0 0 0.00 0 0 0", log.format("RING"), log.format("NVLS_TREE"),
        "1048576 262144 float sum -1 1.2e+02 37.78 66.11 N/A N/A 38.15 66.76 N/A",
        "2097152 262144 float sum -1 9 1 1 0 9 1 1 0",
    ]  # fmt: skip
    (run,) = read_runs("\n".join(text), "x")
    row = run.rows[0]
    assert (row.size_bytes, row.out_of_place_us, row.in_place_us) == (1 << 20, 120.0, None)
    assert run.ran == {1 << 20: ("NVLSTree", "LL128")}  # NCCL logs the bytes of a rank here.
