"""Parsing of a stranger's TOML within bounded memory, and typed reading of its tables.

A wrong value raises an error of one line with its place and remedy.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from datetime import date, time
from numbers import Number
from typing import Any, NoReturn

from topologies.errors import InputError, right_name

MOST_BYTES = 600 << 20  # Memory that tomllib may take.
MOST_DOTS = 8  # tomllib's time grows with the square of a key's length.
# Upper bounds on the bytes that tomllib takes for a table, a value, an inline table, an array, a part of a key and an
# item of an array. An item takes less memory, but some µs.
_TABLE, _VALUE, _INLINE, _ARRAY, _PART, _ITEM = 1100, 300, 100, 70, 500, 240
MOST_DIGITS = 20_000  # Most digits of a number; reading creates many objects per digit.
_DIGITS = re.compile(rf"(?<![A-Za-z0-9_])(?:0[xob])?[0-9A-Fa-f_]{{{MOST_DIGITS + 1}}}")
_HEAD = re.compile(r"^[ \t]*\[", re.MULTILINE)
# The quantifiers are possessive, so that no text makes the search backtrack.
_PIECE = r"(?:[A-Za-z0-9_-]++|\"[^\"\n]*+\"|'[^'\n]*+')"
_DOTTED = re.compile(rf"(?<![A-Za-z0-9_-])(?:{_PIECE}[ \t]*+\.[ \t]*+){{{MOST_DOTS + 1}}}")


def shown(value: object) -> str:
    """Return a value as one short line for an error message: its text, or its type where that would be long.

    It has at most 64 characters; a longer text is cut.
    """
    if isinstance(value, str):
        text = repr(value[:80])
    elif isinstance(value, dict):
        text = "a table"
    elif isinstance(value, list):
        text = f"an array of {len(value)}"
    elif isinstance(value, int) and abs(value) > 10**30:
        text = "a number of more than 30 digits"
    elif value is None or isinstance(value, Number | date | time):
        text = str(value).lower() if isinstance(value, bool) else str(value)
    else:
        text = f"a {type(value).__name__}"
    return text if len(text) <= 64 else text[:60] + "…'"


class Fields:
    """A table of a TOML or JSON document, with the document's text and name, so that errors can name a place.

    Attributes:
        values: The table as tomllib or json read it.
        text: The whole document; "" for JSON, where errors name no line.
        origin: Name of the document in errors.
        table: Name of the table, such as "nic" or "links"; "" for the top table.
        index: Number of this table among several [[links]], from 0; None for a single table.
    """

    def __init__(
        self, values: Mapping[str, Any], text: str, origin: str, table: str = "", index: int | None = None
    ) -> None:
        self.values, self.text, self.origin, self.table, self.index = values, text, origin, table, index

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise InputError with the place, the field and the problem.

        Args:
            key: The field; "" for the table as a whole.
            problem: What is wrong, and after "; it must be" what would be right.
        """
        place = self.origin
        line = self._line(key)
        if line:
            place += f":{line}"
        if self.index is not None:
            place += f": [[{self.table}]] number {self.index + 1}"
        elif self.table:
            place += f": [{self.table}]"
        raise InputError(f"{place}: {key}: {problem}" if key else f"{place}: {problem}")

    def only(self, allowed: Sequence[str]) -> None:
        """Raise InputError for the first key that is not in `allowed`; the message names similar or right keys."""
        for key in self.values:
            if key not in allowed:
                right = right_name(key, allowed)
                self.fail(shown(key), f"unknown key; {right}")

    def string(self, key: str, default: str | None = None, right: str = "") -> str:
        """Return the text of `key`.

        Args:
            key: The field.
            default: The text if the field is missing; None if it must be there.
            right: What a text of the field is, for a value of another type; "" for any text.

        Raises:
            InputError: The value is no text, or it is missing and there is no default.
        """
        value = self._get(key, default, 'a text, such as "0-7"' if self.table else "a text")
        if type(value) is not str:
            self.fail(key, f"{shown(value)} is no text; it must be {right or 'one, in quotes'}")
        return value

    def matching(self, key: str, pattern: str, right: str) -> str:
        """Return the text of `key`; "" where it is missing or empty.

        Args:
            key: The key.
            pattern: Regular expression that the whole text must match, unless it is empty.
            right: Description of a right text, for the error message.

        Raises:
            InputError: The value is no text, or the text does not match.
        """
        value = self.string(key, "")
        if value and not re.fullmatch(pattern, value):
            self.fail(key, f"{shown(value)}; it must be {right}")
        return value

    def boolean(self, key: str) -> bool:
        """Return the value of `key`, False where it is missing; raise InputError if it is not true or false."""
        value = self._get(key, False, "true or false")
        if type(value) is not bool:
            self.fail(key, f"{shown(value)} is neither true nor false; it must be one of these, without quotes")
        return value

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        """Return the whole number of `key`, from `low` to `high`; the default, if there is one, where it is missing.

        The default need not lie in the range.

        Raises:
            InputError: The value is no such number, or it is missing and there is no default.
        """
        if default is not None and key not in self.values:
            return default
        value = self._get(key, None, f"a whole number from {low} to {high}")
        if type(value) is not int:
            self.fail(key, f"{shown(value)} is no whole number; it must be one from {low} to {high}")
        if not low <= value <= high:
            self.fail(key, f"{shown(value)} is out of range; it must be {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float, unit: str, default: float | None = None) -> float:
        """Return the number of `key`, from `low` to `high`; the default, if there is one, where it is missing.

        `unit` is the number's unit in errors. The default need not lie in the range.

        Raises:
            InputError: The value is no such number (NaN is none), or it is missing and there is no default.
        """
        if default is not None and key not in self.values:
            return default
        value = self._get(key, None, f"a number in {unit}")
        if type(value) not in (int, float):
            self.fail(key, f"{shown(value)} is no number; it must be one in {unit}, without quotes")
        if not low <= value <= high:
            self.fail(key, f"{shown(value)} is out of range; it must be {low:g} to {high:g} {unit}")
        return float(value)

    def strings(self, key: str, default: Sequence[str] | None = None) -> list[str]:
        """Return the array of texts of `key` as a new list, the default where it is missing.

        Raises:
            InputError: The value is no array of texts, or it is missing and there is no default.
        """
        value = self._get(key, default, 'an array of texts, such as ["a", "b"]')
        if not isinstance(value, (list, tuple)):
            self.fail(key, f'{shown(value)} is no array; it must be an array of texts, such as ["a", "b"]')
        for item in value:
            if type(item) is not str:
                self.fail(key, f"holds {shown(item)}, which is no text; it must be one, in quotes")
        return list(value)

    def tables(self, key: str) -> list[Fields]:
        """Return the [[key]] tables in their order, none where the key is missing.

        Raises:
            InputError: The value is no array of tables.
        """
        value = self.values.get(key, [])
        if not isinstance(value, list) or any(not isinstance(item, dict) for item in value):
            self.fail(key, f"{shown(value)} is no array of tables; it must be one, each begun by a line [[{key}]]")
        return [Fields(item, self.text, self.origin, key, i) for i, item in enumerate(value)]

    def sub(self, key: str) -> Fields | None:
        """Return the table [key], or None where there is none.

        Raises:
            InputError: The value is no table.
        """
        if key not in self.values:
            return None
        value = self.values[key]
        if not isinstance(value, dict):
            self.fail(key, f"{shown(value)} is no table; it must be one, begun by a line [{key}]")
        return Fields(value, self.text, self.origin, f"{self.table}.{key}" if self.table else key)

    def _get(self, key: str, default: Any, right: str) -> Any:
        """Return the value of `key` as it is, or the default where it is missing.

        Raises:
            InputError: The key is missing and the default is None; the message describes a right value as `right`.
        """
        if key in self.values:
            return self.values[key]
        if default is None:
            self.fail(key, f"missing; it must be {right}")
        return default

    def _line(self, key: str) -> int:
        """Return the number (from 1) of the line of a field, or else that of its table's header.

        It is 0 where neither is on a line of its own. `key` is the field, "" for the table.
        """
        lines = self.text.split("\n")
        start = 0  # Number of lines before the table's first field.
        if self.table:
            head = f"[[{self.table}]]" if self.index is not None else f"[{self.table}]"
            heads = [i for i, line in enumerate(lines) if line.split("#")[0].replace(" ", "").strip() == head]
            if len(heads) <= (self.index or 0):
                return 0
            start = heads[self.index or 0] + 1
        pattern = re.compile(r"\s*[\"']?" + re.escape(key.strip("'\"")) + r"[\"']?\s*[=.]")
        for number, line in enumerate(lines[start:], start + 1):
            # A row of a matrix also starts with a bracket, but its field is on an earlier line.
            any_head = re.match(r"\s*\[+\s*([A-Za-z_\"']+)", line)
            if any_head is not None:
                if not self.table and any_head[1] == key:
                    return number
                break
            if pattern.match(line):
                return number
        return start


def parse_toml(text: str, origin: str, right: str) -> Fields:
    """Parse a TOML document and return its top table.

    Args:
        text: The document.
        origin: Name of the document, with which errors begin.
        right: Description of a right document, for the error about one that is nested too deeply or too large.

    Raises:
        InputError: The text is no TOML, or it would take too much memory or time; the message is one line.
    """
    long_key = _DOTTED.search(text)
    if long_key is not None:
        line = text.count("\n", 0, long_key.start()) + 1
        raise InputError(f"{origin}:{line}: a key of more than {MOST_DOTS} dots; it must be {right}")
    long_number = _DIGITS.search(text)
    if long_number is not None:
        line = text.count("\n", 0, long_number.start()) + 1
        raise InputError(f"{origin}:{line}: a number of more than {MOST_DIGITS} digits; it must be {right}")
    if _estimate(text) > MOST_BYTES:
        raise InputError(f"{origin}: too many tables, keys and values for one document; it must be {right}")
    try:
        return Fields(tomllib.loads(text), text, origin)
    except RecursionError:
        raise InputError(f"{origin}: nested too deeply; it must be {right}") from None
    except ValueError as error:
        raise InputError(_complaint(text, origin, " ".join(str(error).split())[:200])) from None


def _estimate(text: str) -> int:
    """Return an upper bound on the bytes that tomllib takes for the text."""
    counts = {mark: text.count(mark) for mark in "={[.,"}
    return (
        len(_HEAD.findall(text)) * _TABLE
        + counts["="] * _VALUE
        + counts["{"] * _INLINE
        + counts["["] * _ARRAY
        + counts["."] * _PART
        + counts[","] * _ITEM
    )


# What to do about a complaint of tomllib that names no cure.
_CURES = {
    "Invalid value": "; a text must stand in quotes",
    "Cannot overwrite a value": "; each name must stand once",
}


def _complaint(text: str, origin: str, problem: str) -> str:
    """Return tomllib's complaint with its line after the document's name, as in all errors.

    Args:
        text: The document.
        origin: Name of the document.
        problem: Message of tomllib's error, on one line.
    """
    place = re.search(r" \(at line (\d+), column (\d+)\)$", problem)
    if place is not None:
        problem = problem[: place.start()]
        return f"{origin}:{place[1]}: not TOML: {problem}, column {place[2]}{_CURES.get(problem, '')}"
    if problem.endswith(" (at end of document)"):
        problem = problem.removesuffix(" (at end of document)") + ", at the end of the file"
        return f"{origin}:{text.rstrip().count(chr(10)) + 1}: not TOML: {problem}"
    if "digits" in problem:  # Python's limit; its advice is for programmers.
        return f"{origin}: not TOML: a number has too many digits; it must be a number with a few"
    return f"{origin}: not TOML: {problem}"
