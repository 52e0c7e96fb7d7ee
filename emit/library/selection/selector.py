"""The choice of a library's file for a call in microseconds: the entries of an index, sorted by what is asked.

`Selector` sorts once and remembers what was asked. A call that differs from an earlier one only in its size costs two
look-ups and a bisection. `emit.library.selection.table` does the same for programs in C.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from emit.library.entry import IndexEntry
from emit.library.selection.call import LibraryCall, row_by_row
from emit.library.selection.padded import PaddedChoice, PaddedFile
from emit.library.selection.reasons import why_none, why_served
from emit.targets import target_named
from synth.model.numbers import taking, whole
from synth.model.registry import find_kind, parse_name
from synth.model.sizes import parse_size
from synth.model.text import format_count, format_listed
from topologies.errors import InputError
from topologies.text.fields import shown

_Key = tuple[str, bool, tuple[int, ...]]  # collective, in place, ranks
_MOST_BLOCK = 1 << 40  # bytes of a block, so that sums of blocks and of cells fit 63 bits
_KEPT = 1 << 14  # questions that are remembered, whatever their sizes


class Served(NamedTuple):
    """An entry that serves a range of sizes.

    Attributes:
        entry: The entry.
        unit: Bytes of which the message size must be a multiple, for the type of the call.
    """

    entry: IndexEntry
    unit: int


class Ranges(NamedTuple):
    """The entries that serve calls which differ only in their size.

    Attributes:
        starts: First sizes of the ranges, rising; the first is 0.
        served: Per range, the entries that serve its sizes, in the order of the index.
    """

    starts: list[int]
    served: list[tuple[Served, ...]]


def entries_in_order(entries: Iterable[IndexEntry], ranks: tuple[int, ...]) -> list[IndexEntry]:
    """Return the entries whose group is `ranks` in this order, then those that serve it as an isomorphic group.

    The latter are restated for it (`IndexEntry.for_group`). They are left out if the same question has entries of its
    own.
    """
    own, shared = [], []
    for entry in entries:
        if entry.group == ranks:
            own.append(entry)
        elif ranks in entry.isomorphic_groups:
            shared.append(entry.for_group(ranks))
    own_questions = {(entry.question, entry.inplace) for entry in own}
    return own + [entry for entry in shared if (entry.question, entry.inplace) not in own_questions]


def entries_of(entries: Sequence[IndexEntry], ranks: tuple[int, ...]) -> list[IndexEntry]:
    """Return the entries for ranks in this order, then those for the same ranks in other orders.

    The `group` of an entry is in its own order. Entries that serve an order as an isomorphic group are restated for it
    (`IndexEntry.for_group`).
    """
    sorted_ranks = sorted(ranks)
    groups = [entry.group for entry in entries]
    groups += [group for entry in entries for group in entry.isomorphic_groups]
    orders = dict.fromkeys([ranks, *(group for group in groups if sorted(group) == sorted_ranks)])
    return [entry for order in orders for entry in entries_in_order(entries, order)]


def spelled_name(entries: Sequence[IndexEntry], collective: str) -> str:
    """Return a collective's name as the library's entries spell it, otherwise as `parse_name` does.

    Raises:
        InputError: Neither the library nor this package knows the collective.
    """
    return collective if any(entry.collective == collective for entry in entries) else parse_name(collective)


def _few(names: Sequence[str]) -> str:
    """Return at most three names as text, followed by the number of further ones."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


