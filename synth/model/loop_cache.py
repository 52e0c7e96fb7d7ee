"""Where compiled loops are kept on disk: a folder for each state of their sources.

One process at a time reads or writes there, for milliseconds: nobody compiles meanwhile. A process that is stopped
while it holds the folder costs the others what is kept, not their answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

_NAME = "synth-collectives"
_DIGITS = 16  # of a digest
_PATIENCE_S = 0.5  # for another process, in all
_LOOK_S = 0.005  # between two looks whether the folder is free
_left_s = _PATIENCE_S  # of it


def loops_folder() -> Path | None:
    """Of all loops: $NUMBA_CACHE_DIR, else the user's cache, else a folder for temporary files; None: none can be."""
    return _folder(os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"))


@cache
def _folder(given: str | None, users: str | None) -> Path | None:
    home = Path(os.path.expanduser("~"))
    own = [Path(users) / _NAME] if users else [home / ".cache" / _NAME] if home.is_absolute() else []
    temporary = Path(tempfile.gettempdir()) / f"{_NAME}-{os.getuid()}"
    return next((path for path in ([Path(given)] if given else [*own, temporary]) if _is_ours(path)), None)


def _is_ours(folder: Path) -> bool:
    """Whether a folder is there or can be made, and only its owner, who we are, can write to it: code is loaded."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.stat()
        if about.st_uid != os.getuid() or about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def folder_of(loop: FunctionType, called: Mapping[str, FunctionType]) -> Path | None:
    """Of one loop: another one where its source changed, or that of what it calls, or a number that either uses.

    Numba itself looks at the loop's own file only. called: by name, all functions of ours, also those called by these.
    """
    root = loops_folder()
    if root is None:
        return None
    state = hashlib.sha256()
    for one in (loop, *(called[name] for name in sorted(called))):
        state.update(_source(one.__code__.co_filename))
        state.update(repr(sorted(_numbers(one).items())).encode())
    return root / state.hexdigest()[:_DIGITS]


@cache
def _source(file: str) -> bytes:
    try:
        return Path(file).read_bytes()
    except OSError:
        return file.encode()


def _numbers(loop: FunctionType) -> dict[str, Any]:
    """The constants of a loop's module that it names, which machine code holds."""
    names = loop.__globals__
    return {n: repr(names[n]) for n in loop.__code__.co_names if isinstance(names.get(n), int | float | str | tuple)}


@contextmanager
def holding() -> Iterator[bool]:
    """Hold the folder against other processes: of two that keep a loop at once one could load the other's code.

    Yields whether it is held, or its file system knows no locks. It is not where another process holds it for longer
    than this one waits, half a second in all; then nothing may be read or written there.
    """
    root, handle, is_held = loops_folder(), -1, True
    if root is not None:
        with suppress(OSError):  # some file systems know no locks
            handle = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            is_held = _takes_lock(handle, root)
    try:
        yield is_held
    finally:
        if handle >= 0:
            os.close(handle)


def _takes_lock(handle: int, root: Path) -> bool:
    """Wait for a lock as long as there is patience; return whether it is held now."""
    global _left_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if _left_s <= 0:
                return False
        time.sleep(_LOOK_S)
        _left_s -= _LOOK_S
        if _left_s <= 0:
            line = f"{root}: is held by another process, which may be stopped; loops are compiled without it"
            print(line, file=sys.stderr, flush=True)


class Guarded:
    """Numba's store of a loop's machine code, read and written while `holding` its folder only."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def load_overload(self, *key: Any) -> Any:
        """Return what is kept for a signature and a machine; None where there is nothing, or it cannot be read."""
        with holding() as is_held:
            if not is_held:
                return None
            try:
                return self._store.load_overload(*key)
            except Exception:  # a file that was cut short can raise whatever its bytes say
                self._forget()
                return None

    def save_overload(self, *kept: Any) -> None:
        """Keep a signature's machine code, where that can be."""
        with holding() as is_held:
            if not is_held:
                return
            try:
                self._store.save_overload(*kept)
            except Exception:  # the disk may be full, or the index that is there cut short
                self._forget()

    def _forget(self) -> None:
        """Remove what is kept there: an index whose file of code was not written may name that of other code."""
        for path in Path(self._store.cache_path).glob("*.nb[ci]"):
            with suppress(OSError):
                path.unlink()
