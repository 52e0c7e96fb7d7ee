"""Figures as people read them, and columns of text; imports nothing of ours."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]], left: Sequence[int]) -> list[str]:
    """Rows of equally many cells as lines; columns of `left` are flush left (-1: the last), all others flush right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    flush = {column % len(widths) for column in left}
    return [
        "  ".join(
            cell.ljust(width) if i in flush else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def format_count(number: int, thing: str, things: str = "") -> str:
    """`1 chunk`, `2 chunks`; things: the plural, where it does not end in an s alone."""
    return f"{number} {thing if number == 1 else things or thing + 's'}"


def format_number(number: int) -> str:
    """`2 064 384`."""
    return f"{number:,}".replace(",", " ")


def format_time(microseconds: float) -> str:
    """`1.30 µs`, `5.37 ms`, `1.2 s`."""
    for unit, name in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= unit:
            return f"{microseconds / unit:.3g} {name}"
    return f"{microseconds:.3g} µs"


def format_size(size_bytes: int) -> str:
    """`1 KiB`, `180 KiB`, `1.5 GiB`, in powers of two."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            figure = f"{size_bytes / unit:.3g}" if size_bytes < 1000 * unit else f"{size_bytes // unit}"
            return f"{figure} {name}"
    return f"{size_bytes} B"


def format_served(low: int, high: int | None) -> str:
    """`64 KiB`, `1 KiB to 1 MiB`, `from 1 KiB`, `up to 1 MiB`, `all sizes`: message sizes, both ends inclusive."""
    if high is None:
        return f"from {format_size(low)}" if low else "all sizes"
    if low == high:
        return format_size(low)
    return f"{format_size(low)} to {format_size(high)}" if low else f"up to {format_size(high)}"


def format_listed(ranks: Sequence[int]) -> str:
    """`0,2,4,6`; of more than 16 ranks the first."""
    return ",".join(map(str, ranks[:16])) + ("…" if len(ranks) > 16 else "")


def format_ranks(ranks: Sequence[int], most: int = 16) -> str:
    """`0 2 4 6`; of more than `most` ranks the first and the last."""
    if len(ranks) <= most:
        return " ".join(map(str, ranks))
    return " ".join(map(str, ranks[: most - 1])) + f" … {ranks[-1]}"
