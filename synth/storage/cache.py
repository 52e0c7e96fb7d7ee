"""Answers kept on disk by what they answer: a file for each key, whole or not there, checked whenever it is read.

A file is a line `synth-cache-1 DIGEST` and what is kept; DIGEST is SHA-256 of the key and of that. It is written beside
its place and moved there, so that writers of one key never meet and a reader sees all of it or nothing. What does not
have its digest is thrown away. Nobody holds a lock: two who solve one problem at once both write the same.

The digest finds a file that is broken, not one that is forged: whoever can write to the folder can compute it. Whoever
takes an answer from a cache checks what it says.
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
NONE = "none"  # in place of a folder: nothing is kept
MOST_BYTES = 1 << 30  # of an answer
_HEAD = b"synth-cache-1 "
_KEY = re.compile(r"[0-9a-f]{16,64}")
_PACKAGES = ("topologies", "synth", "emit")  # whose sources make the answers
_LIBRARIES = ("numpy", "scipy", "highspy")


@dataclass(frozen=True)
class Cache:
    """The answers in a folder; None: there are none and none are kept."""

    folder: Path | None

    def get(self, key: str) -> bytes | None:
        """What is kept for a key (hexadecimal), whole; None where there is nothing. What is not whole is removed."""
        path = self._path(key)
        try:
            data = b"" if path is None else read_bytes(path, "an answer of the cache", MOST_BYTES)
        except InputError:
            return None
        head, _, kept = data.partition(b"\n")
        if head == _HEAD + _digest(key, kept):
            return kept
        self.remove(key)
        return None

    def remove(self, key: str) -> None:
        """Forget what is kept for a key, where it can be removed."""
        if (path := self._path(key)) is not None:
            with suppress(OSError):
                path.unlink()

    def has(self, key: str) -> bool:
        """Whether there is a file for a key, whole or not."""
        path = self._path(key)
        return path is not None and path.is_file()

    def put(self, key: str, kept: bytes) -> None:
        """Keep something. Raises OSError where it cannot be: nothing of it is there then."""
        path = self._path(key)
        if path is None:
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".new-", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_HEAD + _digest(key, kept) + b"\n" + kept)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            raise

    def files(self) -> Iterator[Path]:
        """All that are kept, and what writers that were killed left behind."""
        if self.folder is not None and self.folder.is_dir():
            for folder in sorted(self.folder.iterdir()):
                if folder.is_dir() and re.fullmatch("[0-9a-f]{2}", folder.name):
                    yield from sorted(folder.iterdir())

    def clear(self) -> tuple[int, int]:
        """Remove all; how many files, and their bytes. Raises InputError where one cannot be removed."""
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
        """Return who else can change the answers, as a clause; empty where nobody can."""
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
        if not _KEY.fullmatch(key):
            raise InputError(f"cache: {key[:40]!r} is no key; it must be hexadecimal digits")
        return None if self.folder is None else self.folder / key[:2] / key


def open_cache(given: str | None = None) -> Cache:
    """The cache of a folder's name, else of $SYNTH_CACHE, else the user's; "none": no cache.

    Raises InputError for an empty name, or one of what is no folder.
    """
    named = os.environ.get(VARIABLE) if given is None else given
    if named == NONE:
        return Cache(None)
    if named is None:
        return Cache(user_cache_path("synth-collectives") / "answers")
    option = VARIABLE if given is None else "--cache"
    if not named:
        raise InputError(f"{option}: is empty; it must be a folder, or none")
    if Path(named).exists() and not Path(named).is_dir():
        raise InputError(f"{option} {named}: is a file; it must be a folder, or none")
    return Cache(Path(named))


@cache
def engines_version() -> str:
    """A digest of the sources that make answers, and of the libraries that they ask: another one, other answers."""
    digest = hashlib.sha256()
    root = Path(__file__).resolve().parents[2]
    for package in _PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            where = path.relative_to(root).as_posix()
            if not where.startswith(("synth/app/cli/", "synth/app/report/")):
                digest.update(where.encode() + b"\0" + path.read_bytes())
    for name in _LIBRARIES:
        with suppress(PackageNotFoundError):
            digest.update(f"{name} {version(name)}".encode())
    return digest.hexdigest()[:16]


def _digest(key: str, kept: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\0" + kept).hexdigest().encode()
