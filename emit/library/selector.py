"""Which file of a library serves a call, in microseconds: the entries of an index, sorted by what is asked.

`Selector` sorts once and remembers what was asked; a call that is like an earlier one in all but its size is two
look-ups and a bisection. `emit.library.table` is the same for programs in C.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from emit.library.index import Entry
from synth.model.numbers import as_flag, as_text, whole, whole_numbers
from synth.model.registry import parse_name
from synth.present.text import format_listed
from topologies.errors import InputError

_Key = tuple[str, bool, tuple[int, ...]]  # collective, in place, ranks
_KEPT = 1 << 14  # unlike questions that are remembered, sizes apart


class Served(NamedTuple):
    """An entry of a range of sizes; unit: bytes of which the size must be a multiple, for the type of the call."""

    entry: Entry
    unit: int


class Ranges(NamedTuple):
    """Who serves calls that differ in their size alone.

    starts: rising, the first 0.  served: of the sizes from `starts[i]` to before the next, in the order of the index.
    """

    starts: list[int]
    served: list[tuple[Served, ...]]


def entries_in_order(entries: Iterable[Entry], ranks: tuple[int, ...]) -> list[Entry]:
    """The entries of a group, then those that name it among others, as entries of it.

    These are left out where the same question has entries of its own.
    """
    own, shared = [], []
    for entry in entries:
        if entry.group == ranks:
            own.append(entry)
        elif ranks in entry.isomorphic_groups:
            shared.append(entry.for_group(ranks))
    asked = {(entry.question, entry.inplace) for entry in own}
    return own + [entry for entry in shared if (entry.question, entry.inplace) not in asked]


def entries_of(entries: Sequence[Entry], ranks: tuple[int, ...]) -> list[Entry]:
    """The entries for ranks in this order, then those for the same ranks in others; each says which."""
    mine = sorted(ranks)
    groups = [entry.group for entry in entries]
    groups += [group for entry in entries for group in entry.isomorphic_groups]
    orders = dict.fromkeys([ranks, *(group for group in groups if sorted(group) == mine)])
    return [entry for order in orders for entry in entries_in_order(entries, order)]


class Selector:
    """Chooses among the entries of one index."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        """Sort them. Raises InputError for what is no list of entries."""
        if not all(isinstance(entry, Entry) for entry in (entries if isinstance(entries, list | tuple) else [None])):
            raise InputError("entries: hold something else; it must be a list of entries, as load_index gives it")
        self._entries = entries
        self._names = {entry.collective for entry in entries}
        self._of: dict[tuple[str, bool, int], list[Entry]] = defaultdict(list)
        self._own: dict[_Key, list[Entry]] = defaultdict(list)
        self._shared: dict[_Key, list[Entry]] = defaultdict(list)
        self._orders: dict[_Key, dict[tuple[int, ...], None]] = defaultdict(dict)
        for entry in entries:
            asked = entry.collective, entry.inplace
            self._of[*asked, entry.nranks].append(entry)
            self._own[*asked, entry.group].append(entry)
            self._orders[*asked, tuple(sorted(entry.group))][entry.group] = None
        for entry in entries:
            for group in entry.isomorphic_groups:
                self._shared[entry.collective, entry.inplace, group].append(entry)
                self._orders[entry.collective, entry.inplace, tuple(sorted(group))][group] = None
        self._ranges = lru_cache(_KEPT, typed=True)(self._make_ranges)

    def choose(
        self,
        collective: str,
        nranks: int,
        ranks: Sequence[int] | None,
        size_bytes: int,
        inplace: bool,
        *,
        target: str | None = None,
        topology: str | None = None,
        root: int | None = None,
        relays: Sequence[int] = (),
        element_bytes: int = 1,
        any_order: bool = False,
    ) -> Entry | None:
        """The entry that serves a call; None where the executor's own algorithm does, as none of the library's fits, or
        the message does not divide as its file needs.

        The same as `emit.library.lookup.choose`, which says what the arguments are and what is refused.
        """
        ranks = tuple(ranks) if type(ranks) is list else ranks
        relays = tuple(relays) if type(relays) is list else relays
        asked = collective, nranks, ranks, inplace, target, topology, root, relays, element_bytes, any_order
        try:
            starts, served = self._ranges(*asked)
        except TypeError:  # what cannot be looked up was not checked
            starts, served = self._make_ranges(*asked)
        if type(size_bytes) is not int or size_bytes < 0:
            size_bytes = _size(size_bytes)
        fit = [entry for entry, unit in served[bisect_right(starts, size_bytes) - 1] if not size_bytes % unit]
        if len(fit) == 1 and (root is not None or fit[0].root is None):
            return fit[0]
        return self._one_of(fit, asked, size_bytes) if fit else None

    def _make_ranges(
        self,
        collective: Any,
        nranks: Any,
        ranks: Any,
        inplace: Any,
        target: Any,
        topology: Any,
        root: Any,
        relays: Any,
        element_bytes: Any,
        any_order: Any,
    ) -> Ranges:
        """The entries for a call of any size. Raises InputError for a call that cannot be."""
        name, nranks = as_text(collective, "collective"), whole(nranks, "nranks")
        ranks, relays = None if ranks is None else whole_numbers(ranks, "ranks"), whole_numbers(relays, "relays")
        wanted: dict[str, object] = {"target": None if target is None else as_text(target, "target")}
        wanted |= {"topology": None if topology is None else as_text(topology, "topology")}
        wanted |= {"root": None if root is None else whole(root, "root"), "relays": relays}
        inplace, any_order = as_flag(inplace, "inplace"), as_flag(any_order, "any_order")
        element_bytes = whole(element_bytes, "element_bytes")
        if element_bytes < 1:
            raise InputError(f"element_bytes {element_bytes}: is not possible; it must be 1 or more")
        name = name if name in self._names else parse_name(name)
        if nranks < 1 or (ranks is not None and not len(set(ranks)) == len(ranks) == nranks):
            which = "" if ranks is None else f" and ranks {format_listed(ranks)}"
            raise InputError(
                f"nranks {nranks}{which}: is not possible; it must be 1 or more, and as many different ranks if given"
            )
        given = {key: value for key, value in wanted.items() if value is not None}

        def able(entries: Sequence[Entry]) -> list[Entry]:
            return [e for e in entries if all(getattr(e, key) == value for key, value in given.items())]

        if ranks is None:
            return _cut(able(self._of.get((name, inplace, nranks), ())), element_bytes)
        found = able(self._in_order((name, inplace, ranks)))
        if any_order:
            orders = self._orders.get((name, inplace, tuple(sorted(ranks))), ())
            found += able([e for order in orders if order != ranks for e in self._in_order((name, inplace, order))])
        return _cut(found, element_bytes, any_order=any_order)

    def expanded(self) -> list[Entry]:
        """The entries in their order, then one for each further group that an entry serves."""
        shared = (one for key in self._shared for one in self._in_order(key)[len(self._own.get(key, ())) :])
        return [*self._entries, *shared]

    def _in_order(self, key: _Key) -> list[Entry]:
        return entries_in_order([*self._own.get(key, ()), *self._shared.get(key, ())], key[2])

    def _one_of(self, fit: Sequence[Entry], asked: Sequence[Any], size_bytes: int) -> Entry:
        """The first entry where only the order of the ranks differs; else InputError says what differs."""
        collective, nranks, ranks, _, _, _, root, *_, any_order = asked
        words = f"{collective} of {nranks} ranks, {size_bytes} bytes"
        if root is None and any(entry.root is not None for entry in fit):
            raise InputError(f"{words}: the library's files are for one root each; give root")
        for key, word in (("target", "target"), ("topology", "topology"), ("group", "ranks")):
            values = list(dict.fromkeys(getattr(entry, key) for entry in fit))
            if key == "group" and any_order and ranks is not None:
                return fit[0]
            if len(values) > 1:
                both = " and ".join(v if isinstance(v, str) else format_listed(v) for v in values[:2])
                raise InputError(f"{words}: there are files for {word} {both}; give {word}")
        raise InputError(f"{words}: {fit[0].file} and {fit[1].file} both serve it; take entries of one index")


def _size(size_bytes: Any) -> int:
    size = whole(size_bytes, "size_bytes")
    if size < 0:
        raise InputError(f"size_bytes {size}: is not possible; it must be 0 or more")
    return size


def _cut(entries: Sequence[Entry], element_bytes: int, *, any_order: bool = False) -> Ranges:
    """The ranges of sizes between which who serves changes.

    any_order: of entries that differ in the order of their ranks alone the first.
    """
    begins, ends = defaultdict(list), defaultdict(list)
    for number, entry in enumerate(entries):
        begins[entry.min_bytes].append(number)
        if entry.max_bytes is not None:
            ends[entry.max_bytes + 1].append(number)
    able = [Served(entry, entry.divides * (element_bytes if entry.counts_elements else 1)) for entry in entries]
    starts = sorted({0, *begins, *ends})
    served: list[tuple[Served, ...]] = []
    now: set[int] = set()
    for start in starts:
        now = now.difference(ends[start]).union(begins[start])
        first: dict[object, Served] = {}
        for number in sorted(now):
            entry, unit = able[number]
            group = tuple(sorted(entry.group)) if any_order else number
            first.setdefault((entry.topology, entry.target, entry.root, entry.relays, group, unit), able[number])
        served.append(tuple(first.values()))
    return Ranges(starts, served)
