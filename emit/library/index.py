"""The index of a library: which file serves which collective, ranks and message sizes.

A library is a folder. Each executor has a folder in it (`emit.targets`) that holds nothing but its files, since it
loads all files there:

    index.json                  the index; paths in it are relative to it
    FOLDER/NAME + SUFFIX        for the target that has this folder and suffix, as msccl/NAME.xml
    schedules/NAME.synth        schedules, and NAME.proof.json beside them; no executor reads these

index.json is {"format": "synth-index-2", "algorithms": [entry, …]}. An entry has

    collective  its name, or that of a pattern
    topology    the topology's name; `any` for a program that was compiled for no topology
    nranks      size of the group
    group       ranks of the topology, in order
    relays      ranks of the topology outside the group that forward
    root        rank of the topology, null where the collective has none
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
are. No two entries name one file, and among entries of one question (collective, topology, group, relays, root, target,
inplace) no two have a size in both their ranges. The files of two forms of one algorithm end in -inplace or -outofplace
where the form is not the collective's usual one.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from emit.goal import MAX_CELLS, Column, Goal
from emit.program import BUFFERS
from emit.targets import TARGETS
from synth.model.numbers import as_folder
from synth.storage.columns import json_object
from topologies.errors import InputError
from topologies.text.fields import Fields, shown
from topologies.text.files import check_below, origin_of, read_bytes

FORMAT = "synth-index-2"
INDEX = "index.json"
SCHEDULES = "schedules"  # folder of the schedules
ISOMORPHIC = "isomorphic_groups"
MAX_INDEX_BYTES = 24 << 20  # Python may need thirty times as much memory for hostile text.
_MOST_FIGURE, _MOST_POINTS = 1e200, 10_000  # largest number, most rows of a curve
_MOST_ISOMORPHIC = 100_000  # groups of an entry; a cluster file may name as many
_MOST = (1 << 63) - 1  # the largest size that executors' readers take
_MOST_US = 1e18
_WORST = "bytes", "time_us", "bound_us", "gap"
_MEMBER = {"ranks", "collective", "size_bytes", "chunks"}  # fields of each of the `groups`
_DEFAULTS: dict[str, Any] = {"costs": {}, "groups": [dict.fromkeys(_MEMBER)], "sha256": {}}  # values of missing fields
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}"


@dataclass(frozen=True)
class Entry:
    """An entry of a library's index: one file and what it serves.

    The fields are those in the head of this module.

    Attributes:
        folder: Folder of the index.
        values: The entry as it stands in the index, with all its fields.
    """

    collective: str
    topology: str
    nranks: int
    group: tuple[int, ...]
    relays: tuple[int, ...]
    root: int | None
    file: str
    target: str
    protocol: str
    inplace: bool
    min_bytes: int
    max_bytes: int | None
    divides: int
    schedule: str | None
    proof_file: str | None
    folder: Path
    values: Mapping[str, Any] = field(repr=False, compare=False)
    isomorphic_groups: tuple[tuple[int, ...], ...] = ()

    @property
    def path(self) -> Path:
        """Return the path of the executor's file.

        Raises:
            InputError: If a link leads to it; none is followed inside a library.
        """
        return self.inside(self.file)

    def inside(self, name: str) -> Path:
        """Return the path of a file of the library; raise InputError if a link leads to it."""
        check_below(self.folder, self.folder / name)
        return self.folder / name

    @property
    def communicator(self) -> tuple[int, ...]:
        """Return the topology's rank of each rank of the file."""
        return self.group + self.relays

    @property
    def question(self) -> tuple[object, ...]:
        """Return what was asked, and for which executor."""
        return self.collective, self.topology, self.group, self.relays, self.root, self.target

    def for_group(self, group: tuple[int, ...]) -> Entry:
        """Return the entry of one of the `isomorphic_groups`: its ranks replace those of `group`, in the root too."""
        root = None if self.root is None else group[self.group.index(self.root)]
        stated = {"group": list(group), "communicator": list(group), "root": root}
        values = {key: value for key, value in self.values.items() if key != ISOMORPHIC} | stated
        return replace(self, group=group, root=root, values=values, isomorphic_groups=())

    def stated_digest(self, field_name: str) -> str | None:
        """Return the stated SHA-256 of the file named in `file`, `schedule` or `proof_file`; None if there is none."""
        stated = self.values.get("sha256")
        digest = stated.get(field_name) if isinstance(stated, dict) else None
        return digest if isinstance(digest, str) else None

    @property
    def curve(self) -> list[tuple[float, float, float]]:
        """Return (bytes, time in µs, bound in µs) at the sizes that the entry states; malformed rows are left out."""
        stated = self.values.get("curve")
        rows = [row for row in stated if isinstance(row, list) and len(row) == 3] if isinstance(stated, list) else []
        return sorted((float(a), float(b), float(c)) for a, b, c in rows if all(is_figure(x) for x in (a, b, c)))

    @property
    def counts_elements(self) -> bool:
        """Return True if the executor counts elements of the call's type, not bytes."""
        return not TARGETS[self.target].cell_bytes

    def in_range(self, size_bytes: int) -> bool:
        """Return True if a size is in the entry's range.

        Executors of this package run the file at any such size, other executors only where `serves` is true.
        """
        return self.min_bytes <= size_bytes and (self.max_bytes is None or size_bytes <= self.max_bytes)

    def serves(self, size_bytes: int, element_bytes: int = 1) -> bool:
        """Return True if the executor takes the file for messages of a size, with elements of `element_bytes` bytes."""
        unit = self.divides * (element_bytes if self.counts_elements else 1)
        return self.in_range(size_bytes) and size_bytes % unit == 0

    def goal(self) -> Goal | None:
        """Return the goal that the entry states; None if the file itself says it.

        Raises:
            InputError: If the stated goal is malformed.
        """
        goal = self.values.get("goal")
        return None if goal is None else goal_stated(goal, f"{origin_of(self.folder / INDEX)}: {self.file}")


