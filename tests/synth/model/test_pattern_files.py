"""Pattern files, size matrices and sizes: what good ones mean, and one line for each bad one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.model.collective import Collective, named
from synth.model.pattern import read_pattern
from synth.model.sizes import MAX_FILE_BYTES, parse_size, read_sizes
from tests.random_problems import random_pattern_text
from topologies.errors import InputError

HEAD = 'name = "mine"\nranks = 4\n'
HALO = (
    HEAD
    + """[[chunk]]
name = "left"
from = [0]
to = "1-3"
weight = 2
count = 4
[[chunk]]
reduce = true
from = "all"
to = [0]
of = [0, 1]
"""
)
SCAN = HEAD + "".join(
    f'[[chunk]]\nreduce = true\nfrom = "all"\nto = [{i}]\nof = "0-{i}"\ndata = "x"\n' for i in range(4)
)


def read(folder: Path, text: str | bytes) -> Collective:
    path = folder / "p.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_pattern(path)


def cells(table: np.ndarray, index: np.ndarray) -> set[tuple[int, int, int]]:
    """Return (rank, chunk, place) of every entry."""
    return {(r, c, p) for (r, c), p in zip(table.tolist(), index.tolist(), strict=True)}


def test_halo(tmp_path: Path) -> None:
    halo = read(tmp_path, HALO)
    assert (halo.name, halo.nranks, halo.chunks, halo.nchunks, halo.root) == ("mine", 4, 1, 5, 0)
    assert halo.reduces.tolist() == [False] * 4 + [True]
    # Rank 0 holds 4 chunks of weight 2 and one of weight 1, in the fullest of all buffers.
    np.testing.assert_allclose(halo.fraction, [2 / 9] * 4 + [1 / 9])
    assert cells(halo.pre, halo.in_index) == {(0, c, c) for c in range(5)} | {(1, 4, 0)}
    assert cells(halo.post, halo.out_index) == ({(r, c, c) for r in (1, 2, 3) for c in range(4)} | {(0, 4, 0)})


def test_scan_reads_one_place(tmp_path: Path) -> None:
    scan = read(tmp_path, SCAN)
    assert cells(scan.pre, scan.in_index) == {(r, c, 0) for c in range(4) for r in range(c + 1)}
    assert cells(scan.post, scan.out_index) == {(c, c, 0) for c in range(4)}
    np.testing.assert_allclose(scan.fraction, 1.0)  # The same data is held once.
    apart = read(tmp_path, SCAN.replace('data = "x"\n', ""))
    np.testing.assert_allclose(apart.fraction, 1 / 4)
    assert cells(apart.pre, apart.in_index) == {(r, c, c - r) for c in range(4) for r in range(c + 1)}


def test_a_named_collective_can_be_written_out(tmp_path: Path) -> None:
    forms = {
        "allreduce": '[[chunk]]\nreduce = true\nfrom = "all"\nto = "all"\n',
        "allgather": "".join(f'[[chunk]]\nfrom = [{i}]\nto = "all"\n' for i in range(4)),
        "reducescatter": "".join(f'[[chunk]]\nreduce = true\nfrom = "0-3"\nto = [{i}]\n' for i in range(4)),
        "scatter": "".join(f"[[chunk]]\nfrom = [0]\nto = [{i}]\n" for i in range(4)),
        "gather": "".join(f'[[chunk]]\nfrom = [{i}]\nto = "0"\n' for i in range(4)),
        "broadcast": '[[chunk]]\nfrom = "0"\nto = "0-1, 2-3"\n',
        "alltoall": "".join(f"[[chunk]]\nfrom = [{i}]\nto = [{j}]\n" for i in range(4) for j in range(4)),
    }
    for name, text in forms.items():
        ours, theirs = read(tmp_path, HEAD + text), named(name, 4, 1)
        np.testing.assert_allclose(ours.fraction, theirs.fraction)  # The message size is that of nccl-tests.
        for table in ("pre", "post", "in_index", "out_index", "reduces"):
            assert getattr(ours, table).tolist() == getattr(theirs, table).tolist(), name


def test_copies_order_and_goals_that_hold_already(tmp_path: Path) -> None:
    pattern = read(tmp_path, HEAD + "[[chunk]]\nfrom = [3, 0]\nto = [2, 0]\n")
    assert pattern.pre.tolist() == [[0, 0], [3, 0]]
    assert pattern.post.tolist() == [[0, 0], [2, 0]]
    lone = read(tmp_path, HEAD + "[[chunk]]\nreduce = true\nfrom = [2]\nto = [1]\n")
    assert lone.reduces.all()
    marked = read(tmp_path, b"\xef\xbb\xbf" + HALO.replace("\n", "\r\n").encode())
    assert marked.nchunks == 5


@settings(max_examples=60, derandomize=True)
@given(st.integers(0, 2**32), st.integers(2, 8))
def test_random_ones(tmp_path_factory: pytest.TempPathFactory, seed: int, k: int) -> None:
    text = random_pattern_text(random.Random(seed), k)
    pattern = read(tmp_path_factory.getbasetemp(), text)
    sides = [np.bincount(side[:, 0], pattern.fraction[side[:, 1]]).max() for side in (pattern.pre, pattern.post)]
    np.testing.assert_allclose(max(sides), 1.0)
    for table, index in ((pattern.pre, pattern.in_index), (pattern.post, pattern.out_index)):
        for rank in range(k):
            of_rank = table[:, 0] == rank
            assert index[of_rank].tolist() == list(range(int(of_rank.sum())))  # The places have file order and no gaps.


CHUNK = "[[chunk]]\nfrom = [0]\nto = [1]\n"
BAD = [
    ("", ["name", "missing"]),
    ("name = 3\nranks = 4\n" + CHUNK, [":1", "name", "3", "quotes"]),
    ('name = "a b"\nranks = 4\n' + CHUNK, [":1", "'a b'", "letters"]),
    ('name = ""\nranks = 4\n' + CHUNK, ["name", "1 to 40"]),
    (f'name = "{"x" * 41}"\nranks = 4\n' + CHUNK, ["name", "1 to 40"]),
    ('name = "AllReduce"\nranks = 4\n' + CHUNK, ["name", "allreduce", "own"]),
    ('name = "all_gather_into_tensor"\nranks = 4\n' + CHUNK, ["name", "allgather"]),
    ('name = "mine"\n' + CHUNK, ["ranks", "missing", "2 to 4096"]),
    ('name = "mine"\nranks = 1\n' + CHUNK, [":2", "ranks", "1", "2 to 4096"]),
    ('name = "mine"\nranks = 4097\n' + CHUNK, ["4097", "2 to 4096"]),
    ('name = "mine"\nranks = 4.0\n' + CHUNK, ["ranks", "4.0", "whole"]),
    ('name = "mine"\nranks = true\n' + CHUNK, ["ranks", "true"]),
    ('name = "mine"\nrank = 4\n' + CHUNK, [":2", "'rank'", "did you mean ranks"]),
    (HEAD, ["chunk", "missing", "[[chunk]]"]),
    (HEAD + "chunk = []\n", ["chunk", "at least one"]),
    (HEAD + "chunk = 5\n", ["chunk", "5", "[[chunk]]"]),
    (HEAD + "[chunk]\nfrom = [0]\nto = [1]\n", ["chunk", "[[chunk]]"]),
    (HEAD + "[[chunks]]\nfrom = [0]\n", ["'chunks'", "did you mean chunk"]),
    (HEAD + "[[chunk]]\nto = [1]\n", [":3", "from", "missing", "range"]),
    (HEAD + "[[chunk]]\nfrom = [1]\n", [":3", "to", "missing"]),
    (HEAD + "[[chunk]]\nfrom = []\nto = [1]\n", [":4", "from", "empty"]),
    (HEAD + '[[chunk]]\nfrom = [0]\nto = ""\n', [":5", "to", "empty"]),
    (HEAD + "[[chunk]]\nfrom = [4]\nto = [1]\n", [":4", "from", "4", "0 to 3"]),
    (HEAD + "[[chunk]]\nfrom = [-1]\nto = [1]\n", ["from", "-1", "0 to 3"]),
    (HEAD + '[[chunk]]\nfrom = "0-999999999"\nto = [1]\n', ["999999999", "0 to 3"]),
    (HEAD + f"[[chunk]]\nfrom = [{10**40}]\nto = [1]\n", ["from", "digits"]),
    (HEAD + '[[chunk]]\nfrom = "2-1"\nto = [1]\n', ["2-1", "1-2"]),
    (HEAD + '[[chunk]]\nfrom = "0-2,1"\nto = [1]\n', ["position 1", "twice"]),
    (HEAD + "[[chunk]]\nfrom = [0, 0]\nto = [1]\n", ["position 0", "twice"]),
    (HEAD + '[[chunk]]\nfrom = "0;1"\nto = [1]\n', ["'0;1'", "range"]),
    (HEAD + '[[chunk]]\nfrom = "0,"\nto = [1]\n', ["''", "range"]),
    (HEAD + '[[chunk]]\nfrom = "ALL"\nto = [1]\n', ["'ALL'", '"all"']),
    (HEAD + "[[chunk]]\nfrom = 0\nto = [1]\n", ["from", "0", "list"]),
    (HEAD + "[[chunk]]\nfrom = [0.5]\nto = [1]\n", ["0.5", "position"]),
    (HEAD + "[[chunk]]\nfrom = [true]\nto = [1]\n", ["true", "position"]),
    (HEAD + "[[chunk]]\nfrom = [[0]]\nto = [1]\n", ["array", "position"]),
    (HEAD + CHUNK + "weight = 0\n", [":6", "weight", "0"]),
    (HEAD + CHUNK + "weight = -1\n", ["weight", "-1"]),
    (HEAD + CHUNK + "weight = nan\n", ["weight", "nan"]),
    (HEAD + CHUNK + "weight = inf\n", ["weight", "inf"]),
    (HEAD + CHUNK + 'weight = "2"\n', ["weight", "'2'", "number"]),
    (HEAD + CHUNK + "count = 0\n", ["count", "0", "1 to 100000"]),
    (HEAD + CHUNK + "count = 100001\n", ["count", "1 to 100000"]),
    (HEAD + CHUNK + "count = 1.5\n", ["count", "1.5", "whole"]),
    (HEAD + CHUNK + CHUNK + "wieght = 2\n", [":9", "number 2", "'wieght'", "did you mean weight"]),
    (HEAD + CHUNK + "name = 7\n", ["name", "7"]),
    (HEAD + CHUNK + "reduce = 1\n", [":6", "reduce", "neither true nor false"]),
    (HEAD + CHUNK + "of = [0]\n", ["of", "reduce = true"]),
    (HEAD + "[[chunk]]\nreduce = true\nfrom = [0, 1]\nto = [1]\nof = [2]\n", [":7", "of", "position 2", "`from`"]),
    (HEAD + "[[chunk]]\nreduce = true\nfrom = [0, 1]\nto = [1]\nof = []\n", ["of", "empty"]),
    (HEAD + CHUNK + 'data = ""\n', ["data", "1 to 40"]),
    (HEAD + CHUNK + "data = 1\n", ["data", "1", "quotes"]),
    (HEAD + CHUNK + 'data = "x"\n[[chunk]]\nfrom = [0]\nto = [2]\ndata = "x"\n', [":10", "data", "must be one chunk"]),
    (HEAD + CHUNK + 'data = "x"\n[[chunk]]\nfrom = [1]\nto = [2]\ndata = "x"\ncount = 2\n', ["count", "2", "1"]),
    (HEAD + CHUNK + 'data = "x"\n[[chunk]]\nfrom = [1]\nto = [2]\ndata = "x"\nweight = 2\n', ["weight", "2", "1"]),
    (SCAN + '[[chunk]]\nreduce = true\nfrom = "0-1"\nto = [3]\ndata = "x"\n', ["data", "sum", "must be one chunk"]),
    (HEAD + "[[chunk]]\nfrom = [0]\nto = [0]\n", ["already where it is wanted"]),
    (HEAD + '[[chunk]]\nfrom = "all"\nto = "all"\n', ["already where it is wanted"]),
    (HEAD + "[[chunk]]\nreduce = true\nfrom = [1]\nto = [1]\n", ["already where it is wanted"]),
    ("name = \n" + CHUNK, [":1", "TOML", "column"]),
    (HEAD + "[[chunk]\n", [":3", "TOML"]),
    (HEAD + CHUNK + 'from = "0"\n', ["TOML", ":6"]),
    (HEAD + "x = " + "[" * 100_000, ["nested"]),
    (HEAD + "x = " + "1" * 5000, ["TOML"]),
    (HEAD.encode() + b'\n# \xff\n' + CHUNK.encode(), [":4", "0xff", "UTF-8"]),
    (HEAD + "#" * (MAX_FILE_BYTES + 1), ["16 MiB"]),
]  # fmt: skip


@pytest.mark.parametrize("case", range(len(BAD)))
def test_bad_patterns(tmp_path: Path, case: int) -> None:
    text, fragments = BAD[case]
    with pytest.raises(InputError) as error:
        read(tmp_path, text)
    line = str(error.value)
    assert "\n" not in line
    assert line.startswith(str(tmp_path / "p.toml"))
    assert len(line) < 400 + len(str(tmp_path))
    for word in fragments:
        assert word in line, line


def test_too_large_in_total(tmp_path: Path) -> None:
    chunk = '[[chunk]]\nfrom = "all"\nto = "all"\ncount = 100000\n'
    with pytest.raises(InputError, match=r"number 4: count: .* at most 5000000"):
        read(tmp_path, 'name = "x"\nranks = 8\n' + chunk * 26)


@pytest.mark.parametrize("reader", [read_pattern, read_sizes])
def test_files_that_are_none(tmp_path: Path, reader: object) -> None:
    assert callable(reader)
    os.mkfifo(tmp_path / "pipe")
    for path, message in [
        (tmp_path / "none.toml", "no such file"),
        (tmp_path, "directory"),
        (tmp_path / "pipe", "not a plain file"),
        ("a\0b", "a"),
        ("x" * 5000, "x"),
    ]:
        with pytest.raises(InputError, match=message) as error:
            reader(path)
        assert "\n" not in str(error.value)
        assert "it must be a" in str(error.value)


@settings(max_examples=60, derandomize=True)
@given(st.data())
def test_damaged_files_are_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    text = data.draw(st.sampled_from([HALO, SCAN]))
    at = data.draw(st.integers(0, len(text)))
    cut = data.draw(st.integers(0, 12))
    put = data.draw(st.one_of(st.text(max_size=6), st.sampled_from(["[", "]", '"', "=", "-", "9", "\n", "[[", "nan"])))
    message = ""
    try:
        read(tmp_path_factory.getbasetemp(), (text[:at] + put + text[at + cut :]).encode("utf-8", "replace"))
    except InputError as error:
        message = str(error)
    assert len(message.splitlines()) <= 1


GOOD_SIZES = [
    "0 1\n2 0\n",
    "0,1\n2,0",
    " 0 , 1 \r\n# a row of zeros would be wrong\r\n\n2 , 0  # the last",
    "0\t1\n2\t0\n",
    "[[0, 1], [2, 0]]",
    ' [[0, "1"],\n [2.0, 0]]\n',
    "\ufeff0 1B\n2 0\n",
]


@pytest.mark.parametrize("text", GOOD_SIZES)
def test_size_matrices(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sizes"
    path.write_text(text, encoding="utf-8", newline="")
    table = read_sizes(path)
    assert table.dtype == np.int64
    assert table.tolist() == [[0, 1], [2, 0]]


def test_suffixes_in_a_matrix(tmp_path: Path) -> None:
    path = tmp_path / "sizes.csv"
    path.write_text("0,64K,1M\n1G,0,1KiB\n2mB,7,0\n")
    assert read_sizes(path).tolist() == [[0, 65536, 2**20], [2**30, 0, 1024], [2**21, 7, 0]]


@pytest.mark.parametrize(
    ("text", "fragments"),
    [
        ("", ["0 rows", "k rows"]),
        ("# nothing\n", ["0 rows"]),
        ("5\n", ["1 row of 1 size;", "2 to 4096"]),
        ("0 1\n2 0 3\n", [":2", "3 sizes", "first row has 2"]),
        ("0 1 2\n2 0 3\n", ["2 rows of 3", "k rows of k"]),
        ("0 1\n\n2 x\n", [":3", "column 2", "'x'", "64K"]),
        ("0 1\n-2 0\n", [":2", "column 1", "negative"]),
        ("0,1,\n2,0,\n", [":1", "column 3", "''"]),
        ("0 1.5K\n1 0\n", [":1", "column 2", "'1.5K'"]),
        ("0 1T\n1 0\n", [":1", "column 2", "'1T'", "K, M or G"]),
        ("0 nan\n1 0\n", ["column 2", "'nan'"]),
        ("0 99999999999G\n1 0\n", ["column 2", "too large"]),
        ("0;1\n2;0\n", [":1", "column 1", "'0;1'"]),
        ("[[0, 1], [2]]", ["row 2", "1 size,"]),
        ("[[0, 1], 2]", ["row 2", "2"]),
        ("[[0, 1], [true, 0]]", ["row 2, column 1", "true"]),
        ("[[0, 1], [null, 0]]", ["row 2, column 1"]),
        ("[[0, 1], [NaN, 0]]", ["row 2, column 1", "nan"]),
        ("[[0, 1], [1e400, 0]]", ["row 2, column 1", "inf"]),
        ("[[0, 1], [-1, 0]]", ["row 2, column 1", "negative"]),
        ("[[0, 1], [0.5, 0]]", ["row 2, column 1", "0.5"]),
        (f"[[0, {10**30}], [1, 0]]", ["row 1, column 2", "size"]),
        ("[[0, 1],\n [2, 0]", [":2", "JSON", "column"]),
        ('{"a": 1}', ["a table", "array"]),
        ("[" * 100_000, ["nested"]),
        ("[[" + "1" * 5000 + "]]", ["digits"]),
    ],
)
def test_bad_matrices(tmp_path: Path, text: str, fragments: list[str]) -> None:
    path = tmp_path / "sizes"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_sizes(path)
    assert "\n" not in str(error.value)
    assert str(error.value).startswith(str(path))
    for word in fragments:
        assert word in str(error.value), str(error.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1), ("4096", 4096), ("64K", 65536), ("64k", 65536), ("1M", 2**20), ("1G", 2**30), ("1KiB", 1024),
        ("2MB", 2**21), ("2 GiB", 2**31), (" 8 ", 8), ("7B", 7), ("1073741824G", 2**60), ("007", 7), ("1Ki", 1024),
    ],
)  # fmt: skip
def test_sizes(text: str, value: int) -> None:
    assert parse_size(text, "--size") == value


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "K", "0", "0K", "-1", "-5K", "1.5M", "1e6", "1T", "1KK", "1iB", "0x10", "nan", "inf", "1_000",
        "1,000", "64K\n64K", "1073741825G", "9" * 400, "٣", "½", "4096 bytes", "\x00",
    ],
)  # fmt: skip
def test_no_sizes(text: str) -> None:
    with pytest.raises(InputError) as error:
        parse_size(text, "--size")
    line = str(error.value)
    assert line.startswith("--size: ")
    assert len(line.splitlines()) == 1
    assert len(line) < 250
