"""Writing to a library: all of an answer appears, or nothing of it.

Everything is written in a folder of its own first. Then all is moved to its place, the index last, so that a reader
never finds it pointing at what is not there. For the layout and the index see `emit.library.index`.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emit.library.index import INDEX, Entry, index_text, load_index, parse_index
from synth.model.deadline import now
from synth.storage.leftovers import remove_leftovers, staging_folder
from synth.storage.proof import proof_path
from topologies.errors import InputError
from topologies.text.files import check_below, origin_of

_PATIENCE_S = 60.0  # for another writer, where nothing else limits it
_LEAST_S = 0.3  # for another writer, also where the time is over: most hold a library for some milliseconds
_LOOK_S = 0.02  # between two looks whether it is free
_stops_waiting = False
_MOST_BESIDE = 100  # libraries beside one that is held


class LibraryHeldError(InputError):
    """Another process, which may be stopped, holds a library's lock for longer than there is time."""


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
        """Return where to write a file for now; `name` is its path in the library, once.

        Raises InputError for a name that leads out of the library, and where a link stands on the way to its place.
        """
        if not _is_inside(name):
            raise InputError(
                f"{origin_of(self.folder)}: {origin_of(name)} leads elsewhere; it must be NAME or FOLDER/NAME"
            )
        if "/" in name:  # what stands in the file's own place is replaced, never followed
            check_below(self.folder, (self.folder / name).parent)
        path = self.staging / name
        path.parent.mkdir(exist_ok=True)
        self.placed.append(name)
        return path

    def inside(self, name: str) -> Path:
        """Return where a file of the library stands. Raises InputError where a link leads to it."""
        check_below(self.folder, self.folder / name)
        return self.folder / name

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
                if not os.path.lexists(path.parent):
                    path.parent.mkdir()
                    fresh.append(path.parent)
                with _unlinked(self.folder, name) as target:
                    os.replace(self.staging / name, target)
        except BaseException:
            for folder in fresh:
                with suppress(OSError):  # it holds what was moved there
                    folder.rmdir()
            self.moving = False
            raise
        for name in sorted(gone - set(self.placed)):
            with suppress(OSError), _unlinked(self.folder, name) as target:  # no entry names it any more
                target.unlink()
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


def stop_waiting() -> None:
    """End all waits for other writers, now and from now on: the user is in a hurry. A signal's handler may call it."""
    global _stops_waiting
    _stops_waiting = True


@contextmanager
def writing(
    folder: str | Path, option: str = "--out", *, until: float = math.inf, elsewhere: bool = False
) -> Iterator[Library]:
    """Open a library, made if it is not there, to write to; one at a time for each folder.

    Args:
        folder: The library's.
        option: By which the user named it.
        until: Of `synth.model.deadline.now`, when a wait for another writer ends.
        elsewhere: Whether a new library beside this one, which `Library.folder` names, is opened where that wait ends
            in vain.

    Raises InputError for a folder that cannot be written, or that has a foreign index; LibraryHeldError, which is one,
    where another process holds it and it must be this library.
    """
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
        with _locked(where, option, until, elsewhere) as where, staging_folder(where) as staging:
            remove_leftovers(where)
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
def _locked(folder: Path, option: str, until: float, elsewhere: bool) -> Iterator[Path]:
    """Hold a folder against other writers, which would lose each other's entries; as `writing` has it.

    Yields the folder that is held: another one where it is `elsewhere`.
    """
    handle = os.open(folder, os.O_RDONLY)
    try:
        if _takes_lock(handle, folder, until, elsewhere):
            yield folder
            return
        if not elsewhere:
            right = "it must end first, or go on if it is stopped; or give another folder"
            raise LibraryHeldError(f"{option} {folder}: another process is writing to it; {right}")
        beside = _new_folder_beside(folder)
        print(f"{folder}: is held by another process; the answer is written to {beside}", file=sys.stderr, flush=True)
        with _locked(beside, option, until, False) as held:
            yield held
    finally:
        os.close(handle)


def _takes_lock(handle: int, folder: Path, until: float, elsewhere: bool) -> bool:
    """Wait for a folder's lock as long as there is time, and say so; return whether it is held now, or needs none."""
    begun, has_said = time.monotonic(), False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError:  # some file systems know no locks
            return True
        waited_s = time.monotonic() - begun
        left_s = min(_PATIENCE_S - waited_s, max(until - now(), _LEAST_S - waited_s))
        if left_s <= 0 or _stops_waiting:
            return False
        if not has_said and waited_s >= _LEAST_S:
            has_said = True
            then = "; then the answer goes to a folder beside it" if elsewhere else ""
            line = f"{folder}: waiting up to {left_s:.1f} s for another process that writes to it{then}"
            print(line, file=sys.stderr, flush=True)
        time.sleep(min(_LOOK_S, left_s))


def _new_folder_beside(folder: Path) -> Path:
    """Make a folder that was not there: NAME-2, NAME-3, … beside it, or a temporary one where that cannot be."""
    whole = Path(os.path.abspath(folder))
    for number in range(2, _MOST_BESIDE):
        beside = (folder if folder.name and folder.name != ".." else whole).with_name(f"{whole.name}-{number}")
        try:
            beside.mkdir()
        except FileExistsError:
            continue
        except OSError:
            break
        return beside
    return Path(tempfile.mkdtemp(prefix="synth-"))


def _is_inside(name: str) -> bool:
    """Return whether a name is that of a file in the library's folder or in a folder of it."""
    parts = name.split("/")
    return len(parts) <= 2 and "\0" not in name and all(part not in ("", ".", "..") for part in parts)


@contextmanager
def _unlinked(folder: Path, name: str) -> Iterator[Path]:
    """Yield the place of a library's file, reached through the opened folder that holds it and not through a link.

    A link that is put in that folder's place meanwhile leads nowhere, where the system names opened folders in /proc.
    Raises OSError where a link stands there, or nothing.
    """
    inner, _, base = name.rpartition("/")
    handle = os.open(folder / inner, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if inner else 0))
    try:
        through = Path(f"/proc/self/fd/{handle}")
        yield (through if through.exists() else folder / inner) / base
    finally:
        os.close(handle)


def _files(entries: Iterable[Entry]) -> set[str]:
    return {name for e in entries for name in (e.file, e.schedule, e.proof_file) if name is not None}
