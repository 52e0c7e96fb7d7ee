"""The index of a library: which file serves which collective, ranks and message sizes.

A library is a folder. Each executor has a folder in it that holds nothing but its files, since it loads all it finds:

    index.json                  the index; paths in it are relative to it
    msccl/NAME.xml              for msccl-executor-nccl: MSCCL_ALGO_DIR=LIBRARY/msccl
    msccl-rccl/NAME.xml         for RCCL: MSCCL_ALGO_DIR=LIBRARY/msccl-rccl
    msccl-original/NAME.xml     for Microsoft's msccl: MSCCL_XML_FILES=LIBRARY/msccl-original/NAME.xml:…
    mscclpp/NAME.json           for MSCCL++: plans
    schedules/NAME.synth        schedules, and NAME.proof.json beside them; no executor reads these

index.json is {"format": "synth-index-2", "algorithms": [entry, …]}. An entry has

    collective  its name, or that of a pattern
    topology    the topology's name
    nranks      size of the group
    group       ranks of the topology, in order
    relays      ranks of the topology outside the group that forward
    root        rank of the topology, null where the collective has none
    communicator    the rank of the topology that each rank of the file stands for: group, then relays
    file        FOLDER/NAME as above, for the executor `target`
    target      a key of PLACES
    protocol    what the file is to run with, as its executor spells it
    inplace     true: for calls in place; false: for calls out of place
    min_bytes, max_bytes    the message sizes that it serves, both inclusive, max_bytes null where there is no end;
                a size is the larger of a rank's send and receive buffer
    schedule, proof_file    schedules/NAME.synth and schedules/NAME.proof.json, null where not written
    goal        null where the file's own words say what it does, else an object: nranks (of the communicator), and
                initial and required, each five columns rank, buffer ("i", "o"), place, source rank, chunk

and what is known of the algorithm: the fields of `synth.present.statement.row`. Readers take other fields as
they are. No two
entries name one file, and among entries of one question (collective, topology, group, relays, root, target, inplace)
no two serve one size.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from emit.goal import MAX_CELLS, Goal
from synth.model.collective import parse_name
from synth.storage.columns import json_object, opened, origin_of
from topologies.errors import InputError
from topologies.text.fields import Fields, shown

__all__ = [
    "FORMAT", "INDEX", "PLACES", "SCHEDULES", "Entry", "Place", "choose", "goal_beside", "index_text", "load_index",
    "parse_index",
]  # fmt: skip

FORMAT = "synth-index-2"
INDEX = "index.json"
MAX_INDEX_BYTES = 24 << 20  # of hostile text Python makes thirty times as much
_MOST = (1 << 63) - 1  # what executors' readers take for a size
_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,249}"


class Place(NamedTuple):
    """Where the files of one executor stand: `FOLDER/NAME` + ending."""

    folder: str
    ending: str


PLACES = {
    "executor-nccl": Place("msccl", ".xml"),
    "rccl": Place("msccl-rccl", ".xml"),
    "msccl": Place("msccl-original", ".xml"),
    "mscclpp": Place("mscclpp", ".json"),
}
SCHEDULES = "schedules"


@dataclass(frozen=True)
class Entry:
    """One file of a library; fields as in the head of this module.

    folder: of the index.  values: the entry as it stands in the file, with all its fields.
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
    schedule: str | None
    proof_file: str | None
    folder: Path
    values: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def path(self) -> Path:
        """The executor's file."""
        return self.folder / self.file

    @property
    def communicator(self) -> tuple[int, ...]:
        """Topology rank of each rank of the file."""
        return self.group + self.relays

    @property
    def question(self) -> tuple[object, ...]:
        """What was asked, and for which executor."""
        return self.collective, self.topology, self.group, self.relays, self.root, self.target

    def serves(self, size_bytes: int) -> bool:
        """Whether it is for messages of this size."""
        return self.min_bytes <= size_bytes and (self.max_bytes is None or size_bytes <= self.max_bytes)

    def goal(self) -> Goal | None:
        """What the file must achieve, None where its own words say it. InputError where it is no goal."""
        goal = self.values.get("goal")
        return None if goal is None else _goal(goal, f"{origin_of(self.folder / INDEX)}: {self.file}")


def load_index(path: str | Path) -> list[Entry]:
    """Read an index, given the file or its folder. The files that it names are not looked at.

    Raises:
        InputError: it cannot be read or is not as the head of this module says; the line names entry and field.
    """
    where = Path(path)
    if where.is_dir():
        where /= INDEX
    return parse_index(_read(where), origin_of(where), where.parent)


