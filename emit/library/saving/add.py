"""Adding programs from elsewhere, such as those written by hand, to a library as files."""

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
from emit.library.lowered import divides_usual
from emit.library.saving.existing import Outcome, PlacedFile, assign_sizes, not_rewritten, usable_files
from emit.library.saving.merge import NO_END, Rival
from emit.library.standing import File, Requirement, network_digest
from emit.library.write import Library, writing
from emit.program import CUSTOM, Program
from emit.targets import TARGETS, Target, divisor, most_bytes
from synth.model.problem import make_problem
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

ANY = "any"  # stands for a topology's name


@dataclass(frozen=True)
class Addition:
    """A program that is to be added to a library.

    Attributes:
        program: The program.
        goal: What it must achieve; None if its collective says so.
        target: Executor whose file it becomes.
        topology: Topology on which it runs; None if it runs anywhere, and its time is then that among ranks joined by
            equal links.
        ranks: The topology's rank of each rank of the program; empty for 0, 1, 2, …
    """

    program: Program
    goal: Goal | None
    target: Target
    topology: Topology | None = None
    ranks: Sequence[int] = ()


@dataclass(frozen=True)
class Added:
    """The result of adding programs to a library.

    Attributes:
        files: The new files of each addition; empty where the library has a file that is no slower.
        index: Path of the library's index.
        remarks: What became of existing files, a clause each.
    """

    files: list[list[Path]]
    index: Path
    remarks: tuple[str, ...]


def add(additions: Sequence[Addition], folder: str | Path, *, anew: bool = False) -> Added:
    """Write programs into a library, each for its own range of sizes; a custom program's collective is its name.

    An existing file for the same question is replayed and timed again, and it stays at every size at which it is no
    slower. With `anew` only files for other sizes stay.

    Args:
        additions: Programs to add.
        folder: Folder of the library.
        anew: True to replace existing files at all sizes of the new ones.

    Raises:
        InputError: If two programs serve one size, the folder cannot be written, or it has a foreign index. Nothing is
            written then.
    """
    with writing(folder, "--library") as library:
        fresh: list[File] = []
        for addition in additions:
            fresh.append(_file(addition, library, [file.entry for file in fresh]))
        outcome, placed = Outcome(), list[PlacedFile]()
        for n in {_form(file.entry): n for n, file in enumerate(fresh)}.values():
            own = [file for file in fresh if _form(file.entry) == _form(fresh[n].entry)]
            existing = _standing(additions[n], own[0].entry, library.entries, outcome)
            rivals = {_rival(file, anew): file for file in not_rewritten(existing, own) + own}
            other_files = [e.file for e in library.entries if _form(e.values) != _form(own[0].entry)]
            used_names = other_files + [addition.entry["file"] for addition in placed]
            placed += assign_sizes(rivals, additions[n].target, outcome, used_names)
        new_questions, new_forms = ({key(file.entry) for file in fresh} for key in (_question, _form))
        for file_to_write in placed:
            if file_to_write.text is not None:
                library.write(file_to_write.entry["file"], file_to_write.text.encode())
        remaining_rows = [
            e.values
            for e in library.entries
            if _question(e.values) in new_questions and _form(e.values) not in new_forms
        ]
        placed.sort(key=lambda addition: addition.kept)  # New files come first.
        library.commit([*(addition.entry for addition in placed), *remaining_rows])
        files = [
            [library.folder / addition.entry["file"] for addition in placed if addition.file is file] for file in fresh
        ]
        return Added(files, library.folder / INDEX, tuple(outcome.clauses()))


def _file(addition: Addition, library: Library, earlier_rows: Sequence[Mapping[str, Any]]) -> File:
    """Build the library's file of a program.

    Args:
        addition: The program.
        library: The library that is written.
        earlier_rows: Entries of the additions before it.
    """
    row = _row(addition)
    row["file"] = f"{addition.target.folder}/{_name(row, library, earlier_rows)}{addition.target.suffix}"
    renamed = replace(addition.program, name=Path(row["file"]).stem[: min(63, addition.target.longest_name)])
    nodes = None if addition.topology is None else addition.topology.nodes[row["group"]].tolist()
    text, form = write_program(renamed, addition.goal, addition.target, nodes=nodes), FORMATS[addition.target.format]
    most = most_bytes(renamed, addition.target.limits) if form.holds_program else form.largest_message(text)
    if most is not None and most < _ends(row)[1]:
        row["max_bytes"] = most
    _check_free(row, earlier_rows)
    row["threadblocks"] = max(form.threadblocks(renamed, text))
    return File(row, text, form.predictor(text, renamed, *_place_of(addition)).time_us)


def _place_of(addition: Addition) -> tuple[Topology, list[int]]:
    """Return the topology and its ranks on which a program is timed."""
    n = addition.program.nranks
    if addition.topology is None:
        return load(f"full:{max(2, n)}"), list(range(n))
    return addition.topology, list(addition.ranks) or list(range(n))


