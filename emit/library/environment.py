"""What makes an executor use a library: the variables to set, and what its users must know."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.library.index import Entry
from emit.targets import MSCCL_FILES, TARGETS, Target, target_named
from synth.present.text import format_count, format_listed
from topologies.errors import InputError

_LIST = "FILE:FILE"  # in a row's `load`: paths of files instead of a folder


@dataclass(frozen=True)
class Environment:
    """variables: to be set in every process, by name.  remarks: sentences.  files: of the library, for this target."""

    target: Target
    variables: dict[str, str]
    remarks: tuple[str, ...]
    files: int

    def lines(self) -> list[str]:
        """For a POSIX shell: comments, and an `export` a variable."""
        head = f"# {self.target.name}: {self.target.reader} ({self.target.state}), {format_count(self.files, 'file')}"
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return [head, *(f"# {remark}" for remark in self.remarks), *exports]


def environments(entries: Sequence[Entry], target: str | None = None) -> list[Environment]:
    """Of each target that has files among the entries of one index, or of the one that is named.

    Raises InputError for a target that is not known or has none.
    """
    names = [name for name in TARGETS if any(entry.target == name for entry in entries)]
    if target is not None and target_named(target).name not in names:
        has = ", ".join(names) or "no target"
        raise InputError(f"--target {target}: the library has no file for it; it has files for {has}")
    return [
        _environment(TARGETS[name], [entry for entry in entries if entry.target == name])
        for name in names
        if target in (None, name)
    ]


def _environment(target: Target, entries: Sequence[Entry]) -> Environment:
    folder = entries[0].folder.resolve()
    remarks = list(target.remarks)
    variables: dict[str, str] = {}
    assignments = [part.partition("=") for part in target.load.split() if "=" in part]
    for name, _, value in assignments:
        if value == _LIST:
            paths = [str(folder / entry.file) for entry in entries]
            if any(":" in path for path in paths):
                raise InputError(f"{folder}: {name} is a list with colons; the library must be at a path without one")
            variables[name] = ":".join(paths[:MSCCL_FILES])
            if len(paths) > MSCCL_FILES:
                left = ", ".join(Path(path).name for path in paths[MSCCL_FILES:])
                remarks.append(f"left out of {name}: {left}")
        else:
            variables[name] = value.replace(f"out/{target.folder}", str(folder / target.folder))
    if not assignments:
        call = f"Plans({str(folder)!r}, rank, world_size, ranks_per_node).register()"
        remarks.append(f"before a communicator is made: from {target.load.rpartition('.')[0]} import Plans; {call}")
    elif any(entry.file.startswith("..") for entry in entries) and _LIST not in target.load:
        remarks.append("WARNING: what a failure leaves stands in the healthy library: synth library export writes all")
    elif mixed := _mixed(entries):
        remarks.append(f"WARNING: {mixed}: the reader cannot tell them apart; give each --out a folder of its own")
    return Environment(target, variables, tuple(remarks), len(entries))


def _mixed(entries: Sequence[Entry]) -> str:
    """The first two questions that a reader who knows only collective and number of ranks takes for one."""
    known: dict[tuple[str, int], Entry] = {}
    for entry in entries:
        one = known.setdefault((entry.collective, len(entry.communicator)), entry)
        if one.question != entry.question:
            return " and ".join(_question(other) for other in (one, entry))
    return ""


def _question(entry: Entry) -> str:
    root = "" if entry.root is None else f" root {entry.root}"
    return f"{entry.collective} on {entry.topology} group {format_listed(entry.communicator)}{root}"
