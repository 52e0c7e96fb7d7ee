"""Message sizes that are left to a vendor library, because its own algorithm is faster than ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from synth.baselines.nccl.model import LibraryChoice
from synth.engines.registry import AUTO
from synth.model.problem import LARGEST
from synth.model.text import format_size, format_time
from synth.search.frontier import POWERS
from synth.search.offer import Offer, partition
from synth.search.result import SearchResult

_FASTER = 0.98  # The part of a file's or schedule's time below which a library's algorithm takes its place.


@dataclass(frozen=True, eq=False)
class OwnAlgorithm:
    """What a library runs by its own choice, in place of a program.

    Attributes:
        result: The search result, which has the library's model.
        library: Name of the library.
    """

    result: SearchResult
    library: str

    def time_us(self, size_bytes: float) -> float:
        """Return the library's time in µs for a message size in bytes; infinity if its model has none."""
        choice = self.result.library(self.library, int(size_bytes))
        return choice.time_us if isinstance(choice, LibraryChoice) else float("inf")

    def serves(self, size_bytes: float) -> bool:
        """Return whether the library's model has a time for a size."""
        return self.time_us(size_bytes) < float("inf")

    def unit_bytes(self, _size_bytes: float) -> int:
        """Return 1, because the library takes all sizes."""
        return 1


def leave_to_libraries(result: SearchResult, libraries: Sequence[str]) -> SearchResult:
    """Return a search result whose ranges are cut where a library is faster.

    Ranges that are left to a library have its name and times, and the reason in `refused`. A schedule that has no
    program is compared like a program. A library must be faster by more than 2 %. Nothing is left to a library where
    none is modelled, where times are without an executor's costs, or where the user named the engine.

    Args:
        result: The search result with programs.
        libraries: Names of the libraries that serve calls for which there is no file.
    """
    if result.engine != AUTO:
        return result
    ranges: list[Offer] = []
    for part in (part for offer in result.ranges for part in _parts(result, offer, libraries)):
        if ranges and part.library and part.library == ranges[-1].library:
            part = replace(part, low=ranges.pop().low)  # One range of the library, whatever ours would run.
        ranges.append(part)
    return replace(result, ranges=ranges)


def _parts(result: SearchResult, offer: Offer, libraries: Sequence[str]) -> Iterator[Offer]:
    """Yield the parts of an offer's range, those that are left to a library with its times."""
    if offer.library:  # It was cut before, and its times are not kept.
        yield replace(offer, execution=OwnAlgorithm(result, offer.library))
        return
    last = LARGEST if offer.high is None else offer.high
    sizes = sorted({offer.low, offer.shown, last, *(size for size in POWERS if offer.low < size <= last)})
    samples = [(size, bool(_faster_library(result, offer, libraries, size))) for size in sizes if size > 0]
    if not any(is_left for _, is_left in samples):
        yield offer
        return

    def change(low: int, _before: bool, high: int, after: bool) -> list[tuple[int, bool]]:
        """Return the change between two sizes as `partition` takes it, not more than a part in 32 too late."""
        while high - low > max(1, low // 32):
            middle = (low + high) // 2
            low, high = (
                (low, middle) if bool(_faster_library(result, offer, libraries, middle)) == after else (middle, high)
            )
        return [(high, after)]

    for is_left, start, end in partition(offer.low, offer.high, samples, change):
        until = last if end is None else end
        inside = [size for size in (start, *(size for size, _ in samples if size > start)) if 0 < size <= until]
        shown = offer.shown if offer.shown in inside else inside[len(inside) // 2]
        part = replace(offer, low=start, high=end, shown=shown)
        if is_left:
            library = _faster_library(result, offer, libraries, shown)
            time = f"{format_time(offer.time_us(shown))} at {format_size(shown)}"
            own = f"{library}'s own algorithm is faster than ours, which takes {time}"
            lacking = min(result.refused, key=lambda refused: refused.time_us(shown), default=None)
            if lacking is not None and lacking.time_us(shown) < OwnAlgorithm(result, library).time_us(shown):
                own += f"; one of ours that takes {format_time(lacking.time_us(shown))} has no file: {lacking.refused}"
            part = replace(part, execution=OwnAlgorithm(result, library), library=library, refused=own)
        yield part


def _faster_library(result: SearchResult, offer: Offer, libraries: Sequence[str], size_bytes: int) -> str:
    """Return the library whose algorithm is faster than an offer at a size by more than 2 %; "" if there is none.

    Of two such libraries the earlier one is taken, unless the later one is faster by more than 2 % than it.
    """
    best, best_us = "", _FASTER * offer.time_us(size_bytes)
    for library in libraries:
        time_us = OwnAlgorithm(result, library).time_us(size_bytes)
        if time_us < best_us:
            best, best_us = library, _FASTER * time_us
    return best
