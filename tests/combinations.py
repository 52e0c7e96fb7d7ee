"""Fewer combinations of parameters than all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any


def every_other(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return half of the combinations of the columns' values, in which each value meets half of those of the others.

    It is enough where a fault would show in many combinations. As on a chess board, a combination is left out if those
    that differ from it by one place in one column are kept.
    """
    places = product(*(range(len(column)) for column in columns))
    return [
        tuple(column[at] for column, at in zip(columns, place, strict=True)) for place in places if sum(place) % 2 == 0
    ]
