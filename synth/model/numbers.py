"""What users give, on the command line and in Python, as numbers, names and the like; InputError for anything else."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from topologies.errors import InputError
from topologies.text.fields import shown

MOST_SECONDS = 1e7
_MANY_SECONDS = 300
_UNITS = (("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("", 1.0))


def parse_seconds(text: str, what: str) -> float:
    """Seconds from `30s`, `500ms`, `5m`, `1h` or `30`; InputError, beginning with `what`, for anything else."""
    for unit, factor in _UNITS:
        if text.endswith(unit):
            number = text[: len(text) - len(unit)]
            try:
                value = float(number) * factor
            except ValueError:
                break
            if not 0 < value < MOST_SECONDS:
                raise InputError(
                    f"{what} {text[:64]}: must be more than 0 seconds and less than {MOST_SECONDS:g}, as in 30s or 5m"
                )
            return value
    raise InputError(f"{what} {shown(text)}: is not a time; write it as in 30s, 500ms or 5m")


def format_seconds(seconds: float) -> str:
    """As `parse_seconds` reads them: whole seconds, or minutes where there are many; rounded up."""
    return f"{math.ceil(seconds / 60)}m" if seconds > _MANY_SECONDS else f"{math.ceil(seconds)}s"


def whole(value: Any, what: str) -> int:
    """A whole number as an int. Raises InputError, beginning with `what`, for anything else, bools too."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise InputError(f"{what}: {_given(value)} is no whole number; it must be one, such as 4")


def whole_numbers(values: Any, what: str) -> tuple[int, ...]:
    """Several of them. Raises InputError, beginning with `what`, for what is no list of whole numbers."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InputError(f"{what}: {_given(values)} is no list; it must be one of whole numbers, such as [0, 2]")
    return tuple(whole(value, what) for value in values)


def as_seconds(value: Any, what: str) -> float:
    """Seconds of a number, or of text such as `30s`."""
    if isinstance(value, str):
        return parse_seconds(value, what)
    try:
        if not isinstance(value, bool | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise InputError(f"{what}: {_given(value)} is no number; it must be seconds, such as 30 or '30s'")


def as_text(value: Any, what: str) -> str:
    """Text."""
    if not isinstance(value, str):
        raise InputError(f"{what}: {_given(value)} is no text; it must be a name")
    return value


def as_texts(values: Any, what: str) -> tuple[str, ...]:
    """Several texts, or one."""
    values = [values] if isinstance(values, str) else values
    if not isinstance(values, Iterable):
        raise InputError(f"{what}: {_given(values)} is no list; it must be one of names, such as ['link:0-1']")
    return tuple(as_text(value, what) for value in values)


def as_flag(value: Any, what: str) -> bool:
    """True or False."""
    if type(value).__name__ not in ("bool", "bool_"):  # NumPy's too, which commands load later
        raise InputError(f"{what}: {_given(value)} is neither; it must be True or False")
    return bool(value)


def as_folder(value: Any, what: str) -> Path:
    """The name of a folder, as text or a Path."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise InputError(f"{what}: {_given(value)} is no name of a folder; it must be text or a Path")
    return Path(value)


def _given(value: object) -> str:
    """What was given as one short line, as Python writes it."""
    return str(value) if isinstance(value, bool) else shown(value)
