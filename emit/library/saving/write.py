"""Write to a library: one process at a time (lock, wait, folder beside it), and all of an answer or nothing.

Everything is written to a staging folder first. Then all files are moved to their places, the index last, so that a
reader never finds the index naming a missing file. For the layout and the index see `emit.library.index`.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import math
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emit.library.entry import INDEX, IndexEntry
from emit.library.index import index_text, load_index, parse_index
from emit.library.networks import kept_file
from synth.model.deadline import now
from synth.storage.leftovers import remove_leftovers, staging_folder
from synth.storage.proof import proof_path
from topologies.errors import InputError
from topologies.text.files import check_below, origin_of
from topologies.topology import Topology

log = logging.getLogger("synth.library")

_PATIENCE_S = 60.0  # longest wait for another writer if nothing else limits it
_LEAST_S = 0.3  # shortest wait even if no time is left: most writers hold a library for milliseconds
_ATTEMPTS = 20  # times that a folder is made and opened, which another writer may remove in between
_LOOK_S = 0.02  # between two attempts to lock
_stops_waiting = False
_MOST_BESIDE = 100  # largest number in the name of a new library beside a locked one


class LibraryHeldError(InputError):
    """An error for a library whose lock another process, which may be stopped, holds longer than there is time."""


def existing_entries(folder: str | Path) -> list[IndexEntry]:
    """Return the entries of the library in a folder; none without an index.

    Args:
        folder: Folder of the library.

    Raises:
        InputError: If the folder's index is not one of ours.
    """
    path = Path(folder) / INDEX
    if not os.path.lexists(path):
        return []
    try:
        return load_index(path)
    except InputError as error:
        reason = str(error).removeprefix(f"{origin_of(path)}: ")
        reason = reason.partition("; it must be")[0]
        raise InputError(f"{origin_of(path)}: is damaged or not of synth ({reason}); give another folder") from None


@dataclass
class Library:
    """A library that is being written; what is written stays in `staging` until it is committed.

    Attributes:
        folder: Folder of the library.
        staging: Folder in which new files wait.
        entries: Entries of the library before.
        placed: Names of the new files.
        moving: True while the new files are moved to their places.
    """

    folder: Path
    staging: Path
    entries: list[IndexEntry]
    placed: list[str] = field(default_factory=list)
    moving: bool = False

    def place(self, name: str) -> Path:
        """Return the path in `staging` at which to write a new file, whose folder is made, and list it in `placed`.

        `name` is the file's path in the library; it must be placed only once.

        Raises:
            InputError: If the name leads out of the library or more than one folder down, or a link stands in the path
                to its place.
        """
        if not _is_inside(name):
            raise InputError(
                f"{origin_of(self.folder)}: {origin_of(name)} leads elsewhere; it must be NAME or FOLDER/NAME"
            )
        if "/" in name:  # A link in the file's own place is replaced, never followed.
            check_below(self.folder, (self.folder / name).parent)
        path = self.staging / name
        path.parent.mkdir(exist_ok=True)
        self.placed.append(name)
        return path

    def write(self, name: str, data: bytes) -> None:
        """Write a whole new file into `staging`, to the disk, and list it in `placed`.

        Args:
            name: The file's path in the library, once.
            data: Its bytes.

        Raises:
            InputError: If the name leads out of the library or more than one folder down, or a link stands in the path
                to its place.
            OSError: If the file cannot be written.
        """
        with self.place(name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def keep(self, topology: Topology) -> None:
        """Write a network into `staging` whose name the package does not know (see `emit.library.networks`).

        Nothing is written for others, and where the library has the same file already.
        """
        kept = kept_file(topology)
        if kept is None or kept[0] in self.placed:
            return
        with suppress(OSError):
            if (self.folder / kept[0]).read_bytes() == kept[1]:
                return
        self.write(*kept)

    def commit(
        self, entries: Sequence[IndexEntry] = (), *, indexed: bool = False, dropped: Collection[str] = ()
    ) -> list[Path]:
        """Place the new files in the library, and replace all of the index's entries for the questions of `entries`.

        New files replace existing ones of the same names. Files that only replaced entries name are removed, and so are
        the proofs of schedules that are written anew without one; entries then state no proof. The index has digests of
        the new files.

        Args:
            entries: New entries, and those old ones of the same questions and targets that are to stay.
            indexed: True to write an index even if it is empty.
            dropped: Names of existing files whose entries are removed.

        Returns:
            The paths of the new files, the index last if it was written.

        Raises:
            InputError: If `load_index` would refuse the index. Nothing is changed then.
            OSError: If a file cannot be moved. Those before it are in their places then.
        """
        # A proof holds for one schedule file to the byte, so a new schedule makes an old proof obsolete.
        unproved = {proof_path(name).as_posix() for name in self.placed if name.endswith(".synth")}
        obsolete = unproved - set(self.placed)
        origin = origin_of(self.folder / INDEX)
        new_questions = {entry.question for entry in entries}
        insert_at = next(
            (at for at, entry in enumerate(self.entries) if entry.question in new_questions), len(self.entries)
        )
        remaining = [
            entry.restated(proof_file=None) if entry.proof_file in obsolete else entry
            for entry in self.entries
            if entry.question not in new_questions and entry.file not in dropped
        ]
        all_entries = (*remaining[:insert_at], *entries, *remaining[insert_at:])
        data = index_text(self._with_digests(entry) for entry in all_entries)
        new_entries = parse_index(data, origin, self.folder)
        if entries or new_entries != self.entries or (indexed and not (self.folder / INDEX).exists()):
            obsolete |= _files(self.entries) - _files(new_entries)
            self.write(INDEX, data)
        new_folders: list[Path] = []
        self.moving = True
        try:
            for name in self.placed:
                path = self.folder / name
                if not os.path.lexists(path.parent):
                    path.parent.mkdir()
                    new_folders.append(path.parent)
                with _unlinked(self.folder, name) as target:
                    os.replace(self.staging / name, target)
        except BaseException:
            for folder in new_folders:
                with suppress(OSError):  # It holds files that were moved there.
                    folder.rmdir()
            self.moving = False
            raise
        for name in sorted(obsolete - set(self.placed)):
            with suppress(OSError), _unlinked(self.folder, name) as target:  # No entry names it.
                target.unlink()
        self.moving = False
        return [self.folder / name for name in self.placed]

    def _with_digests(self, entry: IndexEntry) -> Mapping[str, Any]:
        """Return the row of an entry, its `sha256` extended by the digests of those of its files that are new."""
        new_digests = {}
        for kind, name in entry.files.items():
            if name in self.placed:
                with (self.staging / name).open("rb") as file:
                    new_digests[kind] = hashlib.file_digest(file, "sha256").hexdigest()
        return {**entry.row, "sha256": entry.row.get("sha256", {}) | new_digests} if new_digests else entry.row


_open: list[Library] = []  # being written by this process


def abandon() -> bool:
    """Remove the staging folders of this process before it ends at once, and return True.

    While new files are being moved to their places, nothing is removed and False is returned.
    """
    if is_moving():
        return False
    for library in _open:
        shutil.rmtree(library.staging, ignore_errors=True)
    return True


def is_moving() -> bool:
    """Return True while new files of a library are being moved to their places, which nothing should interrupt."""
    return any(library.moving for library in _open)


def stop_waiting() -> None:
    """Stop all waits for other writers until `allow_waiting`: the user is in a hurry. A signal handler may call it."""
    global _stops_waiting
    _stops_waiting = True


def allow_waiting() -> None:
    """Allow waits for other writers again, because the command that the user interrupted is over."""
    global _stops_waiting
    _stops_waiting = False


@contextmanager
def writing(folder: str | Path, *, until: float = math.inf, elsewhere: bool = False) -> Iterator[Library]:
    """Open a library for writing, and make it if it is missing; one process at a time writes to a folder.

    What is not committed in the block is dropped at its end, and a folder that was made and stays empty is removed.
    What killed writers left in the folder is removed first.

    Args:
        folder: Folder of the library.
        until: Time of `synth.model.deadline.now` when a wait for another writer ends; no wait is longer than 60 s.
        elsewhere: True to open a new library next to this one if the wait ends in vain; `Library.folder` names it, and
            a line on standard error says so.

    Raises:
        LibraryHeldError: If another process holds the library, and `elsewhere` is False. It is an InputError.
        InputError: If the folder cannot be written, or has a foreign index; also for an OSError in the block.
    """
    path = Path(folder)
    try:
        with _locked(path, until, elsewhere) as path, staging_folder(path) as staging:
            remove_leftovers(path)
            _open.append(library := Library(path, Path(staging), existing_entries(path)))
            try:
                yield library
            except InputError as error:  # The message may name a file in the staging folder.
                raise InputError(str(error).replace(staging, str(path))) from None
            finally:
                _open.remove(library)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); it must be a folder you may write to"
        raise InputError(f"{origin_of(path)}: {reason}") from None


@contextmanager
def _locked(folder: Path, until: float, elsewhere: bool) -> Iterator[Path]:
    """Make a folder and yield it while it is locked against other writers, which would lose each other's entries.

    It is a new folder next to this one if the wait ends in vain and `elsewhere` is True. What was made is removed at
    the end if nothing is in it.

    Args:
        folder: The folder.
        until: Time of `now` when the wait ends.
        elsewhere: True to make and lock a new folder if the wait ends in vain.

    Raises:
        LibraryHeldError: If the wait ends in vain and `elsewhere` is False.
        OSError: The folder cannot be made or opened.
    """
    made = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    handle = _open_folder(folder)
    try:
        while _takes_lock(handle, folder, until, elsewhere):
            if _is_at(handle, folder):
                try:
                    yield folder
                finally:
                    with suppress(OSError):  # A folder with files stays, and so do those that contain it.
                        for new_folder in made:
                            new_folder.rmdir()
                return
            old_handle, handle = handle, _open_folder(folder)
            os.close(old_handle)
        if not elsewhere:
            advice = "wait until it ends (resume it if it is stopped), or give another folder"
            raise LibraryHeldError(f"{origin_of(folder)}: another process is writing to it; {advice}")
        beside = _new_folder_beside(folder)
        log.warning("%s: is held by another process; the answer is written to %s", folder, beside)
        try:
            with _locked(beside, until, False) as held_folder:
                yield held_folder
        finally:
            with suppress(OSError):  # A folder with files stays.
                beside.rmdir()
    finally:
        os.close(handle)


def _open_folder(folder: Path) -> int:
    """Make a folder if it is missing, and return a descriptor of it, to be closed; raise OSError if that fails.

    Another writer that had nothing to write may remove it in between, so it is tried again up to 20 times. The folder
    then is missing when it is opened, or `mkdir` says that it exists and finds no folder there.
    """
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError, FileExistsError):
            folder.mkdir(parents=True, exist_ok=True)
            return os.open(folder, os.O_RDONLY)
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder, os.O_RDONLY)


def _is_at(handle: int, folder: Path) -> bool:
    """Return whether an open folder, given its descriptor, is still the one at its path."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder))
    except FileNotFoundError:
        return False


