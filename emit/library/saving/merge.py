"""Assignment of message sizes to files: at every size the fastest file that can serve it, of equals the earlier one.

Files have ranges of sizes of their own, which may overlap. The resulting ranges do not overlap, and they cover all
sizes that any of the files covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import le

from synth.model.problem import LARGEST, SMALLEST

NO_END = 1 << 63  # exceeds all sizes
_FEW = 64  # A part becomes a file only if its sizes span more than 1/64 of its first size.
_FASTER = 1 - 1e-6  # of an earlier rival's time, which a later one must beat by more than rounding


@dataclass(frozen=True, eq=False)
class Rival:
    """A file that could serve the sizes in bytes from `low` to `high` inclusive (NO_END: no limit).

    Attributes:
        low: Smallest message in bytes.
        high: Largest message in bytes.
        time_us: Returns the time of its program in µs at a size.
        serves: Returns True if its executor takes messages of about a size.
        first: Precedence; of two rivals the one with the lower number serves, whatever their times.
    """

    low: int
    high: int
    time_us: Callable[[float], float]
    serves: Callable[[int], bool]
    first: int = 0


@dataclass(frozen=True)
class MergedPart:
    """A range of sizes and the rival that serves it.

    Attributes:
        rival: Who serves it.
        low: Smallest message in bytes.
        high: Largest message in bytes, inclusive.
    """

    rival: Rival
    low: int
    high: int


def merge(rivals: Sequence[Rival]) -> list[MergedPart]:
    """Return the parts in order of their sizes; an earlier rival stays where a later one is no faster."""
    parts: list[MergedPart] = []
    for low, next_low in pairwise(sorted({end for rival in rivals for end in (rival.low, rival.high + 1)})):
        capable = [rival for rival in rivals if rival.low <= low and next_low - 1 <= rival.high]
        if capable:
            least = min(rival.first for rival in capable)
            parts += _shared([rival for rival in capable if rival.first == least], low, next_low - 1)
    return _joined([_worth(part, rivals) for part in _joined(parts)])


def _joined(parts: Sequence[MergedPart]) -> list[MergedPart]:
    """Return the parts with neighbours of one rival joined."""
    joined: list[MergedPart] = []
    for part in parts:
        if joined and joined[-1].rival is part.rival and joined[-1].high + 1 == part.low:
            part = MergedPart(part.rival, joined.pop().low, part.high)
        joined.append(part)
    return joined


def _worth(part: MergedPart, rivals: Sequence[Rival]) -> MergedPart:
    """Return the part, or give it to an earlier rival if it is only a few sizes, so that a file is saved."""
    server = part.rival
    if part.high - part.low > part.low // _FEW or (part.low, part.high) == (server.low, server.high):
        return part
    earlier = (
        candidate
        for candidate in rivals[: rivals.index(server)]
        if candidate.first == server.first and candidate.low <= part.low and part.high <= candidate.high
    )
    return MergedPart(next(earlier, server), part.low, part.high)


def _shared(rivals: Sequence[Rival], low: int, high: int) -> list[MergedPart]:
    """Return the parts of a range that all of the rivals could serve."""
    if len(rivals) == 1:
        return [MergedPart(rivals[0], low, high)]
    sizes = _sample_sizes(low, high)
    best = [_best(rivals, size, exact=low == high) for size in sizes]
    starts = [(low, best[0])]
    for (size, server), (next_size, later_server) in pairwise(zip(sizes, best, strict=True)):
        starts += _changes(rivals, size, server, next_size, later_server)
    ends = [start - 1 for start, _ in starts[1:]] + [high]
    return [MergedPart(rival, start, end) for (start, rival), end in zip(starts, ends, strict=True)]


def _sample_sizes(low: int, high: int) -> list[int]:
    """Return the sizes at which a range is examined: its ends within ordinary sizes, and two sizes per octave."""
    first, last = max(low, min(SMALLEST, high)), min(high, max(LARGEST, low))
    octaves = (base << e for e in range(63) for base in (2, 3))
    return sorted({first, last, *(size for size in octaves if first < size < last)})


def _best(rivals: Sequence[Rival], size: int, *, exact: bool = False) -> Rival:
    """Return the fastest rival at a size among those that take all messages that an earlier rival takes.

    Sizes between powers of two divide into fewer cells. Which messages a file takes is therefore asked for the power of
    two below and for half of it, unless `exact`.
    """
    power = 1 << (size.bit_length() - 1)
    sizes_asked = (size,) if exact else (power, power // 2)
    best = rivals[0]
    for candidate in rivals[1:]:
        best_serves, candidate_serves = ([rival.serves(near) for near in sizes_asked] for rival in (best, candidate))
        faster = candidate.time_us(size) < _FASTER * best.time_us(size)
        if all(map(le, best_serves, candidate_serves)) and (faster or candidate_serves[0] > best_serves[0]):
            best = candidate
    return best


def _changes(
    rivals: Sequence[Rival], low: int, low_server: Rival, high: int, high_server: Rival
) -> Iterator[tuple[int, Rival]]:
    """Yield (first size, rival) of each change between two sizes, to the byte.

    The exact position makes a later merge of the resulting ranges find the same servers.

    Args:
        rivals: Rivals that can serve the whole range.
        low: Smaller size.
        low_server: Rival that serves `low`.
        high: Larger size.
        high_server: Rival that serves `high`.
    """
    if low_server is high_server:
        return
    if high - low == 1:
        yield high, high_server
        return
    middle = (low + high) // 2
    middle_server = _best(rivals, middle)
    yield from _changes(rivals, low, low_server, middle, middle_server)
    yield from _changes(rivals, middle, middle_server, high, high_server)
