"""Keep answers on disk under a key for their question: one file a key, complete or absent, checked at each reading.

A file is a line `synth-cache-1 DIGEST` and the answer; DIGEST is SHA-256 of the key and of the answer. It is written
next to its place and moved there, so that writers of one key never meet and a reader sees all of it or nothing. A file
that does not match its digest is removed. Nobody holds a lock: two processes that solve one problem at the same time
write the same answer.

The digest reveals a damaged file, not a forged one: whoever can write to the folder can compute it. Code that takes an
answer from a cache must check its content.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from platformdirs import user_cache_path

from topologies.errors import InputError
from topologies.text.files import read_bytes

VARIABLE = "SYNTH_CACHE"
NONE = "none"  # in place of a folder, so that nothing is kept
MOST_BYTES = 1 << 30  # of an answer
_HEAD = b"synth-cache-1 "
_UNFINISHED = ".new-"  # beginning of the name of a file that is being written
_KEY = re.compile(r"[0-9a-f]{16,64}")
_PACKAGES = ("topologies", "synth", "emit")  # The files of these packages with these suffixes determine the answers.
_SUFFIXES = (".py", ".toml", ".txt")
_LIBRARIES = ("numpy", "scipy", "highspy")


@dataclass(frozen=True)
class Cache:
    """A folder of answers.

    Attributes:
        folder: The folder; None if there is no cache, so that nothing is read or kept.
    """

    folder: Path | None

    def get(self, key: str) -> bytes | None:
        """Return the answer under a key; None if there is none, there is no folder, or it cannot be read.

        A file that does not match its digest is removed.

        Raises:
            InputError: The key is not 16 to 64 hexadecimal digits.
        """
        path = self._path(key)
        try:
            data = b"" if path is None else read_bytes(path, "an answer of the cache", MOST_BYTES)
        except InputError:
            return None
        head, _, answer = data.partition(b"\n")
        if head == _HEAD + _digest(key, answer):
            return answer
        self.remove(key)
        return None

    def remove(self, key: str) -> None:
        """Remove the answer under a key, if there is one and it can be removed.

        Raises:
            InputError: The key is not 16 to 64 hexadecimal digits.
        """
        if (path := self._path(key)) is not None:
            with suppress(OSError):
                path.unlink()

    def has(self, key: str) -> bool:
        """Return whether there is a file for a key, complete or damaged; False without a folder.

        Raises:
            InputError: The key is not 16 to 64 hexadecimal digits.
        """
        path = self._path(key)
        return path is not None and path.is_file()

    def put(self, key: str, answer: bytes) -> None:
        """Write an answer under a key, in place of an earlier one; without a folder only the key is checked.

        The folder is made if it does not exist.

        Raises:
            InputError: The key is not 16 to 64 hexadecimal digits in lower case; also without a folder.
            OSError: It cannot be written; then no part of it is left, and an earlier answer stays.
        """
        path = self._path(key)
        if path is None:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_HEAD + _digest(key, answer) + b"\n" + answer)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def files(self) -> Iterator[Path]:
        """Yield the paths of all answers' files, and of those that killed writers left behind, sorted.

        There are none without a folder.
        """
        if self.folder is not None and self.folder.is_dir():
            for folder in sorted(self.folder.iterdir()):
                if _is_part(folder):
                    yield from (path for path in sorted(folder.iterdir()) if _is_ours(path.name))

    def others(self) -> Iterator[Path]:
        """Yield the paths in the folder that are not the cache's own folders, in no fixed order.

        There are none without a folder.
        """
        if self.folder is not None and self.folder.is_dir():
            yield from (path for path in self.folder.iterdir() if not _is_part(path))

    def clear(self) -> tuple[int, int]:
        """Remove all files that `files` yields, but no folders; return their number and their bytes.

        Raises:
            InputError: A file cannot be removed; those before it are gone.
        """
        count = size = 0
        for path in self.files():
            try:
                length = path.stat().st_size
                path.unlink()
            except OSError as error:
                raise InputError(f"cache {path}: cannot be removed ({error.strerror or error})") from None
            count, size = count + 1, size + length
        return count, size

    def exposed(self) -> str:
        """Return who else can change the answers, as a clause of a message; empty where nobody can.

        Another owner of the folder than this user or root can, or a group or others that may write to it. It is also
        empty where there is no folder, or where the system has no owners of files.
        """
        try:
            status = None if self.folder is None else self.folder.stat()
        except OSError:
            return ""
        if status is None or not hasattr(os, "getuid"):
            return ""
        if status.st_uid not in (os.getuid(), 0):
            return f"the cache {self.folder} belongs to another user"
        if status.st_mode & 0o022:
            return f"other users can write to the cache {self.folder}"
        return ""

    def _path(self, key: str) -> Path | None:
        """Return the path of a key's file, FOLDER/first two digits/key; None without a folder.

        Raises:
            InputError: The key is not 16 to 64 hexadecimal digits (lower case).
        """
        if not _KEY.fullmatch(key):
            raise InputError(f"cache: {key[:40]!r} is no key; it must be hexadecimal digits")
        return None if self.folder is None else self.folder / key[:2] / key


def _is_part(path: Path) -> bool:
    """Return whether a path in the cache's folder is one of its folders, named by the first two digits of its keys."""
    return path.is_dir() and bool(re.fullmatch("[0-9a-f]{2}", path.name))


def _is_ours(name: str) -> bool:
    """Return whether a file of this name may be an answer, or one that a killed writer left behind."""
    return bool(_KEY.fullmatch(name)) or name.startswith(_UNFINISHED)


def open_cache(folder: str | None = None) -> Cache:
    """Return the cache in a named folder, else in $SYNTH_CACHE, else the user's cache; "none" means no cache.

    The folder need not exist and is not made here.

    Raises:
        InputError: The name is empty, or it is a file and no folder.
    """
    folder_name = os.environ.get(VARIABLE) if folder is None else folder
    if folder_name == NONE:
        return Cache(None)
    if folder_name is None:
        return Cache(user_cache_path("synth-collectives") / "answers")
    option = VARIABLE if folder is None else "--cache"
    if not folder_name:
        raise InputError(f'{option}: is empty; it must be a folder, or "none" for no cache')
    if Path(folder_name).exists() and not Path(folder_name).is_dir():
        raise InputError(f'{option} {folder_name}: is a file; it must be a folder, or "none" for no cache')
    return Cache(Path(folder_name))


@cache
def engines_version() -> str:
    """Return 16 hexadecimal digits for the sources and libraries that make answers; with others, answers may differ.

    They depend on the source files and data files of topologies, synth and emit, but not of the command line and the
    report, and on the versions of NumPy, SciPy and HiGHS. They are computed once in a process.
    """
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*")):
            name_in_root = path.relative_to(root).as_posix()
            if path.suffix in _SUFFIXES and not name_in_root.startswith(("synth/app/cli/", "synth/app/report/")):
                digest.update(name_in_root.encode() + b"\0" + path.read_bytes())
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            digest.update(f"{name} {version(name)}".encode())
    return digest.hexdigest()[:16]


def _digest(key: str, answer: bytes) -> bytes:
    """Return the digest of a key and an answer: SHA-256 as 64 hexadecimal digits in bytes."""
    return hashlib.sha256(key.encode() + b"\0" + answer).hexdigest().encode()
