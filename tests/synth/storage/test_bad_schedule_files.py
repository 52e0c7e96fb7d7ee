"""A file that is no schedule file is refused in one line that names the file and the member or field."""

from __future__ import annotations

import io
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.model.collective import named
from synth.model.problem import make_problem
from synth.storage.schedule_file import load_schedule
from tests.synth.storage.stored_files import Members, members, rewritten, same, written
from topologies.errors import InputError
from topologies.load import load


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as error:
        load_schedule(path)
    line = str(error.value)
    assert len(line.splitlines()) == 1
    assert len(line) < 600
    assert line.isprintable()
    return line


def refused(path: Path) -> bool:
    try:
        load_schedule(path)
    except InputError:
        return True
    return False


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("plain"), make_problem(load("ring:4"), "allgather"))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    problem = make_problem(load("ring:4"), replace(named("allgather", 4, 1), name="mine"))
    return written(tmp_path_factory.mktemp("own"), problem)


def column(parts: Members, name: str, change: Callable[[Any], Any]) -> Members:
    old = np.load(io.BytesIO(parts[f"{name}.npy"]))
    new = io.BytesIO()
    np.save(new, change(old), allow_pickle=True)
    return parts | {f"{name}.npy": new.getvalue()}


def put(row: int, value: float) -> Callable[[Any], Any]:
    def change(old: Any) -> Any:
        new = old.astype(np.float64 if old.dtype.kind == "f" else np.int64)
        new[row] = value
        return new

    return change


COLUMN_FAULTS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("chunk", put(0, -1), "row 0 is -1"),
    ("chunk", put(3, 4), "row 3 is 4; it must be 0 to 3"),
    ("link", put(1, 8), "row 1 is 8"),
    ("link", put(1, 1 << 60), "row 1 is"),
    ("step", put(0, -5), "row 0 is -5"),
    ("step", put(0, 1 << 31), "row 0 is"),
    ("start_us", put(2, np.nan), "row 2 is nan"),
    ("start_us", put(2, np.inf), "row 2 is inf"),
    ("start_us", put(2, -1e-9), "row 2 is -1e-09"),
    ("chunk", lambda x: x[1:], "shape"),
    ("chunk", lambda x: np.append(x, 0), "shape"),
    ("chunk", lambda x: x[:, None], "shape"),
    ("chunk", lambda x: x.astype(np.float64), "<f8"),
    ("chunk", lambda x: x.astype(np.uint8), "cannot be read"),
    ("chunk", lambda x: x.astype(">i4"), "cannot be read"),
    ("chunk", lambda x: x.astype(object), "cannot be read"),
    ("chunk", lambda x: x.astype("U3"), "cannot be read"),
    ("reduces", lambda x: x.astype(np.int8), "|i1"),
    ("start_us", lambda x: x.astype(np.float32), "<f4"),
    ("start_us", lambda x: x + 1j, "cannot be read"),
]


@pytest.mark.parametrize("case", range(len(COLUMN_FAULTS)))
def test_wrong_column(plain: Path, tmp_path: Path, case: int) -> None:
    name, change, message = COLUMN_FAULTS[case]
    path = tmp_path / "bad.synth"
    rewritten(path, column(members(plain), name, change))
    line = refusal(path)
    assert line.startswith(f"{path}: {name}.npy: ")
    assert message in line


OWN_FAULTS: list[tuple[str, Callable[[Any], Any], str]] = [
    ("pre", lambda x: x[::-1], "not come after"),
    ("pre", lambda _: np.array([[0, 0], [0, 0], [2, 2], [3, 3]]), "row 1 does not come after"),
    ("pre", lambda _: np.array([[0, 0], [0, 1], [0, 2], [0, 4]]), "row 3 is 4"),
    ("pre", lambda _: np.array([[0, 0], [0, 1], [0, 2], [4, 3]]), "row 3 is 4"),
    ("pre", lambda _: np.array([[0, 0], [0, 1], [0, 2], [1, 2]]), "no rank holds chunk 3"),
    ("pre", lambda x: x[:, :1], "shape"),
    ("pre", lambda x: x[:, 0], "shape"),
    ("pre", lambda x: np.asfortranarray(x), "cannot be read"),
    ("post", lambda x: x - 1, "row 0 is -1"),
    ("in_index", lambda x: x[1:], "shape"),
    ("in_index", lambda x: x - 1, "row 0 is -1"),
    ("fraction", lambda x: x * 0, "row 0 is 0"),
    ("fraction", lambda x: x * np.nan, "row 0 is nan"),
    ("fraction", lambda x: -x, "row 0 is -"),
    ("reduces", lambda x: x.astype(np.int8) + 2, "|i1"),
]


