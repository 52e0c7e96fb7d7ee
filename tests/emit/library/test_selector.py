"""Tests that `Selector` gives the answers of a search over all entries, at every size and for ranks in any order."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emit.library.entry import IndexEntry
from emit.library.index import index_text, parse_index
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector
from emit.targets import TARGETS
from tests.emit.library.made_indices import Row, asked_of, entry_row, indices
from topologies.errors import InputError


def parsed(rows: list[Row]) -> list[IndexEntry]:
    return parse_index(index_text(rows), "index.json", Path("library"))


@st.composite
def libraries(draw: st.DrawFn) -> tuple[list[Row], list[Row]]:
    """Draw an index with further groups and divisors, and an equivalent one with an entry for each group."""
    rows = [row | {"divides": draw(st.integers(1, 3))} for row in draw(indices())]
    owner = {asked_of(row): asked_of(row) for row in rows}  # The files of a question come from one question.
    orders = draw(st.lists(st.permutations(range(6)), max_size=2))
    every = list(rows)
    for row in rows:
        groups = dict.fromkeys(tuple(order[rank] for rank in row["group"]) for order in orders if not row["relays"])
        further = []
        for group in groups:
            root = None if row["root"] is None else group[row["group"].index(row["root"])]
            group_row = row | {"group": list(group), "communicator": list(group), "root": root}
            if list(group) != row["group"] and owner.setdefault(asked_of(group_row), asked_of(row)) == asked_of(row):
                further.append(list(group))
                every.append(group_row)
        if further:
            row["isomorphic_groups"] = further
    return rows, every


def looked_up(rows: list[Row], row: Row, size: int, element_bytes: int) -> list[str]:
    """Return the files that serve a call by the rules in the docstring of `emit.library.index`."""
    return [
        candidate["file"]
        for candidate in rows
        if asked_of(candidate) == asked_of(row)
        and candidate["min_bytes"] <= size <= (size if candidate["max_bytes"] is None else candidate["max_bytes"])
        and size % (candidate["divides"] * (1 if TARGETS[candidate["target"]].cell_bytes else element_bytes)) == 0
    ]


@settings(max_examples=25)
@given(libraries(), st.data())
def test_every_size_follows_the_index(library: tuple[list[Row], list[Row]], data: st.DataObject) -> None:
    rows, every = library
    assume(rows)
    selector, row = Selector(parsed(rows)), data.draw(st.sampled_from(every))
    element_bytes = data.draw(st.sampled_from([1, 2, 4]))
    full: dict[str, Any] = {key: row[key] for key in ("target", "topology", "root", "relays")}
    for size in [*range(64), 1 << 40]:
        right = looked_up(every, row, size, element_bytes)
        for ranks, any_order in ((row["group"], False), (tuple(row["group"]), True)):
            fields = row["collective"], row["nranks"], ranks, row["inplace"]
            call = LibraryCall(*fields, **full, element_bytes=element_bytes, any_order=any_order)
            entry = selector.choose(call, size)
            assert size == 0 or selector.choose(call, f"{size}B") == entry
            if not any_order or right:
                assert ([] if entry is None else [entry.file]) == right
            if entry is not None:
                assert list(entry.communicator) in (row["communicator"], list(entry.group) + row["relays"])
                assert sorted(entry.group) == sorted(row["group"])


def test_ranks_in_another_order() -> None:
    """Check that an entry in the order of the call is preferred, and that the answer's order is returned."""
    reversed_row = entry_row(group=[6, 4, 2, 0], communicator=[6, 4, 2, 0], max_bytes=9, file="msccl/b.xml")
    selector = Selector(parsed([reversed_row, entry_row(max_bytes=4)]))

    def choose_file(size: int, *, any_order: bool, ranks: tuple[int, ...] = (0, 2, 4, 6)) -> tuple[int, ...] | None:
        entry = selector.choose(LibraryCall("allreduce", 4, ranks, True, any_order=any_order), size)
        return None if entry is None else entry.communicator

    assert choose_file(4, any_order=True) == choose_file(4, any_order=False) == (0, 2, 4, 6)
    assert choose_file(5, any_order=True) == (6, 4, 2, 0)
    assert choose_file(5, any_order=False) is None
    assert choose_file(4, any_order=True, ranks=(2, 0, 4, 6)) == (6, 4, 2, 0)
    assert choose_file(4, any_order=True, ranks=(2, 0, 4, 5)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ranks": [[0], 2, 4, 6]}, "ranks: an array of 1 is no whole number"),
        ({"ranks": "0246"}, "ranks: '0246' is no list"),
        ({"ranks": 4}, "ranks: 4 is no list"),
        ({"ranks": {0, 2, 4, 6}}, "ranks: a set has no order"),
        ({"relays": frozenset({1})}, "relays: a set has no order"),
        ({"size_bytes": 1.5}, "size_bytes: 1.5 is no whole number"),
        ({"size_bytes": -1}, "size_bytes -1"),
        ({"size_bytes": True}, "size_bytes: True is no whole number"),
        ({"inplace": 1}, "inplace"),
        ({"nranks": 4.0}, "nranks"),
        ({"element_bytes": 0}, "element_bytes 0"),
        ({"collective": {}}, "collective"),
        ({"relays": {"a": 1}}, "relays"),
        ({"any_order": "yes"}, "any_order"),
    ],
    ids=str,
)
def test_wrong_calls_are_refused_after_right_ones(changes: Row, message: str) -> None:
    """Check that a wrong call is refused even if it is equal to a remembered right one."""
    selector = Selector(parsed([entry_row()]))
    call: Row = {"collective": "allreduce", "nranks": 4, "ranks": (0, 2, 4, 6), "inplace": True}
    assert selector.choose(LibraryCall(**call), 1) is not None
    size_bytes = changes.get("size_bytes", 1)
    fields = {key: value for key, value in changes.items() if key != "size_bytes"}
    with pytest.raises(InputError) as error:
        selector.choose(LibraryCall(**(call | fields)), size_bytes)
    assert str(error.value).startswith(message)
    with pytest.raises(InputError) if fields else nullcontext():  # A call is checked when it is made.
        LibraryCall(**(call | fields))