def _takes_lock(handle: int, folder: Path, until: float, elsewhere: bool) -> bool:
    """Wait for a folder's lock; return False if the wait ended in vain.

    True means that the lock is held, or that the file system has no locks.

    The wait ends at `until`, but after 0.3 s at the soonest and 60 s at the latest. A call of `stop_waiting` ends it at
    once. After 0.3 s a line on standard error announces that synth waits.

    Args:
        handle: Descriptor of the folder.
        folder: The folder, for the line.
        until: Time of `now` when the wait ends.
        elsewhere: True if the line is to say that the answer then goes to another folder.
    """
    start_s, is_announced = time.monotonic(), False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
        except OSError:  # Some file systems have no locks.
            return True
        waited_s = time.monotonic() - start_s
        remaining_s = min(_PATIENCE_S - waited_s, max(until - now(), _LEAST_S - waited_s))
        if remaining_s <= 0 or _stops_waiting:
            return False
        if not is_announced and waited_s >= _LEAST_S:
            is_announced = True
            consequence = "; then the answer goes to a folder beside it" if elsewhere else ""
            line = f"{folder}: waiting up to {remaining_s:.1f} s for another process that writes to it{consequence}"
            log.warning("%s", line)
        time.sleep(min(_LOOK_S, remaining_s))


