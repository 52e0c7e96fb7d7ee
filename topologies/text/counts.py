"""Counts as people read them; this module imports no other of ours."""

from __future__ import annotations


def format_count(number: int, thing: str, things: str = "") -> str:
    """Return a number with its noun, such as `1 chunk` or `2 chunks`.

    Args:
        number: The number.
        thing: The noun in the singular.
        things: The noun in the plural; "" for the singular with an s.
    """
    return f"{number} {thing if number == 1 else things or thing + 's'}"
