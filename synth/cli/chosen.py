"""Which file is to run: one of its own, a library's by message size, or a stored schedule."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path

from emit.compiler.unlimited import lower_unlimited
from emit.formats import FORMATS, format_of
from emit.goal import Goal
from emit.library.index import Entry
from emit.library.lookup import entry_beside
from emit.library.overlay import load_library
from emit.library.selector import entries_of
from emit.program import Program
from emit.targets import TARGETS, target_named
from synth.cli.programs import read_program
from synth.cli.schedules import load_algorithm
from synth.model.problem import Problem, parse_ranks
from synth.model.registry import parse_name
from synth.storage.schedule_file import load_schedule
from topologies.errors import InputError
from topologies.load import load
from topologies.topology import Topology

_USUAL = 1 << 20  # bytes of a message
_NAME = 63  # characters of an algorithm's name


@dataclass(eq=False)
class Chosen:
    """A file that is to run.

    entry: what its library's index says of it, None where there is none. inside: the file for calls in place, where
    this one is for calls out of place.
    """

    name: str
    file: Path
    program: Program
    goal: Goal | None
    entry: Entry | None
    inside: Chosen | None = field(default=None, kw_only=True)

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:
        """The topology's rank of each of the program's, None: the first ones."""
        entry = self.entry
        return entry.communicator if entry is not None and entry.topology == topology.name else None

    def made_for(self) -> Topology | None:
        """The network that the file was made for: its schedule's, else the known one of this name."""
        if self.entry is None:
            return None
        with suppress(InputError):
            if self.entry.schedule is None:
                return load(self.entry.topology)
            return load_schedule(self.entry.folder / self.entry.schedule).problem.topology
        return None


@dataclass(eq=False)
class Stored(Chosen):
    """A stored schedule as a program in memory. problem: what it solves."""

    problem: Problem

    def communicator(self, topology: Topology) -> tuple[int, ...] | None:
        """The ranks of the schedule, whatever the topology."""
        return self.problem.ranks if topology.name == self.problem.topology.name else None

    def made_for(self) -> Topology:
        """The network of the schedule."""
        return self.problem.topology


def chooser(
    path: Path, collective: str | None, group: str | None, target: str | None = None
) -> tuple[Callable[[int], Chosen | None], int]:
    """What runs at a message size: the file itself, where it serves it, or a library's; and the usual size in bytes.

    Raises InputError where a library's files are not of one question.
    """
    if not path.is_dir() and path.name != "index.json":
        if (collective, group, target) != (None, None, None):
            raise InputError("--collective, --group, --target: choose from a library; this is one file")
        if format_of(path) is FORMATS["schedule"]:
            stored = _lowered(path)
            return (lambda _: stored), _USUAL
        one = Chosen(path.stem, path, *read_program(path)[:2], entry_beside(path))
        low, high = one.program.min_bytes, one.program.max_bytes or inf
        return (lambda size: one if low <= size <= high else None), int(min(max(_USUAL, low), high))
    entries = load_library(path)
    if collective is not None:
        entries = [e for e in entries if e.collective == parse_name(collective)]
    if group is not None:
        ranks = parse_ranks(group, "--group", 1 << 20)
        entries = entries_of(entries, ranks)
        entries = [e for e in entries if e.group == ranks] or entries  # in whatever order a symmetry gave them
    readers = {TARGETS[e.target].reader for e in entries if not TARGETS[e.target].runs_here}
    entries = [e for e in entries if TARGETS[e.target].runs_here]
    if readers and not entries:
        raise InputError(f"{path}: holds only files for {', '.join(sorted(readers))}; it must hold MSCCL XML or plans")
    chosen = next((name for name in TARGETS if any(e.target == name for e in entries)), "")
    if target is not None:
        chosen = target_named(target).name
    entries = [e for e in entries if e.target == chosen]
    questions = sorted({_question(e) for e in entries})
    if len(questions) != 1:
        asked = "--collective and --group: must be one of" if questions else "--collective, --group: there are only"
        there = questions or sorted({_question(e) for e in load_library(path)})
        raise InputError(f"{path}: {asked} {'; '.join(there[:6])}{'; …' if len(there) > 6 else ''}")
    known: dict[str, Chosen] = {}

    def choose(size: int) -> Chosen | None:
        """In both forms where the library has both; at any size, as executors here cut what does not divide."""
        found: Chosen | None = None
        for entry in sorted((one for one in entries if one.in_range(size)), key=lambda one: one.inplace, reverse=True):
            if entry.file not in known:
                known[entry.file] = Chosen(
                    entry.path.stem, entry.path, *read_program(entry.path)[:2], entry, inside=found
                )
            found = known[entry.file]
        return found

    return choose, _USUAL


def _lowered(path: Path) -> Stored:
    algorithm = load_algorithm(path)
    return Stored(path.stem, path, *lower_unlimited(algorithm, path.stem[:_NAME]), None, algorithm.problem)


def _question(entry: Entry) -> str:
    group = ",".join(map(str, entry.group))
    return f"{entry.collective} on {entry.topology} --group {group} for {entry.target}"