@pytest.mark.parametrize("case", range(len(OWN_FAULTS)))
def test_wrong_column_of_a_pattern(own: Path, tmp_path: Path, case: int) -> None:
    name, change, message = OWN_FAULTS[case]
    path = tmp_path / "bad.synth"
    rewritten(path, column(members(own), f"collective/{name}", change))
    line = refusal(path)
    assert line.startswith(f"{path}: collective/{name}.npy: ")
    assert message in line


def test_a_bool_is_no_other_byte(plain: Path, tmp_path: Path) -> None:
    parts = members(plain)
    parts["reduces.npy"] = parts["reduces.npy"][:-1] + b"\x02"
    rewritten(tmp_path / "bad.synth", parts)
    assert "reduces.npy: holds bytes other than 0 and 1" in refusal(tmp_path / "bad.synth")


def test_wrong_members(plain: Path, own: Path, tmp_path: Path) -> None:
    path = tmp_path / "bad.synth"
    for file in (plain, own):
        parts = members(file)
        for name in parts:
            rewritten(path, {k: v for k, v in parts.items() if k != name})
            assert f"{path}: {name}: missing" in refusal(path)
            rewritten(path, parts | {name: parts[name][:-2]})
            assert f"{path}: {name}" in refusal(path)
    parts = members(plain)
    rewritten(path, parts | {"more.npy": parts["chunk.npy"]})
    assert "more.npy: is not expected" in refusal(path)
    for name in ("more", "../x.npy", "/chunk.npy", "X.npy", "a\nb.npy"):
        rewritten(path, parts | {name: b""})
        assert "is no member" in refusal(path)
    with pytest.warns(UserWarning, match="Duplicate name"):
        rewritten(path, [*parts.items(), ("chunk.npy", parts["chunk.npy"])])
    assert "'chunk.npy': is in the file twice" in refusal(path)
    rewritten(path, parts, zipfile.ZIP_DEFLATED)
    assert "is compressed or encrypted" in refusal(path)
    rewritten(path, parts | {f"{chr(97 + i)}.npy": b"" for i in range(26)} | {"aa.npy": b""})
    assert "is cut short, or no schedule file" in refusal(path)


def test_claims_of_size_cost_nothing(plain: Path, tmp_path: Path) -> None:
    """Check that no memory is allocated for a claimed size before the file is seen to contain the data."""
    path, parts = tmp_path / "bad.synth", members(plain)
    header = json.loads(parts["header.json"])
    rewritten(path, parts | {"header.json": json.dumps(header | {"sends": 1 << 40}).encode()})
    assert "chunk.npy: has the shape (12,)" in refusal(path)
    huge = parts["chunk.npy"].replace(b"'shape': (12,), }            ", b"'shape': (1099511627776,), }")
    assert huge != parts["chunk.npy"]
    rewritten(path, parts | {"header.json": json.dumps(header | {"sends": 1 << 40}).encode(), "chunk.npy": huge})
    assert "chunk.npy" in refusal(path)
    for chunks in (10**6, 10**12):
        about = header["collective"] | {"chunks": chunks}
        rewritten(path, parts | {"header.json": json.dumps(header | {"collective": about}).encode()})
        assert str(path) in refusal(path)


@pytest.mark.parametrize("data", [b"", b"PK", b"hello\n" * 100, bytes(range(256)) * 40, b"PK\x05\x06" + b"\0" * 18])
def test_no_zip(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bad.synth"
    path.write_bytes(data)
    assert str(path) in refusal(path)


def test_no_file(tmp_path: Path) -> None:
    for path in (
        tmp_path / "none.synth",
        tmp_path,
        Path("/dev/null"),
        Path("/dev/zero"),
        Path("a\nb"),
        Path("a\0b"),
    ):
        refusal(path)


def test_cut_short(plain: Path, tmp_path: Path) -> None:
    data, path = plain.read_bytes(), tmp_path / "bad.synth"
    for length in range(0, len(data), 61):
        path.write_bytes(data[:length])
        refusal(path)
    path.write_bytes(data + b"\0")
    refusal(path)


def test_a_byte_changed_anywhere(plain: Path, own: Path, tmp_path: Path) -> None:
    """Check that a changed byte is refused, or was a byte without a meaning (a date, say)."""
    rng, path = random.Random(0), tmp_path / "bad.synth"
    for file in (plain, own):
        data, right = file.read_bytes(), load_schedule(file)
        refused = 0
        for _ in range(300):
            at = rng.randrange(len(data))
            path.write_bytes(data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :])
            try:
                stored = load_schedule(path)
            except InputError:
                refused += 1
                continue
            same(stored, right.problem, right.schedule)
        assert refused > 150


