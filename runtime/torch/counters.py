"""What ran where, how often and how long: counted as calls are made."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from synth.present.text import format_table

log = logging.getLogger("synth.torch")


@dataclass
class _Line:
    calls: int = 0
    size_bytes: int = 0
    ended: int = 0
    seconds: float = 0.0
    longest: float = 0.0


class Counters:
    """Counts of all groups of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: dict[tuple[str, str], _Line] = {}
        self._fallbacks: Counter[tuple[str, str]] = Counter()
        self._waited: Counter[int] = Counter()
        self._last: dict[str, str] = {}

    def count(self, collective: str, by: str, size_bytes: int) -> Callable[[float], None]:
        """Count a call; what is returned takes the seconds that it took."""
        with self._lock:
            line = self._lines.setdefault((collective, by), _Line())
            line.calls += 1
            line.size_bytes += size_bytes
            self._last[collective] = by

        def took(seconds: float) -> None:
            with self._lock:
                line.ended += 1
                line.seconds += seconds
                line.longest = max(line.longest, seconds)

        return took

    def count_fallback(self, collective: str, reason: str) -> None:
        """A call goes to the wrapped back end: logged the first time, counted always."""
        with self._lock:
            self._fallbacks[collective, reason] += 1
            first = self._fallbacks[collective, reason] == 1
        if first:
            log.info("%s runs on the wrapped back end: %s", collective, reason)

    def count_wait(self, rank: int, seconds: float) -> None:
        """This rank waited so many seconds for another's message."""
        with self._lock:
            self._waited[rank] += seconds  # type: ignore[assignment]

    def ran(self, collective: str, by: str) -> int:
        """How many calls ran there."""
        with self._lock:
            return self._lines.get((collective, by), _Line()).calls

    def last(self, collective: str) -> str:
        """What ran this collective's last call."""
        with self._lock:
            return self._last.get(collective, "nothing")

    def text(self) -> str:
        """A table, the reasons, and for whom this rank waited longest."""
        with self._lock:
            rows = [("collective", "ran on", "calls", "KiB", "mean ms", "longest ms")]
            for (collective, by), line in sorted(self._lines.items()):
                mean = f"{line.seconds / line.ended * 1e3:.3f}" if line.ended else "-"
                longest = f"{line.longest * 1e3:.3f}" if line.ended else "-"
                rows.append((collective, by, str(line.calls), f"{line.size_bytes / 1024:.1f}", mean, longest))
            lines = format_table(rows, (0, 1))
            for (collective, reason), count in sorted(self._fallbacks.items()):
                lines.append(f"not ours: {collective}, {count} calls: {reason}")
            worst = sorted(self._waited.items(), key=lambda item: (-item[1], item[0]))[:4]
            if worst:
                lines.append("waited for: " + ", ".join(f"rank {rank} {seconds:.3f} s" for rank, seconds in worst))
        return "\n".join(lines)


counters = Counters()  # of all groups of this process