def _standing(addition: Addition, row: Mapping[str, Any], entries: Sequence[Entry], outcome: Outcome) -> list[File]:
    """Return the library's files for the question and form of an addition, whose entry is `row`."""
    p = addition.program
    root = p.root if find_kind(p.collective).rooted else None

    def is_goal(entry: Entry) -> bool:
        """Return True if an entry states the goal of `row`."""
        return bool(entry.values["goal"] == row["goal"])

    requirement = Requirement(p.collective, root, *_place_of(addition), addition.target, is_goal)
    return usable_files([e for e in entries if _form(e.values) == _form(row)], row.get("network"), requirement, outcome)


def _rival(file: File, anew: bool) -> Rival:
    """Return a file as a rival for its sizes; new files go first with `anew`, then files planned with other groups."""
    low, high = _ends(file.entry)
    target, divides = TARGETS[file.entry["target"]], file.entry.get("divides", 1)
    blocks = len(file.entry["group"]) if find_kind(file.entry["collective"]).blocks_at_root else 1
    cells = divides // (blocks * (target.cell_bytes or 1))
    has_groups = file.existed and "groups" in file.entry  # Its speed next to other groups is another question.
    precedence = -2 if anew and not file.existed else -1 if has_groups else 0 if file.within else 1
    return Rival(low, high, file.time_us, lambda size: divides_usual(divides, cells, target, size), precedence)


def _row(addition: Addition) -> dict[str, Any]:
    """Return the entry of a program, without its file and what depends on the file."""
    p = addition.program
    name = plain_name(p.name)
    group = list(addition.ranks) or list(range(p.nranks))
    network = _network(addition, group)
    return {
        "collective": name if p.collective == CUSTOM else p.collective,
        "topology": ANY if addition.topology is None else addition.topology.name,
        **({} if network is None else {"network": network}),
        "group": group,
        "relays": [],
        "root": group[p.root] if find_kind(p.collective).rooted else None,
        "nranks": p.nranks,
        "communicator": group,
        "file": "",
        "target": addition.target.name,
        "protocol": addition.target.protocols[p.protocol],
        "inplace": p.inplace,
        "threadblocks": 0,
        "min_bytes": p.min_bytes,
        "max_bytes": p.max_bytes or None,
        "divides": divisor(p, addition.target),
        "schedule": None,
        "proof_file": None,
        "goal": None if addition.goal is None else state_goal(addition.goal),
        "script": name,
    }


def _network(addition: Addition, group: Sequence[int]) -> str | None:
    """Return the `network_digest` of a program's question; None if it has none.

    That is so if the program runs anywhere, its collective's name does not say what is asked, or ranks cannot reach
    each other.
    """
    kind = find_kind(addition.program.collective)
    if addition.topology is None or not kind.by_name:
        return None
    with suppress(InputError):
        root = group[addition.program.root] if kind.rooted else None
        return network_digest(make_problem(addition.topology, kind.name, group, root=root))
    return None


def _name(row: Mapping[str, Any], library: Library, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the stem of a program's file name: what it is, and a number if another question or range has that name.

    The number follows from the question and the range.
    """
    parts = [row["collective"], str(row["topology"]), f"{row['nranks']}ranks", row["script"]]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts)).lstrip(".-")[:200]
    own_key = (_question(row), row["min_bytes"])
    other_rows = [*(entry.values for entry in library.entries), *rows]
    used_stems = {
        Path(other_row["file"]).stem
        for other_row in other_rows
        if (_question(other_row), other_row["min_bytes"]) != own_key
    }
    return f"{name}-{zlib.crc32(repr(own_key).encode()):08x}" if name in used_stems else name


def _form(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return the question and the form of calls, in or out of place."""
    return _question(row), row["inplace"]


def _question(row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return what is asked, and for which executor, from a row of an index."""
    key = ("collective", "topology", "root", "target")
    return *(row[name] for name in key), tuple(row["group"]), tuple(row["relays"])


def _ends(row: Mapping[str, Any]) -> tuple[int, int]:
    """Return the smallest and the largest message in bytes that a row serves."""
    return row["min_bytes"], NO_END - 1 if row["max_bytes"] is None else row["max_bytes"]


def _overlap(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Return True if two rows serve a common size of one question in one form."""
    (low, high), (least, most) = _ends(first), _ends(second)
    return _form(first) == _form(second) and low <= most and least <= high


def _check_free(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise InputError if a row serves a size that one of the other rows serves for the same question and form."""
    for other_row in rows:
        if _overlap(row, other_row):
            size = max(row["min_bytes"], other_row["min_bytes"])
            raise InputError(
                f"{other_row['script']} and {row['script']} both serve {size} bytes; only one may"
                " (min_bytes and max_bytes of each Script, both inclusive)"
            )
