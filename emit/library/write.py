"""Algorithms as files of a library: what to write for each, and the writing.

Everything is checked and written in a folder of its own first. Then all is moved to its place, the index last, so that
a reader never finds it pointing at what is not there. For the layout and the index see `emit.library.index`.
"""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from emit.goal import Goal
from emit.library.index import INDEX, PLACES, Entry, goal_beside, index_text, load_index, parse_index
from emit.msccl.write import NAMES, write_msccl
from emit.program import ROOTED, Program
from synth.model.problem import Problem, question
from synth.present.statement import row
from synth.search.frontier import Range
from synth.search.result import Found
from synth.storage.columns import origin_of
from synth.storage.proof import proof_path
from topologies.errors import InputError

__all__ = [
    "Documents", "Library", "documents", "goal_beside", "protocol_for", "standing", "stem", "stems", "target_for",
    "writing",
]  # fmt: skip

PLANS = "mscclpp"
_MOST_SENDS = 200_000  # an executor takes far fewer
_SMALL_BYTES = 256 << 10  # up to here LL's flags cost less than Simple's barriers


def protocol_for(largest_bytes: int | None) -> str:
    """LL for small messages, Simple for the rest; None: no largest one.

    LL128 is never chosen here: it is right only on links that keep the order of stores, and no topology says which do.
    """
    return "LL" if largest_bytes is not None and largest_bytes <= _SMALL_BYTES else "Simple"


def target_for(problem: Problem, asked: str = "auto") -> str:
    """The executor to write for: the one asked for, or the first that can express the problem.

    Raises:
        InputError: the one asked for cannot, or none can.
    """
    collective = problem.collective
    if collective.fraction.max() > collective.fraction.min() * (1 + 1e-9):
        raise InputError(
            f"{collective.name}: its chunks have different sizes, which no format can say; use equal sizes"
        )
    name = "custom" if problem.relays else collective.name
    if name not in NAMES["executor-nccl"] and name not in NAMES["msccl"]:
        name = "custom"
    able = [target for target, names in NAMES.items() if name in names]
    if asked == "auto":
        return able[0]
    if asked == PLANS and collective.name not in ROOTED - {"broadcast", "reduce"}:
        return asked
    if asked not in able:
        what = f"{collective.name} with relays" if problem.relays else collective.name
        ways = f"use --target {' or '.join(able)}" + (" or --relay none" if problem.relays else "")
        raise InputError(f"--target {asked}: has no name for {what}; {ways}")
    return asked


def stem(found: Found, served: Range) -> str:
    """A file's name without its ending: what is asked, and the shape (unique within a library)."""
    asked = question(found.problem)
    topology = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(asked["topology"]).name)
    group = asked["group"]
    everyone = group == list(range(found.problem.topology.nranks))
    names = ".".join(map(str, group))
    if everyone:
        names = f"all{len(group)}"
    elif len(names) > 40:
        names = f"{len(group)}ranks-{zlib.crc32(names.encode()):08x}"
    parts = [asked["collective"], topology, names]
    if asked["root"] is not None:
        parts.append(f"root{asked['root']}")
    if asked["relays"]:
        relays = ".".join(map(str, asked["relays"]))
        parts.append("relay" + (relays if len(relays) <= 40 else f"{zlib.crc32(relays.encode()):08x}"))
    shape = served.algorithm
    return "-".join([*parts, f"{shape.steps}step", f"{shape.rounds}r{shape.chunks}c"])


def stems(found: Found, others: Iterable[Entry] = ()) -> list[str]:
    """A name for each range of sizes; one algorithm can serve two of them.

    others: entries of the library that the files are for. Where a name is that of another question's file (topologies
    `a b` and `a-b`), all of these get a number that follows from the question.
    """
    names: list[str] = []
    for served in found.ranges:
        name = stem(found, served)
        names.append(name if name not in names else f"{name}-from{served.low}")
    asked = question(found.problem)
    taken = {
        Path(entry.file).name.removesuffix(PLACES[entry.target].ending)
        for entry in others
        if any(entry.values[key] != value for key, value in asked.items())
    }
    if not taken.isdisjoint(names):
        names = [f"{name}-{zlib.crc32(repr(asked).encode()):08x}" for name in names]
    return names


class Documents(NamedTuple):
    """File (as the index names it) → text; by number of the range of sizes its entry, or why it has no file."""

    texts: dict[str, str]
    entries: dict[int, dict[str, Any]]
    refused: dict[int, str]


