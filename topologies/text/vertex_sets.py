"""Short notation for sets of vertices in the text form: "0-7,12", "nvswitch", "leaf[0-3]"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from topologies.errors import InputError, did_you_mean
from topologies.topology import SWITCH_NAME, is_switch_name

RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SERIES = re.compile(rf"({SWITCH_NAME})\[([0-9]{{1,9}})-([0-9]{{1,9}})\]")
_NUMBERED = re.compile(rf"({SWITCH_NAME}?)(0|[1-9][0-9]{{0,8}})")


def expand_names(item: str, most: int) -> list[str]:
    """Return the switch names of "nvswitch" or of a series "leaf[0-3]" (both ends included).

    Args:
        item: The name or series.
        most: Most names that a series may stand for.

    Raises:
        InputError: The item is no name or series, or the series counts down or is too long. As in all functions of this
            module, the caller adds the place of the text.
    """
    series = _SERIES.fullmatch(item)
    if series is not None:
        low, high = int(series[2]), int(series[3])
        if high < low:
            raise InputError(f"{item!r} counts down; it must have the smaller number first")
        if high - low >= most:
            raise InputError(f"{item!r} is {high - low + 1} switches; it must be at most {most}")
        return [f"{series[1]}{i}" for i in range(low, high + 1)]
    if not is_switch_name(item):
        raise InputError(
            f"{item[:60]!r} is no switch name; it must be a letter, then letters, digits and _ . : / -, "
            "or a series such as leaf[0-3]"
        )
    return [item]


def parse_set(text: str, nranks: int, switch_vertex: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the vertices of "0-7,12,nvswitch,leaf[0-3]" in the order of the text: int64 (vertices,), at least one.

    Args:
        text: Ranks, ranges of ranks (both ends included), switches and series of switches, with commas.
        nranks: Number of ranks.
        switch_vertex: Vertex of each switch by name.

    Raises:
        InputError: A part is nothing of that kind (an empty text too), does not exist, counts down, or is repeated.
    """
    if text.isdecimal() and len(text) < 10 and int(text) < nranks:  # A fast path for a million single ranks.
        return np.array([int(text)], dtype=np.int64)
    parts: list[NDArray[np.int64]] = []
    remaining = nranks + len(switch_vertex)
    repeated = InputError(f"{text[:60]!r} names a vertex twice; it must name each once")
    for item in text.split(","):
        ranks = RANKS.fullmatch(item)
        if ranks is not None:
            low, high = int(ranks[1]), int(ranks[2] or ranks[1])
            if high < low:
                raise InputError(f"{item!r} counts down; it must have the smaller rank first")
            if high >= nranks:
                raise InputError(f"rank {high} does not exist; it must be 0 to {nranks - 1}")
            remaining -= high + 1 - low
            if remaining < 0:  # A range that is repeated many times would fill the memory.
                raise repeated
            parts.append(np.arange(low, high + 1, dtype=np.int64))
            continue
        names = expand_names(item, len(switch_vertex) + 1) if "[" in item else [item]
        for name in names:
            if name not in switch_vertex:
                raise InputError(_unknown(name, list(switch_vertex)))
        remaining -= len(names)
        if remaining < 0:
            raise repeated
        parts.append(np.array([switch_vertex[name] for name in names], dtype=np.int64))
    vertices = np.concatenate(parts)
    if len(np.unique(vertices)) < len(vertices):
        raise repeated
    return vertices


def _unknown(name: str, switches: Sequence[str]) -> str:
    """Return the message about a name that is no rank and no switch."""
    listed = ", ".join(switches[:4]) or "none here"
    right = did_you_mean(name, switches) or f"it must be a rank as in 0-7 or 3, or a switch by name ({listed})"
    return f"{name[:60]!r} is no rank and no switch; {right}"


def _runs(numbered: Iterable[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Return (prefix, first, last) of each run of consecutive numbers of one prefix.

    The number -1 stands for none; it is a run of its own.
    """
    runs: list[tuple[str, int, int]] = []
    for prefix, number in numbered:
        if runs and runs[-1][0] == prefix and 0 <= runs[-1][2] == number - 1:
            runs[-1] = (prefix, runs[-1][1], number)
        else:
            runs.append((prefix, number, number))
    return runs


def format_names(names: Sequence[str]) -> list[str]:
    """Return short items for a list of names, from which `expand_names` restores exactly these names in this order."""
    matches = [(_NUMBERED.fullmatch(name), name) for name in names]
    return [
        prefix if low < 0 else f"{prefix}{low}" if low == high else f"{prefix}[{low}-{high}]"
        for prefix, low, high in _runs((match[1], int(match[2])) if match else (name, -1) for match, name in matches)
    ]


def format_set(vertices: Sequence[int], nranks: int, switches: Sequence[str]) -> str:
    """Return the text of an ascending sequence of vertices, from which `parse_set` restores the same vertices.

    It is "" for no vertices, which `parse_set` refuses.

    Args:
        vertices: Ranks, then switches by vertex (nranks + j for `switches[j]`).
        nranks: Number of ranks.
        switches: Names of all switches.
    """
    if len(vertices) == 1 and vertices[0] < nranks:
        return str(vertices[0])
    ranks = _runs(("", v) for v in vertices if v < nranks)
    items = [str(low) if low == high else f"{low}-{high}" for _, low, high in ranks]
    items += format_names([switches[v - nranks] for v in vertices if v >= nranks])
    return ",".join(items)
