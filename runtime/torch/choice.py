"""Which back end and which algorithm serves a call; the same answer on every rank, without communication.

SYNTH_BACKEND   auto (ours where the table says so, else the wrapped back end), synth (our algorithms wherever they
                can, the library's first), or gloo (the wrapped back end, whatever its name)
SYNTH_LIBRARY   a library's folder, or one MSCCL XML: its algorithms come before the built-in ones
SYNTH_TABLE     a JSON file of what was measured to be fastest (`runtime.torch.table`)

Sizes outside all rows are the wrapped back end's, and without a table all are: a prediction is no measurement.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from emit.formats import plain_name, verify_program
from emit.library.index import Entry, state_goal
from emit.library.lookup import goal_beside
from emit.library.overlay import load_library
from emit.library.selector import entries_of
from emit.program import Program
from emit.targets import TARGETS
from runtime.algorithms.built_in import DIRECT, built_in, names, usual
from runtime.torch.table import BACKENDS, MAX_FILE_BYTES, Call, load_table, warn
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.text.files import read_bytes

NO_TABLE = "no table says that ours is faster"
CHOSEN = ("asked for", "by the table")  # reasons that are no want of an algorithm
_KEPT = 1024  # choices of the last calls that were unlike


class Method(NamedTuple):
    """A back end, and with synth the name of an algorithm or None for the usual one."""

    backend: str
    algorithm: str | None = None


class Choice(NamedTuple):
    """A program of ours, or None for the wrapped back end; and why.

    order: by the program's rank, which place in the group has its part; None: they are numbered alike.
    """

    program: Program | None
    reason: str
    order: tuple[int, ...] | None = None


def _runs_here(entry: Entry) -> bool:
    """Whether ranks of torch can execute its file: all of its program's ranks are the group's."""
    return TARGETS[entry.target].runs_here and not entry.relays


def _order(entry: Entry, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """`Choice.order` of an entry that was made for these very ranks, in whatever order."""
    alike = entry.group == ranks or sorted(entry.group) != sorted(ranks)
    return None if alike else tuple(ranks.index(rank) for rank in entry.group)


def _place_of_root(entry: Entry, ranks: tuple[int, ...]) -> int:
    """That of a rooted entry's root among ranks that run its program."""
    at, order = entry.group.index(entry.root or 0), _order(entry, ranks)
    return at if order is None else order[at]


def _content(entry: Entry) -> str:
    """Of files that may be run: equal names need not be equal files on every machine."""
    if not _runs_here(entry):
        return ""
    try:
        data = read_bytes(entry.path, "a file of the library", MAX_FILE_BYTES, entry.folder)
    except InputError as error:
        raise InputError(f"library {error}") from None
    return blake2b(data, digest_size=16).hexdigest()


def _is_file(library: Path | None) -> bool:
    """Whether it is one MSCCL XML."""
    return library is not None and library.suffix == ".xml" and not library.is_dir()


def _entries(library: Path) -> list[Entry]:
    """Of a library's index; of one file as if it were a library's only one, for the sizes that it serves."""
    if not _is_file(library):
        return load_library(library)
    goal = goal_beside(library)
    program = verify_program(library, goal).right_program(str(library))
    group = tuple(range(program.nranks))
    root = program.root if find_kind(program.collective).rooted else None
    collective = plain_name(program.name) if program.collective == "custom" else program.collective
    return [
        Entry(
            collective, "", program.nranks, group, (), root, library.name, "executor-nccl", program.protocol,
            program.inplace, program.min_bytes, program.max_bytes or None, 1, None, None, library.parent,
            {"goal": None if goal is None else state_goal(goal)},
        )
    ]  # fmt: skip