def documents(found: Found, target: str, names: Sequence[str] | None = None) -> Documents:
    """What is to be written for the algorithms found, under `names` (those of `stems` if None).

    Raises:
        InputError: the target cannot express the question at all.
    """
    from emit.compiler.lower import (
        goal_columns,
        lower,
    )  # the compiler: a search looks at its folder before it needs that

    target = target_for(found.problem, target)
    place = PLACES[target]
    made = Documents({}, {}, {})
    for number, (served, name) in enumerate(zip(found.ranges, names or stems(found), strict=True)):
        sends = len(served.algorithm.schedule)
        try:
            if sends > _MOST_SENDS:
                raise InputError(f"an executor's file of {sends} sends would be too large")
            program, goal = lower(
                served.algorithm,
                name[:63],
                protocol_for(served.high),
                min_bytes=served.low,
                max_bytes=0 if served.high is None else served.high,
                target="msccl" if target == PLANS else target,
            )
            text = _text(program, goal, target, found.problem)
        except InputError as error:
            made.refused[number] = str(error)
            continue
        file = f"{place.folder}/{name}{place.ending}"
        made.texts[file] = text
        asked = question(found.problem)
        made.entries[number] = {
            **asked,
            "nranks": len(asked["group"]),
            "communicator": list(found.problem.ranks),
            "file": file,
            "target": target,
            "protocol": program.protocol,
            "inplace": program.inplace,
            **row(found, served),
            "schedule": None,
            "proof_file": None,
            # what the file must achieve, where its own words do not say it
            "goal": None
            if goal is None
            else {"nranks": program.nranks, **goal_columns(served.algorithm.problem.collective)},
        }
    return made


def _text(program: Program, goal: Goal | None, target: str, problem: Problem) -> str:
    if target != PLANS:
        return write_msccl(program, goal, target)
    from emit.mscclpp.write import write_plan  # a room of its own, not needed for XML

    return write_plan(program, goal, nodes=problem.topology.nodes[list(problem.ranks)].tolist())


def standing(folder: str | Path) -> list[Entry]:
    """The entries of the library in a folder, none where there is no index yet.

    Raises:
        InputError: there is an index that is not one of ours, or of an earlier version.
    """
    path = Path(folder) / INDEX
    if not os.path.lexists(path):
        return []
    try:
        return load_index(path)
    except InputError as error:
        reason = str(error).removeprefix(f"{origin_of(path)}: ")
        raise InputError(
            f"{origin_of(path)}: is there already and is not an index of ours ({reason}); give another --out"
        ) from None


@dataclass
class Library:
    """A library that is being written; what is written shows when it is committed, and not before.

    folder: of the library.  staging: a folder in it, of the same form.  entries: of the library as it was.
    """

    folder: Path
    staging: Path
    entries: list[Entry]
    placed: list[str] = field(default_factory=list)

    def place(self, name: str) -> Path:
        """Where to write a file for now; `name` is its path in the library, once."""
        path = self.staging / name
        path.parent.mkdir(exist_ok=True)
        self.placed.append(name)
        return path

    def write(self, name: str, data: bytes) -> None:
        """Write a whole file; OSError where it cannot be."""
        with self.place(name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def commit(self, rows: Sequence[Mapping[str, Any]] = ()) -> list[Path]:
        """Move what was placed into the library, and replace the index's entries for the same question and target.

        rows: the new entries, as objects of the index.
        Files that only replaced entries name are removed. Returns the paths of what was placed, the index last.

        Raises:
            InputError: the index would be one that `load_index` refuses; nothing has changed then.
            OSError: something cannot be moved.
        """
        # a proof is for one schedule file to the byte
        unproved = {proof_path(name).as_posix() for name in self.placed if name.endswith(".synth")}
        gone = unproved - set(self.placed)
        origin = origin_of(self.folder / INDEX)
        asked = {entry.question for entry in parse_index(index_text(rows), origin, self.folder)}
        kept = [
            {**entry.values, "proof_file": None} if entry.proof_file in gone else entry.values
            for entry in self.entries
            if entry.question not in asked
        ]
        data = index_text([*kept, *rows])
        now = parse_index(data, origin, self.folder)
        if rows or now != self.entries:
            gone |= _files(self.entries) - _files(now)
            self.write(INDEX, data)
        fresh: list[Path] = []
        try:
            for name in self.placed:
                path = self.folder / name
                if not path.parent.is_dir():
                    path.parent.mkdir()
                    fresh.append(path.parent)
                os.replace(self.staging / name, path)
        except BaseException:
            for folder in fresh:
                with suppress(OSError):  # it holds what was moved there
                    folder.rmdir()
            raise
        for name in sorted(gone - set(self.placed)):
            (self.folder / name).unlink(missing_ok=True)
        return [self.folder / name for name in self.placed]


@contextmanager
def writing(folder: str | Path) -> Iterator[Library]:
    """Open a library, made if it is not there, to write to; one at a time for each folder.

    Raises:
        InputError: a folder that cannot be written, or that has a foreign index.
    """
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with _alone(where), tempfile.TemporaryDirectory(prefix=".synth-", dir=where) as staging:
            try:
                yield Library(where, Path(staging), standing(where))
            except InputError as error:  # of a file that was to be moved
                raise InputError(str(error).replace(staging, str(where))) from None
    except OSError as error:
        raise InputError(f"--out {where}: cannot be written ({error.strerror or error})") from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold a folder against other writers, which would lose each other's entries."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems know no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _files(entries: Iterable[Entry]) -> set[str]:
    return {name for e in entries for name in (e.file, e.schedule, e.proof_file) if name is not None}
