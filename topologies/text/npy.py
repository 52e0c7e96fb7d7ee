"""Read NumPy's .npy files of numbers without NumPy's reader, which evaluates the header and trusts its shape."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np

from topologies.errors import InputError

_MOST = 1 << 40  # Product of the sizes of a shape without zeros, which NumPy must be able to count.
_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(  # As NumPy writes it.
    rb"\{'descr': '([<>|](?:f[248]|[iu][1248]))', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,10}, ?){0,8}[0-9]{0,10})\), \}\s*"
)


def numpy_table(data: bytes, origin: str, form: str) -> np.ndarray[Any, Any]:
    """Return the array of a .npy file of version 1 or 2.

    Args:
        data: Bytes of the file.
        origin: Name of the file, with which errors begin.
        form: What the file must be, for errors.

    Raises:
        InputError: The file is none of version 1 or 2, holds other values than numbers, or is too short or too long.
    """
    bytes_of_length = {b"\x01\x00": 2, b"\x02\x00": 4}.get(data[len(_MAGIC) : len(_MAGIC) + 2], 0)
    start = len(_MAGIC) + 2 + bytes_of_length
    end = start + int.from_bytes(data[start - bytes_of_length : start], "little")
    header = _HEADER.fullmatch(data[start:end]) if bytes_of_length and data.startswith(_MAGIC) else None
    if header is None:
        raise InputError(f"{origin}: is no .npy file of numbers, of version 1 or 2; it must be {form}")
    shape = [int(size) for size in header[3].split(b",") if size.strip()]
    dtype, content = np.dtype(header[1].decode()), data[end:]
    if math.prod(shape) * dtype.itemsize != len(content) or math.prod(size or 1 for size in shape) > _MOST:
        raise InputError(f"{origin}: states {math.prod(shape)} values in {len(content)} bytes; it must be {form}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if header[2] == b"True" else "C")
