"""Describe the calls of a process: figures by size class, a JSON document, and a trace that browsers draw.

A size class holds the sizes from one power of two to the next. Times are kept as a histogram with eight cells an
octave, so a percentile is exact to within 5 %. algbw and busbw are those of nccl-tests, from mean times.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from synth.model.registry import COLLECTIVE_KINDS
from synth.storage.columns import replaced

LOG_FORMAT = "synth-torch-log-1"
_CELLS = 8  # of a histogram for each factor of two in time
_PERCENTILES = (50, 90, 99)


class EndedCall(NamedTuple):
    """A call that is over.

    Attributes:
        size_bytes: Size of its message in bytes.
        start: When it began, a reading of `time.monotonic`.
        seconds: Its duration in seconds.
    """

    size_bytes: int
    start: float
    seconds: float


class TracedCall(NamedTuple):
    """A call that a trace shows.

    Attributes:
        collective: Name of the collective.
        backend: Name of what served it.
        call: The call.
    """

    collective: str
    backend: str
    call: EndedCall


@dataclass
class SizeClass:
    """The calls of one kind that are over, whose sizes have the same number of binary digits.

    Attributes:
        calls: Number of calls.
        size_bytes: Sum of their sizes in bytes.
        seconds: Sum of their durations in seconds.
        longest: Longest duration in seconds.
        cells: Number of durations in each cell of the histogram.
    """

    calls: int = 0
    size_bytes: int = 0
    seconds: float = 0.0
    longest: float = 0.0
    cells: Counter[int] = field(default_factory=Counter)

    def add(self, call: EndedCall) -> None:
        """Add a call that is over."""
        self.calls += 1
        self.size_bytes += call.size_bytes
        self.seconds += call.seconds
        self.longest = max(self.longest, call.seconds)
        self.cells[math.floor(math.log2(max(call.seconds, 1e-9)) * _CELLS)] += 1

    def merge(self, other: SizeClass) -> None:
        """Add all calls of another size class."""
        self.calls += other.calls
        self.size_bytes += other.size_bytes
        self.seconds += other.seconds
        self.longest = max(self.longest, other.longest)
        self.cells.update(other.cells)

    def percentile(self, percent: float) -> float:
        """Return the duration in seconds that so many percent of the calls do not exceed, to within 5 %.

        It is the middle of a cell of the histogram, and at most the longest duration; 0 without calls.
        """
        needed, reached = self.calls * percent / 100, 0
        for cell, count in sorted(self.cells.items()):
            reached += count
            if reached >= needed:
                return min(self.longest, 2 ** ((cell + 0.5) / _CELLS))
        return self.longest

    def row(self, collective: str, backend: str, ranks: int) -> dict[str, Any]:
        """Return the figures of the class as an object of the document, times in µs and rates in GB/s (10⁹ bytes/s).

        Args:
            collective: Name of the collective.
            backend: Name of what served the calls.
            ranks: Number of ranks of the group; 0 if it is not known.
        """
        mean_us = self.seconds / self.calls * 1e6
        algbw = self.size_bytes / self.calls / mean_us / 1e3 if mean_us else 0.0
        factor = (
            COLLECTIVE_KINDS[collective].bus_factor(ranks) if collective in COLLECTIVE_KINDS and ranks > 1 else None
        )
        # The mean lies in the class too.
        low = 1 << max(0, (self.size_bytes // self.calls).bit_length() - 1)
        return {
            "collective": collective,
            "backend": backend,
            "ranks": ranks,
            "min_bytes": low if self.size_bytes else 0,
            "max_bytes": 2 * low - 1 if self.size_bytes else 0,
            "calls": self.calls,
            "bytes": self.size_bytes,
            "mean_us": mean_us,
            **{f"p{percent}_us": self.percentile(percent) * 1e6 for percent in _PERCENTILES},
            "longest_us": self.longest * 1e6,
            "algbw_gbs": algbw,
            "busbw_gbs": None if factor is None else algbw * factor,
        }


def trace_events(calls: Iterable[TracedCall], rank: int, zero_s: float | None = None) -> list[dict[str, Any]]:
    """Return the events of a trace in Chrome's format, for chrome://tracing or Perfetto, in the order of their starts.

    Times are µs since 1970, so that the traces of all ranks can be shown together. Calls that overlap stand in
    different rows.

    Args:
        calls: The calls.
        rank: Rank of this process in the job, which the trace shows as a process.
        zero_s: Seconds since 1970 at the zero of `time.monotonic`; None for those of this machine.
    """
    zero_s = time.time() - time.monotonic() if zero_s is None else zero_s
    free: list[tuple[float, int]] = []  # When each row is free again, and its number.
    events = []
    for collective, backend, call in sorted(calls, key=lambda traced: traced.call.start):
        row = heapq.heappop(free)[1] if free and free[0][0] <= call.start else len(free)
        heapq.heappush(free, (call.start + call.seconds, row))
        events.append(
            {
                "name": collective,
                "cat": backend,
                "ph": "X",
                "pid": rank,
                "tid": row,
                "ts": (zero_s + call.start) * 1e6,
                "dur": call.seconds * 1e6,
                "args": {"ran on": backend, "bytes": call.size_bytes},
            }
        )
    return events


def job_rank() -> int:
    """Return the rank of this process in its job, as torchrun states it in RANK; 0 without that."""
    text = os.environ.get("RANK", "0")
    return int(text) if text.isdecimal() else 0


def file_of_rank(stated: str | Path, rank: int) -> Path:
    """Return the path of a rank's own file: `log.json` becomes `log.3.json` for rank 3."""
    path = Path(stated)
    return path.with_name(f"{path.stem}.{rank}{path.suffix}")


def write_json(path: Path, document: dict[str, Any] | Sequence[Any]) -> None:
    """Write a document to a file, in place of an earlier one.

    Raises:
        InputError: It cannot be written.
    """
    with replaced(path) as file:
        file.write((json.dumps(document, indent=1) + "\n").encode())
