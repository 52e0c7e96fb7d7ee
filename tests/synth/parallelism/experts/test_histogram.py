"""Routing histograms: three forms that read alike, and hostile files that are refused in one line."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from synth.parallelism.experts.histogram import read_histogram, read_tokens
from tests.synth.number_files import numpy_file, numpy_header, written
from topologies.errors import InputError

TABLE = np.array([[3.0, 0.0, 5.5], [1.0, 2.0, 4.0]])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("h.csv", "# layers by experts\n3, 0, 5.5\n\n1,2,4\n"),
        ("h.txt", "3 0 5.5\n1 2 4\n"),
        ("h.json", json.dumps(TABLE.tolist())),
        ("h.npy", numpy_file(TABLE)),
        ("h.npy", numpy_file(TABLE, (2, 0))),
        ("h.npy", numpy_file(np.asfortranarray(TABLE))),
        ("h.npy", numpy_file(TABLE.astype(">f4"))),
    ],
)
def test_forms_read_alike(tmp_path: Path, name: str, content: bytes | str) -> None:
    copies = read_histogram(written(tmp_path, name, content), 4)
    assert copies.shape == (2, 4, 3)
    assert copies.sum(axis=1) == pytest.approx(TABLE)
    assert (copies == copies[:, :1]).all()


def test_sources_are_kept(tmp_path: Path) -> None:
    table = np.arange(24).reshape(2, 4, 3)
    for path in (
        written(tmp_path, "h.npy", numpy_file(table)),
        written(tmp_path, "h.json", json.dumps(table.tolist())),
    ):
        assert np.array_equal(read_histogram(path, 4), table)
        with pytest.raises(InputError, match=r"has 4 ranks in a layer; it must be 8.*tokens. \(--tokens N\)"):
            read_histogram(path, 8)


@pytest.mark.parametrize(
    ("name", "content", "fault"),
    [
        ("h.json", "[[1, NaN]]", "not JSON"),
        ("h.json", "[[1, 1e999]]", "layer 0, expert 1: inf copies; it must be from 0"),
        ("h.json", "[[1, -2]]", "layer 0, expert 1: -2 copies; it must be from 0"),
        ("h.json", "[[[1, 2], [3, 4], [5, 6], [7, 2e15]]]", "layer 0, rank 3, expert 1: 2e.15 copies"),
        ("h.json", "[[1, 2], [3]]", "rows have different lengths"),
        ("h.json", '[["1", "2"]]', "it must be numbers of shape"),
        ("h.json", "[[true, false]]", "it must be numbers of shape"),
        ("h.json", "[[null, 1]]", "it must be numbers of shape"),
        ("h.json", "[[1" + "0" * 400 + "]]", "it must be numbers of shape"),
        ("h.json", "[[1" + "0" * 9999 + "]]", "not JSON"),
        ("h.json", '{"a": [[1]]}', "holds a table; it must be nested arrays"),
        ("h.json", "[1, 2]", r"has shape \(2,\)"),
        ("h.json", "[]", r"has shape \(0,\)"),
        ("h.json", "[[]]", "1 to 1000 layers of 1 to 4096 experts"),
        ("h.json", "[[[[1]]]]", r"has shape \(1, 1, 1, 1\)"),
        ("h.json", "[" * 100_000, "nested too deeply"),
        ("h.json", "[" * 60 + "]" * 60, "it must be numbers of shape"),
        ("h.json", "[[0, 0]]", "has no copies"),
        ("h.json", "[[1, 2]", "not JSON"),
        ("h.json", "[" + "[1]," * 1000 + "[1]]", "has 1001 layers"),
        ("h.csv", "", "is empty"),
        ("h.csv", "1,2\n3\n", ":2: has 1 numbers; it must be 2, as in the first row"),
        ("h.csv", "1,2\n1,x\n", ":2: 'x' is no number; .*must be .* without a header"),
        ("h.csv", "1e-320, 1e-310, 0, 0\n", "layer 0, expert 0: 9.*e-321 copies; it must be .*at least 1e-09"),
        ("h.csv", "1\n" * 1002, "has more lines; it must be"),
        ("h.csv", "#\n" * 100_000 + "1\n", "has more lines; it must be"),
        ("h.csv", "1,nan\n", "layer 0, expert 1: nan copies"),
        ("h.csv", ",".join(["1"] * 4097), ":1: has more than 4096 numbers; it must be"),
        ("h.csv", numpy_file(TABLE), "is a binary file"),
        ("h.npy", numpy_file(TABLE)[:-1], "states 6 values in 47 bytes"),
        ("h.npy", numpy_header("(99999999, 99999999)"), "in 0 bytes"),
        ("h.npy", numpy_header("(-1, -8)", size=64), "is no .npy file"),
        ("h.npy", numpy_header("(1, 2)", "|O", 16), "is no .npy file"),
        ("h.npy", numpy_header("(1, 2)", "<c16", 32), "is no .npy file"),
        ("h.npy", numpy_header("(0, 5)"), "1 to 1000 layers"),
        ("h.npy", numpy_header("(2, )", size=16), r"has shape \(2,\)"),
        ("h.npy", numpy_header("(1, 0, 9, 9)"), r"has shape \(1, 0"),
        ("h.npy", numpy_header("(1 2, 3)"), "is no .npy file"),
        ("h.npy", numpy_header("(1" + ", 9" * 15 + ")"), "is no .npy file"),
        ("h.npy", numpy_header("(1, 1)", "<f9", 9), "is no .npy file"),
        ("h.npy", numpy_header("(" * 500), "is no .npy file"),
        ("h.npy", b"\x93NUMPY\x01\x00\xff\xff{}", "is no .npy file"),
        ("h.npy", b"PK\x03\x04", "is no .npy file"),
        ("h.npy", b"", "is no .npy file"),
        ("h.npy", numpy_file(np.array([[np.nan]])), "layer 0, expert 0: nan copies"),
        ("h.npy", numpy_file(np.ones((1000, 3000), dtype=np.uint8)), "it must be at most 8000000 cells"),
    ],
)
def test_hostile_files_are_refused_in_one_line(tmp_path: Path, name: str, content: bytes | str, fault: str) -> None:
    with pytest.raises(InputError, match=fault) as caught:
        read_histogram(written(tmp_path, name, content), 4)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_tokens_are_read(tmp_path: Path) -> None:
    tokens = [[[0, 3], [2, 1]], [[1, 0], [3, 2]]]
    for path in (
        written(tmp_path, "t.json", json.dumps(tokens)),
        written(tmp_path, "t.npy", numpy_file(np.array(tokens, dtype=np.int16))),
        written(tmp_path, "t.npy", numpy_file(np.array(tokens, dtype=float))),
    ):
        assert read_tokens(path, 4, 8).tolist() == tokens


@pytest.mark.parametrize("separator", [",", " ", "\n", "#\n"])
def test_many_separators_take_little_memory(tmp_path: Path, separator: str) -> None:
    path = written(tmp_path, "h.csv", f"1{separator}" * 500_000 + "1")
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match="has more"):
            read_histogram(path, 4)
        assert tracemalloc.get_traced_memory()[1] < 12 * path.stat().st_size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("[[0, 1]]", r"has shape \(1, 2\) of numbers; it must be whole numbers of shape"),
        ("[[[0, 4]]]", "layer 0, token 0: 4 is no expert; it must be 0 to 3"),
        ("[[[0, 1], [-1, 2]]]", "layer 0, token 1: -1 is no expert"),
        ("[[[0, 0.5]]]", "0.5 is no expert"),
        ("[[[0, 1e999]]]", "inf is no expert"),
        ("[[[1, 1]]]", "layer 0, token 0: names an expert twice"),
        ("[[[0, 1, 2, 3, 0]]]", "with 5 of 4 experts"),
        ("[[]]", "has shape"),
        ("[[[]]]", "with 0 of 4 experts"),
        ('[[["0"]]]', "it must be whole numbers"),
    ],
)
def test_wrong_tokens_are_refused(tmp_path: Path, content: str, fault: str) -> None:
    with pytest.raises(InputError, match=fault):
        read_tokens(written(tmp_path, "t.json", content), 4, 8)
