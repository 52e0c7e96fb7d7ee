"""Assignment of message sizes to files: at every size the fastest file that can serve it, of equals the earlier one.

Files have ranges of sizes of their own, which may overlap. The resulting ranges do not overlap, and they cover all
sizes that any of the files covered.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from operator import le
from typing import Protocol, TypeVar

from synth.model.problem import LARGEST, SMALLEST
from synth.search.offer import changes_to_the_byte, partition

_FEW = 64  # A part becomes a file only if its sizes span more than 1/64 of its first size.
_FASTER = 1 - 1e-6  # of an earlier rival's time, which a later one must beat by more than rounding


class Rival(Protocol):
    """A file that could serve the sizes in bytes from `low` to `high` inclusive; `high` is below NO_END."""

    @property
    def low(self) -> int:
        """Return the smallest message in bytes."""

    @property
    def high(self) -> int:
        """Return the largest message in bytes."""

    @property
    def precedence(self) -> int:
        """Return its precedence: of two rivals the one with the lower number serves, whatever their times."""

    def time_us(self, size_bytes: float, /) -> float:
        """Return the time of its program in µs at a size."""

    def serves(self, size_bytes: int, /) -> bool:
        """Return True if its executor takes messages of about a size."""


RivalT = TypeVar("RivalT", bound=Rival)
_Part = tuple[RivalT, int, int]  # A rival and the smallest and the largest message that it serves.


def merge(rivals: Sequence[RivalT]) -> list[_Part[RivalT]]:
    """Return (rival, smallest size, largest size) in order of sizes; both are inclusive.

    Of the rivals that cover a size only those with the lowest precedence count. An earlier one stays where a later one
    is no faster, and may take over a part of only a few sizes. A rival can occur more than once, or not at all. Sizes
    that no rival covers are in no part.
    """
    parts: list[_Part[RivalT]] = []
    for low, next_low in pairwise(sorted({end for rival in rivals for end in (rival.low, rival.high + 1)})):
        capable = [rival for rival in rivals if rival.low <= low and next_low - 1 <= rival.high]
        if capable:
            least = min(rival.precedence for rival in capable)
            parts += _shared([rival for rival in capable if rival.precedence == least], low, next_low - 1)
    return _joined([_give_small_part_away(part, rivals) for part in _joined(parts)])


def _joined(parts: Sequence[_Part[RivalT]]) -> list[_Part[RivalT]]:
    """Return the parts in their order, with neighbouring parts of one rival joined into one."""
    joined: list[_Part[RivalT]] = []
    for rival, low, high in parts:
        if joined and joined[-1][0] is rival and joined[-1][2] + 1 == low:
            low = joined.pop()[1]
        joined.append((rival, low, high))
    return joined


def _give_small_part_away(part: _Part[RivalT], rivals: Sequence[RivalT]) -> _Part[RivalT]:
    """Return the part, given to an earlier rival if it has only a few sizes, so that there is one file less.

    A part is small if its largest size exceeds its smallest by at most 1/64. It goes to the first rival that is
    earlier, covers all its sizes and has the same precedence; without one it stays. It also stays if it is all that
    its own rival covers, even if it is small.
    """
    server, low, high = part
    if high - low > low // _FEW or (low, high) == (server.low, server.high):
        return part
    earlier = (
        candidate
        for candidate in rivals[: rivals.index(server)]
        if candidate.precedence == server.precedence and candidate.low <= low and high <= candidate.high
    )
    return next(earlier, server), low, high


def _shared(rivals: Sequence[RivalT], low: int, high: int) -> list[_Part[RivalT]]:
    """Return the parts of the sizes from `low` to `high`, all of which each of the rivals could serve.

    Their ends are exact to the byte, so that a later merge of the resulting files finds the same servers.
    """
    samples = [(size, _best(rivals, size, exact=low == high)) for size in _sample_sizes(low, high)]
    return partition(low, high, samples, changes_to_the_byte(partial(_best, rivals)))


def _sample_sizes(low: int, high: int) -> list[int]:
    """Return the sizes at which a range is examined, rising: its ends within SMALLEST to LARGEST, and two an octave."""
    first, last = max(low, min(SMALLEST, high)), min(high, max(LARGEST, low))
    octaves = (base << e for e in range(63) for base in (2, 3))
    return sorted({first, last, *(size for size in octaves if first < size < last)})


def _best(rivals: Sequence[RivalT], size: int, *, exact: bool = False) -> RivalT:
    """Return the fastest rival at a size among those that take all messages that an earlier rival takes.

    A later rival that takes more is preferred whatever its time; one that is only faster must be so by more than
    rounding. Sizes between powers of two divide into fewer cells. Which messages a file takes is therefore asked for
    the power of two below and for half of it, unless `exact`.
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
