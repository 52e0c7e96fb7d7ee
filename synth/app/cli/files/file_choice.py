"""The choice of the file to run: a single file, a library's file by message size, or a stored schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path

from emit.compiler.unlimited import lower_unlimited
from emit.formats import PROGRAM_FORMATS, format_of
from emit.goal import Goal
from emit.library.entry import IndexEntry
from emit.library.networks import Networks
from emit.library.overlay import load_library
from emit.library.selection.lookup import entry_beside
from emit.library.selection.selector import entries_of
from emit.program import Program
from emit.targets import TARGETS, target_named
from synth.app.cli.files.schedules import load_algorithm
from synth.app.cli.programs import read_program
from synth.model.problem import Problem, parse_ranks
from synth.model.registry import parse_name
from synth.model.text import format_spans
from synth.storage.schedule_file import load_schedule
from topologies.errors import InputError
from topologies.text.files import origin_of
from topologies.topology import Topology

_USUAL = 1 << 20  # bytes of a message
_NAME = 63  # characters of an algorithm's name


@dataclass(eq=False)
class Chosen:
    """A file to run.

    Attributes:
        name: Name of the algorithm.
        file: Path of the file.
        program: Its program.
        goal: What the program must achieve; None if unknown.
        entry: Its entry in the library's index; None without an index.
        inside: The file for calls in place, if this one is for calls out of place; None otherwise.
    """

    name: str
    file: Path
    program: Program
    goal: Goal | None
    entry: IndexEntry | None
    inside: Chosen | None = field(default=None, kw_only=True)

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:
        """Return the topology's rank of each rank of the program, as the index states it.

        None stands for the first ranks: there is no index, or it is for another topology.
        """
        entry = self.entry
        return entry.communicator if entry is not None and entry.topology == topology.name else None

    def made_for(self) -> Topology | None:
        """Return the network of the file: that of its stored schedule, or else the one that the index names.

        It is None without an index, and if the network cannot be read.
        """
        if self.entry is None:
            return None
        with suppress(InputError):
            if self.entry.schedule is None:
                return Networks().of(self.entry)
            return load_schedule(self.entry.folder / self.entry.schedule).problem.topology
        return None


@dataclass(eq=False)
class StoredChoice(Chosen):
    """A stored schedule, lowered to a program in memory.

    Attributes:
        problem: The problem that it solves.
    """

    problem: Problem

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:
        """Return the ranks of the schedule on its own topology; None on another topology."""
        return self.problem.ranks if topology.name == self.problem.topology.name else None

    def made_for(self) -> Topology:
        """Return the network of the schedule."""
        return self.problem.topology


def chooser(
    path: Path, collective: str | None, group: str | None, target: str | None = None
) -> tuple[Callable[[int], Chosen | None], int]:
    """Return a function from a message size in bytes to the file to run, and the usual message size in bytes.

    The function returns None for a size that no file serves. The usual size is 1 MiB, or the nearest size that a single
    file serves. A stored schedule is lowered to a program and runs at every size.

    Args:
        path: A file, or a library's folder or index.
        collective: The collective to choose from a library.
        group: The ranks to choose from a library, as text.
        target: The executor to choose from a library; None for the first that has files which run here.

    Raises:
        InputError: The library's files answer more than one question, no file can run here, or something is chosen
            although there is one file.
    """
    # A library's folder may be meant, which the readers of files do not name.
    if not path.suffix and not path.exists():
        raise InputError(
            f"{origin_of(path)}: no such file; it must be a library's folder, an .xml, .json or .synth file"
        )
    if path.is_dir() or path.name == "index.json":
        return partial(_serving_file, _entries(path, collective, group, target), {}), _USUAL
    if (collective, group, target) != (None, None, None):
        raise InputError("--collective, --group, --target: choose from a library, but this is one file; leave them out")
    if format_of(path) is PROGRAM_FORMATS["schedule"]:
        algorithm = load_algorithm(path)
        program, goal = lower_unlimited(algorithm, path.stem[:_NAME])
        stored = StoredChoice(path.stem, path, program, goal, None, algorithm.problem)
        return (lambda _: stored), _USUAL
    single_file = Chosen(path.stem, path, *read_program(path)[:2], entry_beside(path))
    low, high = single_file.program.min_bytes, single_file.program.max_bytes or inf
    return (lambda size: single_file if low <= size <= high else None), int(min(max(_USUAL, low), high))


def _entries(path: Path, collective: str | None, group: str | None, target: str | None) -> list[IndexEntry]:
    """Return the entries of a library for the one question and target that a user chooses.

    Args:
        path: The library.
        collective: The collective; None for the only one.
        group: The ranks, as text; None for the only group. If entries are for these ranks in the same order, only these
            count; otherwise those for another order do.
        target: The executor; None for the first that has files which run here.

    Raises:
        InputError: No entry or more than one question is left, or the executor has no files.
    """
    entries = load_library(path)
    if collective is not None:
        entries = [entry for entry in entries if entry.collective == parse_name(collective)]
    if group is not None:
        ranks = parse_ranks(group, "--group", 1 << 20)
        entries = entries_of(entries, ranks)
        entries = [entry for entry in entries if entry.group == ranks] or entries
    readers = {TARGETS[entry.target].reader for entry in entries if not TARGETS[entry.target].runs_here}
    entries = [entry for entry in entries if TARGETS[entry.target].runs_here]
    if readers and not entries:
        raise InputError(f"{path}: holds only files for {', '.join(sorted(readers))}; it must hold MSCCL XML or plans")
    chosen = next((name for name in TARGETS if any(entry.target == name for entry in entries)), "")
    if target is not None:
        chosen = target_named(target).name
        if entries and all(entry.target != chosen for entry in entries):
            targets = ", ".join(sorted({entry.target for entry in entries}))
            raise InputError(f"--target {target}: {origin_of(path)} has files for {targets} only")
    entries = [entry for entry in entries if entry.target == chosen]
    questions = sorted({(entry.collective, entry.topology, entry.group) for entry in entries})
    if not questions:
        raise InputError(f"{origin_of(path)}: has no file for that question; synth library show names those it has")
    if len(questions) > 1:
        example = f"--collective {questions[0][0]} --group {format_spans(questions[0][2])}"
        raise InputError(
            f"{origin_of(path)}: answers {len(questions)} questions; choose one, as with {example}"
            " (synth library show names all)"
        )
    return entries


def _serving_file(entries: Sequence[IndexEntry], file_of_entry: dict[str, Chosen], size: int) -> Chosen | None:
    """Return the file for a size, with its file for calls in place if the library has both; None if no file serves it.

    Executors here run any size, as they cut a message that does not divide.

    Args:
        entries: The library's entries for one question and target.
        file_of_entry: The files that were read already, by name; new ones are added.
        size: Message size in bytes.
    """
    chosen: Chosen | None = None
    serving = [entry for entry in entries if entry.in_range(size)]
    for entry in sorted(serving, key=lambda entry: entry.inplace, reverse=True):
        if entry.file not in file_of_entry:
            program, goal, _ = read_program(entry.path)
            file_of_entry[entry.file] = Chosen(entry.path.stem, entry.path, program, goal, entry, inside=chosen)
        chosen = file_of_entry[entry.file]
    return chosen
