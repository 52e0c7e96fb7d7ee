"""Numbers as users write them, on the command line and in Python: seconds, and whole numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from topologies.errors import InputError

MOST_SECONDS = 1e7
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
                raise InputError(f"{what} {text}: must be more than 0 seconds, as in 30s")
            return value
    raise InputError(f"{what} {text!r}: is not a time; write it as in 30s, 500ms or 5m")


def whole(value: Any, what: str) -> int:
    """A whole number as an int. Raises InputError, beginning with `what`, for anything else, bools too."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise InputError(f"{what}: {value!r} is no whole number; it must be one, such as 4")


def whole_numbers(values: Any, what: str) -> tuple[int, ...]:
    """Several of them. Raises InputError, beginning with `what`, for what is no list of whole numbers."""
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        raise InputError(f"{what}: {values!r} is no list; it must be one of whole numbers, such as [0, 2]")
    return tuple(whole(value, what) for value in values)
