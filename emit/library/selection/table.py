"""A library's index as a table for programs in C: records of fixed size, to be mapped and searched without parsing.

`static/synth_table.h`, which reads the table, states the layout (version 1), how it is searched and how it may grow;
all numbers are little-endian. It answers as `emit.library.selection.selector.Selector` does: an entry that serves
further groups is a record for each of them. A table is of one topology, whose ranks its groups are.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence
from pathlib import Path

from emit.library.entry import IndexEntry
from emit.library.index import overlaps
from emit.library.selection.selector import Selector
from topologies.errors import InputError

HEADER = Path(__file__).parent / "static" / "synth_table.h"
MAGIC, VERSION, BYTE_ORDER = b"SYNTHTAB", 1, 0x01020304
_HEAD = struct.Struct("<8sIIIIQIIIIQQQQQII32s")
_RECORD = struct.Struct("<IIIIIIqQQQIIIIdQ")
_GROUP = struct.Struct("<IIII")
_IN_PLACE, _COUNTS_ELEMENTS = 1, 2
_NO_END, _MOST = (1 << 64) - 1, (1 << 32) - 1


def table_bytes(entries: Sequence[IndexEntry], index: bytes, topology: str | None = None) -> bytes:
    """Return the table of an index's entries.

    Args:
        entries: Entries of the index.
        index: Bytes of index.json, whose SHA-256 stands in the table.
        topology: Name of the topology whose entries are taken; None for the only one.

    Raises:
        InputError: If there are no entries, there is more than one topology and none is named, the named one has no
            entries, a rank is too large, or two entries serve one question and size.
    """
    names = list(dict.fromkeys(entry.topology for entry in entries))
    if topology is None and len(names) != 1:
        holdings = (
            f"files for topologies {', '.join(names)}; give --topology" if names else "no file; it must have some"
        )
        raise InputError(f"the library has {holdings}")
    topology = names[0] if topology is None else topology
    if topology not in names:
        raise InputError(f"--topology {topology}: the library has no file for it; it has files for {', '.join(names)}")
    # A look-up in C states no sizes of blocks.
    entries = Selector([entry for entry in entries if entry.topology == topology and not entry.sizes]).expanded()
    if not entries:
        raise InputError(f"the library has files only for blocks of different sizes on {topology}; a table has none")
    _check(entries)
    text, ranks = _TableText(), _TableRanks()
    texts = sorted({word.encode() for e in entries for word in (e.collective, e.target, e.protocol)})
    place = {word.decode(): number for number, word in enumerate(texts)}
    keys = sorted({_key(entry) for entry in entries})
    group_of = {key: number for number, key in enumerate(keys)}
    groups = b"".join(_GROUP.pack(ranks.place((*key[2], *key[3])), key[0], key[1], 0) for key in keys)
    orders = {order: number for number, order in enumerate(dict.fromkeys(entry.communicator for entry in entries))}

    def sort_key(e: IndexEntry) -> tuple[int, ...]:
        """Return the key by which records are sorted."""
        question = group_of[_key(e)], place[e.collective], place[e.target], int(e.inplace), _root(e)
        return *question, orders[e.communicator], e.min_bytes

    records = b"".join(_record(entry, group_of, place, text, ranks) for entry in sorted(entries, key=sort_key))
    sections = [
        records,
        groups,
        struct.pack(f"<{len(texts)}I", *(text.place(word.decode()) for word in texts)),
        struct.pack(f"<{len(ranks.all)}I", *ranks.all),
    ]
    topology_at, at = text.place(topology), _HEAD.size
    starts = []
    for section in (*sections, text.all):
        starts.append(at)
        at += -(-len(section) // 8) * 8
    counts = len(entries), len(keys), len(texts), len(ranks.all)
    head = _HEAD.pack(
        MAGIC, VERSION, BYTE_ORDER, _HEAD.size, _RECORD.size, at, *counts, *starts, len(text.all), topology_at,
        hashlib.sha256(index).digest(),
    )  # fmt: skip
    return head + b"".join(section + bytes(-len(section) % 8) for section in (*sections, bytes(text.all)))


class _TableText:
    """A section of strings, each once, ended by zero bytes."""

    def __init__(self) -> None:
        self.all = bytearray()
        self._known: dict[str, int] = {}

    def place(self, word: str) -> int:
        """Return the offset in bytes of a string in the section; add it if it is new."""
        if word not in self._known:
            self._known[word] = len(self.all)
            self.all += word.encode() + b"\0"
        return self._known[word]


class _TableRanks:
    """A section of lists of ranks, each once."""

    def __init__(self) -> None:
        self.all: list[int] = []
        self._known: dict[tuple[int, ...], int] = {}

    def place(self, ranks: tuple[int, ...]) -> int:
        """Return the offset of a list of ranks in the section, counted in ranks; add it if it is new."""
        if ranks not in self._known:
            self._known[ranks] = len(self.all)
            self.all += ranks
        return self._known[ranks]


def _key(entry: IndexEntry) -> tuple[int, int, tuple[int, ...], tuple[int, ...]]:
    """Return (number of ranks, number of relays, sorted ranks, sorted relays) of an entry, which identify its ranks."""
    return len(entry.group), len(entry.relays), tuple(sorted(entry.group)), tuple(sorted(entry.relays))


def _root(entry: IndexEntry) -> int:
    """Return an entry's root, -1 for none."""
    return -1 if entry.root is None else entry.root


def _record(
    entry: IndexEntry, group_of: dict[tuple[int, int, tuple[int, ...], tuple[int, ...]], int], place: dict[str, int],
    text: _TableText, ranks: _TableRanks,
) -> bytes:  # fmt: skip
    """Return the bytes of an entry's record, of fixed length.

    Its file name and its communicator are added to `text` and `ranks` if they are new there.

    Args:
        entry: The entry.
        group_of: Number of each group by its key (see `_key`).
        place: Number of each string of collectives, targets and protocols.
        text: Section of strings.
        ranks: Section of lists of ranks.
    """
    time_us, shown_bytes, blocks = entry.time_us, entry.shown_bytes, entry.row.get("threadblocks") or 0
    return _RECORD.pack(
        group_of[_key(entry)],
        place[entry.collective],
        place[entry.target],
        place[entry.protocol],
        (_IN_PLACE if entry.inplace else 0) | (_COUNTS_ELEMENTS if entry.counts_elements else 0),
        len(entry.relays),
        _root(entry),
        entry.min_bytes,
        _NO_END if entry.max_bytes is None else entry.max_bytes,
        entry.divides,
        text.place(entry.file),
        ranks.place(entry.communicator),
        entry.nranks,
        blocks if blocks <= _MOST else 0,
        math.nan if time_us is None or shown_bytes is None else time_us,
        0 if time_us is None or shown_bytes is None else shown_bytes,
    )


def _check(entries: Sequence[IndexEntry]) -> None:
    """Raise InputError if a rank needs more than 32 bits, or two entries of one question and form share a size."""
    largest = max((rank for entry in entries for rank in entry.communicator), default=0)
    if largest > _MOST:
        raise InputError(f"rank {largest}: is beyond what a table holds; it must be at most {_MOST}")
    for lower, higher in overlaps(entries):
        conflict = f"{lower.file} and {higher.file} both serve {higher.min_bytes} bytes"
        raise InputError(f"{conflict} of {higher.collective} on one group; only one may")