def _new_folder_beside(folder: Path) -> Path:
    """Make a new folder NAME-2, NAME-3, … next to a folder, and return it; if that fails, make a temporary folder.

    Raises:
        OSError: If no temporary folder can be made either.
    """
    absolute = Path(os.path.abspath(folder))
    for number in range(2, _MOST_BESIDE):
        beside = (folder if folder.name and folder.name != ".." else absolute).with_name(f"{absolute.name}-{number}")
        try:
            beside.mkdir()
        except FileExistsError:
            continue
        except OSError:
            break
        return beside
    return Path(tempfile.mkdtemp(prefix="synth-"))


def _is_inside(name: str) -> bool:
    """Return True if a name is NAME or FOLDER/NAME, so that the file is at most one folder below the library's."""
    parts = name.split("/")
    return len(parts) <= 2 and "\0" not in name and all(part not in ("", ".", "..") for part in parts)


@contextmanager
def _unlinked(folder: Path, name: str) -> Iterator[Path]:
    """Yield the path of a library's file, reached through the opened folder that holds it and not through a link.

    A link that replaces that folder meanwhile leads nowhere, if the system names opened folders in /proc.

    Raises:
        OSError: If the folder is a link or is missing.
    """
    inner, _, base = name.rpartition("/")
    handle = os.open(folder / inner, os.O_RDONLY | os.O_DIRECTORY | (os.O_NOFOLLOW if inner else 0))
    try:
        opened_folder = Path(f"/proc/self/fd/{handle}")
        yield (opened_folder if opened_folder.exists() else folder / inner) / base
    finally:
        os.close(handle)


def _files(entries: Iterable[IndexEntry]) -> set[str]:
    """Return the names of all files that entries name."""
    return {name for entry in entries for name in entry.files.values()}
