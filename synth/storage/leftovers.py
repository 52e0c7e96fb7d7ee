"""What is written beside its place until it is whole, and what killed writers left there.

A writer holds a lock on what it writes for as long as it lives, so that another can tell what nobody writes any more.
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
_MOST = 100_000  # entries of one folder that are looked at


@contextmanager
def staging_folder(inside: Path) -> Iterator[str]:
    """Make a folder to write in, locked while it is used, and remove it afterwards."""
    while True:
        path = tempfile.mkdtemp(prefix=PREFIX, dir=inside)
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):  # some file systems know no locks: nothing is taken for left behind there
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.path.isdir(path):  # else another took it for left behind before it was locked
            break
        os.close(handle)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(handle)


def lock_file(handle: int) -> int:
    """Lock a file that is being written beside its place; return a handle to close once it is in its place."""
    held = os.dup(handle)
    with suppress(OSError):
        fcntl.flock(held, fcntl.LOCK_EX)
    return held


def remove_leftovers(folder: Path) -> None:
    """Remove what killed writers of the same user left in a folder; what is locked or cannot be removed stays."""
    with suppress(OSError):
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, _MOST) if entry.name.startswith(PREFIX)]
        for name in names:
            with suppress(OSError):
                _remove(folder / name)


def _remove(path: Path) -> None:
    found = os.lstat(path)
    is_folder = stat.S_ISDIR(found.st_mode)
    if found.st_uid != os.geteuid() or not (is_folder or stat.S_ISREG(found.st_mode)):
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
