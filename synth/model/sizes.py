"""Read message sizes such as 64K, and sizes of blocks: a matrix for an alltoallv, a list for an allgatherv, a trace."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from synth.model.collective import Ints
from synth.model.numbers import whole
from synth.model.text import format_count
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import nested_too_deeply, origin_of, read_bytes, read_text
from topologies.text.npy import numpy_table

MAX_FILE_BYTES = 16 * 2**20
MAX_POSITIONS = 4096
MAX_CELLS = 5_000_000  # entries (rank, chunk); a file of a few lines can state any number of them
MAX_SIZE = 2**60  # bytes
MAX_TRACE_BYTES = 128 * 2**20  # of a .npy file
MAX_CALLS = 4096  # matrices of a trace
MAX_TRACE_CELLS = 8_000_000  # sizes of a trace
MAX_TRACE_SIZE = 2**36  # bytes of a block of a trace, so that sums fit 63 bits
_SIZE = re.compile(r"([0-9]{1,30})\s*([KMGkmg]?)(?:(?<=[KMGkmg])[Ii])?B?")
_POWER = {"": 0, "K": 10, "M": 20, "G": 30}
_SIZE_FORM = "it must be bytes, or K, M or G for powers of 1024, such as 4096, 64K or 2G"
_TABLE_FORM = "it must be an array of k arrays of k sizes in bytes"
_LIST_FORM = "it must be an array of k sizes in bytes"
_MATRICES = "matrices of k rows of k sizes in bytes, one for each call"
_TRACE_FORM = f"it must be {_MATRICES}"


def parse_size(text: str, label: str) -> int:
    """Return the bytes of `4096`, `64K`, `1M`, `2GiB`, …: K, M and G are powers of 1024, as in nccl-tests.

    Upper and lower case are the same, but bytes are B, since b means bits.

    Raises:
        InputError: The text is no such size, or it is 0, negative or over 2**60 bytes; the message begins with `label`.
    """
    size = _parse_bytes(text, label)
    if size < 1:
        raise InputError(f"{label}: {shown(text)} is no size; it must be 1 byte or more, such as 4096 or 64K")
    return size


def _parse_bytes(text: str, label: str) -> int:
    """Return the bytes of a size, which may be 0; raise InputError for a text that is no size or over 2**60 bytes."""
    plain = text.strip()
    size = _SIZE.fullmatch(plain) if plain.isascii() else None
    if size is None and re.fullmatch(r"[0-9]{1,30}\s*(?:[KMGkmg][Ii]?)?b(?:its?)?", plain):
        raise InputError(f"{label}: {shown(text)} is in bits; it must be in bytes, such as 64K or 64KB")
    if size is None:
        kind = "negative" if re.fullmatch(r"-\s*[0-9].*", plain) else "no size"
        raise InputError(f"{label}: {shown(text)} is {kind}; {_SIZE_FORM}")
    value = int(size[1]) << _POWER[size[2].upper()]
    if value > MAX_SIZE:
        raise InputError(f"{label}: {shown(text)} is too large; it must be at most {MAX_SIZE} bytes (2^60, {2**30}G)")
    return value


def read_sizes(path: str | Path) -> Ints:
    """Read the bytes [i, j] that position i sends to position j: int64, shape (k, k), 2 ≤ k ≤ 4096.

    The file is text, k rows of k sizes with commas or blanks between them and `#` before comments; or JSON,
    an array of k arrays. Sizes are as in `parse_size`, and may be 0.

    Raises:
        InputError: The file cannot be read or is too large, an entry is no size, more than 5 million sizes are above 0,
            or the rows do not make a square.
    """
    text, origin = read_text(path, "a file with k rows of k sizes", MAX_FILE_BYTES), origin_of(path)
    rows = _json_rows(text, origin) if _is_json(text) else _text_rows(text, origin)
    width = len(rows[0][1]) if rows else 0
    for place, row in rows:
        if len(row) != width:
            raise InputError(
                f"{place}: has {format_count(len(row), 'size')}, the first row has {width}; it must have as many"
            )
    if len(rows) != width or not 2 <= width <= MAX_POSITIONS:
        raise InputError(
            f"{origin}: has {format_count(len(rows), 'row')} of {format_count(width, 'size')};"
            f" it must be k rows of k sizes, k from 2 to {MAX_POSITIONS}"
        )
    sizes = np.array([row for _, row in rows], dtype=np.int64)
    if np.count_nonzero(sizes) > MAX_CELLS:
        raise InputError(f"{origin}: {np.count_nonzero(sizes)} sizes above 0; it must be at most {MAX_CELLS}")
    return sizes


def read_trace(path: str | Path, nranks: int) -> Ints:
    """Read a trace of all-to-alls: int64, shape (calls, k, k), the bytes [c, i, j] from position i to j in call c.

    The file is text, k rows of k sizes for each call, as in `read_sizes`; JSON, an array of such arrays; or a .npy file
    of whole numbers of shape (calls, k, k). What a rank sends to itself is set to 0, as it takes no link.

    Args:
        path: The file; one whose name ends in .npy is NumPy's, others begin with `[` or are text.
        nranks: Number of ranks of the group, k.

    Raises:
        InputError: The file cannot be read or is too large, an entry is no size of at most 2³⁶ bytes, the matrices have
            another shape or are too many, or no rank ever sends anything to another rank.
    """
    origin = origin_of(path)
    if str(path).endswith(".npy"):
        table = numpy_table(read_bytes(path, "a trace of matrices (.npy)", MAX_TRACE_BYTES), origin, _MATRICES)
        stated = _whole_table(table, origin, nranks)
    else:
        text = read_text(path, "a trace of matrices (text, JSON or .npy)", MAX_FILE_BYTES)
        stated = np.array(_trace_rows(text, origin, nranks), dtype=np.int64).reshape(-1, nranks, nranks)
    if not len(stated):
        raise InputError(f"{origin}: is empty; it must be {_MATRICES}")
    if len(stated) > MAX_CALLS or stated.size > MAX_TRACE_CELLS:
        raise InputError(
            f"{origin}: has {len(stated)} matrices of {nranks} × {nranks} sizes;"
            f" it must be 1 to {MAX_CALLS}, of at most {MAX_TRACE_CELLS} sizes in all"
        )
    wrong = (stated < 0) | (stated > MAX_TRACE_SIZE)
    if wrong.any():
        call, i, j = np.argwhere(wrong)[0].tolist()
        value = f"{stated[call, i, j]:.15g}" if stated.dtype.kind == "f" else f"{stated[call, i, j]}"
        raise InputError(f"{origin}: call {call}, row {i}, column {j}: {value} bytes; it must be 0 to {MAX_TRACE_SIZE}")
    trace: Ints = stated.astype(np.int64)
    trace[:, np.arange(nranks), np.arange(nranks)] = 0
    if not trace.any():
        raise InputError(f"{origin}: no rank sends anything to another rank; some size must be above 0")
    return trace


def _whole_table(table: np.ndarray[Any, Any], origin: str, nranks: int) -> np.ndarray[Any, Any]:
    """Return a table of whole numbers, of floats as float64; InputError where it has another shape or other numbers."""
    if table.ndim != 3 or table.shape[1:] != (nranks, nranks):
        raise InputError(f"{origin}: has shape {table.shape}; it must be (calls, {nranks}, {nranks}), as the group has")
    is_whole = table == np.floor(table)
    if not is_whole.all():
        call, i, j = np.argwhere(~is_whole)[0].tolist()
        raise InputError(f"{origin}: call {call}, row {i}, column {j}: {table[call, i, j]:g} bytes is no whole number")
    return table.astype(np.float64) if table.dtype.kind == "f" else table


def _trace_rows(text: str, origin: str, nranks: int) -> list[list[int]]:
    """Return the rows of all matrices of a text or JSON file of a trace, one after another.

    Raises:
        InputError: A size is wrong, a matrix or a row has another length, or there are too many of them.
    """
    rows: list[tuple[str, list[int]]] = []
    if _is_json(text):
        for number, matrix in enumerate(_json_array(text, origin, _TRACE_FORM), start=1):
            if not isinstance(matrix, list) or len(matrix) != nranks:
                what = f"has {format_count(len(matrix), 'row')}" if isinstance(matrix, list) else f"is {shown(matrix)}"
                raise InputError(f"{origin}: matrix {number} {what}; it must be {nranks} rows, as the group has ranks")
            rows += _json_matrix(matrix, f"{origin}: matrix {number}: ", _TRACE_FORM)
    else:
        rows = _text_rows(text, origin, MAX_CALLS * nranks)
    for place, row in rows:
        if len(row) != nranks:
            raise InputError(
                f"{place}: has {format_count(len(row), 'size')}; it must be {nranks}, as the group has ranks"
            )
    if len(rows) % nranks:
        raise InputError(f"{origin}: has {format_count(len(rows), 'row')}; it must be {nranks} for each matrix")
    return [row for _, row in rows]


def read_size_list(path: str | Path) -> Ints:
    """Read the bytes of each position's block: int64, shape (k,), 2 ≤ k ≤ 4096.

    The file is text, k sizes with commas, blanks or ends of lines between them and `#` before comments; or JSON, an
    array of k sizes. Sizes are as in `parse_size`, and may be 0.

    Raises:
        InputError: The file cannot be read or is too large, an entry is no size, or there are too few or too many.
    """
    text, origin = read_text(path, "a file with the list of sizes", MAX_FILE_BYTES), origin_of(path)
    if _is_json(text):
        sizes = _json_row(_json_array(text, origin, _LIST_FORM), origin)
    else:
        sizes = [size for _, row in _text_rows(text, origin) for size in row]
    return _checked_list(sizes, origin)


def parse_size_list(text: str, label: str) -> Ints:
    """Return the bytes of sizes with commas between them, such as `1M,0,3M`: int64, shape (k,), 2 ≤ k ≤ 4096.

    Raises:
        InputError: An item is no size, or there are too few or too many; the message begins with `label`.
    """
    items = text.split(",")
    _check_count(len(items), "sizes", label)
    return _checked_list([_parse_bytes(item, f"{label}: size {i}") for i, item in enumerate(items, start=1)], label)


def _checked_list(sizes: list[int], label: str) -> Ints:
    """Return sizes as int64; raise InputError, with a message that begins with `label`, unless 2 to 4096 are there."""
    if not 2 <= len(sizes) <= MAX_POSITIONS:
        raise InputError(
            f"{label}: has {format_count(len(sizes), 'size')}; it must be one for each rank, 2 to {MAX_POSITIONS}"
        )
    return np.array(sizes, dtype=np.int64)


def _is_json(text: str) -> bool:
    """Return whether the content of a file of sizes is meant as JSON."""
    return text.lstrip().startswith(("[", "{"))


def _check_count(count: int, noun: str, place: str, most: int = MAX_POSITIONS) -> None:
    """Raise InputError, with a message that begins with `place`, if there are more than `most` rows or columns.

    Args:
        count: Number of rows or columns.
        noun: What is counted ("rows"), for the message.
        place: Place in the file, for the message.
        most: The most that may be there.
    """
    if count > most:
        raise InputError(f"{place}: has {count} {noun} or more; it must be at most {most}")


def _text_rows(text: str, origin: str, most_rows: int = MAX_POSITIONS) -> list[tuple[str, list[int]]]:
    """Read the rows of a text file's content, each as (`origin`:line, sizes in bytes).

    Empty lines and what follows `#` are left out. A line with a comma is split at commas, else at blanks.

    Raises:
        InputError: A size is wrong, or there are more than `most_rows` rows or 4096 sizes in a row.
    """
    rows: list[tuple[str, list[int]]] = []
    for number, line in enumerate(text.split("\n"), start=1):
        content = line.split("#")[0].strip()
        if not content:
            continue
        items = [i.strip() for i in content.split(",")] if "," in content else content.split()
        _check_count(len(items), "sizes in a row", f"{origin}:{number}")
        _check_count(len(rows) + 1, "rows", f"{origin}:{number}", most_rows)
        row = [_parse_bytes(item, f"{origin}:{number}: column {j}") for j, item in enumerate(items, start=1)]
        rows.append((f"{origin}:{number}", row))
    return rows


def _json_array(text: str, origin: str, form: str) -> list[Any]:
    """Return the array that a JSON file holds, of at most 4096 items; what they are is not checked.

    Raises:
        InputError: It is not JSON, no array, nested too deeply or too long; the message ends with `form`.
    """
    if nested_too_deeply(text):
        raise InputError(f"{origin}: nested too deeply; {form}")
    try:
        table = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(f"{origin}:{error.lineno}: not JSON: {error.msg}, column {error.colno}") from None
    except ValueError:
        raise InputError(f"{origin}: holds a number of more than 4300 digits; {form}") from None
    if not isinstance(table, list):
        raise InputError(f"{origin}: holds {shown(table)}; {form}")
    _check_count(len(table), {_TABLE_FORM: "rows", _TRACE_FORM: "matrices"}.get(form, "sizes"), origin)
    return table


def _json_rows(text: str, origin: str) -> list[tuple[str, list[int]]]:
    """Read the rows of a JSON file's content, each as (`origin`: row i, sizes in bytes).

    Raises:
        InputError: It is not JSON, no array of arrays, nested too deeply, has a wrong size, or has more than 4096 rows
            or sizes in a row.
    """
    return _json_matrix(_json_array(text, origin, _TABLE_FORM), f"{origin}: ", _TABLE_FORM)


def _json_matrix(matrix: list[Any], label: str, form: str) -> list[tuple[str, list[int]]]:
    """Return the rows of a matrix of JSON values, each as (label and `row i`, sizes in bytes).

    Raises:
        InputError: A row is no array, has a wrong size, or has more than 4096 sizes; the message begins with `label`.
    """
    rows: list[tuple[str, list[int]]] = []
    for i, row in enumerate(matrix, start=1):
        if not isinstance(row, list):
            raise InputError(f"{label}row {i} is {shown(row)}; {form}")
        _check_count(len(row), "sizes in a row", f"{label}row {i}")
        rows.append((f"{label}row {i}", _json_row(row, f"{label}row {i}")))
    return rows


def _json_row(row: list[Any], label: str) -> list[int]:
    """Return the bytes of the sizes of a JSON array; raise InputError, beginning with `label`, for a wrong size."""
    return [_json_size(value, f"{label}, column {j}") for j, value in enumerate(row, start=1)]


def _json_size(value: Any, label: str) -> int:
    """Return the bytes of a JSON value: a whole number, also as 4.0, or a text such as "64K"; it may be 0.

    Raises:
        InputError: The value is something else, or negative or over 2**60 bytes; the message begins with `label`.
    """
    if type(value) in (int, float) and -MAX_SIZE <= value <= MAX_SIZE and value == int(value):
        value = str(int(value))
    if type(value) is not str:
        raise InputError(f"{label}: {shown(value)} is no size; {_SIZE_FORM}")
    return _parse_bytes(value, label)


def size_in_bytes(value: int | str, name: str) -> int:
    """Return the bytes of a size that is a whole number or text such as `64K`.

    Args:
        value: The size.
        name: Name of the argument for error messages.

    Raises:
        InputError: The value is no size.
    """
    if isinstance(value, float):
        raise InputError(f"{name}: {value} is no size; it must be a whole number of bytes, or a text such as 1M")
    if not isinstance(value, str):
        value = whole(value, name)
        if not 1 <= value <= MAX_SIZE:
            raise InputError(f"{name}: {value} is no size; it must be 1 to {MAX_SIZE} bytes, or a text such as 64K")
        return value
    return parse_size(value, name)
