"""Read how many copies of tokens go to which expert, or which experts sampled tokens go to: JSON, text or NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from synth.model.collective import Floats, Ints
from synth.parallelism.experts.traffic import MAX_COPIES
from topologies.errors import InputError
from topologies.text.fields import shown
from topologies.text.files import origin_of, parse_json, read_bytes, read_text
from topologies.text.npy import numpy_table

MAX_FILE_BYTES = 128 << 20
MAX_CELLS = 8_000_000  # Layers × ranks × experts; each of them takes work, also where the file has no ranks.
MAX_LAYERS = 1000
MAX_EXPERTS = 4096
LEAST_COPIES = 1e-9  # Of figures above 0, so that their quotients are numbers too.
_MOST_LINES = 100_000  # Of a text file, with comments.
_TOKENS_FORM = "whole numbers of shape (layers, tokens, experts of a token)"
_RANGE = f"from 0 to {MAX_COPIES:g}, and at least {LEAST_COPIES:g} if it is not 0"
_FORM = "numbers of shape (layers, experts) or (layers, ranks, experts)"


def read_histogram(path: str | Path, nranks: int) -> Floats:
    """Read the copies from each rank to each expert: float64, shape (layers, ranks, experts); it must not be changed.

    The file is JSON (nested arrays), text (a line for each layer, with commas or blanks between the experts and `#`
    before comments) or a .npy file of numbers. Of shape (layers, experts), every rank has an equal share of the copies.

    Args:
        path: The file; one whose name ends in .npy is NumPy's, others begin with `[` or are text.
        nranks: Number of ranks of the group.

    Raises:
        InputError: The file cannot be read or is too large, an entry is no number, negative, over 10¹⁵ or
            between 0 and 10⁻⁹, the shape is wrong, or there are no copies at all.
    """
    table, origin = _read_table(path, "a routing histogram", _FORM)
    return _checked(table, origin, nranks)


def read_tokens(path: str | Path, nexperts: int, nranks: int) -> Ints:
    """Read the experts of sampled tokens: int64, shape (layers, tokens, experts of a token).

    The file is JSON or .npy, as for `read_histogram`.

    Args:
        path: The file.
        nexperts: Number of experts.
        nranks: Number of ranks of the group.

    Raises:
        InputError: The file cannot be read or is too large, the shape is wrong, an entry is no expert, or a token names
            an expert twice.
    """
    table, origin = _read_table(path, "experts of tokens", _TOKENS_FORM)
    if table.ndim != 3 or table.dtype.kind not in "iuf":
        raise InputError(f"{origin}: has shape {table.shape} of {_kind(table)}; it must be {_TOKENS_FORM}")
    layers, tokens, chosen = table.shape
    if not 1 <= layers <= MAX_LAYERS or tokens < 1 or not 1 <= chosen <= nexperts:
        raise InputError(
            f"{origin}: has {layers} layers of {tokens} tokens with {chosen} of {nexperts} experts; it must be 1 to"
            f" {MAX_LAYERS} layers of 1 token or more, with 1 to {nexperts} experts each"
        )
    _check_cells(origin, layers, nexperts, nranks)
    if table.size > MAX_CELLS:
        raise InputError(f"{origin}: has {table.size} entries; it must be at most {MAX_CELLS}: give fewer tokens")
    right = (table >= 0) & (table < nexperts) & (table == np.floor(table))
    if not right.all():
        layer, token, place = np.argwhere(~right)[0].tolist()
        raise InputError(
            f"{origin}: layer {layer}, token {token}: {table[layer, token, place]:g} is no expert; it must be 0 to"
            f" {nexperts - 1}"
        )
    experts = table.astype(np.int64)
    ordered = np.sort(experts, axis=2)
    is_twice = (ordered[:, :, 1:] == ordered[:, :, :-1]).any(axis=2)
    if is_twice.any():
        layer, token = np.argwhere(is_twice)[0].tolist()
        raise InputError(f"{origin}: layer {layer}, token {token}: names an expert twice; its experts must differ")
    return experts


def _read_table(path: str | Path, what: str, form: str) -> tuple[np.ndarray[Any, Any], str]:
    """Return the table of a file of any form, and the file's name for messages.

    Args:
        path: The file.
        what: What it holds, for messages.
        form: What it must be, for messages.

    Raises:
        InputError: The file cannot be read, is too large, or holds no table.
    """
    origin = origin_of(path)
    if str(path).endswith(".npy"):
        return numpy_table(read_bytes(path, f"{what} (.npy)", MAX_FILE_BYTES), origin, form), origin
    text = read_text(path, f"{what} (JSON, text or .npy)", MAX_FILE_BYTES)
    is_json = text.lstrip().startswith(("[", "{"))
    return _json_table(text, origin, form) if is_json else _text_table(text, origin, form), origin


def _check_cells(origin: str, layers: int, nexperts: int, nranks: int) -> None:
    """Raise InputError if there are too many layers, experts and ranks to place."""
    if layers * nexperts * nranks > MAX_CELLS:
        raise InputError(
            f"{origin}: has {layers} layers × {nexperts} experts for {nranks} ranks; it must be at most {MAX_CELLS}"
            " cells: give fewer layers at a time"
        )


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
        raise InputError(
            f"{origin}: has {table.shape[1]} ranks in a layer; it must be {nranks}, as the group has; or are these"
            " tokens? (--tokens N)"
        )
    _check_cells(origin, layers, experts, nranks)
    copies = table.astype(np.float64)
    wrong = ~((copies == 0) | ((copies >= LEAST_COPIES) & (copies <= MAX_COPIES)))
    if wrong.any():
        place = np.argwhere(wrong)[0].tolist()
        where = ", ".join(f"{axis} {i}" for axis, i in zip(_axes(table.ndim), place, strict=True))
        raise InputError(f"{origin}: {where}: {copies[tuple(place)]:g} copies; it must be {_RANGE}")
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


def _json_table(text: str, origin: str, form: str) -> np.ndarray[Any, Any]:
    """Return the array of a JSON file; InputError where it is none, or rows have different lengths."""
    value = parse_json(text, origin, form)
    if not isinstance(value, list):
        raise InputError(f"{origin}: holds {shown(value)}; it must be nested arrays: {form}")
    try:
        return np.array(value)
    except (ValueError, OverflowError):
        raise InputError(f"{origin}: rows have different lengths; it must be {form}") from None


def _text_table(text: str, origin: str, form: str) -> np.ndarray[Any, Any]:
    """Return the rows of a text file as a table; InputError where an entry is no number or rows differ in length."""
    rows: list[list[float]] = []
    # Both splits are limited, so that a hostile file of many separators takes no memory.
    for number, line in enumerate(text.split("\n", _MOST_LINES), start=1):
        if number > _MOST_LINES or len(rows) > MAX_LAYERS:
            raise InputError(
                f"{origin}:{number}: has more lines; it must be a line for each of 1 to {MAX_LAYERS} layers"
            )
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        items = content.split("," if "," in content else None, MAX_EXPERTS)
        if len(items) > MAX_EXPERTS:
            raise InputError(
                f"{origin}:{number}: has more than {MAX_EXPERTS} numbers; it must be 1 to {MAX_EXPERTS} experts"
            )
        if rows and len(items) != len(rows[0]):
            raise InputError(
                f"{origin}:{number}: has {len(items)} numbers; it must be {len(rows[0])}, as in the first row"
            )
        rows.append([_number(item, f"{origin}:{number}") for item in items])
    if not rows:
        raise InputError(f"{origin}: is empty; it must be {form}")
    return np.array(rows)


def _number(item: str, place: str) -> float:
    """Return the number of an item of a text file; InputError where it is none."""
    try:
        return float(item)
    except ValueError:
        raise InputError(
            f"{place}: {shown(item.strip())} is no number; each line must be the numbers of a layer, without a header"
        ) from None
