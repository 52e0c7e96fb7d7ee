"""The index of a library: which file serves which collective, ranks and message sizes.

A library is a folder. Each executor has a folder in it (`emit.targets`) that holds nothing but its files, since it
loads all files there:

    index.json                  the index; paths in it are relative to it
    FOLDER/NAME + SUFFIX        for the target that has this folder and suffix, as msccl/NAME.xml
    schedules/NAME.synth        schedules, and NAME.proof.json beside them; no executor reads these
    topologies/NAME.toml        networks whose names the package does not know (`emit.library.networks`)

index.json is {"format": "synth-index-2", "algorithms": [entry, …]}. An entry has

    collective  its name, or that of a pattern
    topology    the topology's name; `any` for a program that was compiled for no topology
    nranks      size of the group
    group       ranks of the topology, in order
    relays      ranks of the topology outside the group that forward
    root        rank of the topology, null where the collective has none
    sizes       proportions of the blocks, where each rank (or pair of ranks, row by row) has a block of its own size:
                whole numbers without a common divisor; missing where blocks have one size
    network     digest of what the topology's name does not say: the network between these ranks, and what a pattern
                asks for; a question in another network of the same name is another question
    communicator    the rank of the topology that each rank of the file stands for: group, then relays
    file        FOLDER/NAME as above, for the executor `target`
    sha256      of the bytes of `file`, `schedule` and `proof_file`, by these names, as hexadecimal digits; digests of
                files that an earlier version wrote are missing
    target      a key of TARGETS
    protocol    the protocol that the file is to run with, as its executor spells it
    inplace     true: for calls in place; false: for calls out of place
    threadblocks    the most that a rank has, all of which its device must run at once
    min_bytes, max_bytes    the message sizes that it serves, both inclusive, max_bytes null where there is no limit;
                a size is the larger of a rank's send and receive buffer
    isomorphic_groups   further groups, each its ranks in order, that the file serves as it serves `group`: their
                networks are the same, rank by rank, so that the i-th rank of a group runs as the file's rank i (its
                communicator is the group in this order), and its root is where `root` is in `group`. Missing where
                there are none; only without relays. An entry whose `group` is asked for goes before an entry that has
                the group here
    divides     bytes: of these sizes it serves the multiples of it, and for types of b bytes the multiples of b times
                it if the executor counts elements (all but mscclpp); 1 where it is missing
    otherwise   what serves a call that no file serves
    schedule, proof_file    schedules/NAME.synth and schedules/NAME.proof.json, null where not written
    goal        null where the file itself says what it does, else an object: nranks (of the communicator), and
                initial and required, each five columns rank, buffer ("i", "o"), place, source rank, chunk
    costs       costs of an executor, if times are with them: protocols over which the bound holds, source of the
        figures

and what is known of the algorithm: the fields of `synth.search.statement.row`. Readers take further fields as they
are. No two entries name one file, and among entries of one question (collective, topology, group, relays, root, sizes,
target, inplace) no two have a size in both their ranges. The files of two forms of one algorithm end in -inplace or
-outofplace where the form is not the collective's usual one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from emit.library.entry import INDEX, SCHEDULES, IndexEntry, as_json
from synth.model.numbers import as_folder
from synth.storage.columns import json_object
from topologies.errors import InputError
from topologies.text.fields import Fields, shown
from topologies.text.files import origin_of, read_bytes

FORMAT = "synth-index-2"
MAX_INDEX_BYTES = 24 << 20  # Python may need thirty times as much memory for hostile text.


def load_index(path: str | Path) -> list[IndexEntry]:
    """Read an index, given the file or its folder, and return its entries in order; do not look at their files.

    Raises:
        InputError: If the index cannot be read, or is not as the head of this module says; the message names entry and
            field.
    """
    index_path = as_folder(path, "path")
    with suppress(OSError):  # A name that is too long is reported when the file is read.
        index_path = index_path / INDEX if index_path.is_dir() else index_path
    return parse_index(read_index(index_path), origin_of(index_path), index_path.parent)


def parse_index(data: bytes, origin: str, folder: Path) -> list[IndexEntry]:
    """Return the entries of an index's bytes, in order.

    Args:
        data: The bytes.
        origin: Name of the index, with which errors begin.
        folder: Folder of the index.

    Raises:
        InputError: If the index is not as the head of this module says.
    """
    if len(data) > MAX_INDEX_BYTES:
        raise InputError(f"{origin}: too large; it must be at most {MAX_INDEX_BYTES >> 20} MiB")
    top = Fields(json_object(data, origin), "", origin)
    form = top.string("format")
    if form == "synth-index-1":
        advice = "ask again into another folder (--out, or synth library build)"
        top.fail("format", f"{form} is of an earlier version; it must be {FORMAT}: {advice}")
    if form != FORMAT:
        top.fail("format", f"{shown(form)} is not known; it must be {FORMAT}")
    top.only(("format", "algorithms"))
    rows = top.values.get("algorithms")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        top.fail("algorithms", "must be an array of objects")
    entries = [IndexEntry.of(row, folder, f"{origin}: algorithm {i}") for i, row in enumerate(rows, 1)]
    _check_conflicts(entries, top)
    return entries


def index_text(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the bytes of an index with these rows as its entries, one field a line.

    Raises:
        ValueError: If a row has a number that JSON does not have.
    """
    blocks = [
        "  {\n" + ",\n".join(f"   {as_json(key)}: {as_json(value)}" for key, value in row.items()) + "\n  }"
        for row in rows
    ]
    text = f'{{\n "format": {as_json(FORMAT)},\n "algorithms": [\n' + ",\n".join(blocks) + "\n ]\n}\n"
    return text.encode("utf-8", "backslashreplace")  # It writes half a surrogate pair as JSON's escape.


def read_index(path: Path) -> bytes:
    """Return the bytes of a file that should be an index.

    Raises:
        InputError: If the file is missing, a link, no regular file, larger than MAX_INDEX_BYTES, or cannot be read.
    """
    if not path.exists() and any((path.parent / SCHEDULES).glob("*.synth")):
        advice = "an index lists files of executors; synth report DIR shows the schedules"
        raise InputError(f"{origin_of(path.parent)}: has only schedules, and so no index; {advice}")
    return read_bytes(path, f"a library's {INDEX}, or its folder", MAX_INDEX_BYTES, inside=path.parent)


def _check_conflicts(entries: Sequence[IndexEntry], top: Fields) -> None:
    """Raise InputError if two entries name one executor's file, or serve one size of one question and form of calls.

    Args:
        entries: Entries of an index.
        top: The index, for errors.
    """
    files: set[str] = set()
    for entry in entries:
        if entry.file in files:
            top.fail("algorithms", f"two entries name {shown(entry.file)}; only one may")
        files.add(entry.file)
    for lower, higher in overlaps(entries):
        conflict = f"{shown(lower.file)} and {shown(higher.file)} both serve {higher.min_bytes} bytes"
        top.fail("algorithms", f"{conflict}; only one may")


def overlaps(entries: Iterable[IndexEntry]) -> Iterator[tuple[IndexEntry, IndexEntry]]:
    """Yield pairs of entries of one question and form that both serve the smallest message of the second."""
    last_entry: dict[object, IndexEntry] = {}
    for entry in sorted(entries, key=lambda entry: entry.min_bytes):
        lower = last_entry.get(entry.question_and_form)
        if lower is not None and lower.in_range(entry.min_bytes):
            yield lower, entry
        last_entry[entry.question_and_form] = entry
