"""A library for a network with a failure: what was answered anew for it, and of the healthy library what still holds.

`synth library update` writes the answers for a hurt network into faults/NAME of the healthy library, an index of their
own, and beside it fault.json:

    format      "synth-fault-1"
    without     the dead parts, as --without takes them
    topology    the healthy one's name
    kept        of the healthy library's entries the `answer`s whose questions the failure need not touch
    touched     questions that are others now, or have no answer: collective, root (its place in the group, null without
                one), and groups, ranks in order

Everything that loads a library takes the folder faults/NAME as one: entries of its own index come first, then those of
the healthy library that a build answered and no failure touches, for the groups that are left to them. What is in
neither is served by the executor's own algorithm.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emit.library.index import INDEX, ISOMORPHIC, MAX_INDEX_BYTES, Entry, load_index, read_index
from synth.model.numbers import as_folder
from synth.storage.columns import json_object
from topologies.errors import InputError
from topologies.text.fields import Fields
from topologies.text.files import check_below, origin_of, read_bytes

FAULTS = "faults"  # the folder of all of them, in the healthy library's
FAULT = "fault.json"
FORMAT = "synth-fault-1"
_UP = "../../"  # from faults/NAME to the healthy library
_SHOWN = 8  # failures in a refusal

Asked = tuple[str, int | None, tuple[int, ...]]  # collective, the root's place, ranks


@dataclass(frozen=True)
class Fault:
    """What fault.json says; fields as in the head of this module."""

    without: tuple[str, ...]
    topology: str
    kept: frozenset[str]
    touched: frozenset[Asked]

    def text(self) -> bytes:
        """As the file has it, the same for the same failure."""
        groups: dict[tuple[str, int], list[list[int]]] = {}
        for name, place, ranks in sorted(
            self.touched, key=lambda one: (one[0], -1 if one[1] is None else one[1], one[2])
        ):
            groups.setdefault((name, -1 if place is None else place), []).append(list(ranks))
        rows = [
            {"collective": name, "root": None if place < 0 else place, "groups": ranks}
            for (name, place), ranks in groups.items()
        ]
        about = {"format": FORMAT, "without": list(self.without), "topology": self.topology}
        return (json.dumps({**about, "kept": sorted(self.kept), "touched": rows}) + "\n").encode()


def load_library(path: str | Path) -> list[Entry]:
    """The entries of a library, given its index or its folder; of a failure's folder those that hold under it.

    Files of the healthy library are named from the failure's folder. Raises InputError as `load_index` does, and for a
    fault.json that is none.
    """
    folder = _folder(path)
    fault = read_fault(folder)
    if fault is None:
        return load_index(path)
    own = load_index(folder) if (folder / INDEX).exists() else []  # where nothing has an answer there is none
    return [*own, *held(fault, folder)]


def held(fault: Fault, folder: Path) -> list[Entry]:
    """Return what a failure leaves of the healthy library, as named from the failure's folder."""
    return [replace(entry, folder=folder) for entry in _held(fault, folder / _UP)]


def read_fault(folder: Path) -> Fault | None:
    """What a folder's fault.json says, None without one. Raises InputError where it is none of ours."""
    path = folder / FAULT
    try:
        there = path.is_file()
    except OSError:
        return None
    if not there:
        return None
    top = Fields(
        json_object(read_bytes(path, f"a failure's {FAULT}", MAX_INDEX_BYTES, inside=folder), origin_of(path)),
        "",
        origin_of(path),
    )
    if top.string("format") != FORMAT:
        top.fail("format", f"must be {FORMAT}")
    touched = set[Asked]()
    rows = top.values.get("touched")
    try:
        for row in rows if isinstance(rows, list) else ():
            touched |= {(str(row["collective"]), row["root"], tuple(map(int, ranks))) for ranks in row["groups"]}
    except (KeyError, TypeError, ValueError, OverflowError):
        rows = None
    if not isinstance(rows, list):
        top.fail("touched", "must be an array of objects with collective, root and groups")
    return Fault(
        tuple(top.strings("without")), top.string("topology"), frozenset(top.strings("kept")), frozenset(touched)
    )


def _held(fault: Fault, healthy: Path) -> Iterator[Entry]:
    """What a failure leaves of the healthy library, as seen from the failure's folder."""
    for entry in load_index(healthy) if (healthy / INDEX).exists() else ():
        if entry.topology != fault.topology or entry.values.get("answer") not in fault.kept:
            continue
        place = None if entry.root is None else entry.group.index(entry.root)
        groups = (entry.group, *entry.isomorphic_groups)
        left = [ranks for ranks in groups if (entry.collective, place, ranks) not in fault.touched]
        if left:
            yield _above(entry, left)


def _above(entry: Entry, groups: Sequence[tuple[int, ...]]) -> Entry:
    """An entry for these of its groups, its files named from a failure's folder."""
    first, *rest = groups
    one = entry if first == entry.group else entry.for_group(first)
    values = {key: value for key, value in one.values.items() if key != ISOMORPHIC}
    more: dict[str, Any] = {ISOMORPHIC: [list(ranks) for ranks in rest]} if rest else {}
    return replace(
        one,
        isomorphic_groups=tuple(rest),
        values=values | more,
        file=_UP + one.file,
        schedule=_raised(one.schedule),
        proof_file=_raised(one.proof_file),
    )


def _raised(name: str | None) -> str | None:
    return None if name is None else _UP + name


def failures_in(library: str | Path) -> dict[Path, Fault]:
    """The failures that a library has answers for, by their folders."""
    whole = _folder(library)
    check_below(whole, whole / FAULTS)
    folders = sorted(folder for folder in (whole / FAULTS).glob("*") if not folder.is_symlink())
    return {folder: fault for folder in folders if (fault := read_fault(folder)) is not None}


def folder_without(library: str | Path, without: Sequence[str]) -> Path:
    """Where a library has the answers for dead parts, in whatever order. Raises InputError where it has none."""
    known, wanted = failures_in(library), _parts(without)
    found = next((folder for folder, fault in known.items() if _parts(fault.without) == wanted), None)
    if found is None:
        there = "; ".join(",".join(fault.without) for fault in list(known.values())[:_SHOWN]) or "none"
        raise InputError(
            f"--without {','.join(without)}: {library} has no answers for it; it must be one that synth library update"
            f" wrote: {there}{'; …' if len(known) > _SHOWN else ''}"
        )
    return found


def _parts(without: Sequence[str]) -> set[str]:
    return {part.strip() for text in without for part in text.split(",")}


def load_as_one(path: str | Path) -> tuple[list[Entry], bytes]:
    """`load_library`, all entries as those of one topology, the hurt one; and the bytes of what they were read from."""
    folder, entries = _folder(path), load_library(path)
    fault = read_fault(folder)
    if fault is None:
        return entries, read_index(folder / INDEX)
    hurt = next((entry.topology for entry in entries if entry.topology != fault.topology), fault.topology)
    read = (folder / INDEX, folder / FAULT, folder / _UP / INDEX)
    data = b"".join(read_index(where) for where in read if where.exists())
    return [replace(entry, topology=hurt) for entry in entries], data


def _folder(path: str | Path) -> Path:
    where = as_folder(path, "path")
    return where.parent if where.name == INDEX else where
