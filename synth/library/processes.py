"""How many processes of this machine there are for us."""

from __future__ import annotations

import os


def processors() -> int:
    """Cores that this process may run on."""
    try:
        return max(1, len(os.sched_getaffinity(0)))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
