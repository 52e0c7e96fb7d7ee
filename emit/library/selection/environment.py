"""The environment that makes an executor use a library: variables to set, and remarks for its users."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.library.entry import IndexEntry
from emit.targets import MSCCL_FILES, TARGETS, Target, target_named
from synth.model.text import format_count, format_listed
from topologies.errors import InputError

_LIST = "FILE:FILE"  # in a target's `load`, stands for the paths of files instead of a folder


@dataclass(frozen=True)
class Environment:
    """The environment that makes one executor use a library.

    Attributes:
        target: The executor.
        variables: Values of the variables to set in every process, by name.
        remarks: Sentences for users.
        files: Number of the library's files for this executor.
    """

    target: Target
    variables: dict[str, str]
    remarks: tuple[str, ...]
    files: int

    def lines(self) -> list[str]:
        """Return lines for a POSIX shell: comments, and an `export` for each variable."""
        head = f"# {self.target.name}: {self.target.reader} ({self.target.state}), {format_count(self.files, 'file')}"
        exports = [f"export {name}={shlex.quote(value)}" for name, value in self.variables.items()]
        return [head, *(f"# {remark}" for remark in self.remarks), *exports]


def environments(entries: Sequence[IndexEntry], target: str | None = None) -> list[Environment]:
    """Return the environment of each target that has files among the entries of one index, in the order of TARGETS.

    With `target`, only that of the target of this name is returned.

    Raises:
        InputError: If the named target is unknown or has no files, or if a list of files needs a library at a path
            without a colon.
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


def _environment(target: Target, entries: Sequence[IndexEntry]) -> Environment:
    """Return the environment of one target, given its entries, of which there must be one.

    Raises:
        InputError: If the variable is a list of files with colons, and the library's path has a colon.
    """
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
                unlisted = ", ".join(Path(path).name for path in paths[MSCCL_FILES:])
                remarks.append(f"left out of {name}: {unlisted}")
        else:
            variables[name] = value.replace(f"out/{target.folder}", str(folder / target.folder))
    if not assignments:
        group = ", group=GROUP" if len({entry.communicator for entry in entries}) > 1 else ""
        call = f"Plans({str(folder)!r}, rank, world_size, ranks_per_node{group}).register(only_sums=True)"
        remarks.append(f"before a communicator is made: from {target.load.rpartition('.')[0]} import Plans; {call}")
        if group:
            remarks.append("GROUP lists the rank of the topology of each rank of the communicator, as [0, 8, 16, 24]")
        remarks.append("only_sums=True states that the communicator reduces by sums only, which plans always do")
    elif any(entry.file.startswith("..") for entry in entries) and _LIST not in target.load:
        remarks.append(
            "WARNING: the healthy library holds the unchanged files: synth library export writes all of them"
        )
    elif mixed := _mixed(entries):
        remarks.append(f"WARNING: {mixed}: the reader cannot tell them apart; give each --out a folder of its own")
    return Environment(target, variables, tuple(remarks), len(entries))


def _mixed(entries: Sequence[IndexEntry]) -> str:
    """Return two questions of one collective and number of ranks in words, which readers confuse; "" if none are."""
    first_entries: dict[tuple[str, int], IndexEntry] = {}
    for entry in entries:
        first = first_entries.setdefault((entry.collective, len(entry.communicator)), entry)
        if first.question != entry.question:
            return " and ".join(_question(example) for example in (first, entry))
    return ""


def _question(entry: IndexEntry) -> str:
    """Return an entry's collective, topology, ranks, root and sizes of blocks in words."""
    root = "" if entry.root is None else f" root {entry.root}"
    sizes = f" sizes {format_listed(entry.sizes)}" if entry.sizes else ""
    return f"{entry.collective} on {entry.topology} group {format_listed(entry.communicator)}{root}{sizes}"