def vs_library(values: Mapping[str, Any], name: str) -> float | None:
    """Return a named library's time over ours from an entry's fields; None if it is not stated."""
    libraries = values.get("libraries")
    row = libraries.get(name) if isinstance(libraries, Mapping) else None
    ratio = row.get("vs") if isinstance(row, Mapping) else None
    return float(ratio) if is_figure(ratio) else None


def is_figure(value: object) -> TypeGuard[float]:
    """Return True if a value is a positive number, as times and sizes in an entry must be."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= _MOST_FIGURE


def load_index(path: str | Path) -> list[Entry]:
    """Read an index, given the file or its folder; do not look at the files that it names.

    Raises:
        InputError: If the index is not as the head of this module says; the line names entry and field.
    """
    index_path = as_folder(path, "path")
    with suppress(OSError):  # A name that is too long is reported when the file is read.
        index_path = index_path / INDEX if index_path.is_dir() else index_path
    return parse_index(read_index(index_path), origin_of(index_path), index_path.parent)


def parse_index(data: bytes, origin: str, folder: Path) -> list[Entry]:
    """Return the entries of an index's bytes.

    Raises:
        InputError: As `load_index` raises it; each line begins with `origin`.
    """
    if len(data) > MAX_INDEX_BYTES:
        raise InputError(f"{origin}: too large; it must be at most {MAX_INDEX_BYTES >> 20} MiB")
    top = Fields(json_object(data, origin), "", origin)
    form = top.string("format")
    if form == "synth-index-1":
        top.fail("format", f"{form} is of an earlier version, whose files stand beside it; it must be {FORMAT}")
    if form != FORMAT:
        top.fail("format", f"{shown(form)} is not known; it must be {FORMAT}")
    top.only(("format", "algorithms"))
    rows = top.values.get("algorithms")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        top.fail("algorithms", "must be an array of objects")
    entries = [_entry(Fields(row, "", f"{origin}: algorithm {i}"), folder) for i, row in enumerate(rows, 1)]
    _check_conflicts(entries, top)
    return entries


def index_text(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return an index as bytes, one field a line."""
    blocks = [
        "  {\n" + ",\n".join(f"   {_json(key)}: {_json(value)}" for key, value in row.items()) + "\n  }" for row in rows
    ]
    text = f'{{\n "format": {_json(FORMAT)},\n "algorithms": [\n' + ",\n".join(blocks) + "\n ]\n}\n"
    return text.encode("utf-8", "backslashreplace")  # It writes half a surrogate pair as JSON's escape.


