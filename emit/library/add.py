"""Programs from elsewhere, as those that are written by hand, as files of a library beside those that it has."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emit.formats import FORMATS, plain_name, write_program
from emit.goal import Goal
from emit.library.index import INDEX, Entry, state_goal
from emit.library.kept import Kept, Placed, believed, settle, without
from emit.library.lowered import divides_usual
from emit.library.merge import NO_END, Rival
from emit.library.standing import File, Wanted, network_digest
from emit.library.write import Library, writing
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, Target, divisor, most_bytes
from synth.model.problem import make_problem
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

ANY = "any"  # in place of a topology's name


@dataclass(frozen=True)
class Addition:
    """A program that is to be a file; its goal where its collective does not say it, and its target.

    topology: where it runs; None: anywhere, and its time is that among ranks joined by equal links. ranks: the
    topology's rank of each of the program's; empty: 0, 1, 2 …
    """

    program: Program
    goal: Goal | None
    target: Target
    topology: Topology | None = None
    ranks: Sequence[int] = ()


@dataclass(frozen=True)
class Added:
    """What became of programs that were to be files.

    files: of each addition; none where what the library has is no slower.  index: the library's.  remarks: on what was
    there, a clause each.
    """

    files: list[list[Path]]
    index: Path
    remarks: tuple[str, ...]


def add(added: Sequence[Addition], folder: str | Path, *, anew: bool = False) -> Added:
    """Write programs into a library, each for its own range of sizes; a custom program's collective is its name.

    Of what the library has for the same question that stays which is no slower, each file at its sizes, after it has
    been replayed and timed again; with `anew` only what serves other sizes. Raises InputError, and writes nothing,
    where two of them serve one size, for a folder that cannot be written or a foreign index.
    """
    with writing(folder, "--library") as library:
        fresh: list[File] = []
        for one in added:
            fresh.append(_file(one, library, [file.entry for file in fresh]))
        kept, placed = Kept(), list[Placed]()
        for n in {_form(file.entry): n for n, file in enumerate(fresh)}.values():
            own = [file for file in fresh if _form(file.entry) == _form(fresh[n].entry)]
            there = _standing(added[n], own[0].entry, library.entries, kept)
            rivals = {_rival(file, anew): file for file in without(there, own) + own}
            others = [e.file for e in library.entries if _form(e.values) != _form(own[0].entry)]
            taken = others + [one.entry["file"] for one in placed]
            placed += settle(rivals, added[n].target, kept, taken)
        asked, settled = ({key(file.entry) for file in fresh} for key in (_question, _form))
        for ready in placed:
            if ready.text is not None:
                library.write(ready.entry["file"], ready.text.encode())
        rest = [e.values for e in library.entries if _question(e.values) in asked and _form(e.values) not in settled]
        placed.sort(key=lambda one: one.kept)  # what is new first
        library.commit([*(one.entry for one in placed), *rest])
        files = [[library.folder / one.entry["file"] for one in placed if one.file is file] for file in fresh]
        return Added(files, library.folder / INDEX, tuple(kept.clauses()))


def _file(one: Addition, library: Library, others: Sequence[Mapping[str, Any]]) -> File:
    """The file of a program; others: entries of those before it."""
    row = _row(one)
    row["file"] = f"{one.target.folder}/{_name(row, library, others)}{one.target.suffix}"
    named = replace(one.program, name=Path(row["file"]).stem[: min(63, one.target.longest_name)])
    nodes = None if one.topology is None else one.topology.nodes[row["group"]].tolist()
    text, form = write_program(named, one.goal, one.target, nodes=nodes), FORMATS[one.target.format]
    most = most_bytes(named, one.target.limits) if form.holds_program else form.largest_message(text)
    if most is not None and most < _ends(row)[1]:
        row["max_bytes"] = most
    _check_free(row, others)
    row["threadblocks"] = max(form.threadblocks(named, text))
    return File(row, text, form.predictor(text, named, *_place(one)).time_us)


def _place(one: Addition) -> tuple[Topology, list[int]]:
    """Where a program is timed."""
    n = one.program.nranks
    if one.topology is None:
        return load(f"full:{max(2, n)}"), list(range(n))
    return one.topology, list(one.ranks) or list(range(n))


def _standing(one: Addition, row: Mapping[str, Any], entries: Sequence[Entry], kept: Kept) -> list[File]:
    """The library's files for the question and form of an addition, whose entry is `row`."""
    p = one.program
    root = p.root if find_kind(p.collective).rooted else None

    def is_goal(entry: Entry) -> bool:
        return bool(entry.values["goal"] == row["goal"])

    wanted = Wanted(p.collective, root, *_place(one), one.target, is_goal)
    return believed([e for e in entries if _form(e.values) == _form(row)], row.get("network"), wanted, kept)


