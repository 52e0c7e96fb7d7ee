"""Tests of the reasons why no file of a library fits a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from emit.library.entry import IndexEntry
from emit.library.selection.call import LibraryCall
from emit.library.selection.selector import Selector
from tests.emit.library.made_indices import entry_row
from topologies.errors import InputError


def test_a_reason_heeds_spellings_and_relays_of_a_call() -> None:
    rows = [
        entry_row(collective="allgather", relays=list(relays), communicator=[0, 2, 4, 6, *relays], max_bytes=1024)
        for relays in ((), (1,))
    ]
    entries = [IndexEntry.of(row, Path()) for row in rows]
    call = LibraryCall("all_gather_into_tensor", 4, (0, 2, 4, 6), True)
    for relays, size_bytes, reason in (
        ((), 2048, "files are for up to 1 KiB, not for 2 KiB"),
        ((1,), 2048, "files are for up to 1 KiB, not for 2 KiB"),
        ((3,), 512, "none with relays 3"),
    ):
        asked = call._replace(relays=relays)
        assert Selector(entries).choose(asked, size_bytes) is None
        assert Selector(entries).why(asked, size_bytes) == reason
    without = "none without relays; there are files whose communicator also has the relays 1"
    assert Selector(entries[1:]).why(call, 512) == without


def test_each_part_of_a_call_that_no_file_fits_is_the_reason() -> None:
    """Check that a choice of nothing says which part of the call no file fits, and that names are checked."""
    row = entry_row(collective="allgather", max_bytes=1024, divides=16)
    selector = Selector([IndexEntry.of(row, Path())])
    call = LibraryCall("allgather", 4, [0, 2, 4, 6], True)
    assert selector.why(call, 1024).startswith("serves up to 1 KiB in place")
    for fields, size, beginning in (
        ({"collective": "allreduce"}, 1024, "no file for allreduce; there are allgather"),
        ({"ranks": (0, 2, 4, 99)}, 1024, "none of allgather for ranks 0,2,4,99; there are files for 0,2,4,6"),
        ({"ranks": None, "nranks": 8}, 1024, "none of allgather for 8 ranks; there are files for 0,2,4,6"),
        (
            {"ranks": (6, 4, 2, 0)},
            1024,
            "none for the ranks in the order 6,4,2,0; there are files for 0,2,4,6 (any_order",
        ),
        ({"topology": "nosuch"}, 1024, f"none of topology nosuch; there are {row['topology']}"),
        ({"target": "rccl"}, 1024, "none for executor rccl; there are "),
        ({"inplace": False}, 1024, "none for calls out of place"),
        ({}, 2048, "files are for up to 1 KiB, not for 2 KiB"),
        ({}, 1000, f"{row['file']} serves multiples of 16 bytes; 1000 B is not one of them"),
    ):
        other = call._replace(**fields)
        assert selector.choose(other, size) is None
        assert selector.why(other, size).startswith(beginning), selector.why(other, size)
    assert selector.choose(call._replace(ranks=(6, 4, 2, 0), any_order=True), 1024) is not None
    assert "must be in the order 0,2,4,6" in selector.why(call._replace(ranks=(6, 4, 2, 0), any_order=True), 1024)
    for ask in (selector.choose, selector.why):
        with pytest.raises(InputError, match="target 'bogus': is not known"):
            ask(call._replace(target="bogus"), 1024)