def test_what_is_no_call_is_refused() -> None:
    selector: Any = Selector(parsed([entry_row()]))
    for arguments, message in (
        (("allreduce", 4), "call: 'allreduce' is no call; it must be a LibraryCall"),
        ((4, 4), "call: 4 is no call"),
        ((), r"Selector.choose: missing a required argument: 'call'; it must be as in selector\.choose\("),
    ):
        with pytest.raises(InputError, match=message):
            selector.choose(*arguments)


def test_entries_and_selectors_print_one_line() -> None:
    """Check that they name what a reader looks for, also for many ranks."""
    ranks = list(range(64))
    rows = [entry_row(group=ranks, communicator=ranks, nranks=64), entry_row(file="msccl/b.xml", collective="alltoall")]
    entries = parsed(rows)
    assert "ranks 0-63" in repr(entries[0])
    assert repr(entries[0]).endswith("msccl/a.xml>")
    assert repr(Selector(entries)).startswith("<Selector of 2 files: ")
    assert repr(Selector([])) == "<Selector of 0 files>"
    assert all(len(repr(thing)) < 120 and "\n" not in repr(thing) for thing in (*entries, Selector(entries)))


def test_a_folder_in_place_of_entries_is_refused_with_the_public_function_that_reads_it() -> None:
    with pytest.raises(InputError, match=r'Selector\(load_library\("out"\)\)'):
        Selector("out")  # type: ignore[arg-type]


def test_threads_share_a_selector_and_processes_its_entries() -> None:
    """Check that threads get the same choices as one thread, and that entries can be passed to another process."""
    rows = [entry_row(file=f"msccl/{i}.xml", min_bytes=i << 10, max_bytes=(i + 1 << 10) - 1) for i in range(32)]
    entries = [IndexEntry.of(row, Path()) for row in rows]
    calls = [(entries[0].collective, 4, [0, 2, 4, 6], entries[0].inplace)]
    sizes = [size << 8 for size in range(128)]

    def files(selector: Selector) -> list[str | None]:
        call = LibraryCall(*calls[0])
        return [None if entry is None else entry.file for size in sizes for entry in [selector.choose(call, size)]]

    alone, shared = files(Selector(entries)), Selector(entries)
    with ThreadPoolExecutor(4) as threads:
        assert all(choices == alone for choices in threads.map(files, [shared] * 8))
    assert len(set(alone)) > 16
    assert files(Selector(pickle.loads(pickle.dumps(entries)))) == alone