def read_index(path: Path) -> bytes:
    """Return the bytes of a file that should be an index.

    Raises:
        InputError: As `topologies.text.files.read_bytes` raises it.
    """
    return read_bytes(path, f"a library's {INDEX}", MAX_INDEX_BYTES, inside=path.parent)


def _json(value: object) -> str:
    """Return a value as compact JSON; raise ValueError for a number that JSON does not have."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ": "))


def _entry(table: Fields, folder: Path) -> Entry:
    """Return a checked entry; raise InputError if a field is missing or wrong."""
    texts = {key: _word(table, key) for key in ("collective", "topology", "target", "protocol")}
    if texts["target"] not in TARGETS:
        table.fail("target", f"{shown(texts['target'])} is not known; it must be one of {', '.join(TARGETS)}")
    group, relays = _ranks(table, "group"), _ranks(table, "relays")
    if not group or set(group) & set(relays):
        table.fail("relays" if group else "group", "must be ranks, none of them in both group and relays")
    if table.integer("nranks", 1, _MOST) != len(group):
        table.fail("nranks", f"is {shown(table.values['nranks'])}; the group has {len(group)}")
    if _ranks(table, "communicator") != group + relays:
        table.fail("communicator", "must be the group's ranks, then the relays")
    root = None if _absent(table, "root") else table.integer("root", 0, _MOST)
    if root is not None and root not in group:
        table.fail("root", f"{root} is not in the group; it must be one of its ranks, or null")
    low = table.integer("min_bytes", 0, _MOST)
    high = None if _absent(table, "max_bytes") else table.integer("max_bytes", low, _MOST)
    if "inplace" not in table.values:
        table.fail("inplace", "missing; it must be true or false")
    if not (_absent(table, "goal") or isinstance(table.values["goal"], dict)):
        table.fail("goal", "must be an object or null")
    try:  # The fields are copied to the next index, so they must be writable.
        _json(table.values)
    except (ValueError, RecursionError):
        table.fail("", "holds a number beyond all floats, or is nested too deeply")
    check_types(table)
    target = TARGETS[texts["target"]]
    return Entry(
        **texts,
        nranks=len(group),
        group=group,
        relays=relays,
        root=root,
        file=_file(table, "file", target.folder, target.suffix),
        inplace=table.boolean("inplace", False),
        min_bytes=low,
        max_bytes=high,
        divides=table.integer("divides", 1, _MOST) if "divides" in table.values else 1,
        schedule=_optional_file(table, "schedule", ".synth"),
        proof_file=_optional_file(table, "proof_file", ".proof.json"),
        folder=folder,
        values=table.values,
        isomorphic_groups=_groups(table, group, relays),
    )


def check_types(table: Fields) -> None:
    """Raise InputError if a stated figure of an entry has the wrong type.

    A figure that is null states nothing. `padding`, `costs`, `groups` and `sha256` are left out if they do not apply.
    """
    stated_keys = {key for key, value in table.values.items() if value is not None}
    for key in stated_keys & {"shown_bytes"}:
        table.integer(key, 1, _MOST)
    for key in stated_keys & {"steps", "rounds", "chunks", "sends", "threadblocks"}:
        table.integer(key, 0, _MOST)
    for key in stated_keys & {"optimal", "switch_ops"}:
        table.boolean(key, False)
    for key in stated_keys & {"proof", "engine", "otherwise"}:
        text = table.values[key]
        if not (isinstance(text, str) and len(text) <= 4000 and text.isprintable()):
            table.fail(key, "must be a text of at most 4000 printable characters")
    for key in stated_keys & {"time_us", "bound_us", "gap", "vs_baseline", "vs_healthy"}:
        table.number(key, 0.0, _MOST_US, "µs or as a ratio")
    padding = table.values.get("padding", 0.0)
    if type(padding) not in (int, float) or not 0 <= padding < 1:
        table.fail("padding", f"is {shown(padding)}; it must be a number from 0 to below 1")
    if not _is_curve(table.values.get("curve")):
        table.fail("curve", f"must be an array of at most {_MOST_POINTS} rows [bytes, time in µs, bound in µs]")
    worst = table.values.get("worst")
    if worst is not None and not (isinstance(worst, dict) and _is_point([worst.get(key) for key in _WORST])):
        table.fail("worst", f"must be an object of figures {', '.join(_WORST)}, or null")
    libraries = table.values.get("libraries")
    if libraries is not None and not (
        isinstance(libraries, dict)
        and all(isinstance(row, dict) and is_figure(row.get("vs")) for row in libraries.values())
    ):
        table.fail("libraries", "must be an object of objects, each with a number vs above 0")
    _check_models(table)


def _check_models(table: Fields) -> None:
    """Raise InputError if `costs`, `groups` or `sha256` is present and not as the head of this module says."""
    costs, groups, digests = (table.values.get(key, default) for key, default in _DEFAULTS.items())
    if not isinstance(costs, dict) or (costs and costs.keys() != {"protocols", "source"}):
        table.fail("costs", "must be an object with protocols and source; it must be missing if costs are off")
    members = groups if isinstance(groups, list) else [None]
    if not all(isinstance(row, dict) and row.keys() == _MEMBER for row in members):
        table.fail("groups", f"must be an array of objects with {', '.join(sorted(_MEMBER))}")
    if not isinstance(digests, dict) or not all(isinstance(value, str) for value in digests.values()):
        table.fail("sha256", "must be an object of texts")


def _is_curve(value: object) -> bool:
    """Return True if a value is null or a list of rows [bytes, time, bound]."""
    rows = [] if value is None else value
    return (
        isinstance(rows, list)
        and len(rows) <= _MOST_POINTS
        and all(isinstance(row, list) and len(row) == 3 and _is_point(row) for row in rows)
    )


def _is_point(values: Sequence[object]) -> bool:
    """Return True if the first value is a whole number of bytes, and all values are figures."""
    return type(values[0]) is int and values[0] <= _MOST and all(map(is_figure, values))


def _check_conflicts(entries: Sequence[Entry], top: Fields) -> None:
    """Raise InputError if two entries name one file, or serve one size of one question."""
    files: set[str] = set()
    entries_of_question: dict[object, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.file in files:
            top.fail("algorithms", f"two entries name {shown(entry.file)}; only one may")
        files.add(entry.file)
        entries_of_question[entry.question, entry.inplace].append(entry)
    for rivals in entries_of_question.values():
        rivals.sort(key=lambda entry: entry.min_bytes)
        for lower, higher in pairwise(rivals):
            if lower.in_range(higher.min_bytes):
                conflict = f"{shown(lower.file)} and {shown(higher.file)} both serve {higher.min_bytes} bytes"
                top.fail("algorithms", f"{conflict}; only one may")


def _word(table: Fields, key: str) -> str:
    """Return a field that is a printable text of at most 4000 characters; else raise InputError."""
    value = table.string(key)
    if not (0 < len(value) <= 4000 and value.isprintable()):
        table.fail(key, "must be 1 to 4000 printable characters")
    return value


def _absent(table: Fields, key: str) -> bool:
    """Return True if a field is null; raise InputError if it is missing."""
    if key not in table.values:
        table.fail(key, "missing; it must be null if there is none")
    return table.values[key] is None


def _ranks(table: Fields, key: str) -> tuple[int, ...]:
    """Return a field that is an array of different ranks; else raise InputError."""
    value = table.values.get(key)
    if not isinstance(value, list) or not all(type(rank) is int and 0 <= rank <= _MOST for rank in value):
        table.fail(key, "must be an array of ranks, such as [0, 2, 4]")
    if len(set(value)) < len(value):
        table.fail(key, "names a rank twice; it must be once")
    return tuple(value)


def _groups(table: Fields, group: tuple[int, ...], relays: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the isomorphic groups of an entry; raise InputError unless they are different groups of equal size."""
    rows = table.values.get(ISOMORPHIC, [])
    if not isinstance(rows, list) or (rows and relays) or len(rows) > _MOST_ISOMORPHIC:
        table.fail(
            ISOMORPHIC, f"must be an array of at most {_MOST_ISOMORPHIC} groups, and none where there are relays"
        )
    groups = tuple(_ranks(Fields({ISOMORPHIC: row}, "", table.origin), ISOMORPHIC) for row in rows)
    if any(len(other_group) != len(group) for other_group in groups) or len({group, *groups}) <= len(groups):
        table.fail(ISOMORPHIC, f"must each be {len(group)} ranks as the group is, and no group twice")
    return groups


