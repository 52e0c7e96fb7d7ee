"""One file, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from topologies.errors import InputError


def write_file(path: str | Path, text: str) -> Path:
    """Write under a temporary name beside it, then rename; a link is followed, and stays.

    Raises InputError where it cannot be written, or is no file (a folder, a device).
    """
    where = Path(path).resolve()
    if where.exists() and not where.is_file():
        raise InputError(f"{path}: is no file that could be replaced; give another")
    temporary = None
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=".synth-", dir=where.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, where)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                os.unlink(temporary)
        raise InputError(f"{path}: cannot be written ({error.strerror or error})") from None
    return Path(path)
