"""The one reader of files from strangers: regular files only, within limits, and every refusal is one line.

A file is examined before it is opened and again when it is open, so that neither a pipe nor a device can block the
reader forever. Below a library's folder no symbolic link is followed.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Callable
from io import BufferedReader
from pathlib import Path
from typing import Any

from topologies.errors import InputError

MOST_LINES = 1_000_000  # Most lines of a text.
MOST_DEPTH = 64  # Most levels of nested lists and objects in JSON.
MOST_PARSED_BYTES = 450 << 20  # Memory that parsed JSON may take.
_BLOCK = 1 << 20  # Characters that are scanned for brackets at a time.
_CHECKED = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_PASSED = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


def origin_of(path: str | Path) -> str:
    """Return a path as messages show it: at most its last 200 characters, after "…" if some are cut, on one line.

    A path with unprintable characters is shown with escapes, in quotes.
    """
    text = str(path) if len(str(path)) <= 200 else "…" + str(path)[-200:]
    return text if text.isprintable() else repr(text)


def open_regular_file(path: str | Path, expected: str, inside: str | Path | None = None) -> BufferedReader:
    """Open a regular file for reading, and return it as a binary stream that the caller closes.

    Args:
        path: The file; a symbolic link to a regular file is followed unless `inside` is given.
        expected: What the file must be ("a pattern's .toml file"), as errors say.
        inside: The library's folder that the file must be in; no link below that folder is followed.

    Raises:
        InputError: There is no such file, it is no regular file, a link leads to it, or it cannot be opened.
    """
    where = Path(path)
    try:
        if inside is not None:
            check_below(inside, where)
        status = os.stat(where, follow_symlinks=inside is None)
        if stat.S_ISREG(status.st_mode):
            handle = os.open(where, _CHECKED) if inside is None else _open_below(Path(inside), where)
            if stat.S_ISREG(os.fstat(handle).st_mode):  # Another file may have taken its place.
                return os.fdopen(handle, "rb")
            os.close(handle)
        problem = "a directory" if stat.S_ISDIR(status.st_mode) else "not a plain file"
    except FileNotFoundError:
        problem = "no such file"
    except InputError:
        raise
    except (OSError, ValueError) as error:
        problem = _unreadable(error)
    raise InputError(f"{origin_of(path)}: {problem}; it must be {expected}")


def check_below(folder: str | Path, path: str | Path) -> None:
    """Check that no existing part of a path below a folder is a symbolic link.

    Args:
        folder: The library's folder, which may be a link itself.
        path: The path, which begins with `folder` and need not exist. After it, up to two ".." are allowed, as in the
            folder of a failure, which names files of the healthy library.

    Raises:
        InputError: One part is a link, or the path is elsewhere.
    """
    base, parts = _base_and_parts(Path(folder), Path(path))
    for count in range(1, len(parts) + 1):
        part = base.joinpath(*parts[:count])
        try:
            is_link = stat.S_ISLNK(os.lstat(part).st_mode)
        except (OSError, ValueError):  # The later attempt to read or write the file says why.
            return
        if is_link:
            raise InputError(
                f"{origin_of(part)}: a symbolic link, which is not followed inside a library; it must be a file or"
                " folder of the library itself"
            )


def read_bytes(path: str | Path, expected: str, most_bytes: int, inside: str | Path | None = None) -> bytes:
    """Return the bytes of a regular file.

    Args:
        path: The file.
        expected: What the file must be, as errors say.
        most_bytes: Size limit in bytes, itself allowed.
        inside: The library's folder that the file must be in (see `open_regular_file`).

    Raises:
        InputError: The file cannot be opened (see `open_regular_file`), or it is larger than `most_bytes`.
    """
    with open_regular_file(path, expected, inside) as stream:
        try:
            size = os.fstat(stream.fileno()).st_size  # `read` allocates as much as is requested.
            data = stream.read(min(most_bytes, size or most_bytes) + 1)
        except (OSError, ValueError) as error:
            raise InputError(f"{origin_of(path)}: {_unreadable(error)}; it must be {expected}") from None
    if data is None or len(data) > most_bytes:
        raise InputError(f"{origin_of(path)}: too large; it must be {expected} of at most {most_bytes >> 20} MiB")
    return data


def read_text(
    path: str | Path,
    expected: str,
    most_bytes: int,
    inside: str | Path | None = None,
    most_lines: int | None = MOST_LINES,
) -> str:
    r"""Return the text (UTF-8, without a byte order mark) of a regular file, with \n at the end of each line.

    Args:
        path: The file.
        expected: What the file must be, as errors say.
        most_bytes: Size limit in bytes.
        inside: The library's folder that the file must be in (see `open_regular_file`).
        most_lines: Limit on the number of lines; None for any number.

    Raises:
        InputError: The file cannot be read (see `read_bytes`), is not UTF-8, or has too many lines.
    """
    data = read_bytes(path, expected, most_bytes, inside)
    if most_lines is not None and data.count(b"\n") > most_lines:
        raise InputError(
            f"{origin_of(path)}: more than {most_lines} lines; it must be {expected} of at most {most_lines} lines"
        )
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        if is_binary(data):
            raise InputError(f"{origin_of(path)}: is a binary file; it must be {expected}") from None
        problem = f"byte {data[error.start]:#04x} is not UTF-8"
        raise InputError(f"{origin_of(path)}:{line}: {problem}; it must be saved as UTF-8") from None


def is_binary(data: bytes) -> bool:
    """Return whether the first 1024 bytes of a file hold zero bytes or other control characters that no text has."""
    return re.search(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]", data[:1024]) is not None


def parse_json(text: str, origin: str, expected: str, constants: bool = False) -> Any:
    """Return the value of a JSON text.

    Args:
        text: The text.
        origin: Name of the text in errors.
        expected: What the text must be, as errors say.
        constants: Whether NaN and infinities are accepted, for a reader that checks each number.

    Raises:
        InputError: The text is not JSON, repeats a key, states NaN, an infinity or an integer of more digits than
            Python reads (4300), is nested more than MOST_DEPTH deep, or would take more than MOST_PARSED_BYTES.
    """
    if _parsed_bytes(text) > MOST_PARSED_BYTES:
        raise InputError(
            f"{origin}: too many values: parsed it must take at most {MOST_PARSED_BYTES >> 20} MiB;"
            f" it must be {expected}"
        )
    if nested_too_deeply(text):
        raise InputError(f"{origin}: not JSON of at most {MOST_DEPTH} levels: nested too deeply; it must be {expected}")
    loads: Callable[..., Any] = json.loads
    refused = None if constants else _refused_constant
    try:
        return loads(text, parse_constant=refused, object_pairs_hook=_distinct)
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())[:120]
        if isinstance(error, json.JSONDecodeError):
            reason = error.msg.lower().replace("property name enclosed in double quotes", "a name in quotes")
            words = f"line {error.lineno}, column {error.colno}: {reason}"
        raise InputError(f"{origin}: not JSON ({words}); it must be {expected}") from None


def nested_too_deeply(text: str) -> bool:
    """Return whether brackets and braces outside of quoted texts are nested more than MOST_DEPTH deep.

    The scan works on NumPy columns, because hostile texts have millions of brackets.
    """
    if text.count("[") + text.count("{") <= MOST_DEPTH:
        return False
    import numpy as np  # Imported late, so that the command starts faster.

    if "\\" in text:
        text = text.replace("\\\\", "__").replace('\\"', "__")
    depth, quotes = 0, 0
    for start in range(0, len(text), _BLOCK):
        letters = np.frombuffer(text[start : start + _BLOCK].encode("ascii", "replace"), dtype=np.uint8)
        quotes_before = quotes + np.cumsum(letters == ord('"'))
        steps = ((letters == ord("[")) | (letters == ord("{"))).astype(np.int64)
        steps -= (letters == ord("]")) | (letters == ord("}"))
        steps[quotes_before % 2 == 1] = 0
        depths = depth + np.cumsum(steps)
        if depths.max() > MOST_DEPTH:
            return True
        depth, quotes = int(depths[-1]), int(quotes_before[-1])
    return False


def _refused_constant(name: str) -> None:
    """Raise ValueError for NaN and infinities."""
    raise ValueError(f"{name} is no number here")


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the pairs as a dictionary, or raise ValueError where a key is repeated."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("a key is given twice")
    return values


def _parsed_bytes(text: str) -> int:
    """Return an upper bound on the bytes that Python takes for a JSON text and its parsed values."""
    size = len(text) if text.isascii() else 4 * len(text)
    marks = (("{", 80), (":", 130), ("[", 72), (",", 48))
    return size + sum(text.count(mark) * size_of_mark for mark, size_of_mark in marks)


def _base_and_parts(folder: Path, path: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the folder at which the walk to a path begins, and the names on the path from there.

    After the folder, a path may go on with up to two `..`, because the folder of a failure names files of the healthy
    library that contains it; the walk then begins one or two folders above. Only the texts of the paths count; no file
    is looked at.

    Raises:
        InputError: The path does not begin with the folder, or has another `..`.
    """
    try:
        parts = path.relative_to(folder).parts
    except ValueError:
        raise InputError(f"{origin_of(path)}: is elsewhere; it must be in {origin_of(folder)}") from None
    climbs = 0
    while climbs < len(parts) and parts[climbs] == "..":
        climbs += 1
    if ".." in parts[climbs:] or climbs > 2:
        raise InputError(f"{origin_of(path)}: is elsewhere; it must be in {origin_of(folder)}")
    return folder.joinpath(*parts[:climbs]), parts[climbs:]


def _open_below(folder: Path, path: Path) -> int:
    """Open a file below a folder without following links, even links that appear meanwhile; return its descriptor.

    Raises:
        InputError: The path is not below the folder.
        OSError: The file cannot be opened, or a part of the path is a link.
    """
    base, parts = _base_and_parts(folder, path)
    directory = os.open(base, _PASSED)
    try:
        for name in parts[:-1]:
            subdirectory = os.open(name, _PASSED | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = subdirectory
        return os.open(parts[-1], _CHECKED | os.O_NOFOLLOW, dir_fd=directory)
    finally:
        os.close(directory)


def _unreadable(error: Exception) -> str:
    """Return the words "cannot be read (REASON)" for an error that opening or reading a file raised."""
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"
