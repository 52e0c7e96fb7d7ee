"""Writing to a library: all of an answer appears, or nothing of it.

Everything is written in a folder of its own first. Then all is moved to its place, the index last, so that a reader
never finds it pointing at what is not there. For the layout and the index see `emit.library.index`.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emit.library.index import INDEX, Entry, index_text, load_index, parse_index
from synth.storage.proof import proof_path
from topologies.errors import InputError
from topologies.text.files import origin_of


def standing(folder: str | Path, option: str = "--out") -> list[Entry]:
    """The entries of the library in a folder, none without an index; InputError for one that is not ours.

    option: by which the user named the folder.
    """
    path = Path(folder) / INDEX
    if not os.path.lexists(path):
        return []
    try:
        return load_index(path)
    except InputError as error:
        reason = str(error).removeprefix(f"{origin_of(path)}: ")
        raise InputError(
            f"{origin_of(path)}: is there already and is not an index of ours ({reason}); give another {option}"
        ) from None


@dataclass
class Library:
    """A library that is being written; what is written, in `staging`, shows when it is committed, and not before."""

    folder: Path
    staging: Path
    entries: list[Entry]
    placed: list[str] = field(default_factory=list)
    moving: bool = False  # to its place

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

    def commit(self, rows: Sequence[Mapping[str, Any]] = (), *, indexed: bool = False) -> list[Path]:
        """Move what was placed into the library, and replace the index's entries for the same question and target.

        rows: the new entries. indexed: there is an index, whatever it holds. Files that only replaced entries name are
        removed. Returns what was placed, the index last. Raises InputError, and changes nothing, where `load_index`
        would refuse the index; OSError: it cannot be moved.
        """
        # a proof is for one schedule file to the byte
        unproved = {proof_path(name).as_posix() for name in self.placed if name.endswith(".synth")}
        gone = unproved - set(self.placed)
        origin = origin_of(self.folder / INDEX)
        asked = {entry.question for entry in parse_index(index_text(rows), origin, self.folder)}
        first = next((at for at, entry in enumerate(self.entries) if entry.question in asked), len(self.entries))
        kept = [
            {**entry.values, "proof_file": None} if entry.proof_file in gone else entry.values
            for entry in self.entries
            if entry.question not in asked
        ]
        data = index_text([self._with_digests(row) for row in (*kept[:first], *rows, *kept[first:])])
        now = parse_index(data, origin, self.folder)
        if rows or now != self.entries or (indexed and not (self.folder / INDEX).exists()):
            gone |= _files(self.entries) - _files(now)
            self.write(INDEX, data)
        fresh: list[Path] = []
        self.moving = True
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
            self.moving = False
            raise
        for name in sorted(gone - set(self.placed)):
            (self.folder / name).unlink(missing_ok=True)
        self.moving = False
        return [self.folder / name for name in self.placed]

    def _with_digests(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """A row with the digests of its files, as far as they were placed."""
        fresh = {}
        for key in ("file", "schedule", "proof_file"):
            if row[key] in self.placed:
                with (self.staging / row[key]).open("rb") as file:
                    fresh[key] = hashlib.file_digest(file, "sha256").hexdigest()
        known = row.get("sha256")
        return {**row, "sha256": (known if isinstance(known, dict) else {}) | fresh} if fresh else row


_open: list[Library] = []  # now


def abandon() -> bool:
    """Before the process ends at once: nothing of what is being written stays; False while it is being moved."""
    if any(library.moving for library in _open):
        return False
    for library in _open:
        shutil.rmtree(library.staging, ignore_errors=True)
    return True


@contextmanager
def writing(folder: str | Path, option: str = "--out") -> Iterator[Library]:
    """Open a library, made if it is not there, to write to; one at a time for each folder.

    option: by which the user named it. Raises InputError for a folder that cannot be written, or that has a foreign
    index.
    """
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with _locked(where), tempfile.TemporaryDirectory(prefix=".synth-", dir=where) as staging:
            _open.append(library := Library(where, Path(staging), standing(where, option)))
            try:
                yield library
            except InputError as error:  # of a file that was to be moved
                raise InputError(str(error).replace(staging, str(where))) from None
            finally:
                _open.remove(library)
    except OSError as error:
        raise InputError(f"{option} {where}: cannot be written ({error.strerror or error})") from None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
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