def parse_index(data: bytes, origin: str, folder: Path) -> list[Entry]:
    """The entries of an index's bytes; errors as those of `load_index`, each line beginning with `origin`."""
    if len(data) > MAX_INDEX_BYTES:
        raise InputError(f"{origin}: larger than {MAX_INDEX_BYTES >> 20} MiB")
    top = Fields(json_object(data, origin), "", origin)
    form = top.string("format")
    if form == "synth-index-1":
        top.fail("format", f"{form} is of an earlier version, whose files stand beside it; must be {FORMAT}")
    if form != FORMAT:
        top.fail("format", f"{shown(form)} is not known; must be {FORMAT}")
    top.only(("format", "algorithms"))
    rows = top.values.get("algorithms")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        top.fail("algorithms", "must be an array of objects")
    entries = [_entry(Fields(row, "", f"{origin}: algorithm {i}"), folder) for i, row in enumerate(rows, 1)]
    _check_together(entries, top)
    return entries


def index_text(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """An index as bytes, a field a line."""
    blocks = [
        "  {\n" + ",\n".join(f"   {_json(key)}: {_json(value)}" for key, value in row.items()) + "\n  }"
        for row in rows
    ]
    text = f'{{\n "format": {_json(FORMAT)},\n "algorithms": [\n' + ",\n".join(blocks) + "\n ]\n}\n"
    return text.encode("utf-8", "backslashreplace")  # JSON's own escape of half a character


def choose(
    entries: Sequence[Entry],
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
) -> Entry | None:
    """The entry that serves a call, None where there is none.

    Args:
        entries: as `load_index` gives them.
        collective: torch's spellings too.
        nranks: ranks in the group.
        ranks: ranks of the topology that they stand on, in the group's order; None: wherever they are.
        size_bytes: the larger of a rank's send and receive buffer.
        target, topology: None: any, where all that fit have the same.
        root: rank of the topology, for collectives that have one: a file is for one root only.
        relays: ranks of the topology after the group's in the communicator.

    Raises:
        InputError: what is asked cannot be, or more than one entry fits; the line says what would tell them apart.
    """
    if collective not in {entry.collective for entry in entries}:
        collective = parse_name(collective)
    if nranks < 1 or (ranks is not None and len(set(ranks)) != nranks) or len(ranks or ()) > nranks:
        given = "" if ranks is None else f" and ranks {_listed(ranks)}"
        raise InputError(f"nranks {nranks}{given}: must be 1 or more, and as many different ranks if given")
    if size_bytes < 0:
        raise InputError(f"size_bytes {size_bytes}: must be 0 or more")
    fit = [
        entry
        for entry in entries
        if entry.collective == collective
        and entry.nranks == nranks
        and (ranks is None or entry.group == tuple(ranks))
        and entry.relays == tuple(relays)
        and entry.inplace == inplace
        and entry.serves(size_bytes)
        and (target is None or entry.target == target)
        and (topology is None or entry.topology == topology)
        and (root is None or entry.root == root)
    ]
    asked = f"{collective} of {nranks} ranks, {size_bytes} bytes"
    if root is None and any(entry.root is not None for entry in fit):
        raise InputError(f"{asked}: the library's files are for one root each; give root")
    if len(fit) < 2:
        return fit[0] if fit else None
    one, other = fit[:2]
    for key, word in (("target", "target"), ("topology", "topology"), ("group", "ranks")):
        values = [getattr(entry, key) for entry in (one, other)]
        if values[0] != values[1]:
            both = " and ".join(v if isinstance(v, str) else _listed(v) for v in values)
            raise InputError(f"{asked}: there are files for {word} {both}; give {word}")
    raise InputError(f"{asked}: {one.file} and {other.file} both serve it; take entries of one index")


def goal_beside(path: str | Path) -> Goal | None:
    """The goal of a file whose own words do not say it, from the index beside it or in the folder above.

    None where no index there names the file with a goal. A stranger's index is no obstacle.
    """
    try:
        where = Path(os.path.abspath(path))
    except OSError:  # the working folder is gone
        return None
    for folder in (where.parent, where.parent.parent):
        index, name = folder / INDEX, where.relative_to(folder).as_posix()
        with suppress(InputError):
            data = _read(index)
            rows = json_object(data, "").get("algorithms") if len(data) <= MAX_INDEX_BYTES else None
            for row in rows if isinstance(rows, list) else ():
                if isinstance(row, dict) and row.get("file") == name:
                    return None if row.get("goal") is None else _goal(row["goal"], "")
    return None


def _read(path: Path) -> bytes:
    with opened(path, f"a library's {INDEX}") as file:
        return file.read(MAX_INDEX_BYTES + 1)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ": "))