def _rival(file: File, anew: bool) -> Rival:
    low, high = _ends(file.entry)
    target, divides = TARGETS[file.entry["target"]], file.entry.get("divides", 1)
    blocks = len(file.entry["group"]) if find_kind(file.entry["collective"]).blocks_at_root else 1
    cells = divides // (blocks * (target.cell_bytes or 1))
    planned = file.there and "groups" in file.entry  # with other groups: what is fast alone is another question
    first = -2 if anew and not file.there else -1 if planned else 0 if file.within else 1
    return Rival(low, high, file.time_us, lambda size: divides_usual(divides, cells, target, size), first)


def _row(one: Addition) -> dict[str, Any]:
    """The entry of a program, but for its file and what that takes."""
    p = one.program
    name = plain_name(p.name)
    group = list(one.ranks) or list(range(p.nranks))
    network = _network(one, group)
    return {
        "collective": name if p.collective == CUSTOM else p.collective,
        "topology": ANY if one.topology is None else one.topology.name,
        **({} if network is None else {"network": network}),
        "group": group,
        "relays": [],
        "root": group[p.root] if find_kind(p.collective).rooted else None,
        "nranks": p.nranks,
        "communicator": group,
        "file": "",
        "target": one.target.name,
        "protocol": one.target.protocols[p.protocol],
        "inplace": p.inplace,
        "threadblocks": 0,
        "min_bytes": p.min_bytes,
        "max_bytes": p.max_bytes or None,
        "divides": divisor(p, one.target),
        "schedule": None,
        "proof_file": None,
        "goal": None if one.goal is None else state_goal(one.goal),
        "script": name,
    }


def _network(one: Addition, group: Sequence[int]) -> str | None:
    """As `network_digest` has it; None where a name says nothing of what is asked, or ranks cannot reach each other."""
    kind = find_kind(one.program.collective)
    if one.topology is None or not kind.by_name:
        return None
    with suppress(InputError):
        root = group[one.program.root] if kind.rooted else None
        return network_digest(make_problem(one.topology, kind.name, group, root=root))
    return None


def _name(row: Mapping[str, Any], library: Library, rows: Sequence[Mapping[str, Any]]) -> str:
    """Of its file: what it is, and, where another question or range has that name, a number that follows from both."""
    parts = [row["collective"], str(row["topology"]), f"{row['nranks']}ranks", row["script"]]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts)).lstrip(".-")[:200]
    asked = (_question(row), row["min_bytes"])
    others = [*(entry.values for entry in library.entries), *rows]
    taken = {Path(one["file"]).stem for one in others if (_question(one), one["min_bytes"]) != asked}
    return f"{name}-{zlib.crc32(repr(asked).encode()):08x}" if name in taken else name


def _form(row: Mapping[str, Any]) -> tuple[object, ...]:
    """The question and the form of calls, in or out of place."""
    return _question(row), row["inplace"]


def _question(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What is asked, and for which executor, in a row as an index has it."""
    key = ("collective", "topology", "root", "target")
    return *(row[name] for name in key), tuple(row["group"]), tuple(row["relays"])


def _ends(row: Mapping[str, Any]) -> tuple[int, int]:
    """The least and the most bytes that it serves."""
    return row["min_bytes"], NO_END - 1 if row["max_bytes"] is None else row["max_bytes"]


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both serve some size of one question in one form."""
    (low, high), (least, most) = _ends(one), _ends(other)
    return _form(one) == _form(other) and low <= most and least <= high


def _check_free(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    for other in rows:
        if _overlap(row, other):
            size = max(row["min_bytes"], other["min_bytes"])
            raise InputError(
                f"{other['script']} and {row['script']} both serve {size} bytes; it must be one"
                " (min_bytes and max_bytes of each Script, both inclusive)"
            )
