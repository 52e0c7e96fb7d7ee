"""Programs from elsewhere, as those that are written by hand, as files of a library beside those that it has."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emit.formats import FORMATS, plain_name, verify_program, write_program
from emit.goal import Goal
from emit.library.index import INDEX, Entry, state_goal
from emit.library.write import Library, writing
from emit.program import Program
from emit.targets import TARGETS, Target, most_bytes
from synth.model.registry import find_kind
from topologies.errors import InputError

ANY = "any"  # in place of a topology's name
_NO_END = 1 << 63  # over all sizes


@dataclass(frozen=True)
class Addition:
    """A program that is to be a file; its goal where its collective does not say it, and its target.

    topology: its name. ranks: the topology's rank of each of the program's; empty: 0, 1, 2 …  nodes: the node of each
    of the program's ranks, None: all in one.
    """

    program: Program
    goal: Goal | None
    target: Target
    topology: str = ANY
    ranks: Sequence[int] = ()
    nodes: Sequence[int] | None = None


def add(added: Sequence[Addition], folder: str | Path) -> list[Path]:
    """Write programs into a library, each for its own range of sizes: what the library had there gives way.

    A custom program's collective is its name. Returns the files in order, the index last. Raises InputError, and writes
    nothing, where two of them serve one size, where what is there cannot be cut, for a folder that cannot be written or
    a foreign index.
    """
    with writing(folder, "--library") as library:
        rows: list[dict[str, Any]] = []
        for one in added:
            row = _row(one)
            row["file"] = f"{one.target.folder}/{_name(row, library, rows)}{one.target.suffix}"
            named = replace(one.program, name=Path(row["file"]).stem[: min(63, one.target.longest_name)])
            text, form = write_program(named, one.goal, one.target, nodes=one.nodes), FORMATS[one.target.format]
            most = most_bytes(named, one.target.limits) if form.holds_program else form.largest_message(text)
            if most is not None and most < _ends(row)[1]:
                row["max_bytes"] = most
            _check_free(row, rows)
            row["threadblocks"] = max(form.threadblocks(named, text))
            library.write(row["file"], text.encode())
            rows.append(row)
        asked = {_question(row) for row in rows}
        for entry in library.entries:
            if _question(entry.values) in asked:
                rows += _cut(entry, rows[: len(added)], library)
        library.commit(rows)
        return [library.folder / row["file"] for row in rows[: len(added)]] + [library.folder / INDEX]


def _row(one: Addition) -> dict[str, Any]:
    """The entry of a program, but for its file and what that takes."""
    p = one.program
    name = plain_name(p.name)
    group = list(one.ranks) or list(range(p.nranks))
    return {
        "collective": name if p.collective == "custom" else p.collective,
        "topology": one.topology,
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
        "schedule": None,
        "proof_file": None,
        "goal": None if one.goal is None else state_goal(one.goal),
        "script": name,
    }


def _name(row: Mapping[str, Any], library: Library, rows: Sequence[Mapping[str, Any]]) -> str:
    """Of its file: what it is, and, where another question or range has that name, a number that follows from both."""
    parts = [row["collective"], str(row["topology"]), f"{row['nranks']}ranks", row["script"]]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", "-".join(parts)).lstrip(".-")[:200]
    asked = (_question(row), row["min_bytes"])
    others = [*(entry.values for entry in library.entries), *rows]
    taken = {Path(one["file"]).stem for one in others if (_question(one), one["min_bytes"]) != asked}
    return f"{name}-{zlib.crc32(repr(asked).encode()):08x}" if name in taken else name


def _question(row: Mapping[str, Any]) -> tuple[object, ...]:
    """What is asked, and for which executor, in a row as an index has it."""
    key = ("collective", "topology", "root", "target")
    return *(row[name] for name in key), tuple(row["group"]), tuple(row["relays"])


def _ends(row: Mapping[str, Any]) -> tuple[int, int]:
    """The least and the most bytes that it serves."""
    return row["min_bytes"], _NO_END if row["max_bytes"] is None else row["max_bytes"]


def _overlap(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether both serve some size of one question in one form."""
    (low, high), (least, most) = _ends(one), _ends(other)
    same = _question(one) == _question(other) and one["inplace"] == other["inplace"]
    return same and low <= most and least <= high


def _check_free(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    for other in rows:
        if _overlap(row, other):
            size = max(row["min_bytes"], other["min_bytes"])
            raise InputError(
                f"{other['script']} and {row['script']} both serve {size} bytes; it must be one"
                " (min_bytes and max_bytes of each Script, both inclusive)"
            )


def _cut(entry: Entry, rows: Sequence[Mapping[str, Any]], library: Library) -> list[dict[str, Any]]:
    """What is left of an entry beside the new rows, its files written anew where that is not all of it."""
    whole = _ends(entry.values)
    left = [whole]
    for low, high in (_ends(row) for row in rows if _overlap(row, entry.values)):
        parts = [part for least, most in left for part in ((least, min(most, low - 1)), (max(least, high + 1), most))]
        left = [(least, most) for least, most in parts if least <= most]
    if left == [whole]:
        return [dict(entry.values)]
    target = TARGETS[entry.target]
    if left and not FORMATS[target.format].holds_program:
        raise InputError(
            f"{entry.file}: serves some of these sizes and cannot be cut; it must be another range or library"
        )
    made = []
    for number, (least, most) in enumerate(left):
        goal = entry.goal()
        program = verify_program(entry.path, goal).right_program(str(entry.path))
        file = entry.file if not number else f"{entry.file.removesuffix(target.suffix)}-from{least}{target.suffix}"
        end = None if most == _NO_END else most
        cut = replace(program, min_bytes=least, max_bytes=end or 0)
        library.write(file, write_program(cut, goal, target).encode())
        made.append({**entry.values, "file": file, "min_bytes": least, "max_bytes": end})
    return made
