"""Store compiled loops on disk, in one folder for each state of their sources.

One process at a time reads or writes there, for milliseconds: none compiles while it holds the folder. If a process is
stopped while it holds the folder, the others lose the stored loops, but not their answer.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import FunctionType
from typing import Any

log = logging.getLogger("synth.loops")

_NAME = "synth-collectives"
_DIGITS = 16  # of the digest that names a folder
_PATIENCE_S = 1.5  # in all, to wait for other processes; half a second is too short where two compile on a slow disk
_LOOK_S = 0.005  # between two checks whether the folder is free
_remaining_s = _PATIENCE_S  # to wait for other processes


def gave_up_waiting() -> bool:
    """Return whether another process held the folder for so long that later loops are compiled and not stored."""
    return _remaining_s <= 0


def loops_folder() -> Path | None:
    """Return the folder of all compiled loops, made if necessary; None if none can be used.

    It is $NUMBA_CACHE_DIR if that is set, and no other; else a folder in the user's cache, or a temporary one where
    that fails. It must belong to this user, and only this user may write to it. The answer is kept while the variables
    stay.
    """
    return _folder(os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME"))


@cache
def _folder(numba_cache: str | None, user_cache: str | None) -> Path | None:
    """Return the folder of all compiled loops, made if necessary; None if none is usable.

    It is `numba_cache` if that is given, and no other; else the user's cache, or else a temporary folder.

    Args:
        numba_cache: The value of $NUMBA_CACHE_DIR.
        user_cache: The value of $XDG_CACHE_HOME.
    """
    home = Path(os.path.expanduser("~"))
    candidates = [Path(user_cache) / _NAME] if user_cache else [home / ".cache" / _NAME] if home.is_absolute() else []
    temporary = Path(tempfile.gettempdir()) / f"{_NAME}-{os.getuid()}"
    return next(
        (path for path in ([Path(numba_cache)] if numba_cache else [*candidates, temporary]) if _is_private(path)), None
    )


def _is_private(folder: Path) -> bool:
    """Return whether a folder belongs to this user, who can write to it and nobody else; make it if it is missing.

    Code is loaded from it, so nobody else may write there. An error of the system counts as no.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return False
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


def folder_of(loop: FunctionType, called: Mapping[str, FunctionType]) -> Path | None:
    """Return the folder of one loop, or None if none can be used; the folder itself is not made here.

    It differs as soon as a source file of the loop or of a function that it calls changes, or a constant that either
    uses. Numba itself looks at the loop's own file only.

    Args:
        loop: The loop.
        called: The functions of this project that the loop calls directly or through others, by name.
    """
    root = loops_folder()
    if root is None:
        return None
    state = hashlib.sha256()
    for function in (loop, *(called[name] for name in sorted(called))):
        state.update(_source(function.__code__.co_filename))
        state.update(repr(sorted(_constants(function).items())).encode())
    return root / state.hexdigest()[:_DIGITS]


@cache
def _source(file: str) -> bytes:
    """Return the bytes of a source file, or its name if it cannot be read."""
    try:
        return Path(file).read_bytes()
    except OSError:
        return file.encode()


def _constants(loop: FunctionType) -> dict[str, Any]:
    """Return the constants of its module that a loop names, by name, as Python writes them (`repr`).

    These are numbers, texts and tuples, which machine code has built in.
    """
    names = loop.__globals__
    return {n: repr(names[n]) for n in loop.__code__.co_names if isinstance(names.get(n), int | float | str | tuple)}


@contextmanager
def holding() -> Iterator[bool]:
    """Keep other processes from the folder, and yield whether it may be read and written.

    If two processes stored a loop at once, one could load the other's code. The folder counts as held where its file
    system knows no locks, or where there is no folder. It is not held if another process holds it for longer than this
    process waits (1.5 s in all); then nothing may be read or written there.
    """
    root, handle, is_held = loops_folder(), -1, True
    if root is not None:
        with suppress(OSError):  # Some file systems know no locks.
            handle = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o600)
            is_held = _takes_lock(handle, root)
    try:
        yield is_held
    finally:
        if handle >= 0:
            os.close(handle)


def _takes_lock(handle: int, root: Path) -> bool:
    """Wait for a lock while this process still has time to wait; return whether this process holds the lock now.

    The wait is taken off the 1.5 s of this process. When these end, that is logged, once.

    Args:
        handle: Descriptor of the lock file.
        root: The folder, for the message.

    Raises:
        OSError: The file system knows no locks.
    """
    global _remaining_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if _remaining_s <= 0:
                return False
        time.sleep(_LOOK_S)
        _remaining_s -= _LOOK_S
        if _remaining_s <= 0:
            log.warning("%s: another process holds it, and may be stopped; loops are compiled and not stored", root)


def store_of(loop: FunctionType, folder: Path) -> GuardedStore:
    """Return the store of a loop's machine code in its folder, wherever its sources lie and whenever they were written.

    Numba's own stores have a folder for each path of a source file and forget code when the file's time changes, so
    that another installation of the same sources would compile all loops again.

    Args:
        loop: The loop.
        folder: What `folder_of` returns for it.
    """
    from numba.core import caching  # This import takes a third of a second, so that only large problems pay for it.

    class Locator(caching._CacheLocator):  # type: ignore[misc]
        """Numba's description of where a function's code is stored; the folder's name states the sources."""

        def get_cache_path(self) -> str:
            return str(folder)

        def get_source_stamp(self) -> str:
            return ""

        def get_disambiguator(self) -> str:
            return str(loop.__code__.co_firstlineno)

        @classmethod
        def from_function(cls, *_loop_and_file: object) -> Locator:
            return cls()

    class Storing(caching.CompileResultCacheImpl):  # type: ignore[misc]
        """Numba's form of stored code, in the folder of `Locator`."""

        _locator_classes = (Locator,)

    class Store(caching.FunctionCache):  # type: ignore[misc]
        """Numba's store of one function's code."""

        _impl_class = Storing

    return GuardedStore(Store(loop))


class GuardedStore:
    """Numba's store of a loop's machine code, which is read and written only while `holding` its folder."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def load_overload(self, *key: Any) -> Any:
        """Return the stored code for a signature and a machine; None if there is none or it cannot be read.

        It is also None if another process holds the folder too long. If reading fails, all stored code of the loop is
        removed.

        Args:
            *key: What Numba passes.
        """
        with holding() as is_held:
            if not is_held:
                return None
            try:
                return self._store.load_overload(*key)
            except Exception:  # A file that was cut short can raise any error.
                self._forget()
                return None

    def save_overload(self, *code: Any) -> None:
        """Store a signature's machine code; do nothing if another process holds the folder too long.

        An error in writing is not raised; it loses all stored code of the loop.

        Args:
            *code: What Numba passes.
        """
        with holding() as is_held:
            if not is_held:
                return
            try:
                self._store.save_overload(*code)
            except Exception:  # The disk may be full, or the stored index cut short.
                self._forget()

    def _forget(self) -> None:
        """Remove the loop's stored index and code from disk, without an error where a file stays.

        An index whose code was not written may name the file of other code.
        """
        for path in Path(self._store.cache_path).glob("*.nb[ci]"):
            with suppress(OSError):
                path.unlink()