def _file(table: Fields, key: str, folder: str, suffix: str) -> str:
    """Return a field that is a path below the index and cannot lead out of its folder; else raise InputError."""
    value = table.string(key)
    if not re.fullmatch(f"{folder}/{_NAME}{re.escape(suffix)}", value):
        table.fail(key, f"{shown(value)} is elsewhere; it must be {folder}/NAME{suffix}")
    return value


def _optional_file(table: Fields, key: str, suffix: str) -> str | None:
    """Return the path of a schedule or a proof, or None if the field is null."""
    return None if _absent(table, key) else _file(table, key, SCHEDULES, suffix)


def state_goal(goal: Goal) -> dict[str, Any]:
    """Return a goal as an entry states it; the buffers are apart in it."""

    def columns(rank: Column, buffer: Column, index: Column, source: Column, chunk: Column) -> list[list[Any]]:
        """Return rows as the five columns of an entry's goal."""
        return [
            rank.tolist(),
            [BUFFERS[code] for code in buffer.tolist()],
            *(c.tolist() for c in (index, source, chunk)),
        ]

    rank, buffer, index, set_of_cell = goal.required
    start = goal.sets.start
    length = np.diff(start)[set_of_cell]
    rows = np.concatenate([np.arange(start[x], start[x + 1]) for x in set_of_cell.tolist()] or [set_of_cell])
    rank, buffer, index = (np.repeat(column, length) for column in (rank, buffer, index))
    return {
        "nranks": goal.nranks,
        "initial": columns(*goal.initial),
        "required": columns(rank, buffer, index, goal.sets.source[rows], goal.sets.chunk[rows]),
    }


def goal_stated(value: object, origin: str) -> Goal:
    """Return the goal that an entry states; raise InputError, with a line that begins with `origin`, if it has none."""
    if not isinstance(value, dict):
        raise InputError(f"{origin}: goal: must be an object")
    table = Fields(value, "", f"{origin}: goal")
    nranks = table.integer("nranks", 1, MAX_CELLS)
    columns = {}
    for key in ("initial", "required"):
        stated = table.values.get(key)
        if not isinstance(stated, list) or len(stated) != 5 or not all(isinstance(item, list) for item in stated):
            table.fail(key, "must be five columns: rank, buffer, place, source, chunk")
        ranks, buffers, *numbers = stated
        if not all(type(item) is str for item in buffers):
            table.fail(key, "holds an unknown buffer; it must be i or o")
        if not all(type(item) is int and 0 <= item < MAX_CELLS for column in (ranks, *numbers) for item in column):
            table.fail(key, f"holds a number out of range; it must be 0 to {MAX_CELLS - 1}")
        columns[key] = (ranks, buffers, *numbers)
    return Goal.from_arrays(nranks, columns["initial"], columns["required"])
