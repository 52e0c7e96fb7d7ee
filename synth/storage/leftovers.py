"""Lock files that are being written next to their place, and remove those that killed writers left behind.

A writer holds a lock on its file or folder for as long as it lives, so that another process can tell which ones nobody
writes any more.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

PREFIX = ".synth-"
_MOST = 100_000  # entries of one folder that are examined


@contextmanager
def staging_folder(inside: Path) -> Iterator[str]:
    """Yield the path of a new folder to write in, which is locked while it is used and removed afterwards.

    The folder is removed with its content, also after an error.

    Args:
        inside: The existing folder in which it is made.

    Raises:
        OSError: No folder can be made there.
    """
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=inside)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # Some file systems know no locks, so that no folder there counts as left behind.
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.isdir(path):  # Another process may have removed it as left behind before it was locked.
            break
        os.close(handle)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def lock_file(handle: int) -> int:
    """Lock a file that is being written next to its place; wait until the lock is free.

    Args:
        handle: The file's open descriptor; the caller may close it first.

    Returns:
        Another descriptor of the file, which keeps the lock until it is closed; close it once the file is in its place.
        It holds no lock on a file system without locks.
    """
    lock = os.dup(handle)
    with suppress(OSError):
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers of this user left in a folder: files and folders whose names begin with `PREFIX`.

    Those that are locked or cannot be removed stay; no error is raised. In a folder of more than 100 000 entries only
    that many are looked at.
    """
    with suppress(OSError):
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST) if entry.name.startswith(PREFIX)]
        for name in names:
            with suppress(OSError):
                _remove(folder / name)


def _remove(path: Path) -> None:
    """Remove a plain file or a folder, with its content, if it is this user's and no writer holds its lock.

    Another kind of file, or another user's, stays without an error.

    Raises:
        OSError: A writer holds the lock, or the file cannot be opened, locked or removed.
    """
    status = os.lstat(path)
    is_folder = stat.S_ISDIR(status.st_mode)
    if status.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(status.st_mode)):
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if is_folder:
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)
