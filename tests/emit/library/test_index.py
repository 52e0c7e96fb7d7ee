"""Tests of a library's index: it is read as written, calls find their file, and hostile text is refused in one line."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emit.library.entry import INDEX, IndexEntry
from emit.library.index import FORMAT, index_text, load_index, parse_index
from emit.library.selection.call import LibraryCall
from emit.library.selection.lookup import choose
from emit.targets import TARGETS
from tests.emit.library.made_indices import Row, asked_of, entry_row, indices
from topologies.errors import InputError

HERE = Path("library")
ORIGIN = "library/index.json"
LARGEST = (1 << 63) - 1


def parsed(rows: list[Row]) -> list[IndexEntry]:
    return parse_index(index_text(rows), ORIGIN, HERE)


def refusal(data: bytes) -> str | None:
    """Return the single line with which an index is refused; None if it is read."""
    try:
        parse_index(data, ORIGIN, HERE)
    except InputError as error:
        line = str(error)
        assert line.startswith(ORIGIN)
        assert line.isprintable()
        assert len(line) < 700
        return line
    return None


def wrong(*rows: Row) -> str:
    """Return the line with which an index of these entries is refused."""
    line = refusal(index_text(rows))
    assert line is not None
    return line


@given(indices())
def test_written_indices_are_read(rows: list[Row]) -> None:
    data = index_text(rows)
    assert json.loads(data) == {"format": FORMAT, "algorithms": rows}
    entries = parse_index(data, ORIGIN, HERE)
    assert [dict(entry.row) for entry in entries] == rows
    for entry, row in zip(entries, rows, strict=True):
        assert (list(entry.group), list(entry.communicator)) == (row["group"], row["communicator"])
        assert entry.path == HERE / row["file"]


@given(indices(), st.data())
def test_a_call_gets_the_file_that_serves_it(rows: list[Row], data: st.DataObject) -> None:
    """Check that a complete call gets the one entry that serves its size, or none."""
    assume(rows)
    entries, row = parsed(rows), data.draw(st.sampled_from(rows))
    full = {key: row[key] for key in ("target", "topology", "root", "relays")}
    same = [r for r in rows if asked_of(r) == asked_of(row)]
    for size in range(64):
        right = [
            r["file"] for r in same if r["min_bytes"] <= size <= (size if r["max_bytes"] is None else r["max_bytes"])
        ]
        entry = choose(
            entries, LibraryCall(row["collective"], row["nranks"], row["group"], row["inplace"], **full), size
        )
        assert ([] if entry is None else [entry.file]) == right
        assert len(right) <= 1


@given(indices(), st.data())
def test_an_incomplete_call_gets_a_file_only_if_it_is_unique(rows: list[Row], data: st.DataObject) -> None:
    assume(rows)
    entries, row = parsed(rows), data.draw(st.sampled_from(rows))
    size = row["min_bytes"]
    ranks = data.draw(st.sampled_from([None, row["group"]]))
    target = data.draw(st.sampled_from([None, row["target"]]))
    fit = [
        r
        for r in rows
        if all(r[key] == row[key] for key in ("collective", "nranks", "relays", "root", "inplace"))
        and r["group"] == (r["group"] if ranks is None else ranks)
        and r["target"] == (r["target"] if target is None else target)
        and r["min_bytes"] <= size <= (size if r["max_bytes"] is None else r["max_bytes"])
    ]
    ask = {"relays": row["relays"], "root": row["root"], "target": target}
    if len(fit) == 1:
        entry = choose(entries, LibraryCall(row["collective"], row["nranks"], ranks, row["inplace"], **ask), size)
        assert entry is not None
        assert entry.file == row["file"]
        return
    with pytest.raises(InputError, match=r"give (target|topology|ranks)$"):
        choose(entries, LibraryCall(row["collective"], row["nranks"], ranks, row["inplace"], **ask), size)


def test_choose_knows_other_spellings_and_patterns() -> None:
    entries = parsed([entry_row(), entry_row(collective="halo", file="msccl/b.xml")])
    for name, file in (("all_reduce", "msccl/a.xml"), ("allreduce", "msccl/a.xml"), ("halo", "msccl/b.xml")):
        entry = choose(entries, LibraryCall(name, 4, [0, 2, 4, 6], True), 0)
        assert entry is not None
        assert entry.file == file
    for ranks in ([0, 2, 6, 4], [1, 2, 4, 6]):
        assert choose(entries, LibraryCall("allreduce", 4, ranks, True), 0) is None
    assert choose(entries, LibraryCall("allgather", 4, None, True), 0) is None


@pytest.mark.parametrize(
    ("collective", "nranks", "ranks", "size", "words"),
    [
        ("allreduc", 4, None, 0, "did you mean allreduce"),
        ("allreduce", 4, [0, 2, 4], 0, "that many different ranks"),
        ("allreduce", 4, [0, 2, 4, 4], 0, "that many different ranks"),
        ("allreduce", 4, [0, 2, 4, 4, 6], 0, "that many different ranks"),
        ("allreduce", 0, None, 0, "nranks 0"),
        ("allreduce", 4, None, -1, "size_bytes -1"),
        ("broadcast", 4, None, 0, "give root"),
    ],
)
def test_wrong_calls_are_refused(collective: str, nranks: int, ranks: list[int] | None, size: int, words: str) -> None:
    entries = parsed([entry_row(), entry_row(collective="broadcast", root=2, file="msccl/b.xml")])
    with pytest.raises(InputError, match=words) as error:
        choose(entries, LibraryCall(collective, nranks, ranks, True), size)
    assert len(str(error.value).splitlines()) == 1


def test_a_file_for_another_root_is_not_chosen() -> None:
    entries = parsed([entry_row(collective="broadcast", root=2)])
    assert choose(entries, LibraryCall("broadcast", 4, None, True, root=0), 0) is None
    assert choose(entries, LibraryCall("broadcast", 4, None, True, root=2), 0) == entries[0]


def test_a_file_serves_further_groups_of_the_same_network() -> None:
    root = {"collective": "broadcast", "root": 2}
    entries = parsed([entry_row(isomorphic_groups=[[8, 10, 12, 14], [1, 0, 3, 2]], **root)])
    entry = choose(entries, LibraryCall("broadcast", 4, (1, 0, 3, 2), True, root=0), 4096)
    assert entry is not None
    assert (entry.file, entry.communicator, entry.root) == ("msccl/a.xml", (1, 0, 3, 2), 0)
    assert (
        choose(entries, LibraryCall("broadcast", 4, (1, 0, 3, 2), True, root=2), 4096) is None
    )  # The root has another position in that group.
    assert (
        choose(entries, LibraryCall("broadcast", 4, (0, 1, 2, 3), True, root=0), 4096) is None
    )  # No entry's group has this order.
    own_row = entry_row(file="msccl/b.xml", group=[1, 0, 3, 2], communicator=[1, 0, 3, 2], **root | {"root": 0})
    own_entry = choose([*entries, *parsed([own_row])], LibraryCall("broadcast", 4, (1, 0, 3, 2), True, root=0), 4096)
    assert own_entry is not None
    assert own_entry.file == "msccl/b.xml"


def test_wrong_further_groups() -> None:
    assert "isomorphic_groups: must each be 4 ranks" in wrong(entry_row(isomorphic_groups=[[1, 2, 3]]))
    assert "isomorphic_groups: must each be 4 ranks as the group is, and no group twice" in wrong(
        entry_row(isomorphic_groups=[[0, 2, 4, 6]])
    )
    assert "isomorphic_groups: must be an array" in wrong(
        entry_row(isomorphic_groups=[[5, 7, 9, 11]], relays=[1], communicator=[0, 2, 4, 6, 1])
    )
    assert "isomorphic_groups: names a rank twice" in wrong(entry_row(isomorphic_groups=[[1, 1, 2, 3]]))


def test_entries_of_two_libraries_that_both_serve() -> None:
    entries = parsed([entry_row()]) + parsed([entry_row(file="msccl/b.xml")])
    with pytest.raises(InputError, match="both serve it"):
        choose(entries, LibraryCall("allreduce", 4, None, True), 0)


WRONG = [
    ({"nranks": 3}, ("nranks", "group has 4")),
    ({"group": []}, ("group",)),
    ({"group": [0, 2, 4, 4]}, ("group", "twice")),
    ({"group": [0, 2, 4, -6]}, ("group", "array of ranks")),
    ({"group": [0, 2, 4, True]}, ("group", "array of ranks")),
    ({"relays": [2], "communicator": [0, 2, 4, 6, 2]}, ("relays",)),
    ({"communicator": [6, 4, 2, 0]}, ("communicator", "then the relays")),
    ({"root": 1}, ("root", "not in the group")),
    ({"target": "nccl"}, ("target", "executor-nccl")),
    ({"inplace": 1}, ("inplace", "true nor false")),
    ({"min_bytes": -1}, ("min_bytes", "out of range")),
    ({"min_bytes": 2, "max_bytes": 1}, ("max_bytes", "out of range")),
    ({"max_bytes": LARGEST + 1}, ("max_bytes", "out of range")),
    ({"file": "a.xml"}, ("file", "msccl/NAME.xml")),
    ({"file": "msccl/a.json"}, ("file", "msccl/NAME.xml")),
    ({"file": "msccl/../../a.xml"}, ("file", "msccl/NAME.xml")),
    ({"file": "/etc/passwd"}, ("file", "msccl/NAME.xml")),
    ({"file": "msccl/.a.xml"}, ("file", "msccl/NAME.xml")),
    ({"file": "msccl/a.xml\n"}, ("file", "msccl/NAME.xml")),
    ({"target": "rccl"}, ("file", "msccl-rccl/NAME.xml")),
    ({"schedule": "msccl/a.xml"}, ("schedule", "schedules/NAME.synth")),
    ({"proof_file": "../a.proof.json"}, ("proof_file", "schedules/NAME.proof.json")),
    ({"goal": []}, ("goal", "object or null")),
    ({"topology": "a\nb"}, ("topology", "printable")),
    ({"collective": ""}, ("collective", "1 to 4000")),
]


@pytest.mark.parametrize(("changes", "words"), WRONG, ids=str)
def test_a_wrong_field(changes: Row, words: tuple[str, ...]) -> None:
    good = entry_row(file="msccl/b.xml", collective="allgather")
    line = wrong(good, entry_row(**changes))
    for word in ("algorithm 2", *words):
        assert word in line


@pytest.mark.parametrize("key", [key for key in entry_row() if key != "time_us"])
def test_a_missing_field(key: str) -> None:
    row = entry_row()
    del row[key]
    if key == "goal":
        assert "goal: missing" in wrong(row)
    else:
        assert key in wrong(row)


@given(indices().filter(bool), st.data())
def test_overlapping_sizes_are_reported(rows: list[Row], data: st.DataObject) -> None:
    """Check that an added entry for a size that is already served is reported."""
    row = data.draw(st.sampled_from(rows))
    size = row["min_bytes"] + data.draw(st.integers(0, 3))
    assume(row["max_bytes"] is None or size <= row["max_bytes"])
    target = TARGETS[row["target"]]
    low = data.draw(st.integers(0, size))
    more = row | {"file": f"{target.folder}/more{target.suffix}", "min_bytes": low, "max_bytes": size}
    assert "both serve" in wrong(*rows, more)
    assert refusal(index_text([*rows, more | {"topology": "another"}])) is None


def test_one_file_in_two_entries() -> None:
    assert "msccl/a.xml" in wrong(entry_row(max_bytes=9), entry_row(min_bytes=10))


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(inner, (*path, key))


HOSTILE: tuple[object, ...] = (
    None, True, -1, 10**30, 1.5, "", "x" * 10_000, "\x1b[2J", "\ud800", "../../etc/passwd", [], [[]], {},
    [1, "a", None], {"a": {}}, [0] * 5, "a\u2028b",
)  # fmt: skip


def test_any_value_in_any_place() -> None:
    """Check that a hostile value is refused in one line, or read and written again."""
    goal = {"nranks": 1, "initial": [[0], ["i"], [0], [0], [0]], "required": [[0], ["o"], [0], [0], [0]]}
    document = {"format": FORMAT, "algorithms": [entry_row(goal=goal, max_bytes=9)]}
    refused = read = 0
    for path in _places(document):
        for value in HOSTILE:
            changed: Any = value
            if path:
                changed = copy.deepcopy(document)
                inner = changed
                for key in path[:-1]:
                    inner = inner[key]
                inner[path[-1]] = value
            data = json.dumps(changed).encode()
            if refusal(data) is not None:
                refused += 1
                continue
            read += 1
            entries = parse_index(data, ORIGIN, HERE)
            reread = parse_index(index_text([entry.row for entry in entries]), ORIGIN, HERE)
            assert reread == entries
            for entry in entries:
                with suppress(InputError):
                    entry.goal()
    assert refused > 100
    assert read > 20


@settings(max_examples=60)
@given(st.data())
def test_any_bytes(data: st.DataObject) -> None:
    """Check that changed, cut and doubled bytes of an index are refused or read."""
    text = bytearray(index_text([entry_row()]))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(at, min(len(text), at + 20)))
        text[at:end] = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b"", b"1e999", b"[[[", b"NaN"])))
    refusal(bytes(text))


def _deep(depth: int) -> bytes:
    return index_text([entry_row(time_us=0)]).replace(b'"time_us": 0', b'"time_us": ' + b"[" * depth + b"]" * depth)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff\xfe", b"{", b"[" * 100_000, b'{"format": "synth-index-2"}', b"\x00" * 99, b'{"mine": 1}',
     b'{"format": "synth-index-1", "algorithms": []}', b'{"format": "synth-index-2", "algorithms": [1]}',
     index_text([entry_row(time_us=0)]).replace(b'"time_us": 0', b'"time_us": 1e999'), _deep(100_000)],
    ids=range(11),
)  # fmt: skip
def test_wrong_indices_are_refused(data: bytes) -> None:
    assert refusal(data) is not None


@pytest.mark.parametrize("depth", [10, 300, 900, 990, 3000])
def test_deep_fields_are_refused_or_can_be_written(depth: int) -> None:
    if refusal(_deep(depth)) is None:
        index_text(entry.row for entry in parse_index(_deep(depth), ORIGIN, HERE))


def test_load_by_file_or_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        load_index(tmp_path)
    (tmp_path / INDEX).write_bytes(index_text([entry_row()]))
    assert load_index(tmp_path) == load_index(tmp_path / INDEX)
    assert load_index(tmp_path)[0].path == tmp_path / "msccl" / "a.xml"
    (tmp_path / INDEX).write_bytes(b" " * (25 << 20))
    with pytest.raises(InputError, match="at most 24 MiB"):
        load_index(tmp_path)
