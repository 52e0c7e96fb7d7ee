"""Numbers, sizes, times and ranks as people read them, and columns of text; counts are those of `topologies`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from topologies.text.counts import format_count as format_count


def format_table(rows: Sequence[Sequence[str]], left_aligned: Sequence[int]) -> list[str]:
    """Return rows with equally many cells as lines of aligned columns, two blanks between them.

    Blanks at the end of a line are left out.

    Args:
        rows: The cells of each row; at least one row.
        left_aligned: Indices of the columns that are flush left (-1 is the last); all others are flush right.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    left_columns = {column % len(widths) for column in left_aligned}
    return [
        "  ".join(
            cell.ljust(width) if i in left_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def as_file_name(text: str) -> str:
    """Return a text as part of a file's name: each run of other characters than `A-Z a-z 0-9 _ . -` becomes one `-`."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text)


_GAP_DIGITS = 8  # Most decimals of a gap; below them it counts as rounding.


def format_gap(gap: float) -> str:
    """Return a gap (time / bound) as text, such as `1.024`.

    It has three decimals, or as many more as a gap above 1 needs not to read `1.000`, which is for optimal times.
    """
    digits = next((n for n in range(3, _GAP_DIGITS + 1) if round(gap, n) != 1.0), 3)
    return f"{gap:.{digits}f}"


def format_number(number: int) -> str:
    """Return a number with its digits in groups of three, such as `2 064 384`."""
    return f"{number:,}".replace(",", " ")


def format_time(microseconds: float) -> str:
    """Return a time in three significant digits as `1.3 µs`, `5.37 ms` or `12 s`; seconds are the largest unit.

    Times below 1 µs stay in µs.
    """
    rounded = float(f"{microseconds:.3g}")  # 999.7 µs are 1 ms.
    unit, name = next(((u, n) for u, n in ((1e6, "s"), (1e3, "ms")) if rounded >= u), (1.0, "µs"))
    figure = rounded / unit
    return f"{figure:.0f} {name}" if figure >= 1000 else f"{figure:.3g} {name}"


def format_apart(first_us: float, second_us: float) -> tuple[str, str]:
    """Return two times in as many digits as show their difference, at most 12: as `format_time` or in µs."""
    texts = format_time(first_us), format_time(second_us)
    for digits in range(4, 13):
        if texts[0] != texts[1]:
            break
        texts = f"{first_us:.{digits}g} µs", f"{second_us:.{digits}g} µs"
    return texts


_SAME_RATIO = 1.05  # of the greatest and the least comparison of a row's sizes, up to which it is one number
# What gives a vendor library's time where the comparison has an interval.
FITTED = "a model fitted to published runs of nccl-tests"
BRACKETS = " (the brackets hold four of five runs)"  # the same where a table shows intervals
RANGES = "; ranges are over a row's sizes (--details: at one, with the interval of four of five runs)"


def format_comparison(choice: Mapping[str, Any] | None, name: str = "it") -> str:
    """Return how a library's time compares with ours, such as `1.41 × (1.2–1.6)`; – if it is unknown.

    Without an interval it is `1.41 ×`. Where the interval holds 1, it is `about NAME's`. Where the comparison differs
    over the sizes of a row by more than 5 %, it is the range over them, such as `0.98–1.41 ×`.

    Args:
        choice: An object with vs (the library's time / ours), vs_low and vs_high where its interval is known, and
            vs_range where its least and greatest value over the sizes of a row are; None if the library's time is
            unknown.
        name: Name of the library.
    """
    if choice is None:
        return "–"
    least, most = choice.get("vs_range") or (choice["vs"], choice["vs"])
    if most > _SAME_RATIO * least:
        return f"{least:.2f}–{most:.2f} ×"
    low, high = choice.get("vs_low"), choice.get("vs_high")
    if low is None or high is None:
        return f"{choice['vs']:.2f} ×"
    if low <= 1 <= high:
        return f"about {name}'s"
    # An end that is not 1 is not shown as 1.0.
    digits = next((n for n in (1, 2) if all(round(end, n) != 1 for end in (low, high))), 3)
    return f"{choice['vs']:.2f} × ({low:.{digits}f}–{high:.{digits}f})"


_BYTES_OF_UNIT = {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}


def format_size(size_bytes: int) -> str:
    """Return a size in bytes in powers of two, such as `512 B`, `180 KiB` or `1.5 GiB`.

    It has three significant digits; from 1000 of a unit on it is rounded down to a whole number. GiB is the largest
    unit.
    """
    for name, unit in _BYTES_OF_UNIT.items():
        if size_bytes >= unit > 1:
            figure = f"{size_bytes / unit:.3g}" if size_bytes < 1000 * unit else f"{size_bytes // unit}"
            return f"{figure} {name}"
    return f"{size_bytes} B"


def format_short_size(size_bytes: int) -> str:
    """Return a size in bytes in powers of two as users write it, such as `512B`, `180K` or `1.5G`.

    It is rounded as in `format_size`: three significant digits.
    """
    return format_size(size_bytes).replace(" ", "").replace("iB", "")


def format_shape(steps: int, rounds: int, chunks: int) -> str:
    """Return the shape of an algorithm, such as `2 steps, 3 rounds, 1 chunk`."""
    parts = (steps, "step"), (rounds, "round"), (chunks, "chunk")
    return ", ".join(format_count(count, name) for count, name in parts)


def format_served(low: int, high: int | None) -> str:
    """Return a range of message sizes as text: `64 KiB` if both ends are shown alike, or `1 KiB to 1 MiB`.

    It is `from 1 KiB` without an upper end, `up to 1 MiB` without a lower one, and `all sizes` without either. An end
    that is the next size before or after the one shown has a sign: `>1 KiB to <1 MiB` serves neither of these two
    sizes, `over 1 KiB` and `below 1 MiB` the same without the other end. So has an end that is rounded up to a whole
    number, such as 256 bytes less than 4 GiB. Other ends are served, or rounded.

    Args:
        low: Smallest size in bytes; 0 where there is none.
        high: Largest size in bytes, inclusive; None where there is no end.
    """
    is_over = low > 0 and _is_shown_exactly(low - 1) and not _is_shown_exactly(low)
    begin = format_size(low - 1 if is_over else low)
    if high is None:
        return f"{'over' if is_over else 'from'} {begin}" if low else "all sizes"
    if low and format_size(low) == format_size(high):
        return format_size(low)
    is_next = _is_shown_exactly(high + 1) and not _is_shown_exactly(high)
    is_below = is_next or (_shown_bytes(high) > high and "." not in format_size(high))
    end = format_size(high + 1 if is_next else high)
    if not low:
        return f"{'below' if is_below else 'up to'} {end}"
    return f"{'>' * is_over}{begin} to {'<' * is_below}{end}"


def _is_shown_exactly(size_bytes: int) -> bool:
    """Return whether `format_size` shows a size without rounding, as it does 1.5 MiB."""
    return _shown_bytes(size_bytes) == size_bytes


def _shown_bytes(size_bytes: int) -> float:
    """Return the size in bytes that `format_size` shows for a size."""
    figure, unit = format_size(size_bytes).split()
    return float(figure) * _BYTES_OF_UNIT[unit]


def format_listed(ranks: Sequence[int]) -> str:
    """Return ranks as `0,2,4,6`; of more than 16 ranks only the first 16, followed by `…`."""
    return ",".join(map(str, ranks[:16])) + ("…" if len(ranks) > 16 else "")


def format_ranks(ranks: Sequence[int], most: int = 16) -> str:
    """Return ranks as `0 2 4 6`; of more than `most` ranks only the first `most` - 1, `…` and the last.

    Args:
        ranks: The ranks.
        most: Most ranks that are shown, at least 2.
    """
    if len(ranks) <= most:
        return " ".join(map(str, ranks))
    return " ".join(map(str, ranks[: most - 1])) + f" … {ranks[-1]}"


def format_spans(ranks: Sequence[int]) -> str:
    """Return ranks as `0-7,12,14`, as a process group is asked for; of more than 6 spans the first 5, `…` and the last.

    Ranks keep their order: a span is a run in which each rank is one more than the rank before it. Two neighbours that
    begin no longer span stay apart: `0,1`, and count as two.
    """
    spans: list[list[int]] = []
    for rank in ranks:
        if spans and rank == spans[-1][-1] + 1:
            spans[-1].append(rank)
        else:
            spans.append([rank])
    texts = [text for span in spans for text in ([f"{span[0]}-{span[-1]}"] if len(span) > 2 else map(str, span))]
    return ",".join(texts if len(texts) <= 6 else [*texts[:5], "…", texts[-1]])


def software_name() -> str:
    """Return this software's name and version, as files and documents state it; without a version if not installed."""
    from importlib.metadata import PackageNotFoundError, version  # It is slow to import, and only writers need it.

    try:
        return f"synth {version('synth-collectives')}"
    except PackageNotFoundError:
        return "synth"