HEADER_FAULTS: list[tuple[tuple[str, ...], object, str]] = [
    (("format",), "synth-schedule-2", "synth-schedule-1"),
    (("topology",), "name = 3", "topology"),
    (("topology",), 'name = "t"\nranks = 2\n', "group: rank 2 is not in this topology"),
    (("group",), [0, 1, 2, 2], "given twice"),
    (("group",), [0, 1, 2, 9], "rank 9"),
    (("group",), [0, 1, 2], "it must be 3"),
    (("group",), "0-3", "array"),
    (("group",), [0, 1, 2, True], "array"),
    (("group",), [0, 1, 2, -1], "no rank"),
    (("relays",), [0], "rank 0 is in the group"),
    (("collective", "name"), "alltoallv", "needs columns"),
    (("collective", "name"), "nonsense", "must be one of"),
    (("collective", "nchunks"), 5, "nchunks: 5 does not fit this problem; it must be 4"),
    (("collective", "chunks"), 2, "nchunks: 4 does not fit this problem; it must be 8"),
    (("collective", "chunks"), 0, "out of range"),
    (("collective", "ranks"), 5, "it must be 4"),
    (("collective", "root"), 4, "root"),
    (("collective", "columns"), True, "collective/pre.npy: missing"),
    (("fold",), [[1, 4]], "nchunks: 4 does not fit this problem; it must be 1"),
    (("fold",), [[1, 2]], "nchunks: 4 does not fit this problem; it must be 2"),
    (("fold",), [[2, 2]], "nchunks: 4"),
    (("fold",), [[2, 4]], "digits of the 4 ranks"),
    (("fold",), [[1, 3]], "digits"),
    (("fold",), [[1, 2], [1, 2]], "digits"),
    (("fold",), [], "digits"),
    (("fold",), [[0, 0]], "digits"),
    (("fold",), [[1]], "digits"),
    (("size_bytes",), -1, "out of range"),
    (("size_bytes",), 1e300, "out of range"),
    (("size_bytes",), True, "no number"),
    (("time_us",), -1, "out of range"),
    (("sends",), 11, "shape"),
    (("sends",), 12.0, "no whole number"),
    (("engine",), "a\x1b[31mb", "printable"),
    (("more",), 1, "unknown key"),
    (("collective", "more"), 1, "unknown key"),
]


def with_field(header: dict[str, Any], where: tuple[str, ...], value: object) -> bytes:
    if len(where) == 2:
        value = header[where[0]] | {where[1]: value}
    return json.dumps(header | {where[0]: value}).encode()


@pytest.mark.parametrize("case", range(len(HEADER_FAULTS)))
def test_wrong_header(plain: Path, tmp_path: Path, case: int) -> None:
    where, value, message = HEADER_FAULTS[case]
    path, parts = tmp_path / "bad.synth", members(plain)
    rewritten(path, parts | {"header.json": with_field(json.loads(parts["header.json"]), where, value)})
    assert message in refusal(path)


def test_every_field_is_needed(plain: Path, tmp_path: Path) -> None:
    path, parts = tmp_path / "bad.synth", members(plain)
    header = json.loads(parts["header.json"])
    for key in header:
        remaining = {k: v for k, v in header.items() if k != key}
        rewritten(path, parts | {"header.json": json.dumps(remaining).encode()})
        assert f"{path}: header.json: {key}: " in refusal(path)
    for key in header["collective"]:
        remaining = header | {"collective": {k: v for k, v in header["collective"].items() if k != key}}
        rewritten(path, parts | {"header.json": json.dumps(remaining).encode()})
        assert f"{path}: header.json: collective: {key}: missing" in refusal(path)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"a": NaN}',
        b'{"a": 1, "a": 2}',
        b'{"sends": ' + b"9" * 5000 + b"}",
    ],
    ids=range(8),
)
def test_header_that_is_no_json(plain: Path, tmp_path: Path, text: bytes) -> None:
    rewritten(tmp_path / "bad.synth", members(plain) | {"header.json": text})
    assert "bad.synth: header.json: " in refusal(tmp_path / "bad.synth")


def test_a_field_given_twice(plain: Path, tmp_path: Path) -> None:
    parts = members(plain)
    twice = parts["header.json"].replace(b'"engine":', b'"engine": "x", "engine":')
    rewritten(tmp_path / "bad.synth", parts | {"header.json": twice})
    assert "bad.synth: header.json: not JSON (a key is given twice)" in refusal(tmp_path / "bad.synth")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([1e999, 1 << 70]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    *((k,) for k in ("format", "software", "engine", "topology", "group", "relays", "fold", "size_bytes", "time_us")),
    *(("collective", k) for k in ("name", "ranks", "chunks", "nchunks", "root", "columns")),
    ("sends",), ("collective",),
]  # fmt: skip


@settings(max_examples=60, derandomize=True)
@given(st.sampled_from(FIELDS), VALUES)
def test_any_header_is_read_or_refused(
    plain: Path, tmp_path_factory: pytest.TempPathFactory, where: tuple[str, ...], value: object
) -> None:
    path, parts = tmp_path_factory.getbasetemp() / "any.synth", members(plain)
    rewritten(path, parts | {"header.json": with_field(json.loads(parts["header.json"]), where, value)})
    if refused(path):
        refusal(path)
