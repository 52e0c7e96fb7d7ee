"""Load a library, also one with a failure: the answers for the failure, then the healthy ones that still hold.

`synth library update` writes the answers for a hurt network into faults/NAME of the healthy library, with an index of
their own, and beside it fault.json:

    format      "synth-fault-1"
    without     the dead parts, as --without takes them
    topology    the healthy topology's name
    kept        the `answer` of those entries of the healthy library whose questions the failure does not change
    touched     questions that the failure changes, or that have no answer: collective, root (its place in the group,
                null without one), and groups, ranks in order

Everything that loads a library takes the folder faults/NAME as one. Entries of its own index come first, then those of
the healthy library that a build answered and no failure touches, for their remaining groups. The executor's own
algorithm serves what is in neither.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from emit.library.entry import INDEX, ISOMORPHIC, IndexEntry
from emit.library.index import MAX_INDEX_BYTES, load_index, read_index
from synth.model.numbers import as_folder, taking
from synth.storage.columns import json_object
from topologies.errors import InputError
from topologies.text.fields import Fields
from topologies.text.files import check_below, origin_of, read_bytes

FAULTS = "faults"  # folder of all failures in the healthy library's folder
FAULT = "fault.json"
FORMAT = "synth-fault-1"
UP = "../../"  # from faults/NAME to the healthy library
_SHOWN = 8  # failures that an error message lists

QuestionKey = tuple[str, int | None, tuple[int, ...]]  # collective, the root's place, ranks


@dataclass(frozen=True)
class LibraryFault:
    """The contents of a fault.json, whose fields the head of this module describes.

    Attributes:
        without: The dead parts, as --without takes them.
        topology: Name of the healthy topology.
        unchanged: `answer` of those entries of the healthy library whose questions the failure does not change; the
            field `kept` of the file.
        touched: Questions that the failure changes, or that have no answer, each (collective, the root's place in the
            group or None, ranks).
    """

    without: tuple[str, ...]
    topology: str
    unchanged: frozenset[str]
    touched: frozenset[QuestionKey]

    def text(self) -> bytes:
        """Return the contents of the file, a line of JSON with sorted questions, the same for the same failure."""
        groups: dict[tuple[str, int], list[list[int]]] = {}
        for name, place, ranks in sorted(
            self.touched, key=lambda question: (question[0], -1 if question[1] is None else question[1], question[2])
        ):
            groups.setdefault((name, -1 if place is None else place), []).append(list(ranks))
        rows = [
            {"collective": name, "root": None if place < 0 else place, "groups": ranks}
            for (name, place), ranks in groups.items()
        ]
        about = {"format": FORMAT, "without": list(self.without), "topology": self.topology}
        return (json.dumps({**about, "kept": sorted(self.unchanged), "touched": rows}) + "\n").encode()


@taking('synth.load_library("lib")')
def load_library(path: str | Path) -> list[IndexEntry]:
    """Return the entries of a library, given its index or its folder; for a failure's folder, those that hold under it.

    Entries of the failure's own index come first; it need not have one. Files of the healthy library are named from the
    failure's folder.

    Raises:
        InputError: If an index cannot be read or is malformed, or fault.json is.
    """
    folder = _folder(path)
    fault = read_fault(folder)
    if fault is None:
        return load_index(path)
    own = load_index(folder) if (folder / INDEX).exists() else []  # Without any answer there is no index.
    return [*own, *entries_left(fault, folder)]


def entries_left(fault: LibraryFault, folder: Path) -> list[IndexEntry]:
    """Return the healthy library's entries that hold under a failure; they name files from the failure's folder.

    Each has only the groups that the failure does not touch. Without an index of the healthy library there are none.

    Args:
        fault: The failure.
        folder: The failure's folder, two levels below the healthy library.

    Raises:
        InputError: If the healthy library's index cannot be read or is malformed.
    """
    return [replace(entry, folder=folder) for entry in _healthy_entries_left(fault, folder / UP)]


def read_fault(folder: Path) -> LibraryFault | None:
    """Return the contents of a folder's fault.json; None if there is none. Raise InputError if it is malformed."""
    path = folder / FAULT
    if not os.path.lexists(path):
        return None
    top = Fields(
        json_object(read_bytes(path, f"a failure's {FAULT}", MAX_INDEX_BYTES, inside=folder), origin_of(path)),
        "",
        origin_of(path),
    )
    if top.string("format") != FORMAT:
        top.fail("format", f"must be {FORMAT}")
    touched = set[QuestionKey]()
    rows = top.values.get("touched")
    try:
        for row in rows if isinstance(rows, list) else ():
            touched |= {(str(row["collective"]), row["root"], tuple(map(int, ranks))) for ranks in row["groups"]}
    except (KeyError, TypeError, ValueError, OverflowError):
        rows = None
    if not isinstance(rows, list):
        top.fail("touched", "must be an array of objects with collective, root and groups")
    return LibraryFault(
        tuple(top.strings("without")), top.string("topology"), frozenset(top.strings("kept")), frozenset(touched)
    )


