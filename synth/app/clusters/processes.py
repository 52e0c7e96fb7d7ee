"""The number of processes of this machine that synth may use."""

from __future__ import annotations

import os


def processors() -> int:
    """Return the number of cores that this process may run on, at least 1."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # Some systems have no affinity.
        return os.cpu_count() or 1


def load() -> float:
    """Return how many processes of this machine wanted a core in the last minute, on average; 0 where it is unknown."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):  # Some systems have no such average.
        return 0.0
