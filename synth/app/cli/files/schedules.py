"""Stored schedules in the form of several commands."""

from __future__ import annotations

from pathlib import Path

from synth.storage.schedule_file import load_schedule
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError, ScheduleError, ScheduleRefused


def load_algorithm(file: str | Path) -> Algorithm:
    """Return the algorithm in a schedule file, replayed; a quotient's algorithm is that of the whole problem.

    Args:
        file: The file.

    Raises:
        InputError: The file holds no schedule, or a wrong one.
    """
    stored = load_schedule(file)
    problem, schedule = stored.expanded()
    size = int(stored.schedule.size_bytes)
    try:
        return Algorithm(problem, schedule, str(stored.header["engine"]), size_bytes=size)
    except (ScheduleRefused, ScheduleError) as error:
        raise InputError(f"{file}: the schedule is refused: {error}") from None
