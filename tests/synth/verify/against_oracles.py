"""The clock and the replay give equal results interpreted and compiled, and the same results as the oracles."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import numpy as np

from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing import simulate
from synth.timing.simulate import timed
from synth.verify.replay import ReplayTuning, replay
from tests.oracles.plain_clock import plain_times
from tests.oracles.plain_replay import is_right
from topologies.errors import ScheduleError, ScheduleRefused


def times(problem: Problem, untimed_schedule: Schedule, size: float, compiled_from: int) -> Schedule | str:
    """Return the times by the clock, or its refusal."""
    try:
        return timed(problem, untimed_schedule, size, simulate.ClockTuning(compiled_from))
    except ScheduleError as error:
        return str(error)


def same_times(problem: Problem, untimed_schedule: Schedule, size: float) -> Schedule | None:
    """Return the times if both clocks agree with the oracle to the last bit, or None if all of them refuse."""
    oracle = plain_times(problem, untimed_schedule, size)
    clock_times = [times(problem, untimed_schedule, size, limit) for limit in (1 << 60, 0)]
    for clock_time in clock_times:
        if isinstance(clock_time, str) or isinstance(oracle, str):
            assert clock_time == oracle
        else:
            assert (clock_time.start_us.tolist(), clock_time.end_us.tolist()) == oracle
    return None if isinstance(clock_times[1], str) else clock_times[1]


def verdict(problem: Problem, schedule: Schedule, compiled_from: int) -> str:
    """Return the fault that the replay reports, or an empty text."""
    message = ""
    try:
        replay(problem, schedule, ReplayTuning(compiled_from=compiled_from))
    except ScheduleRefused as error:
        message = str(error)
    assert "\n" not in message
    return message


def same_verdict(problem: Problem, schedule: Schedule, pattern: str | None = None) -> str:
    """Return the replay's message, equal interpreted and compiled; it refuses what the oracle refuses.

    If `pattern` is given, the message must match it.
    """
    fault = verdict(problem, schedule, 1 << 60)
    assert verdict(problem, schedule, 0) == fault
    assert is_right(problem, schedule) == (not fault), fault
    if pattern is not None:
        assert re.search(pattern, fault), fault
    return fault


def shuffled(schedule: Schedule, rng: random.Random) -> Schedule:
    return schedule.take(np.array(rng.sample(range(len(schedule)), len(schedule)), dtype=np.int64))


def moved(schedule: Schedule, row: int, **changes: object) -> Schedule:
    """Return the schedule with other values in one row."""
    columns = {name: getattr(schedule, name).copy() for name in changes}
    for name, value in changes.items():
        columns[name][row] = value
    return replace(schedule, **columns)


def links(problem: Problem, src: Ints, dst: Ints) -> Ints:
    table = np.full((problem.nranks, problem.nranks), -1)
    table[problem.network.src, problem.network.dst] = np.arange(problem.network.nlinks)
    rows: Ints = table[src, dst]
    assert (rows >= 0).all()
    return rows
