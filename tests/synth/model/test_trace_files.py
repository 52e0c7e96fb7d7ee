"""Traces of all-to-alls: three forms that read alike, and hostile files that are refused in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from synth.model.sizes import MAX_TRACE_SIZE, read_trace
from tests.synth.number_files import numpy_file, numpy_header, written
from topologies.errors import InputError

TRACE = np.array([[[0, 8192], [3, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", "# call 0\n0, 8K\n3, 5\n\n0,0\n0,0\n0,1\n0,0\n"),
        ("t.txt", "0 8192\n3 0\n0 0\n0 0\n0 1\n0 0\n"),
        ("t.json", json.dumps(TRACE.tolist())),
        ("t.json", '[[[9, "8K"], [3.0, 0]], [[0, 0], [0, 0]], [[0, 1], [0, 0]]]'),
        ("t.npy", numpy_file(TRACE)),
        ("t.npy", numpy_file(TRACE.astype(np.uint64))),
        ("t.npy", numpy_file(TRACE.astype(">f4"))),
        ("t.npy", numpy_file(np.asfortranarray(TRACE.astype(np.int16)))),
    ],
)
def test_forms_read_alike_without_what_ranks_send_to_themselves(
    tmp_path: Path, name: str, content: bytes | str
) -> None:
    trace = read_trace(written(tmp_path, name, content), 2)
    assert (trace.dtype, trace.tolist()) == (np.dtype(np.int64), TRACE.tolist())


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("t.csv", "", "is empty; it must be matrices"),
        ("t.csv", "0,1\n", "has 1 row; it must be 2 for each matrix"),
        ("t.csv", "0,1\n1,0,2\n", ":2: has 3 sizes; it must be 2"),
        ("t.csv", "0,1\n-1,0\n", ":2: column 1: '-1' is negative"),
        ("t.csv", "0,1\n1,x\n", ":2: column 2: 'x' is no size"),
        ("t.csv", "0,0\n0,0\n", "no rank sends anything"),
        ("t.csv", "9,0\n0,9\n", "no rank sends anything"),
        ("t.csv", "0,128G\n1,0\n", "call 0, row 0, column 1: 137438953472 bytes; it must be 0 to"),
        ("t.csv", "0 1\n" * 8194, "has 8193 rows or more; it must be at most 8192"),
        ("t.json", "[]", "is empty; it must be matrices"),
        ("t.json", "[[0, 1], [1, 0]]", "matrix 1: row 1 is 0; it must be matrices"),
        ("t.json", "[5]", "matrix 1 is 5; it must be 2 rows"),
        ("t.json", "[[[0, 1]]]", "matrix 1 has 1 row; it must be 2"),
        ("t.json", "[[[0, 1], [1]]]", "matrix 1: row 2: has 1 size; it must be 2"),
        ("t.json", "[[[0, 1], [1, null]]]", "matrix 1: row 2, column 2: None is no size"),
        ("t.json", "[[[0, 1], [1, 1.5]]]", "matrix 1: row 2, column 2: 1.5 is no size"),
        ("t.json", f"[{'[],' * 5000}[]]", "has 5001 matrices or more"),
        ("t.json", "[" * 100_000, "nested too deeply"),
        ("t.json", '{"a": 1}', "holds a table"),
        ("t.npy", numpy_file(TRACE)[:-1], "states 12 values in 95 bytes; it must be matrices"),
        ("t.npy", numpy_file(TRACE[0]), r"has shape \(2, 2\); it must be \(calls, 2, 2\)"),
        ("t.npy", numpy_file(TRACE[:, :1]), r"has shape \(3, 1, 2\); it must be \(calls, 2, 2\)"),
        ("t.npy", numpy_file(TRACE[:0]), "is empty; it must be matrices"),
        ("t.npy", numpy_file(np.ones((4097, 2, 2), dtype=np.int8)), "has 4097 matrices"),
        ("t.npy", numpy_file(TRACE - 1), "call 0, row 0, column 0: -1 bytes; it must be 0 to"),
        ("t.npy", numpy_file(TRACE + 0.5), "call 0, row 0, column 0: 0.5 bytes is no whole number"),
        ("t.npy", numpy_file(TRACE * np.nan), "nan bytes is no whole number"),
        ("t.npy", numpy_file(np.full((1, 2, 2), np.inf)), "column 0: inf bytes; it must be 0 to"),
        ("t.npy", numpy_file(np.full((1, 2, 2), -7e30)), r"column 0: -7e\+30 bytes; it must be 0 to"),
        ("t.npy", numpy_file(np.full((1, 2, 2), -9, dtype=np.int8)), "column 0: -9 bytes; it must be 0 to"),
        ("t.npy", numpy_file(np.full((1, 2, 2), 2**64 - 1, dtype=np.uint64)), f"{2**64 - 1} bytes; it must be 0 to"),
        ("t.npy", numpy_file(np.full((1, 2, 2), MAX_TRACE_SIZE + 1)), "it must be 0 to"),
        ("t.npy", numpy_header("(0, 9999999999, 9999999999)"), "states 0 values in"),
        ("t.npy", b"PK\x03\x04", "is no .npy file"),
    ],
)
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes | str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        read_trace(written(tmp_path, name, content), 2)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600
