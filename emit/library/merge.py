"""Which of several files serves which sizes: at every size the fastest of those that can, of equals the earlier one.

Files have ranges of sizes of their own, which may overlap; what comes out has ranges that do not, and that cover all
that any of the files covered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from operator import le

from synth.model.problem import LARGEST, SMALLEST

NO_END = 1 << 63  # over all sizes
_FEW = 64  # a file of its own must be for more sizes than one part in so many
_FASTER = 1 - 1e-6  # of an earlier one's time: what one that takes its place must be below, rounding and more


@dataclass(frozen=True, eq=False)
class Rival:
    """A file that could serve the sizes in bytes from `low` to `high` inclusive (NO_END: all).

    time_us: of its program for a size.  serves: whether its executor takes messages of about a size.  first: of rivals
    that differ in it the lower one serves, whatever their times.
    """

    low: int
    high: int
    time_us: Callable[[float], float]
    serves: Callable[[int], bool]
    first: int = 0


@dataclass(frozen=True)
class Part:
    """A range of sizes, both ends inclusive, and which of the rivals serves it."""

    rival: Rival
    low: int
    high: int


def merge(rivals: Sequence[Rival]) -> list[Part]:
    """Who serves which sizes, in order of the sizes; earlier rivals stay where later ones are no faster."""
    parts: list[Part] = []
    for low, after in pairwise(sorted({end for one in rivals for end in (one.low, one.high + 1)})):
        able = [one for one in rivals if one.low <= low and after - 1 <= one.high]
        if able:
            least = min(one.first for one in able)
            parts += _shared([one for one in able if one.first == least], low, after - 1)
    return _joined([_worth(part, rivals) for part in _joined(parts)])


def _joined(parts: Sequence[Part]) -> list[Part]:
    joined: list[Part] = []
    for part in parts:
        if joined and joined[-1].rival is part.rival and joined[-1].high + 1 == part.low:
            part = Part(part.rival, joined.pop().low, part.high)
        joined.append(part)
    return joined


def _worth(part: Part, rivals: Sequence[Rival]) -> Part:
    """The part; for a few sizes at the end of an earlier rival's range that one stays, and a file is saved."""
    one = part.rival
    if part.high - part.low > part.low // _FEW or (part.low, part.high) == (one.low, one.high):
        return part
    earlier = (
        other
        for other in rivals[: rivals.index(one)]
        if other.first == one.first and other.low <= part.low and part.high <= other.high
    )
    return Part(next(earlier, one), part.low, part.high)


def _shared(able: Sequence[Rival], low: int, high: int) -> list[Part]:
    """The same for sizes that all of them could serve."""
    if len(able) == 1:
        return [Part(able[0], low, high)]
    sizes = _looked_at(low, high)
    best = [_best(able, size, exact=low == high) for size in sizes]
    starts = [(low, best[0])]
    for (size, one), (later, other) in pairwise(zip(sizes, best, strict=True)):
        starts += _changes(able, size, one, later, other)
    ends = [start - 1 for start, _ in starts[1:]] + [high]
    return [Part(rival, start, end) for (start, rival), end in zip(starts, ends, strict=True)]


def _looked_at(low: int, high: int) -> list[int]:
    """The ends of a range, as far as they are ordinary sizes, and two sizes an octave between them."""
    first, last = max(low, min(SMALLEST, high)), min(high, max(LARGEST, low))
    octaves = (base << e for e in range(63) for base in (2, 3))
    return sorted({first, last, *(size for size in octaves if first < size < last)})


def _best(able: Sequence[Rival], size: int, *, exact: bool = False) -> Rival:
    """The fastest at a size, of those that lose no messages that an earlier one takes.

    Which ones a file takes is asked for the power of two below, and for half of it, as sizes between powers of two
    divide into fewer cells.
    """
    power = 1 << (size.bit_length() - 1)
    about = (size,) if exact else (power, power // 2)
    best = able[0]
    for one in able[1:]:
        had, has = ([rival.serves(near) for near in about] for rival in (best, one))
        faster = one.time_us(size) < _FASTER * best.time_us(size)
        if all(map(le, had, has)) and (faster or has[0] > had[0]):
            best = one
    return best


def _changes(able: Sequence[Rival], low: int, one: Rival, high: int, other: Rival) -> Iterator[tuple[int, Rival]]:
    """From which sizes on another serves, where `one` does at `low` and `other` at `high`: to the byte.

    So that who is asked again about the ranges that come out finds no other.
    """
    if one is other:
        return
    if high - low == 1:
        yield high, other
        return
    middle = (low + high) // 2
    between = _best(able, middle)
    yield from _changes(able, low, one, middle, between)
    yield from _changes(able, middle, between, high, other)
