"""Places in a JSON document, as tuples of keys and indices, to change one value at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any


def numbers(value: Any, where: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the places of all numbers in a JSON value."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, (*where, key))
    elif type(value) in (int, float):
        yield where


def changed(document: Any, where: tuple[Any, ...], value: object) -> Any:
    new = copy.deepcopy(document)
    inner = new
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = value
    return new


def at(document: Any, where: tuple[Any, ...]) -> Any:
    for key in where:
        document = document[key]
    return document
