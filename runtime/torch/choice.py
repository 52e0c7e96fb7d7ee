"""Choose the back end and the algorithm of each call, with the same result on every rank and without communication.

Environment variables:
    SYNTH_BACKEND: auto (synth where the table says so, otherwise the wrapped back end), synth (our algorithms wherever
        they can run, those of the library first), or gloo (the wrapped back end, whatever its name is).
    SYNTH_LIBRARY: The folder of a library, or one MSCCL XML. Its algorithms are preferred to the built-in ones.
    SYNTH_TABLE: A JSON file of the methods that were measured to be fastest (`runtime.torch.table`).
    SYNTH_TOPOLOGY: The network of the job's ranks, as `synth calibrate` measures it. All-to-alls are then planned for
        the sizes of each call (`runtime.torch.programs.planned`).

The wrapped back end serves the sizes that no row of the table covers, and all sizes without a table: a predicted time
is no measurement. All-to-alls with splits follow rows of their own (alltoallv), which were measured with unequal
blocks. Without such rows the wrapped back end serves them, unless the table has the same answer for all sizes: it was
measured with equal blocks, and ranks would first have to exchange their sizes, which costs what it may gain.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from math import gcd
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from emit.formats import plain_name, verify_program
from emit.library.entry import IndexEntry
from emit.library.goals import state_goal
from emit.library.overlay import folder_without, load_library
from emit.library.selection.lookup import goal_beside
from emit.library.selection.selector import entries_of
from emit.program import Program
from emit.targets import TARGETS
from runtime.algorithms.built_in import DIRECT, built_in, names, usual
from runtime.torch.added import ADDED, WRAPPED, known_names
from runtime.torch.table import MAX_FILE_BYTES, PLANNED, SPLIT_ALLTOALL, TableCall, TableRow, load_table, warn
from synth.model.registry import find_kind
from topologies.errors import InputError
from topologies.faults.apply import apply_faults
from topologies.load import load
from topologies.text.files import read_bytes
from topologies.text.writer import to_toml

NO_TABLE = "no table says that ours is faster"
SPLITS = "blocks of stated sizes: the table is for equal ones"
CHOSEN = ("asked for", "by the table")  # Reasons of a deliberate choice: no algorithm is missing.
_MOST_CALLS = 1024  # Most recent distinct calls whose choices are cached.
# The fields of an entry on which choices depend.
_CHOICE_FIELDS = attrgetter(
    "file", "inplace", "min_bytes", "max_bytes", "group", "isomorphic_groups", "collective", "root", "sizes", "target"
)


class Method(NamedTuple):
    """A back end and, with synth, the name of an algorithm or None for the default one."""

    backend: str
    algorithm: str | None = None


class CallChoice(NamedTuple):
    """The program that serves a call, or None for the wrapped back end, and the reason.

    Attributes:
        program: One of our programs, or None for the wrapped back end.
        reason: Why it was chosen, as it is counted in `runtime.torch.counters`.
        order: Place in the group that runs each rank of the program, by the program's rank; None for the same
            numbering.
        added: Name of the added back end that serves the call in place of the wrapped one; "" for none.
        planned: Whether the call is planned for its sizes, if its network allows that and a plan gains.
    """

    program: Program | None
    reason: str
    order: tuple[int, ...] | None = None
    added: str = ""
    planned: bool = False


def _of_other(backend: str, reason: str) -> CallChoice:
    """Return the choice of a back end that is not ours: the wrapped one or an added one, with the choice's reason."""
    return CallChoice(None, reason, added="" if backend == WRAPPED else backend)


def _plain_collective(name: str) -> str:
    """Return the collective that a row's collective is if blocks are equal."""
    return "alltoall" if name == SPLIT_ALLTOALL else name


def _runs_here(entry: IndexEntry) -> bool:
    """Return True if the ranks of torch can run an entry's file: its target allows that, and no other rank relays."""
    return TARGETS[entry.target].runs_here and not entry.relays