def _healthy_entries_left(fault: LibraryFault, healthy: Path) -> Iterator[IndexEntry]:
    """Yield the healthy library's entries that hold under a failure, with files named from the failure's folder.

    `healthy` is the healthy library's folder, which stays the entries' `folder`.
    """
    for entry in load_index(healthy) if (healthy / INDEX).exists() else ():
        if entry.topology != fault.topology or entry.answer not in fault.unchanged:
            continue
        place = None if entry.root is None else entry.group.index(entry.root)
        groups = (entry.group, *entry.isomorphic_groups)
        remaining = [ranks for ranks in groups if (entry.collective, place, ranks) not in fault.touched]
        if remaining:
            yield _named_from_failure(entry, remaining)


def _named_from_failure(entry: IndexEntry, groups: Sequence[tuple[int, ...]]) -> IndexEntry:
    """Return an entry restricted to some of its groups, with its files named from a failure's folder.

    The first of `groups` becomes the entry's `group`.
    """
    first_group, *other_groups = groups
    restated = entry if first_group == entry.group else entry.for_group(first_group)
    row = {key: value for key, value in restated.row.items() if key != ISOMORPHIC}
    row |= {ISOMORPHIC: [list(ranks) for ranks in other_groups]} if other_groups else {}
    return replace(
        restated,
        isomorphic_groups=tuple(other_groups),
        row=row,
        file=UP + restated.file,
        schedule=_raised(restated.schedule),
        proof_file=_raised(restated.proof_file),
    )


def _raised(name: str | None) -> str | None:
    """Return the name of a healthy library's file as seen from a failure's folder; None for None."""
    return None if name is None else UP + name


def failures_in(library: str | Path) -> dict[Path, LibraryFault]:
    """Return the failures that a library has answers for, by their folders, in the order of the folders' names.

    Links, and folders without a fault.json, are left out.

    Args:
        library: The healthy library's folder or its index.

    Raises:
        InputError: If a fault.json is malformed, or `faults` is a link.
    """
    library_folder = _folder(library)
    check_below(library_folder, library_folder / FAULTS)
    folders = sorted(folder for folder in (library_folder / FAULTS).glob("*") if not folder.is_symlink())
    return {folder: fault for folder in folders if (fault := read_fault(folder)) is not None}


def folder_without(library: str | Path, without: Sequence[str]) -> Path:
    """Return the folder in which a library has the answers for dead parts.

    Args:
        library: The healthy library's folder or its index.
        without: The dead parts, as --without takes them, in any order; a text may hold more than one, with commas.

    Raises:
        InputError: If the library has no answers for exactly these, or a fault.json of it is malformed.
    """
    failures, parts = failures_in(library), dead_parts(without)
    folder_of_parts = next((folder for folder, fault in failures.items() if dead_parts(fault.without) == parts), None)
    if folder_of_parts is None:
        stated = ",".join(without)
        where = f"--without {stated}: {origin_of(library)} has no answers for it"
        if not failures:
            example = f"synth library update CLUSTER.toml --out {origin_of(library)} --without {stated}"
            raise InputError(f"{where} yet; make them with {example}")
        examples = "; ".join(origin_of(",".join(fault.without)) for fault in list(failures.values())[:_SHOWN])
        raise InputError(
            f"{where}; it must be one that synth library update wrote:"
            f" {examples}{'; …' if len(failures) > _SHOWN else ''}"
        )
    return folder_of_parts


def dead_parts(without: Sequence[str]) -> set[str]:
    """Return the single parts in texts with commas, as a set, without spaces around them."""
    return {part.strip() for text in without for part in text.split(",")}


def load_as_one(path: str | Path) -> tuple[list[IndexEntry], bytes]:
    """Return a library's entries, and the bytes that they were read from; those of a failure with one topology's name.

    The entries of a failure's folder are named after the hurt topology, also those of the healthy library. The bytes
    are those of the index; for a failure those of its index, its fault.json and the healthy index, as far as they
    exist, joined.

    Raises:
        InputError: If an index cannot be read or is malformed, or fault.json is.
    """
    folder, entries = _folder(path), load_library(path)
    fault = read_fault(folder)
    if fault is None:
        return entries, read_index(folder / INDEX)
    hurt = next((entry.topology for entry in entries if entry.topology != fault.topology), fault.topology)
    read = (folder / INDEX, folder / FAULT, folder / UP / INDEX)
    data = b"".join(read_index(path_read) for path_read in read if path_read.exists())
    return [replace(entry, topology=hurt) for entry in entries], data


def _folder(path: str | Path) -> Path:
    """Return the folder of a library, given it or its index; raise InputError for what is no name of a file."""
    library_path = as_folder(path, "path")
    return library_path.parent if library_path.name == INDEX else library_path
