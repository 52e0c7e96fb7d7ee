"""Adding programs from elsewhere, such as those written by hand, to a library as files."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from emit.formats import PROGRAM_FORMATS, plain_name, write_program
from emit.goal import Goal
from emit.library.entry import INDEX, IndexEntry
from emit.library.goals import state_goal
from emit.library.library_file import LibraryFile, Requirement, network_digest
from emit.library.saving.existing import Outcome, PlacedFile, place, write_placed
from emit.library.saving.write import Library, writing
from emit.program import CUSTOM, Program
from emit.targets import Target, divisor, most_bytes
from synth.model.problem import make_problem
from synth.model.registry import find_kind
from synth.model.text import as_file_name
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
    slower. With `anew` it stays only at other sizes than the new files'.

    Args:
        additions: Programs to add.
        folder: Folder of the library.
        anew: True to replace existing files at all sizes of the new ones.

    Raises:
        InputError: If two programs serve one size, a target cannot hold a program, the folder cannot be written, or it
            has a foreign index. Nothing is written then.
    """
    with writing(folder) as library:
        new_files: list[LibraryFile] = []
        for addition in additions:
            new_files.append(_file(addition, library, [file.entry for file in new_files]))
        outcome, placed = Outcome(), list[PlacedFile]()
        addition_of = {file.entry.question_and_form: n for n, file in enumerate(new_files)}
        for form, n in addition_of.items():
            own_files = [file for file in new_files if file.entry.question_and_form == form]
            old_entries = [entry for entry in library.entries if entry.question_and_form == form]
            used_names = [entry.file for entry in library.entries if entry.question_and_form != form]
            used_names += [placed_file.entry.file for placed_file in placed]
            requirement = _requirement(additions[n], own_files[0].entry)
            placed += place(own_files, old_entries, requirement, outcome, used_names, anew=anew)
        write_placed(library, placed)
        new_questions = {file.entry.question for file in new_files}
        remaining = [
            entry
            for entry in library.entries
            if entry.question in new_questions and entry.question_and_form not in addition_of
        ]
        placed.sort(key=lambda placed_file: placed_file.file.existed)  # New files come first.
        library.commit([*(placed_file.entry for placed_file in placed), *remaining])
        paths = [
            [library.folder / placed_file.entry.file for placed_file in placed if placed_file.file is file]
            for file in new_files
        ]
        return Added(paths, library.folder / INDEX, tuple(outcome.clauses()))


def _file(addition: Addition, library: Library, earlier: Sequence[IndexEntry]) -> LibraryFile:
    """Build the library's file of a program; nothing is written.

    Args:
        addition: The program.
        library: The library that is being written.
        earlier: Entries of the additions before it.

    Raises:
        InputError: If the target cannot hold the program, it serves a size that an earlier one serves, or it cannot be
            timed on its topology.
    """
    entry = IndexEntry.of(_row(addition), library.folder)
    entry = entry.restated(file=f"{addition.target.folder}/{_name(entry, library, earlier)}{addition.target.suffix}")
    stem = Path(entry.file).stem[: min(63, addition.target.longest_name)]
    renamed = replace(addition.program, name=stem)
    nodes = None if addition.topology is None else addition.topology.nodes[list(entry.group)].tolist()
    text, form = (
        write_program(renamed, addition.goal, addition.target, nodes=nodes),
        PROGRAM_FORMATS[addition.target.format],
    )
    most = most_bytes(renamed, addition.target.limits) if form.holds_program else form.writer.largest_message(text)
    if most is not None and most < entry.last_bytes:
        entry = entry.restated(max_bytes=most)
    _check_free(entry, earlier)
    entry = entry.restated(threadblocks=max(form.threadblocks(renamed, text)))
    return LibraryFile(entry, text, form.predictor(text, renamed, *_place_of(addition)).time_us)


def _place_of(addition: Addition) -> tuple[Topology, list[int]]:
    """Return the topology and its ranks on which a program is timed.

    For a program that runs anywhere, the topology joins the ranks by equal links.
    """
    n = addition.program.nranks
    if addition.topology is None:
        return load(f"full:{max(2, n)}"), list(range(n))
    return addition.topology, list(addition.ranks) or list(range(n))


def _requirement(addition: Addition, entry: IndexEntry) -> Requirement:
    """Return what the library's files for the question of an addition must be; `entry` is the addition's own entry."""
    p, kind = addition.program, find_kind(addition.program.collective)

    def is_goal(existing: IndexEntry) -> bool:
        """Return True if an existing entry states the goal of the new one."""
        return existing.stated_goal == entry.stated_goal

    return Requirement(
        p.collective, p.root if kind.rooted else None, *_place_of(addition), addition.target, is_goal, entry.network,
        p.nranks if kind.blocks_at_root else 1,
    )  # fmt: skip


def _row(addition: Addition) -> dict[str, Any]:
    """Return the row of a program's entry; its file name and its number of threadblocks are placeholders."""
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
        "file": f"{addition.target.folder}/new{addition.target.suffix}",  # until its question is known
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

    A program has none if it is for no topology, if its collective's name does not say what is asked, or if ranks
    cannot reach each other.
    """
    kind = find_kind(addition.program.collective)
    if addition.topology is None or not kind.by_name:
        return None
    with suppress(InputError):
        root = group[addition.program.root] if kind.rooted else None
        return network_digest(make_problem(addition.topology, kind.name, group, root=root))
    return None


def _name(entry: IndexEntry, library: Library, earlier: Sequence[IndexEntry]) -> str:
    """Return the stem of a program's file name: what it is, and a number if another question or range has that name.

    The number follows from the question and the range.
    """
    parts = [entry.collective, entry.topology, f"{entry.nranks}ranks", entry.row["script"]]
    name = as_file_name("-".join(parts)).lstrip(".-")[:200]
    own_key = _naming_key(entry)
    used_stems = {Path(other.file).stem for other in (*library.entries, *earlier) if _naming_key(other) != own_key}
    return f"{name}-{zlib.crc32(repr(own_key).encode()):08x}" if name in used_stems else name


def _naming_key(entry: IndexEntry) -> tuple[object, ...]:
    """Return what may share a file name: the question and the smallest message."""
    return entry.question, entry.min_bytes


def _check_free(entry: IndexEntry, others: Sequence[IndexEntry]) -> None:
    """Raise InputError if an entry serves a size that one of the others serves for the same question and form.

    All of them must be of scripts: the message names these.
    """
    for other in others:
        if other.question_and_form == entry.question_and_form and (
            entry.min_bytes <= other.last_bytes and other.min_bytes <= entry.last_bytes
        ):
            raise InputError(
                f"{other.row['script']} and {entry.row['script']} both serve {max(entry.min_bytes, other.min_bytes)}"
                " bytes; only one may (min_bytes and max_bytes of each Script, both inclusive)"
            )