@dataclass
class Chooser:
    """Chooses for every call of a job."""

    backend: str = "auto"
    library: Path | None = None
    table: Path | None = None

    def __post_init__(self) -> None:
        if self.backend not in BACKENDS:
            raise InputError(f"SYNTH_BACKEND={self.backend}; it must be one of {', '.join(BACKENDS)}")
        try:
            self.entries = [] if self.library is None else _entries(self.library)
        except InputError as error:
            raise InputError(f"library {error}") from None
        try:
            self.rows = [] if self.table is None else load_table(self.table)
        except InputError as error:
            raise InputError(f"table {error}") from None
        self._runnable: dict[tuple[str, int], list[Entry]] = defaultdict(list)
        for entry in self.entries:
            if _runs_here(entry):
                self._runnable[entry.collective, entry.nranks].append(entry)
        stems = {Path(entry.file).stem for entry in self.entries}
        for row in self.rows:
            if row.algorithm is not None and row.algorithm not in {*stems, *names(row.collective, row.ranks)}:
                warn(f"{self.table}: algorithm {row.algorithm} for {row.collective} of {row.ranks} ranks is not there")
        self._told = False
        self._chosen = lru_cache(_KEPT)(self._choose)  # a program may call with any number of sizes
        self._known_paths = lru_cache(_KEPT)(self._paths)
        self._programs: dict[str, Program] = {}

    @staticmethod
    def of_environment(values: Mapping[str, str] = os.environ) -> Chooser:
        """As SYNTH_BACKEND, SYNTH_LIBRARY and SYNTH_TABLE say. Raises InputError for what they name wrongly."""
        library, table = values.get("SYNTH_LIBRARY"), values.get("SYNTH_TABLE")
        return _once(values.get("SYNTH_BACKEND") or "auto", library or None, table or None)

    @cached_property
    def basis(self) -> str:
        """All that choices depend on, for comparison between ranks. Raises InputError for a file that is not there."""
        listed = [
            (
                e.file,
                e.inplace,
                e.min_bytes,
                e.max_bytes,
                e.group,
                e.isomorphic_groups,
                e.collective,
                e.root,
                e.target,
                _content(e),
            )
            for e in self.entries
        ]
        return json.dumps([self.backend, listed, self.rows])

    def check(self, ranks: int, is_whole_job: bool) -> None:
        """Read all that may run in a group of so many ranks, so that no file is found wrong later.

        Raises InputError for a program that is not right, and where the library is one file for another number of ranks
        than the job has.
        """
        if is_whole_job and _is_file(self.library) and self.entries[0].nranks != ranks:
            raise InputError(
                f"library {self.library}: is for {self.entries[0].nranks} ranks, this job has {ranks}; it must be for"
                " as many, or a folder, which may hold files for several"
            )
        for entry in self.entries:
            if entry.nranks == ranks and _runs_here(entry):
                self._read(entry)

    def choose(self, call: Call, method: Method | None = None) -> Choice:
        """For one call; `method` overrules SYNTH_BACKEND."""
        return self._chosen(method or Method(self.backend), call)

    def paths(self, call: Call, method: Method | None = None) -> frozenset[str]:
        """How calls such as this one are served, whatever their sizes: "wrapped", "direct" or "program".

        Direct is the built-in algorithm that sends each block straight to where it belongs, so of any length.
        """
        return self._known_paths(method or Method(self.backend), call._replace(size_bytes=1))

    def _paths(self, method: Method, call: Call) -> frozenset[str]:
        edges = [(row.min_bytes, row.max_bytes) for row in self.rows]
        edges += [(entry.min_bytes, entry.max_bytes) for entry in self._entries(call)]
        sizes = {1, *(low for low, _ in edges), *(high + 1 for _, high in edges if high is not None)}
        return frozenset(self.path(self._choose(method, call._replace(size_bytes=size))) for size in sizes)

    def path(self, choice: Choice) -> str:
        """Which of `paths` a choice is."""
        if choice.program is None:
            return "wrapped"
        ours = choice.program.name == DIRECT and all(choice.program is not read for read in self._programs.values())
        return "direct" if ours else "program"

    def wrapped_ranges(self, call: Call, method: Method | None = None) -> list[tuple[int, str | None]]:
        """For calls such as this one but of any size, what holds from which size on: the first is 0.

        It is the reason for which the wrapped back end serves them, or None where each must be asked for by `choose`.
        """
        method = method or Method(self.backend)
        if method.backend == "synth":
            return [(0, None)]
        begins = {0} | {row.min_bytes for row in self.rows}
        begins |= {row.max_bytes + 1 for row in self.rows if row.max_bytes is not None}
        found: list[tuple[int, str | None]] = []
        for size in sorted(begins):
            choice = self._choose(method, call._replace(size_bytes=size))
            reason = choice.reason if choice.program is None else None
            if not found or reason != found[-1][1]:
                found.append((size, reason))
        return found

    def methods(self, call: Call) -> list[Method]:
        """Everything that can serve a call: the wrapped back end, the library's algorithms, the built-in ones."""
        listed = self._entries(call)
        known = [Path(e.file).stem for e in listed if self._read(e).collective == call.collective]
        known += names(call.collective, len(call.ranks))
        return [Method("gloo"), *(Method("synth", name) for name in dict.fromkeys(known))]

    def custom(self, name: str, ranks: tuple[int, ...]) -> list[tuple[Entry, Program]]:
        """The library's programs of a custom collective for a group, the best match of the ranks first."""
        found = [(entry, self._read(entry)) for entry in self._entries(Call(name, 0, "", ranks))]
        return [(entry, program) for entry, program in found if program.collective == "custom"]

    def _choose(self, method: Method, call: Call) -> Choice:
        backend = method.backend
        if len(call.ranks) < 2:
            return Choice(None, "a group of one")
        if backend == "gloo":
            return Choice(None, "asked for")
        if method.algorithm is not None:
            found = self._named(call, method.algorithm, "asked for")
            if found is None:
                known = ", ".join(str(other.algorithm) for other in self.methods(call)[1:]) or "none"
                raise InputError(
                    f"algorithm {method.algorithm!r} for {call.collective} of {len(call.ranks)} ranks: there is {known}"
                )
            return found
        if backend == "auto":
            row = next((row for row in self.rows if row.fits(call)), None)
            if row is not None and row.backend == "gloo":
                return Choice(None, "by the table")
            if row is None and not self.rows:
                self._tell_without_table(call)
            if row is None:
                return Choice(None, "no row of a table for it" if self.rows else NO_TABLE)
            found = self._named(call, row.algorithm, "by the table")
            return found or Choice(None, f"the table's algorithm {row.algorithm} is not there")
        found = self._of_library(call, None, "in the library") or self._named(call, None, "built in")
        return found or Choice(None, "no algorithm for it")

    def _tell_without_table(self, call: Call) -> None:
        """Once: that a library's algorithms are not taken untried."""
        if not self._told and self._entries(call):
            self._told = True
            warn(
                f"library {self.library}: no table says where it is faster, so the wrapped back end serves all;"
                f" SYNTH_TABLE names what synth tune --library {self.library} measures, SYNTH_BACKEND=synth takes it"
                " untried"
            )

    def _named(self, call: Call, name: str | None, reason: str) -> Choice | None:
        """The algorithm of this name; None: the library's that serves the call, or the usual built-in one."""
        found = self._of_library(call, name, reason)
        if found is not None:
            return found
        ranks = len(call.ranks)
        chosen = name or usual(call.collective, ranks, call.size_bytes)
        if chosen is None or chosen not in names(call.collective, ranks):
            return None
        return Choice(built_in(call.collective, chosen, ranks, call.root), reason)

    def _of_library(self, call: Call, name: str | None, reason: str) -> Choice | None:
        """The first of `_entries` that serves the call; one that is named is taken at any size."""
        for entry in self._entries(call):
            if Path(entry.file).stem == name or (name is None and entry.in_range(call.size_bytes)):
                program = self._read(entry)
                if program.collective == call.collective and program.nranks == len(call.ranks):
                    return Choice(program, reason, _order(entry, call.ranks))
        return None

    def _entries(self, call: Call) -> list[Entry]:
        """Those that compute what is called: made for these very ranks, in this order first, then for as many others.

        Of either form, the call's first: our executor copies, and cuts what does not divide.
        """
        mine, able = sorted(call.ranks), self._runnable.get((call.collective, len(call.ranks)), [])
        made = entries_of(able, call.ranks)
        files = {entry.file for entry in made}
        found = [
            entry
            for entry in (*made, *(one for one in able if one.file not in files))
            if entry.root is None or _place_of_root(entry, call.ranks) == call.root
        ]
        return sorted(found, key=lambda e: (sorted(e.group) != mine, e.group != call.ranks, e.inplace != call.inplace))

    def _read(self, entry: Entry) -> Program:
        if entry.file not in self._programs:
            try:
                self._programs[entry.file] = verify_program(entry.path, entry.goal()).right_program(str(entry.path))
            except InputError as error:
                raise InputError(f"library {error}") from None
        return self._programs[entry.file]


@lru_cache(maxsize=16)
def _once(backend: str, library: str | None, table: str | None) -> Chooser:
    """A process reads its files once, not for every group."""
    return Chooser(backend, Path(library) if library else None, Path(table) if table else None)