class Selector:
    """The entries of one index, sorted so that the entry for a call is found fast.

    Raises:
        InputError: If it is made from something else than a list of entries.
    """

    @taking('synth.Selector(synth.load_library("lib"))')
    def __init__(self, entries: Sequence[IndexEntry]) -> None:
        if not all(
            isinstance(entry, IndexEntry) for entry in (entries if isinstance(entries, list | tuple) else [None])
        ):
            raise InputError(
                'entries: hold something else; it must be a list of entries, as in Selector(load_library("out"))'
            )
        self._entries = entries
        self._names = {entry.collective for entry in entries}
        self._of: dict[tuple[str, bool, int], list[IndexEntry]] = defaultdict(list)
        self._own: dict[_Key, list[IndexEntry]] = defaultdict(list)
        self._shared: dict[_Key, list[IndexEntry]] = defaultdict(list)
        self._orders: dict[_Key, dict[tuple[int, ...], None]] = defaultdict(dict)
        for entry in entries:
            call = entry.collective, entry.inplace
            self._of[*call, entry.nranks].append(entry)
            self._own[*call, entry.group].append(entry)
            self._orders[*call, tuple(sorted(entry.group))][entry.group] = None
        for entry in entries:
            for group in entry.isomorphic_groups:
                self._shared[entry.collective, entry.inplace, group].append(entry)
                self._orders[entry.collective, entry.inplace, tuple(sorted(group))][group] = None
        self._ranges = lru_cache(_KEPT, typed=True)(self._make_ranges)
        self._padded = lru_cache(_KEPT, typed=True)(self._make_padded)

    def __repr__(self) -> str:
        """Return the number of files, the collectives and the topologies in one line."""
        count = format_count(len({(entry.folder, entry.file) for entry in self._entries}), "file")
        topologies = sorted({entry.topology for entry in self._entries})
        serves = f": {_few(sorted(self._names))} on {_few(topologies)}" if topologies else ""
        return f"<Selector of {count}{serves}>"

    @taking('selector.choose(synth.LibraryCall("allreduce", 4, [0, 1, 2, 3], inplace=True), 1 << 20)')
    def choose(self, call: LibraryCall, size_bytes: int | str) -> IndexEntry | None:
        """Return the entry that serves a call; None if the executor's own algorithm serves it.

        The executor's own serves if no file of the library fits, or the message size is no multiple of what the file
        needs; `why` says which. An entry that serves the call's ranks as an isomorphic group is restated for them. What
        was asked is remembered.

        Args:
            call: The call.
            size_bytes: Larger of a rank's send and receive buffer in bytes, also as text such as "64K" or "1M".

        Raises:
            InputError: If the call or its size is impossible, its collective or target is unknown, it needs a root, or
                more than one entry fits and these differ in more than the order of ranks; the message says what would
                tell them apart.
        """
        if not isinstance(call, tuple):
            raise InputError(f"call: {shown(call)} is no call; it must be a LibraryCall")
        try:
            starts, served = self._ranges(*call)  # type: ignore[arg-type]
        except TypeError:  # Lists cannot be hashed; what else cannot has not been checked yet.
            fields: list[Any] = [tuple(value) if type(value) is list else value for value in call]
            starts, served = self._ranges_of(fields)
        if type(size_bytes) is not int or size_bytes < 0:
            size_bytes = _size(size_bytes)
        fitting = [entry for entry, unit in served[bisect_right(starts, size_bytes) - 1] if not size_bytes % unit]
        if len(fitting) == 1 and (call.root is not None or fitting[0].root is None):
            return fitting[0]
        return self._first_of_orders(fitting, call, size_bytes) if fitting else None

    @taking('selector.why(synth.LibraryCall("allreduce", 4, [0, 1, 2, 3], inplace=True), 1 << 20)')
    def why(self, call: LibraryCall, size_bytes: int | str) -> str:
        """Return in words why `choose` returns what it returns: what its entry serves, or why no file fits the call.

        `synth library pick` prints the same sentences. They are for people, and may change with each release.

        Args:
            call: The call.
            size_bytes: Larger of a rank's send and receive buffer in bytes, also as text such as "64K" or "1M".

        Raises:
            InputError: As `choose` raises it.
        """
        entry, call, size = self.choose(call, size_bytes), call.checked(), _size(size_bytes)
        if entry is not None:
            return why_served(entry, call, size)
        return why_none(self.expanded(), call._replace(collective=spelled_name(self._entries, call.collective)), size)

    @taking('selector.choose_padded(synth.LibraryCall("alltoallv", 2, [0, 1], inplace=False, sizes=[0, 3, 2, 0]))')
    def choose_padded(self, call: LibraryCall) -> PaddedChoice | None:
        """Return the fastest file whose blocks hold those of a call with a size for every pair of ranks; None for none.

        A file serves the call at the least size at which each block of the call fits into the file's block; where the
        proportions are the call's own, there is no padding. `synth alltoallv --trace` makes such files.

        Args:
            call: The call; `sizes` are the bytes of its blocks. What a rank sends to itself is ignored, as it takes no
                link.

        Raises:
            InputError: If the call is impossible, its collective is unknown or has no size for every pair of ranks, or
                files for different topologies or targets serve it; the message says what would tell them apart.
        """
        blocks = np.array(row_by_row(call.sizes), dtype=object)
        key = call._replace(
            ranks=None if call.ranks is None else tuple(call.ranks), relays=tuple(call.relays), sizes=()
        )
        files = self._padded(*key)  # type: ignore[arg-type]
        if len(blocks) != call.nranks**2 or (blocks < 0).any() or (blocks > _MOST_BLOCK).any():
            form = f"{call.nranks**2} numbers from 0 to {_MOST_BLOCK}, one for each pair of the {call.nranks} ranks"
            raise InputError(f"sizes: are not right for {call.nranks} ranks; they must be {form}")
        table = blocks.astype(np.int64).reshape(call.nranks, call.nranks)
        np.fill_diagonal(table, 0)
        choices = [choice for file in files if (choice := file.choice(table, call.element_bytes)) is not None]
        for key_name in ("target", "topology", "group"):
            values = list(dict.fromkeys(getattr(choice.entry, key_name) for choice in choices))
            if len(values) > 1:
                word = "ranks" if key_name == "group" else key_name
                examples = " and ".join(v if isinstance(v, str) else format_listed(v) for v in values[:2])
                raise InputError(
                    f"{call.collective} of {call.nranks} ranks: there are files for {word} {examples}; give {word}"
                )
        return min(choices, key=lambda choice: (choice.time_us, choice.size_bytes, choice.entry.file), default=None)

    def _make_padded(self, *fields: Any) -> list[PaddedFile]:
        """Return the files for a call with these fields, those of `LibraryCall` without sizes, whatever their own are.

        Raises:
            InputError: As `choose_padded`.
        """
        call = LibraryCall(*fields).checked()
        kind = find_kind(parse_name(call.collective))
        if not kind.by_pair:
            raise InputError(f"{call.collective}: has no size for every pair of ranks; choose_padded is for alltoallv")
        required = {key: value for key in ("target", "topology") if (value := getattr(call, key)) is not None}
        required["relays"] = call.relays
        ranks = call.ranks
        entries = self._of.get((kind.name, call.inplace, call.nranks), ())
        return [
            PaddedFile(entry)
            for entry in entries
            if entry.sizes
            and ranks in (None, entry.group)
            and all(getattr(entry, key) == value for key, value in required.items())
        ]

    def _ranges_of(self, fields: Sequence[Any]) -> Ranges:
        """Return the entries for a call with these fields, by ranges of sizes; raise InputError for an impossible call.

        The answer is remembered if the fields can be hashed.
        """
        try:
            return self._ranges(*fields)
        except TypeError:
            return self._make_ranges(*fields)

    def _make_ranges(self, *fields: Any) -> Ranges:
        """Return the entries for a call with these fields, by ranges of sizes; raise InputError for an impossible call.

        The fields are those of `LibraryCall`, in their order.
        """
        call = LibraryCall(*fields).checked()
        if call.target is not None:
            target_named(call.target)  # Raise for an unknown one.
        name = call.collective if call.collective in self._names else parse_name(call.collective)
        required = {key: value for key in ("target", "topology", "root") if (value := getattr(call, key)) is not None}
        required |= {"relays": call.relays, "sizes": call.sizes}

        def matching(entries: Iterable[IndexEntry]) -> list[IndexEntry]:
            """Return the entries that meet the call's conditions."""
            return [e for e in entries if all(getattr(e, key) == value for key, value in required.items())]

        if call.ranks is None:
            return _cut(matching(self._of.get((name, call.inplace, call.nranks), ())), call)
        ranks = tuple(call.ranks)
        orders = [ranks]
        if call.any_order and not call.sizes:  # In another order of ranks the sizes would be others.
            other_orders = self._orders.get((name, call.inplace, tuple(sorted(ranks))), ())
            orders += [order for order in other_orders if order != ranks]
        return _cut(matching(entry for order in orders for entry in self._in_order((name, call.inplace, order))), call)

    def expanded(self) -> list[IndexEntry]:
        """Return the entries in their order, then one for each isomorphic group that an entry serves, restated for it.

        A group is left out where the same question has entries of its own.
        """
        shared = (entry for key in self._shared for entry in self._in_order(key)[len(self._own.get(key, ())) :])
        return [*self._entries, *shared]

    def _in_order(self, key: _Key) -> list[IndexEntry]:
        """Return the entries of a collective, form and ranks: first those whose group the ranks are.

        Those that serve them as an isomorphic group follow, restated for them.
        """
        return entries_in_order([*self._own.get(key, ()), *self._shared.get(key, ())], key[2])

    def _first_of_orders(self, fitting: Sequence[IndexEntry], call: LibraryCall, size_bytes: int) -> IndexEntry:
        """Return the first entry if only the order of ranks differs.

        Args:
            fitting: One or more entries that serve the call.
            call: The call.
            size_bytes: Its message size.

        Raises:
            InputError: If the entries differ otherwise, or have a root and the call states none; it says what to give.
        """
        description = f"{call.collective} of {call.nranks} ranks, {size_bytes} bytes"
        if call.root is None and any(entry.root is not None for entry in fitting):
            raise InputError(f"{description}: the library's files are for one root each; give root")
        for key, word in (("target", "target"), ("topology", "topology"), ("group", "ranks")):
            values = list(dict.fromkeys(getattr(entry, key) for entry in fitting))
            if key == "group" and call.any_order and call.ranks is not None:
                return fitting[0]
            if len(values) > 1:
                examples = " and ".join(v if isinstance(v, str) else format_listed(v) for v in values[:2])
                raise InputError(f"{description}: there are files for {word} {examples}; give {word}")
        raise InputError(
            f"{description}: {fitting[0].file} and {fitting[1].file} both serve it; take entries of one index"
        )


