"""Count what served each call, how often and how long."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from itertools import groupby

from synth.model.text import format_table

log = logging.getLogger("synth.torch")


HELD = 4096  # Calls whose single durations are kept before they are added up.


class Tally:
    """The number of calls of one kind, their bytes and their seconds.

    Any thread may count a call, at the cost of one append.

    Attributes:
        calls: Number of calls that have begun.
        size_bytes: Sum of their sizes in bytes.
        calls_ended: Number of calls that are over.
        seconds: Sum of their durations in seconds.
        longest: Longest duration in seconds.
        sizes: Sizes of calls that are not added up yet.
        times: Durations of calls that are not added up yet.
    """

    def __init__(self, counters: Counters, collective: str, backend: str) -> None:
        self.calls, self.size_bytes, self.calls_ended, self.seconds, self.longest = 0, 0, 0, 0.0, 0.0
        self.sizes: deque[int] = deque()
        self.times: deque[float] = deque()
        self._last, self._collective, self._backend = counters.last_ran, collective, backend
        self._adding = threading.Lock()

    def start(self, size_bytes: int) -> None:
        """Count a call of this many bytes that begins, and record its back end as the last one of its collective."""
        self._last[self._collective] = self._backend
        self.sizes.append(size_bytes)

    def end(self, seconds: float) -> None:
        """Count a call that is over, with its duration in seconds; add up if more than HELD durations are kept."""
        self.times.append(seconds)
        if len(self.times) > HELD:
            self.add_up()

    def add_up(self) -> Tally:
        """Add the kept sizes and durations to the sums, drop them, and return this tally."""
        with self._adding:
            sizes = [self.sizes.popleft() for _ in range(len(self.sizes))]
            times = [self.times.popleft() for _ in range(len(self.times))]
            self.calls += len(sizes)
            self.size_bytes += sum(sizes)
            self.calls_ended += len(times)
            self.seconds += sum(times)
            self.longest = max(self.longest, max(times, default=0.0))
        return self


class Counters:
    """The counts of all groups of this process.

    Attributes:
        last_ran: What served the last call of each collective.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._waited: Counter[int] = Counter()
        self.last_ran: dict[str, str] = {}

    def tally(self, collective: str, backend: str, reason: str = "") -> Tally:
        """Return the tally of the calls of a collective that `backend` serves, built the first time.

        Args:
            collective: Name of the collective.
            backend: Name of what serves them.
            reason: Why our algorithms do not serve the calls, "" if they do; it is logged the first time. Calls with
                different reasons have different tallies.
        """
        with self._lock:
            key = collective, backend, reason
            new = key not in self._tallies
            if new:
                self._tallies[key] = Tally(self, collective, backend)
            tally = self._tallies[key]
        if new and reason:
            log.info("%s runs on the wrapped back end: %s", collective, reason)
        return tally

    def count(self, collective: str, backend: str, size_bytes: int, reason: str = "") -> Callable[[float], None]:
        """Count a call that begins, as `tally` names it; return the function that takes its seconds when it is over.

        `size_bytes` is the size of its message in bytes.
        """
        tally = self.tally(collective, backend, reason)
        tally.start(size_bytes)
        return tally.end

    def count_wait(self, rank: int, seconds: float) -> None:
        """Add seconds that this rank waited for a message of another rank."""
        with self._lock:
            self._waited[rank] += seconds  # type: ignore[assignment]

    def ran(self, collective: str, backend: str) -> int:
        """Return the number of a collective's calls that `backend` serves, whatever the reason, those under way too."""
        with self._lock:
            return sum(tally.add_up().calls for key, tally in self._tallies.items() if key[:2] == (collective, backend))

    def last(self, collective: str) -> str:
        """Return what serves the last call of a collective that has begun; "nothing" if there was none."""
        with self._lock:
            return self.last_ran.get(collective, "nothing")

    def text(self) -> str:
        """Return a table of the calls, the reasons of fallbacks, and the ranks for which this rank waited longest.

        At most 4 ranks are listed, the longest wait first.
        """
        with self._lock:
            rows = [("collective", "ran on", "calls", "KiB", "mean ms", "longest ms")]
            fallbacks: Counter[tuple[str, str]] = Counter()
            for (collective, backend), tallies_of_pair in groupby(
                sorted(self._tallies.items()), key=lambda item: item[0][:2]
            ):
                tallies = {reason: tally.add_up() for (_, _, reason), tally in tallies_of_pair}
                fallbacks.update({(collective, reason): tally.calls for reason, tally in tallies.items() if reason})
                calls, size_bytes, calls_ended, seconds = (
                    sum(getattr(tally, name) for tally in tallies.values())
                    for name in ("calls", "size_bytes", "calls_ended", "seconds")
                )
                mean = f"{seconds / calls_ended * 1e3:.3f}" if calls_ended else "-"
                longest = f"{max(tally.longest for tally in tallies.values()) * 1e3:.3f}" if calls_ended else "-"
                rows.append((collective, backend, str(calls), f"{size_bytes / 1024:.1f}", mean, longest))
            lines = format_table(rows, (0, 1))
            for (collective, reason), count in sorted(fallbacks.items()):
                lines.append(f"not ours: {collective}, {count} calls: {reason}")
            longest_waits = sorted(self._waited.items(), key=lambda item: (-item[1], item[0]))[:4]
            if longest_waits:
                lines.append(
                    "waited for: " + ", ".join(f"rank {rank} {seconds:.3f} s" for rank, seconds in longest_waits)
                )
        return "\n".join(lines)


counters = Counters()