def _order(entry: IndexEntry, ranks: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return for each rank of an entry's program the place in `ranks` of the rank that runs it.

    It is None if the entry is for `ranks` in this order, or for other ranks: then places are numbered as in the
    program.
    """
    needs_no_order = entry.group == ranks or sorted(entry.group) != sorted(ranks)
    return None if needs_no_order else tuple(ranks.index(rank) for rank in entry.group)


def _place_of_root(entry: IndexEntry, ranks: tuple[int, ...]) -> int:
    """Return the place in the group of a rooted entry's root, if the group of `ranks` runs the entry's program."""
    at, order = entry.group.index(entry.root or 0), _order(entry, ranks)
    return at if order is None else order[at]


def _content(entry: IndexEntry) -> str:
    """Return a hexadecimal hash of the contents of an entry's file, or "" if it cannot run here.

    Files of equal names may differ between machines.

    Raises:
        InputError: The file cannot be read, or is too large.
    """
    if not _runs_here(entry):
        return ""
    try:
        data = read_bytes(entry.path, "a file of the library", MAX_FILE_BYTES, entry.folder)
    except InputError as error:
        raise InputError(f"library {error}") from None
    return blake2b(data, digest_size=16).hexdigest()


def _is_single_file(library: Path | None) -> bool:
    """Return True if a library is one MSCCL XML: its name ends in .xml, and it is no folder. None gives False."""
    return library is not None and library.suffix == ".xml" and not library.is_dir()


def _entries(library: Path) -> list[IndexEntry]:
    """Return the entries of a library's index, or a single entry for the sizes that one MSCCL XML serves.

    Raises:
        InputError: The library cannot be read, or the program of the XML is wrong.
    """
    if not _is_single_file(library):
        return load_library(library)
    goal = goal_beside(library)
    program = verify_program(library, goal).right_program(str(library))
    group = tuple(range(program.nranks))
    root = program.root if find_kind(program.collective).rooted else None
    collective = plain_name(program.name) if program.collective == "custom" else program.collective
    return [
        IndexEntry(
            collective, "", group, (), root, library.name, "executor-nccl", program.protocol, program.inplace,
            program.min_bytes, program.max_bytes or None, library.parent, {},
            stated_goal=None if goal is None else state_goal(goal),
        )
    ]  # fmt: skip


@dataclass
class Chooser:
    """The rules that choose what serves each call of a job.

    Attributes:
        backend: The default back end: auto, synth or gloo.
        library: Folder of a library or one MSCCL XML; None for the built-in algorithms only.
        table: JSON file of the measured methods; None for no table.
        topology: Name or file of the network of the job's ranks; None for no plans of all-to-alls.
        without: Parts of the network that have failed, as --without takes them; the library's answers for this failure
            are used, and `library` becomes their folder.
        entries: Entries of the library.
        rows: Rows of the table.
        network: The network that `topology` names, without the failed parts, or None.

    Raises:
        InputError: The back end is unknown, the library, the table or the topology cannot be read, or the library has
            no answers for the failure.
    """

    backend: str = "auto"
    library: Path | None = None
    table: Path | None = None
    topology: str | None = None
    without: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.backend not in known_names():
            raise InputError(f"SYNTH_BACKEND={self.backend}; it must be one of {', '.join(known_names())}")
        if self.without:
            if self.library is None or _is_single_file(self.library):
                failed = ",".join(self.without)
                raise InputError(f"{failed} has failed: SYNTH_LIBRARY must be a library's folder with answers for that")
            self.library = folder_without(self.library, self.without)
        try:
            self.entries = [] if self.library is None else _entries(self.library)
        except InputError as error:
            raise InputError(f"library {error}") from None
        try:
            self.rows = [] if self.table is None else load_table(self.table)
        except InputError as error:
            raise InputError(f"table {error}") from None
        try:
            self.network = None if self.topology is None else apply_faults(load(self.topology), self.without, ())
        except InputError as error:
            raise InputError(f"SYNTH_TOPOLOGY: {error}") from None
        self._runnable: dict[tuple[str, int], list[IndexEntry]] = defaultdict(list)
        for entry in self.entries:
            if _runs_here(entry):
                self._runnable[entry.collective, entry.nranks].append(entry)
        stems = {Path(entry.file).stem for entry in self.entries}
        for row in self.rows:
            built_in_names = names(_plain_collective(row.collective), row.ranks)
            is_known = row.algorithm is None or row.algorithm in {*stems, *built_in_names, PLANNED}
            if not is_known and not self.without:  # Answers for a failure have other names.
                warn(
                    f"{self.table}: algorithm {row.algorithm} for {row.collective} of {row.ranks} ranks does not exist"
                )
        self._has_warned = False
        # The caches are bounded, since a program may call with any number of sizes.
        self._cached_choice = lru_cache(_MOST_CALLS)(self._choose)
        self._cached_paths = lru_cache(_MOST_CALLS)(self._paths)
        self._cached_plans = lru_cache(_MOST_CALLS)(self._plans)
        self._programs: dict[str, Program] = {}

    @staticmethod
    def of_environment(values: Mapping[str, str] = os.environ, without: tuple[str, ...] = ()) -> Chooser:
        """Return the chooser that SYNTH_BACKEND, SYNTH_LIBRARY, SYNTH_TABLE and SYNTH_TOPOLOGY describe.

        Equal values give the same object; the 16 latest are kept, so files are not read again. Without a value, or with
        an empty one, the back end is auto, and there is no library, no table or no network.

        Args:
            values: Variables by name; by default the environment.
            without: Parts of the network that have failed.

        Raises:
            InputError: A variable names an unknown back end, or a file that cannot be read or is wrong, or the library
                has no answers for the failure.
        """
        files = (values.get(name) or None for name in ("SYNTH_LIBRARY", "SYNTH_TABLE", "SYNTH_TOPOLOGY"))
        return _chooser_of(values.get("SYNTH_BACKEND") or "auto", *files, without)

    @cached_property
    def basis(self) -> str:
        """Return a text of all that choices depend on, the contents of files included, for comparison between ranks.

        Raises:
            InputError: A file of the library cannot be read.
        """
        listed = [(*_CHOICE_FIELDS(entry), _content(entry)) for entry in self.entries]
        return json.dumps([self.backend, listed, self.rows, None if self.network is None else to_toml(self.network)])

    def check(self, ranks: int, is_whole_job: bool) -> None:
        """Read and verify all programs that may run in a group, so that no later call fails because of a bad file.

        Args:
            ranks: Number of ranks of the group; only files for this number are read.
            is_whole_job: Whether the group holds all ranks of the job.

        Raises:
            InputError: A program is wrong, or the library is one file for another number of ranks than the job has.
        """
        if is_whole_job and _is_single_file(self.library) and self.entries[0].nranks != ranks:
            raise InputError(
                f"library {self.library}: is for {self.entries[0].nranks} ranks, this job has {ranks}; it must be one"
                f" for {ranks} ranks, or a folder, which may hold files for several numbers of ranks"
            )
        if is_whole_job and self.network is not None and self.network.nranks != ranks:
            raise InputError(
                f"SYNTH_TOPOLOGY {self.topology}: has {self.network.nranks} ranks, this job has {ranks}; it must"
                " describe the network of all ranks of the job"
            )
        for entry in self.entries:
            if entry.nranks == ranks and _runs_here(entry):
                self._read(entry)

    def choose(self, call: TableCall, method: Method | None = None) -> CallChoice:
        """Return what serves a call; `method` overrules SYNTH_BACKEND.

        The wrapped back end serves groups of one rank, and whatever no algorithm serves. Whether the program can run on
        the call's tensors is not checked. Choices are kept for the 1024 latest calls. It warns once if there is a
        library but no table for it.

        Raises:
            InputError: `method` names an algorithm that does not exist for this collective and number of ranks, or a
                file of the library is wrong, which `check` finds earlier.
        """
        return self._cached_choice(method or Method(self.backend), call)

    def paths(self, call: TableCall, method: Method | None = None) -> frozenset[str]:
        """Return how calls that differ from this one only in size may be served: any of "wrapped", "direct", "program".

        "direct" is the built-in algorithm that sends each block straight to its destination, and so serves blocks of
        any length. "program" is any other of our algorithms. An added back end stands by its name. `method` overrules
        SYNTH_BACKEND. Plans (see `plans`) are not counted.

        Raises:
            InputError: `method` names an algorithm that does not exist for this collective and number of ranks.
        """
        return self._cached_paths(method or Method(self.backend), call._replace(size_bytes=1))

    def plans(self, call: TableCall, method: Method | None = None) -> bool:
        """Return whether calls that differ from this one only in size may be planned for the sizes of their blocks.

        `method` overrules SYNTH_BACKEND. `CallChoice.planned` says which of them are.
        """
        return self._cached_plans(method or Method(self.backend), call._replace(size_bytes=1))

    def _plans(self, method: Method, call: TableCall) -> bool:
        """Return what `plans` returns, without its cache."""
        if self.network is None or call.collective != "alltoall":
            return False
        sizes = {1, *self._first_sizes(call)}
        return any(self._choose(method, call._replace(size_bytes=size)).planned for size in sizes)

    def measures_splits(self, call: TableCall) -> bool:
        """Return whether the table has rows of their own for all-to-alls with splits of as many ranks as this call."""
        return call.collective == "alltoall" and self._has_rows(SPLIT_ALLTOALL, len(call.ranks))

    def _has_rows(self, collective: str, ranks: int) -> bool:
        """Return whether the table has a row for a collective of so many ranks, of any group, type and size."""
        return any(row.collective == collective and row.ranks == ranks for row in self.rows)

    def _row(self, call: TableCall) -> TableRow | None:
        """Return the table's first row that fits a call, or None."""
        if call.has_splits and self.measures_splits(call):
            call = call._replace(collective=SPLIT_ALLTOALL)
        return next((row for row in self.rows if row.fits(call)), None)

    def _paths(self, method: Method, call: TableCall) -> frozenset[str]:
        """Return what `paths` returns, without its cache, from the sizes at which a row or an entry begins or ends."""
        sizes = {1, *self._first_sizes(call)}
        return frozenset(self.path(self._choose(method, call._replace(size_bytes=size))) for size in sizes)

    def _first_sizes(self, call: TableCall) -> set[int]:
        """Return the sizes in bytes at which a row of the table or an entry for such calls begins or has just ended."""
        ranges = [(row.min_bytes, row.max_bytes) for row in self.rows]
        ranges += [(entry.min_bytes, entry.max_bytes) for entry in self._entries(call)]
        return {low for low, _ in ranges} | {high + 1 for _, high in ranges if high is not None}

    def path(self, choice: CallChoice) -> str:
        """Return "wrapped", "direct" or "program" for a choice, as in `paths`.

        A program of the library is never "direct".
        """
        if choice.program is None:
            return choice.added or "wrapped"
        ours = choice.program.name == DIRECT and all(choice.program is not read for read in self._programs.values())
        return "direct" if ours else "program"

    def wrapped_ranges(self, call: TableCall, method: Method | None = None) -> list[tuple[int, str | None]]:
        """Return the ranges of sizes in which the wrapped back end surely serves calls such as this one.

        Args:
            call: A call of any size; it stands for all calls that differ only in size.
            method: The method that overrules SYNTH_BACKEND, or None.

        Returns:
            For each range, in rising order, the first size in bytes, which is 0 for the first range, and the reason why
            the wrapped back end serves it; None instead of a reason where `choose` must be asked for each call. A range
            ends where the next one begins; the last has no end.

        Raises:
            InputError: `method` names an algorithm that does not exist for this collective and number of ranks.
        """
        method = method or Method(self.backend)
        if method.backend == "synth":
            return [(0, None)]
        ranges: list[tuple[int, str | None]] = []
        for size in sorted({0, *self._first_sizes(call)}):
            choice = self._choose(method, call._replace(size_bytes=size))
            reason = choice.reason if choice.program is None and not choice.added else None
            if not ranges or reason != ranges[-1][1]:
                ranges.append((size, reason))
        return ranges

    def methods(self, call: TableCall) -> list[Method]:
        """Return all methods that may serve a call: the wrapped back end first, library algorithms, then built-in ones.

        The library's are listed whatever sizes they are for. Each name is listed once.

        Raises:
            InputError: A file of the library is wrong, which `check` finds earlier.
        """
        entries = self._entries(call)
        algorithm_names = [Path(e.file).stem for e in entries if self._read(e).collective == call.collective]
        algorithm_names += names(call.collective, len(call.ranks))
        algorithm_names += [PLANNED] if call.collective == "alltoall" and self.network is not None else []
        ours = (Method("synth", name) for name in dict.fromkeys(algorithm_names))
        return [*map(Method, (WRAPPED, *ADDED)), *ours]

    def custom(self, name: str, ranks: tuple[int, ...]) -> list[tuple[IndexEntry, Program]]:
        """Return the library's programs of a custom collective for a group, each with its entry, the best match first.

        Those for these ranks in this order come first, then for another order, then for as many other ranks. The list
        is empty where the library has none.

        Args:
            name: Name of the collective.
            ranks: Ranks of the group, as the whole job numbers them.

        Raises:
            InputError: A file of the library is wrong, which `check` finds earlier.
        """
        programs = [(entry, self._read(entry)) for entry in self._entries(TableCall(name, 0, "", ranks))]
        return [(entry, program) for entry, program in programs if program.collective == "custom"]

    def for_sizes(self, call: TableCall, sizes: Sequence[int], method: Method | None = None) -> Program | None:
        """Return the library's program for an all-gather or a reduce-scatter of blocks of these sizes, or None.

        Only synth without an algorithm uses one: tables do not know such calls. A program is for the proportions of the
        sizes, and for the order of the group.

        Args:
            call: The call; its collective is that of equal blocks, its size that of all blocks.
            sizes: Elements of the block of each rank, by its place.
            method: The method that overrules SYNTH_BACKEND, or None.

        Raises:
            InputError: A file of the library is wrong, which `check` finds earlier.
        """
        unit = gcd(*sizes)
        if (method or Method(self.backend)) != Method("synth") or not unit:
            return None
        proportions = tuple(size // unit for size in sizes)
        return next(
            (
                program
                for entry, program in self.custom(f"{call.collective}v", call.ranks)
                if entry.sizes == proportions and entry.in_range(call.size_bytes) and not _order(entry, call.ranks)
            ),
            None,
        )

    def _choose(self, method: Method, call: TableCall) -> CallChoice:
        """Return what serves a call with a method, without a look at earlier choices; `choose` says what it raises.

        The wrapped back end serves groups of one rank, and all calls with gloo. A named algorithm serves any call that
        it can. With auto the table's first row that fits decides; without one the wrapped back end serves the call.
        A call with splits for which the table has no rows of their own goes to the wrapped back end if the rows have
        several answers for calls without: its ranks do not all know the size. With synth the best entry of the library
        serves it, otherwise the default built-in algorithm, otherwise the wrapped back end.

        All-to-alls of auto and synth are also planned where SYNTH_TOPOLOGY names a network, unless an algorithm is
        named or the table has rows for all-to-alls of as many ranks.
        """
        choice = self._choose_algorithm(method, call)
        if choice.planned or self.network is None or call.collective != "alltoall" or method.algorithm is not None:
            return choice
        ranks = len(call.ranks)
        has_rows = self._has_rows("alltoall", ranks) or self._has_rows(SPLIT_ALLTOALL, ranks)
        plans = method.backend == "synth" or (method.backend == "auto" and not has_rows)
        return choice._replace(planned=plans and ranks > 1)

    def _choose_algorithm(self, method: Method, call: TableCall) -> CallChoice:
        """Return what `_choose` does, planned only where the method or a row of the table names PLANNED."""
        backend = method.backend
        if len(call.ranks) < 2:
            return CallChoice(None, "a group of one rank")
        if backend == WRAPPED or backend in ADDED:
            return _of_other(backend, "asked for")
        if method.algorithm is not None:
            choice = self._named(call, method.algorithm, "asked for")
            if choice is None:
                known_names = ", ".join(str(candidate.algorithm) for candidate in self.methods(call)[1:]) or "none"
                raise InputError(
                    f"algorithm {method.algorithm!r} for {call.collective} of {len(call.ranks)} ranks does not exist;"
                    f" it must be one of: {known_names}"
                )
            return choice
        if backend == "auto":
            is_for_equal = call.has_splits and not self.measures_splits(call)
            if is_for_equal and len(self.paths(call._replace(has_splits=False), method)) > 1:
                return CallChoice(None, SPLITS)
            row = self._row(call)
            if row is not None and row.backend != "synth":
                return _of_other(row.backend, "by the table")
            if row is None and not self.rows:
                self._tell_without_table(call)
            if row is None:
                return CallChoice(None, "no row of the table fits" if self.rows else NO_TABLE)
            # The table was measured before the failure, so its algorithm may use the failed parts.
            if self.without and row.algorithm != PLANNED:
                choice = self._of_library(call, None, "for the failure")
                if choice is not None:
                    return choice
            choice = self._named(call, row.algorithm, "by the table")
            return choice or CallChoice(None, f"the table's algorithm {row.algorithm} does not exist")
        choice = self._of_library(call, None, "in the library") or self._named(call, None, "built in")
        return choice or CallChoice(None, "no algorithm serves it")

    def _tell_without_table(self, call: TableCall) -> None:
        """Warn once that the library's algorithms are not used, since no measurement shows that they are faster.

        It does nothing for a call for which the library has no algorithm.
        """
        if not self._has_warned and self._entries(call):
            self._has_warned = True
            warn(
                f"library {self.library}: no table says where it is faster, so the wrapped back end serves all calls;"
                f" set SYNTH_TABLE to a table that synth tune --library {self.library} measured, or"
                " SYNTH_BACKEND=synth to use the library without a measurement"
            )

    def _named(self, call: TableCall, name: str | None, reason: str) -> CallChoice | None:
        """Return the choice of a named algorithm, or None if it cannot serve the call; `reason` is the choice's reason.

        An algorithm of the library goes before a built-in one of this name. Without a name it is the library's
        algorithm that serves the call, otherwise the default built-in one. PLANNED names plans, which need a network.
        """
        if name == PLANNED and call.collective == "alltoall":
            return None if self.network is None else CallChoice(None, reason, planned=True)
        choice = self._of_library(call, name, reason)
        if choice is not None:
            return choice
        ranks = len(call.ranks)
        algorithm = name or usual(call.collective, ranks, call.size_bytes)
        if algorithm is None or algorithm not in names(call.collective, ranks):
            return None
        return CallChoice(built_in(call.collective, algorithm, ranks, call.root), reason)

    def _of_library(self, call: TableCall, name: str | None, reason: str) -> CallChoice | None:
        """Return the choice of the first entry of `_entries` that serves the call, or None if there is none.

        Without a name the size of the call must be in the entry's range. A named entry serves any size; its name is
        that of its file, without the suffix. `reason` is the choice's reason.
        """
        for entry in self._entries(call):
            if Path(entry.file).stem == name or (name is None and entry.in_range(call.size_bytes)):
                program = self._read(entry)
                if program.collective == call.collective and program.nranks == len(call.ranks):
                    return CallChoice(program, reason, _order(entry, call.ranks))
        return None

    def _entries(self, call: TableCall) -> list[IndexEntry]:
        """Return the entries that can run here and compute the called collective, the best match first.

        Entries for these very ranks in this order come first, then for these ranks in another order, then for as many
        other ranks. Among equal matches, entries in place or out of place like the call come first; either form can
        serve the call, since the executor copies, and cuts what does not divide evenly. Entries with another root are
        left out.
        """
        sorted_ranks, runnable = sorted(call.ranks), self._runnable.get((call.collective, len(call.ranks)), [])
        for_these_ranks = entries_of(runnable, call.ranks)
        files = {entry.file for entry in for_these_ranks}
        matching = [
            entry
            for entry in (*for_these_ranks, *(further for further in runnable if further.file not in files))
            if entry.root is None or _place_of_root(entry, call.ranks) == call.root
        ]
        return sorted(
            matching, key=lambda e: (sorted(e.group) != sorted_ranks, e.group != call.ranks, e.inplace != call.inplace)
        )

    def _read(self, entry: IndexEntry) -> Program:
        """Return an entry's verified program, read only once; raise InputError if it cannot be read or is wrong."""
        if entry.file not in self._programs:
            try:
                self._programs[entry.file] = verify_program(entry.path, entry.goal()).right_program(str(entry.path))
            except InputError as error:
                raise InputError(f"library {error}") from None
        return self._programs[entry.file]


@lru_cache(maxsize=16)
def _chooser_of(
    backend: str, library: str | None, table: str | None, topology: str | None, without: tuple[str, ...]
) -> Chooser:
    """Return the chooser of these settings; a process reads its files once, not for every group."""
    return Chooser(backend, Path(library) if library else None, Path(table) if table else None, topology, without)
