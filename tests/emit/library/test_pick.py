"""Tests of the reasons why no file of a library fits a call."""

from __future__ import annotations

from pathlib import Path

from emit.library.entry import IndexEntry
from emit.library.selection.pick import pick, why_none
from emit.library.selection.selector import LibraryCall
from tests.emit.library.made_indices import entry_row


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
        assert not pick(entries, asked, size_bytes)
        assert why_none(entries, asked, size_bytes) == reason
    without = "none without relays; there are files whose communicator also has the relays 1"
    assert why_none(entries[1:], call, 512) == without
