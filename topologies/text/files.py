"""Files from a stranger: plain files only, read within bounded memory, every complaint one line with its place."""

from __future__ import annotations

import json
from io import BufferedReader
from pathlib import Path
from typing import Any

from topologies.errors import InputError


def origin_of(path: str | Path) -> str:
    """A path as messages name it: one line, not too long."""
    text = str(path) if len(str(path)) <= 200 else "…" + str(path)[-200:]
    return text if text.isprintable() else repr(text)


def opened(path: str | Path, wanted: str) -> BufferedReader:
    """A plain file, open for reading. `wanted` says what it must be ("a pattern's .toml file"), as errors say."""
    file = Path(path)
    try:
        if file.is_file():  # a pipe or a device could hold the reader for ever
            return file.open("rb")
        kind = "a directory" if file.is_dir() else "not a plain file" if file.exists() else "no such file"
    except (OSError, ValueError) as error:
        kind = _unreadable(error)
    raise InputError(f"{origin_of(path)}: {kind}; it must be {wanted}")


def read_bytes(path: str | Path, wanted: str, most_bytes: int) -> bytes:
    """All of a plain file. Raises InputError as `opened` does, and where it is larger than `most_bytes`."""
    with opened(path, wanted) as stream:
        try:
            data = stream.read(most_bytes + 1)
        except OSError as error:
            raise InputError(f"{origin_of(path)}: {_unreadable(error)}; it must be {wanted}") from None
    if len(data) > most_bytes:
        raise InputError(f"{origin_of(path)}: too large; it must be {wanted} of at most {most_bytes >> 20} MiB")
    return data


def read_text(path: str | Path, wanted: str, most_bytes: int) -> str:
    """The text (UTF-8) of a file, line ends \\n. Raises InputError as `read_bytes` does, and where it is no UTF-8."""
    data = read_bytes(path, wanted, most_bytes)
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        what = f"byte {data[error.start]:#04x} is not UTF-8"
        raise InputError(f"{origin_of(path)}:{line}: {what}; it must be saved as UTF-8") from None


def parse_json(text: str, origin: str, wanted: str) -> Any:
    """What a JSON text holds. Raises InputError, whose line says what the file at `origin` must be."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        words = " ".join(str(error).split())[:100]
        raise InputError(f"{origin}: not JSON: {words}; it must be {wanted}") from None


def _unreadable(error: Exception) -> str:
    return f"cannot be read ({getattr(error, 'strerror', None) or error})"
