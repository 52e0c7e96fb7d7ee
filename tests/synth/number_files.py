"""Files of numbers that tests of several readers write."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np


def numpy_file(table: np.ndarray, version: tuple[int, int] = (1, 0)) -> bytes:
    """Return the bytes of a .npy file."""
    stream = BytesIO()
    np.lib.format.write_array(stream, table, version=version)
    return stream.getvalue()


def numpy_header(shape: str, kind: str = "<f8", size: int = 0) -> bytes:
    """Return a .npy file whose header states a shape and a type, whatever they are, with `size` bytes of content."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (117 - len(header)) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + b"\0" * size


def written(folder: Path, name: str, content: bytes | str) -> Path:
    """Write a file into a folder, and return its path."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path
