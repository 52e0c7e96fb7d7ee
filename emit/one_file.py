"""One file, written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from topologies.errors import InputError


def write_file(path: str | Path, text: str) -> Path:
    """Write under a temporary name beside it, then rename. Raises InputError where it cannot be written."""
    where = Path(path)
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
        raise InputError(f"{where}: cannot be written ({error.strerror or error})") from None
    return where