def _size(size_bytes: Any) -> int:
    """Return a size, maybe a text such as "1M", as an int; raise InputError if it is negative or no whole number."""
    if isinstance(size_bytes, str):
        return parse_size(size_bytes, "size_bytes")
    size = whole(size_bytes, "size_bytes")
    if size < 0:
        raise InputError(f"size_bytes {size}: is not possible; it must be 0 or more")
    return size


def _cut(entries: Sequence[IndexEntry], call: LibraryCall) -> Ranges:
    """Return the ranges of sizes, from 0 on, with the entries that serve each, maybe none.

    For ranks in any order, only the first of entries that differ in the order of their ranks is kept.
    """
    begins, ends = defaultdict(list), defaultdict(list)
    for number, entry in enumerate(entries):
        begins[entry.min_bytes].append(number)
        if entry.max_bytes is not None:
            ends[entry.max_bytes + 1].append(number)
    served_entries = [Served(entry, entry.unit(call.element_bytes)) for entry in entries]
    starts = sorted({0, *begins, *ends})
    served: list[tuple[Served, ...]] = []
    open_numbers: set[int] = set()
    for start in starts:
        open_numbers = open_numbers.difference(ends[start]).union(begins[start])
        first_served: dict[object, Served] = {}
        for number in sorted(open_numbers):
            entry, unit = served_entries[number]
            group = tuple(sorted(entry.group)) if call.any_order and call.ranks is not None else number
            first_served.setdefault(
                (entry.topology, entry.target, entry.root, entry.relays, group, unit), served_entries[number]
            )
        served.append(tuple(first_served.values()))
    return Ranges(starts, served)