def _entry(table: Fields, folder: Path) -> Entry:
    words = {key: _word(table, key) for key in ("collective", "topology", "target", "protocol")}
    if words["target"] not in PLACES:
        table.fail("target", f"{shown(words['target'])} is not known; must be one of {', '.join(PLACES)}")
    group, relays = _ranks(table, "group"), _ranks(table, "relays")
    if not group or set(group) & set(relays):
        table.fail(
            "relays" if group else "group", "must be ranks, none of them in the other of group and relays"
        )
    if table.integer("nranks", 1, _MOST) != len(group):
        table.fail("nranks", f"is {shown(table.values['nranks'])}; the group has {len(group)}")
    if _ranks(table, "communicator") != group + relays:
        table.fail("communicator", "must be the group's ranks, then the relays")
    root = None if _absent(table, "root") else table.integer("root", 0, _MOST)
    if root is not None and root not in group:
        table.fail("root", f"{root} is not in the group; must be one of its ranks, or null")
    low = table.integer("min_bytes", 0, _MOST)
    high = None if _absent(table, "max_bytes") else table.integer("max_bytes", low, _MOST)
    if "inplace" not in table.values:
        table.fail("inplace", "missing; give true or false")
    if not (_absent(table, "goal") or isinstance(table.values["goal"], dict)):
        table.fail("goal", "must be an object or null")
    try:  # what is carried over to the next index must be such that it can be written
        _json(table.values)
    except (ValueError, RecursionError):
        table.fail("", "holds a number beyond all floats, or is nested too deeply")
    place = PLACES[words["target"]]
    return Entry(
        **words,
        nranks=len(group),
        group=group,
        relays=relays,
        root=root,
        file=_file(table, "file", place),
        inplace=table.boolean("inplace", False),
        min_bytes=low,
        max_bytes=high,
        schedule=_optional_file(table, "schedule", ".synth"),
        proof_file=_optional_file(table, "proof_file", ".proof.json"),
        folder=folder,
        values=table.values,
    )


def _check_together(entries: Sequence[Entry], top: Fields) -> None:
    files: set[str] = set()
    asked: dict[object, list[Entry]] = defaultdict(list)
    for entry in entries:
        if entry.file in files:
            top.fail("algorithms", f"two of them are in {shown(entry.file)}; must be one a file")
        files.add(entry.file)
        asked[entry.question, entry.inplace].append(entry)
    for same in asked.values():
        same.sort(key=lambda entry: entry.min_bytes)
        for one, other in pairwise(same):
            if one.serves(other.min_bytes):
                top.fail(
                    "algorithms",
                    f"{shown(one.file)} and {shown(other.file)} both serve {other.min_bytes} bytes; must be one",
                )


def _word(table: Fields, key: str) -> str:
    value = table.string(key)
    if not (0 < len(value) <= 4000 and value.isprintable()):
        table.fail(key, "must be 1 to 4000 printable characters")
    return value


def _absent(table: Fields, key: str) -> bool:
    """Whether a field is null; InputError where it is missing."""
    if key not in table.values:
        table.fail(key, "missing; give null where there is none")
    return table.values[key] is None


def _ranks(table: Fields, key: str) -> tuple[int, ...]:
    value = table.values.get(key)
    if not isinstance(value, list) or not all(type(rank) is int and 0 <= rank <= _MOST for rank in value):
        table.fail(key, "must be an array of ranks, such as [0, 2, 4]")
    if len(set(value)) < len(value):
        table.fail(key, "names a rank twice; must be once")
    return tuple(value)


def _file(table: Fields, key: str, place: Place) -> str:
    """A path below the index, of which nothing can lead out of its folder."""
    value = table.string(key)
    if not re.fullmatch(f"{place.folder}/{_NAME}{re.escape(place.ending)}", value):
        table.fail(key, f"{shown(value)} is elsewhere; must be {place.folder}/NAME{place.ending}")
    return value


def _optional_file(table: Fields, key: str, ending: str) -> str | None:
    return None if _absent(table, key) else _file(table, key, Place(SCHEDULES, ending))


def _goal(value: object, origin: str) -> Goal:
    if not isinstance(value, dict):
        raise InputError(f"{origin}: goal: must be an object")
    table = Fields(value, "", f"{origin}: goal")
    nranks = table.integer("nranks", 1, MAX_CELLS)
    columns = {}
    for key in ("initial", "required"):
        given = table.values.get(key)
        if not isinstance(given, list) or len(given) != 5 or not all(isinstance(one, list) for one in given):
            table.fail(key, "must be five columns: rank, buffer, place, source, chunk")
        first, buffers, *rest = given
        if not all(type(one) is str for one in buffers):
            table.fail(key, "holds what is no buffer; must be i or o")
        if not all(type(one) is int and 0 <= one < MAX_CELLS for column in (first, *rest) for one in column):
            table.fail(key, f"holds what is no number in range; must be 0 to {MAX_CELLS - 1}")
        columns[key] = (first, buffers, *rest)
    return Goal.from_arrays(nranks, columns["initial"], columns["required"])


def _listed(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks[:16])) + ("…" if len(ranks) > 16 else "")
