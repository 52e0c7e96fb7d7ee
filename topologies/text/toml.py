"""TOML from a stranger: parsed within bounded memory, every complaint one line with its place."""

from __future__ import annotations

import re
import tomllib
from typing import Any

from topologies.errors import InputError

MOST_BYTES = 600 << 20  # that tomllib may take
MOST_DOTS = 8  # tomllib takes the square of a key's length
# What tomllib takes for one of each, at most: a table, a value, an inline table, an array, a part of a key; an item of
# an array takes less, but some µs each.
_TABLE, _VALUE, _INLINE, _ARRAY, _PART, _ITEM = 1100, 300, 100, 70, 500, 240
_HEAD = re.compile(r"^[ \t]*\[", re.MULTILINE)
# Possessive, so that no text makes the search go back and forth.
_PIECE = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_DOTTED = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PIECE}[ \t]*+\.[ \t]*+){{{MOST_DOTS + 1}}}")


def parse_toml(text: str, origin: str, right: str) -> dict[str, Any]:
    """The document that `text` is.

    right: what it must be, for the complaint about one that is nested too deeply or too large.
    Raises InputError (one line, which begins with `origin`) where it is not TOML or is no sensible document.
    """
    deep = _DOTTED.search(text)
    if deep is not None:
        line = text.count("\n", 0, deep.start()) + 1
        raise InputError(f"{origin}:{line}: a key of more than {MOST_DOTS} dots; it must be {right}")
    if _estimate(text) > MOST_BYTES:
        raise InputError(f"{origin}: too many tables, keys and values for one document; it must be {right}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise InputError(f"{origin}: nested too deeply; it must be {right}") from None
    except ValueError as error:
        raise InputError(_complaint(text, origin, " ".join(str(error).split())[:200])) from None


def _estimate(text: str) -> int:
    """Bytes that tomllib takes for the text, at most."""
    counted = {mark: text.count(mark) for mark in "={[.,"}
    return (
        len(_HEAD.findall(text)) * _TABLE
        + counted["="] * _VALUE
        + counted["{"] * _INLINE
        + counted["["] * _ARRAY
        + counted["."] * _PART
        + counted[","] * _ITEM
    )


def _complaint(text: str, origin: str, problem: str) -> str:
    """tomllib's complaint with its line where errors have it, after the file's name."""
    place = re.search(r" \(at line (\d+), column (\d+)\)$", problem)
    if place is not None:
        return f"{origin}:{place[1]}: not TOML: {problem[: place.start()]}, column {place[2]}"
    if problem.endswith(" (at end of document)"):
        problem = problem.removesuffix(" (at end of document)") + ", at the end of the file"
        return f"{origin}:{text.rstrip().count(chr(10)) + 1}: not TOML: {problem}"
    return f"{origin}: not TOML: {problem}"
