"""What ran where, how often and how long: counted as calls are made."""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from collections.abc import Callable
from itertools import groupby

from synth.model.text import format_table

log = logging.getLogger("synth.torch")
_FALLBACK = "%s runs on the wrapped back end: %s"


HELD = 4096  # calls of which single figures are kept, until somebody asks or there are so many


class Tally:
    """Counts the calls of one kind, and the seconds that they took, from any thread and at the cost of an append."""

    def __init__(self, counters: Counters, collective: str, by: str) -> None:
        self.calls, self.size_bytes, self.ended, self.seconds, self.longest = 0, 0, 0, 0.0, 0.0
        self.sizes: deque[int] = deque()  # of calls that began and are not added up
        self.times: deque[float] = deque()  # of calls that are over, likewise
        self._last, self._collective, self._by = counters.last_ran, collective, by
        self._adding = threading.Lock()

    def start(self, size_bytes: int) -> None:
        """A call begins."""
        self._last[self._collective] = self._by
        self.sizes.append(size_bytes)

    def end(self, seconds: float) -> None:
        """One is over, and took so long."""
        self.times.append(seconds)
        if len(self.times) > HELD:
            self.add_up()

    def add_up(self) -> Tally:
        """Itself, all that was counted added up."""
        with self._adding:
            sizes = [self.sizes.popleft() for _ in range(len(self.sizes))]
            times = [self.times.popleft() for _ in range(len(self.times))]
            self.calls += len(sizes)
            self.size_bytes += sum(sizes)
            self.ended += len(times)
            self.seconds += sum(times)
            self.longest = max(self.longest, max(times, default=0.0))
        return self


class Counters:
    """Counts of all groups of this process; last_ran: what ran each collective's last call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: dict[tuple[str, str, str], Tally] = {}
        self._fallbacks: Counter[tuple[str, str]] = Counter()
        self._waited: Counter[int] = Counter()
        self.last_ran: dict[str, str] = {}  # by collective

    def tally(self, collective: str, by: str, reason: str = "") -> Tally:
        """What counts such calls; reason: why they go to the wrapped back end, logged the first time."""
        with self._lock:
            key = collective, by, reason
            new = key not in self._tallies
            if new:
                self._tallies[key] = Tally(self, collective, by)
            tally = self._tallies[key]
        if new and reason:
            log.info(_FALLBACK, collective, reason)
        return tally

    def count(self, collective: str, by: str, size_bytes: int) -> Callable[[float], None]:
        """Count a call; what is returned takes the seconds that it took."""
        tally = self.tally(collective, by)
        tally.start(size_bytes)
        return tally.end

    def count_fallback(self, collective: str, reason: str) -> None:
        """A call goes to the wrapped back end: logged the first time, counted always."""
        with self._lock:
            self._fallbacks[collective, reason] += 1
            first = self._fallbacks[collective, reason] == 1
        if first:
            log.info(_FALLBACK, collective, reason)

    def count_wait(self, rank: int, seconds: float) -> None:
        """This rank waited so many seconds for another's message."""
        with self._lock:
            self._waited[rank] += seconds  # type: ignore[assignment]

    def ran(self, collective: str, by: str) -> int:
        """How many calls ran there."""
        with self._lock:
            return sum(tally.add_up().calls for key, tally in self._tallies.items() if key[:2] == (collective, by))

    def last(self, collective: str) -> str:
        """What ran this collective's last call."""
        with self._lock:
            return self.last_ran.get(collective, "nothing")

    def text(self) -> str:
        """A table, the reasons, and for whom this rank waited longest."""
        with self._lock:
            rows = [("collective", "ran on", "calls", "KiB", "mean ms", "longest ms")]
            fallbacks = self._fallbacks.copy()
            for (collective, by), same in groupby(sorted(self._tallies.items()), key=lambda item: item[0][:2]):
                tallies = {reason: tally.add_up() for (_, _, reason), tally in same}
                fallbacks.update({(collective, reason): tally.calls for reason, tally in tallies.items() if reason})
                calls, size_bytes, ended, seconds = (
                    sum(getattr(tally, name) for tally in tallies.values())
                    for name in ("calls", "size_bytes", "ended", "seconds")
                )
                mean = f"{seconds / ended * 1e3:.3f}" if ended else "-"
                longest = f"{max(tally.longest for tally in tallies.values()) * 1e3:.3f}" if ended else "-"
                rows.append((collective, by, str(calls), f"{size_bytes / 1024:.1f}", mean, longest))
            lines = format_table(rows, (0, 1))
            for (collective, reason), count in sorted(fallbacks.items()):
                lines.append(f"not ours: {collective}, {count} calls: {reason}")
            worst = sorted(self._waited.items(), key=lambda item: (-item[1], item[0]))[:4]
            if worst:
                lines.append("waited for: " + ", ".join(f"rank {rank} {seconds:.3f} s" for rank, seconds in worst))
        return "\n".join(lines)


counters = Counters()  # of all groups of this process
