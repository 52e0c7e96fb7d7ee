"""Count what served each call, how often and how long."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

from runtime.torch.logs import LOG_FORMAT, EndedCall, SizeClass, TracedCall, job_rank, trace_events
from synth.model.text import format_size, format_table, software_name

log = logging.getLogger("synth.torch")


HELD = 4096  # Calls whose single durations are kept before they are added up.
MOST_TRACED = 100_000  # Calls of a trace; the latest are kept.


class Tally:
    """The number of calls of one kind, their bytes and their seconds.

    Any thread may count a call, at the cost of one append.

    Attributes:
        calls: Number of calls that have begun.
        size_bytes: Sum of their sizes in bytes.
        classes: The calls that are over, by the number of binary digits of their size in bytes.
        sizes: Sizes of calls that are not added up yet.
        ended: Calls that are over and not added up yet.
    """

    def __init__(self, counters: Counters, collective: str, backend: str) -> None:
        self.calls, self.size_bytes = 0, 0
        self.classes: dict[int, SizeClass] = defaultdict(SizeClass)
        self.sizes: deque[int] = deque()
        self.ended: deque[tuple[int, float, float]] = deque()  # Fields of `EndedCall`.
        self._counters, self._collective, self._backend = counters, collective, backend
        self._last_start = 0.0
        self._adding = threading.Lock()

    def start(self, size_bytes: int) -> None:
        """Count a call of this many bytes that begins."""
        self._last_start = time.monotonic()
        self.sizes.append(size_bytes)

    def end(self, size_bytes: int, seconds: float) -> None:
        """Count a call of this many bytes that is over now, after so many seconds; add up if over HELD are kept."""
        self.ended.append((size_bytes, time.monotonic() - seconds, seconds))
        if len(self.ended) > HELD:
            self.add_up()

    def add_up(self) -> Tally:
        """Add the kept calls to the sums, and to the trace if calls are traced; drop them, and return this tally."""
        with self._adding:
            sizes = [self.sizes.popleft() for _ in range(len(self.sizes))]
            ended = [EndedCall(*self.ended.popleft()) for _ in range(len(self.ended))]
            self.calls += len(sizes)
            self.size_bytes += sum(sizes)
            self._last_start = max([self._last_start, *(call.start for call in ended)])
            for call in ended:
                self.classes[call.size_bytes.bit_length()].add(call)
            if self._counters.traces:
                self._counters.traced.extend(TracedCall(self._collective, self._backend, call) for call in ended)
        return self

    @property
    def last_start(self) -> float:
        """Return the start of the last call, by `time.monotonic`, in seconds; add up the kept calls."""
        return self.add_up()._last_start


class Counters:
    """The counts of all groups of this process.

    Attributes:
        traces: Whether calls are kept one by one for a trace; set by `trace`.
        traced: The latest calls that are kept.
        waits: Waits for messages that are not added up yet, each with the other rank and the seconds.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # By collective, back end, number of ranks and reason.
        self._tallies: dict[tuple[str, str, int, str], Tally] = {}
        self.waits: deque[tuple[int, float]] = deque()
        self._waited: defaultdict[int, float] = defaultdict(float)
        self.traces = False
        self.traced: deque[TracedCall] = deque(maxlen=MOST_TRACED)

    def tally(self, collective: str, backend: str, reason: str = "", ranks: int = 0) -> Tally:
        """Return the tally of the calls of a collective that `backend` serves, built the first time.

        Args:
            collective: Name of the collective.
            backend: Name of what serves them.
            reason: Why our algorithms do not serve the calls, "" if they do; it is logged the first time. Calls with
                different reasons have different tallies.
            ranks: Number of ranks of the group; 0 if it does not matter.
        """
        with self._lock:
            key = collective, backend, ranks, reason
            new = key not in self._tallies
            if new:
                self._tallies[key] = Tally(self, collective, backend)
            tally = self._tallies[key]
        if new and reason:
            log.info("%s runs on the wrapped back end: %s", collective, reason)
        return tally

    def count(
        self, collective: str, backend: str, size_bytes: int, reason: str = "", ranks: int = 0
    ) -> Callable[[float], None]:
        """Count a call that begins, as `tally` names it; return the function that takes its seconds when it is over.

        `size_bytes` is the size of its message in bytes.
        """
        tally = self.tally(collective, backend, reason, ranks)
        tally.start(size_bytes)
        return partial(tally.end, size_bytes)

    def count_wait(self, rank: int, seconds: float) -> None:
        """Add seconds that this rank waited for a message of another rank."""
        self.waits.append((rank, seconds))
        if len(self.waits) > HELD:
            with self._lock:
                self._longest_waits()

    def _longest_waits(self) -> list[tuple[int, float]]:
        """Return the ranks with the seconds of all waits for them, the longest first; the caller holds the lock."""
        for _ in range(len(self.waits)):
            rank, seconds = self.waits.popleft()
            self._waited[rank] += seconds
        return sorted(self._waited.items(), key=lambda item: (-item[1], item[0]))

    def ran(self, collective: str, backend: str) -> int:
        """Return the number of a collective's calls that `backend` serves, whatever the reason, those under way too."""
        with self._lock:
            return sum(tally.add_up().calls for key, tally in self._tallies.items() if key[:2] == (collective, backend))

    def last(self, collective: str) -> str:
        """Return what serves the last call of a collective that has begun; "nothing" if there was none."""
        with self._lock:
            starts = [(tally.last_start, key[1]) for key, tally in self._tallies.items() if key[0] == collective]
            return max(starts, default=(0.0, "nothing"))[1]

    def trace(self, traces: bool) -> None:
        """Begin to keep calls one by one for a trace, without those so far, or keep no more; kept calls stay.

        Only the latest MOST_TRACED calls that are over are kept.
        """
        with self._lock:
            self._added_up()  # Calls before belong to the former state.
            self.traces = traces

    def trace_document(self) -> dict[str, Any]:
        """Return the trace of the calls that were kept, in Chrome's format; the rank in the job is its process."""
        with self._lock:
            self._added_up()
            return {"displayTimeUnit": "ms", "traceEvents": trace_events(tuple(self.traced), job_rank())}

    def document(self) -> dict[str, Any]:
        """Return what served the calls, by collective, back end, number of ranks and size class, as a JSON object.

        `calls` has the figures of the calls that are over, `fallbacks` why our algorithms served some calls not, and
        `waits` the seconds that this rank waited for messages of others, the longest first.
        """
        with self._lock:
            rows, fallbacks = [], []
            for key, tallies in groupby(self._added_up(), key=lambda item: item[0][:3]):
                classes: dict[int, SizeClass] = defaultdict(SizeClass)
                for (collective, backend, _, reason), tally in tallies:
                    for digits, of_size in tally.classes.items():
                        classes[digits].merge(of_size)
                    if reason:
                        fallbacks.append(
                            {"collective": collective, "backend": backend, "reason": reason, "calls": tally.calls}
                        )
                rows += [of_size.row(*key) for _, of_size in sorted(classes.items())]
            waits = [{"rank": rank, "seconds": seconds} for rank, seconds in self._longest_waits()]
        about = {"format": LOG_FORMAT, "software": software_name(), "rank": job_rank()}
        return {**about, "calls": rows, "fallbacks": fallbacks, "waits": waits}

    def _added_up(self) -> list[tuple[tuple[str, str, int, str], Tally]]:
        """Return all tallies, added up, with their keys in ascending order; the caller holds the lock."""
        return [(key, tally.add_up()) for key, tally in sorted(self._tallies.items(), key=itemgetter(0))]

    def text_by_size(self) -> str:
        """Return a table of the calls that are over by size class, in the columns of `document`."""
        head = (
            "collective",
            "ran on",
            "ranks",
            "size",
            "calls",
            "mean µs",
            "p50",
            "p90",
            "p99",
            "longest",
            "algbw",
            "busbw",
        )
        rows = [head]
        for row in self.document()["calls"]:
            times = [f"{row[key]:.1f}" for key in ("mean_us", "p50_us", "p90_us", "p99_us", "longest_us")]
            bus = "-" if row["busbw_gbs"] is None else f"{row['busbw_gbs']:.2f}"
            size = f"from {format_size(row['min_bytes'])}"
            named = row["collective"], row["backend"], str(row["ranks"] or "-"), size
            rows.append((*named, str(row["calls"]), *times, f"{row['algbw_gbs']:.2f}", bus))
        return "\n".join(format_table(rows, (0, 1, 3)))

    def text(self) -> str:
        """Return a table of the calls, the reasons of fallbacks, and the ranks for which this rank waited longest.

        At most 4 ranks are listed, the longest wait first.
        """
        with self._lock:
            rows = [("collective", "ran on", "calls", "KiB", "mean ms", "longest ms")]
            fallbacks: Counter[tuple[str, str]] = Counter()
            for (collective, backend), tallies in groupby(self._added_up(), key=lambda item: item[0][:2]):
                calls, size_bytes, ended = 0, 0, SizeClass()
                for (*_, reason), tally in tallies:
                    calls, size_bytes = calls + tally.calls, size_bytes + tally.size_bytes
                    if reason:
                        fallbacks[collective, reason] += tally.calls
                    for of_size in tally.classes.values():
                        ended.merge(of_size)
                mean = f"{ended.seconds / ended.calls * 1e3:.3f}" if ended.calls else "-"
                longest = f"{ended.longest * 1e3:.3f}" if ended.calls else "-"
                rows.append((collective, backend, str(calls), f"{size_bytes / 1024:.1f}", mean, longest))
            lines = format_table(rows, (0, 1))
            for (collective, reason), count in sorted(fallbacks.items()):
                lines.append(f"not ours: {collective}, {count} calls: {reason}")
            longest_waits = self._longest_waits()[:4]
            if longest_waits:
                lines.append(
                    "waited for: " + ", ".join(f"rank {rank} {seconds:.3f} s" for rank, seconds in longest_waits)
                )
        return "\n".join(lines)


counters = Counters()
