"""Read how many copies of tokens go to which expert, in every layer: a routing histogram from JSON, text or NumPy."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import numpy as np

from synth.model.collective import Floats
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import origin_of, parse_json, read_bytes, read_text

MAX_FILE_BYTES = 128 << 20
MAX_CELLS = 8_000_000  # Layers × ranks × experts; each of them takes work, also where the file has no ranks.
MAX_LAYERS = 1000
MAX_EXPERTS = 4096
MAX_COPIES = 1e15  # Whole numbers up to it are exact.
_MAGIC = b"\x93NUMPY"
_HEADER = re.compile(  # As NumPy writes it.
    rb"\{'descr': '([<>|](?:f[248]|[iu][1248]))', 'fortran_order': (True|False), "
    rb"'shape': \(((?:[0-9]{1,10}, ?){0,8}[0-9]{0,10})\), \}\s*"
)
_FORM = "numbers of shape (layers, experts) or (layers, ranks, experts)"


def read_histogram(path: str | Path, nranks: int) -> Floats:
    """Read the copies from each rank to each expert: float64, shape (layers, ranks, experts); it must not be changed.

    The file is JSON (nested arrays), text (a line for each layer, with commas or blanks between the experts and `#`
    before comments) or a .npy file of numbers. Of shape (layers, experts), every rank has an equal share of the copies.

    Args:
        path: The file; one whose name ends in .npy is NumPy's, others begin with `[` or are text.
        nranks: Number of ranks of the group.

    Raises:
        InputError: The file cannot be read or is too large, an entry is no number, negative or over 10¹⁵, the shape is
            wrong, or there are no copies at all.
    """
    origin = origin_of(path)
    if str(path).endswith(".npy"):
        table = _numpy_table(read_bytes(path, "a routing histogram (.npy)", MAX_FILE_BYTES), origin)
    else:
        text = read_text(path, "a routing histogram (JSON, text or .npy)", MAX_FILE_BYTES)
        table = _json_table(text, origin) if text.lstrip().startswith(("[", "{")) else _text_table(text, origin)
    return _checked(table, origin, nranks)


def _checked(table: np.ndarray[Any, Any], origin: str, nranks: int) -> Floats:
    """Return a table of numbers as copies of shape (layers, ranks, experts); InputError for wrong ones."""
    if table.ndim not in (2, 3) or table.dtype.kind not in "iuf":
        raise InputError(f"{origin}: has shape {table.shape} of {_kind(table)}; it must be {_FORM}")
    layers, experts = table.shape[0], table.shape[-1]
    if not 1 <= layers <= MAX_LAYERS or not 1 <= experts <= MAX_EXPERTS:
        raise InputError(
            f"{origin}: has {layers} layers and {experts} experts; it must be 1 to {MAX_LAYERS} layers of 1 to"
            f" {MAX_EXPERTS} experts"
        )
    if table.ndim == 3 and table.shape[1] != nranks:
        raise InputError(f"{origin}: has {table.shape[1]} ranks in a layer; it must be {nranks}, as the group has")
    if layers * experts * nranks > MAX_CELLS:
        raise InputError(
            f"{origin}: has {layers} layers × {experts} experts for {nranks} ranks; it must be at most {MAX_CELLS}"
            " cells: give fewer layers at a time"
        )
    copies = table.astype(np.float64)
    wrong = ~((copies >= 0) & (copies <= MAX_COPIES))
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        where = ", ".join(f"{axis} {i}" for axis, i in zip(_axes(table.ndim), place, strict=True))
        raise InputError(f"{origin}: {where}: {copies[tuple(place)]:g} copies; it must be from 0 to {MAX_COPIES:g}")
    if not copies.any():
        raise InputError(f"{origin}: has no copies; some number must be more than 0")
    if table.ndim == 3:
        return copies
    even: Floats = np.broadcast_to((copies / nranks)[:, None], (layers, nranks, experts))
    return even


def _axes(ndim: int) -> tuple[str, ...]:
    """Return what the axes of a table of two or three dimensions are."""
    return ("layer", "expert") if ndim == 2 else ("layer", "rank", "expert")


def _kind(table: np.ndarray[Any, Any]) -> str:
    """Return what the entries of a table are, for messages."""
    return "numbers" if table.dtype.kind in "iuf" else f"other values ({table.dtype})"


def _json_table(text: str, origin: str) -> np.ndarray[Any, Any]:
    """Return the array of a JSON file; InputError where it is none, or rows have different lengths."""
    value = parse_json(text, origin, _FORM)
    if not isinstance(value, list):
        raise InputError(f"{origin}: holds {shown(value)}; it must be nested arrays: {_FORM}")
    try:
        return np.array(value)
    except (ValueError, OverflowError):
        raise InputError(f"{origin}: rows have different lengths; it must be {_FORM}") from None


def _text_table(text: str, origin: str) -> np.ndarray[Any, Any]:
    """Return the rows of a text file as a table; InputError where an entry is no number or rows differ in length."""
    rows: list[list[float]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        items = content.split(",") if "," in content else content.split()
        if rows and len(items) != len(rows[0]):
            raise InputError(f"{origin}:{number}: has {len(items)} numbers, the first row has {len(rows[0])}")
        try:
            rows.append([float(item) for item in items])
        except ValueError:
            raise InputError(f"{origin}:{number}: holds a text that is no number; it must be {_FORM}") from None
    if not rows:
        raise InputError(f"{origin}: is empty; it must be {_FORM}")
    return np.array(rows)


def _numpy_table(data: bytes, origin: str) -> np.ndarray[Any, Any]:
    """Return the array of a .npy file, without NumPy's reader, which evaluates the header and trusts its shape.

    Raises:
        InputError: The file is none of version 1 or 2, holds other values than numbers, or is too short or too long.
    """
    bytes_of_length = {b"\x01\x00": 2, b"\x02\x00": 4}.get(data[len(_MAGIC) : len(_MAGIC) + 2], 0)
    start = len(_MAGIC) + 2 + bytes_of_length
    end = start + int.from_bytes(data[start - bytes_of_length : start], "little")
    header = _HEADER.fullmatch(data[start:end]) if bytes_of_length and data.startswith(_MAGIC) else None
    if header is None:
        raise InputError(f"{origin}: is no .npy file of numbers, of version 1 or 2; it must be {_FORM}")
    shape = [int(size) for size in header[3].split(b",") if size.strip()]
    dtype, content = np.dtype(header[1].decode()), data[end:]
    if math.prod(shape) * dtype.itemsize != len(content):
        raise InputError(f"{origin}: states {math.prod(shape)} values in {len(content)} bytes; it must be {_FORM}")
    return np.frombuffer(content, dtype).reshape(shape, order="F" if header[2] == b"True" else "C")
