"""Short syntax for sets of vertices in the text form: "0-7,12", "nvswitch", "leaf[0-3]"."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["VertexError", "expand_names", "format_names", "format_set", "is_switch_name", "parse_set"]

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.:/-]*")
_RANKS = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_SERIES = re.compile(r"([A-Za-z][A-Za-z0-9_.:/-]*)\[([0-9]{1,9})-([0-9]{1,9})\]")
_NUMBERED = re.compile(r"([A-Za-z][A-Za-z0-9_.:/-]*?)(0|[1-9][0-9]{0,8})")


class VertexError(ValueError):
    """A set that cannot be read; the caller adds the place."""


def is_switch_name(name: str) -> bool:
    """Whether `name` can name a switch: a letter, then letters, digits and _ . : / -."""
    return _NAME.fullmatch(name) is not None


def expand_names(item: str, most: int) -> list[str]:
    """Switch names of "nvswitch" or of the series "leaf[0-3]". Raises VertexError; at most `most` names."""
    series = _SERIES.fullmatch(item)
    if series is not None:
        low, high = int(series[2]), int(series[3])
        if high < low:
            raise VertexError(f"{item!r} counts down; write the smaller number first")
        if high - low >= most:
            raise VertexError(f"{item!r} is {high - low + 1} switches; at most {most}")
        return [f"{series[1]}{i}" for i in range(low, high + 1)]
    if not is_switch_name(item):
        raise VertexError(
            f"{item[:60]!r} is no switch name; write a letter, then letters, digits and _ . : / -, "
            "or a series such as leaf[0-3]"
        )
    return [item]


def parse_set(text: str, nranks: int, switch_vertex: Mapping[str, int]) -> NDArray[np.int64]:
    """Vertices of "0-7,12,nvswitch", int64, in the order written. Raises VertexError (also for a repeat)."""
    parts: list[NDArray[np.int64]] = []
    room = nranks + len(switch_vertex)
    twice = f"{text[:60]!r} names a vertex twice; name each once"
    for item in text.split(","):
        ranks = _RANKS.fullmatch(item)
        if ranks is not None:
            low = int(ranks[1])
            high = low if ranks[2] is None else int(ranks[2])
            if high < low:
                raise VertexError(f"{item!r} counts down; write the smaller rank first")
            if high >= nranks:
                raise VertexError(f"rank {high} does not exist; ranks are 0 to {nranks - 1}")
            room -= high + 1 - low
            if room < 0:  # the same range again and again would fill the memory
                raise VertexError(twice)
            parts.append(np.arange(low, high + 1, dtype=np.int64))
            continue
        names = [item]
        if "[" in item:
            names = expand_names(item, len(switch_vertex) + 1)
        for name in names:
            if name not in switch_vertex:
                raise VertexError(_unknown(name, switch_vertex))
        room -= len(names)
        if room < 0:
            raise VertexError(twice)
        parts.append(np.array([switch_vertex[name] for name in names], dtype=np.int64))
    vertices = np.concatenate(parts)
    if len(np.unique(vertices)) < len(vertices):
        raise VertexError(twice)
    return vertices


def _unknown(name: str, switch_vertex: Mapping[str, int]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name[:100], list(switch_vertex)[:1000], 1)
    if near:
        return f"{name[:60]!r} is no rank and no switch; did you mean {near[0]!r}?"
    listed = ", ".join(list(switch_vertex)[:4]) or "none here"
    return f"{name[:60]!r} is no rank and no switch; write ranks as 0-7 or 3, switches by name ({listed})"


def _runs(values: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for value in values:
        if runs and runs[-1][1] + 1 == value:
            runs[-1] = (runs[-1][0], value)
        else:
            runs.append((value, value))
    return runs


def format_names(names: Sequence[str]) -> list[str]:
    """Items that `expand_names` turns back into exactly these names in this order, series made short."""
    items: list[str] = []
    run: tuple[str, int, int] | None = None

    def close() -> None:
        if run is not None:
            prefix, low, high = run
            items.append(f"{prefix}{low}" if low == high else f"{prefix}[{low}-{high}]")

    for name in names:
        match = _NUMBERED.fullmatch(name)
        if match is None:
            close()
            run = None
            items.append(name)
            continue
        prefix, number = match[1], int(match[2])
        if run is not None and run[0] == prefix and run[2] + 1 == number:
            run = (prefix, run[1], number)
        else:
            close()
            run = (prefix, number, number)
    close()
    return items


def format_set(vertices: Sequence[int], nranks: int, switches: Sequence[str]) -> str:
    """Text of a sorted sequence of vertices; `parse_set` gives the same vertices back."""
    ranks = [v for v in vertices if v < nranks]
    items = [str(a) if a == b else f"{a}-{b}" for a, b in _runs(ranks)]
    items += format_names([switches[v - nranks] for v in vertices if v >= nranks])
    return ",".join(items)
