"""An independent reader of `library.table`: it unpacks the documented layout and examines every record for a call."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

IN_PLACE, COUNTS_ELEMENTS = 1, 2


class Record(NamedTuple):
    group: int
    collective: int
    target: int
    protocol: int
    flags: int
    nrelays: int
    root: int
    min_bytes: int
    max_bytes: int
    divides: int
    file: int
    communicator: int
    nranks: int
    threadblocks: int
    time_us: float
    shown_bytes: int


class TableReader:
    def __init__(self, data: bytes) -> None:
        head = struct.unpack_from("<8s4IQ4I5Q2I32s", data)
        magic, version, order, head_bytes, record_bytes, file_bytes = head[:6]
        assert (magic, version, order, file_bytes) == (b"SYNTHTAB", 1, 0x01020304, len(data))
        assert head_bytes == 128
        records, groups, names, ranks, records_at, groups_at, names_at, ranks_at, self._text_at = head[6:15]
        self._data, self.index = data, head[17]
        self.topology = self.text(head[16])
        self.records = [
            Record(*struct.unpack_from("<6Iq3Q4IdQ", data, records_at + record_bytes * i)) for i in range(records)
        ]
        self.groups = [struct.unpack_from("<4I", data, groups_at + 16 * i)[:3] for i in range(groups)]
        self.names = [self.text(at) for at in struct.unpack_from(f"<{names}I", data, names_at)]
        self.ranks = struct.unpack_from(f"<{ranks}I", data, ranks_at)

    def text(self, at: int) -> str:
        start = self._text_at + at
        return self._data[start : self._data.index(b"\0", start)].decode()

    def communicator(self, record: Record) -> list[int]:
        return list(self.ranks[record.communicator : record.communicator + record.nranks + record.nrelays])

    def serving(self, call: dict[str, Any], size: int, element_bytes: int) -> list[Record]:
        """Return all records that serve a call, for its ranks in any order."""
        return [
            r
            for r in self.records
            if (self.names[r.collective], self.names[r.target]) == (call["collective"], call["target"])
            and bool(r.flags & IN_PLACE) == call["inplace"]
            and r.root == (-1 if call["root"] is None else call["root"])
            and r.min_bytes <= size <= r.max_bytes
            and size % (r.divides * (element_bytes if r.flags & COUNTS_ELEMENTS else 1)) == 0
            and sorted(self.communicator(r)[: r.nranks]) == sorted(call["group"])
            and sorted(self.communicator(r)[r.nranks :]) == sorted(call["relays"])
        ]
