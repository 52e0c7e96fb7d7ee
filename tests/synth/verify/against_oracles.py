"""What the clock and the replay say of a schedule: the same interpreted and compiled, and the same as the oracles."""

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
from synth.verify.replay import Tuning, replay
from tests.oracles.plain_clock import plain_times
from tests.oracles.plain_replay import is_right
from topologies.errors import ScheduleError, ScheduleRefused


def times(problem: Problem, given: Schedule, size: float, compiled_from: int) -> Schedule | str:
    """Times by the clock, or what it says is wrong."""
    try:
        return timed(problem, given, size, simulate.Tuning(compiled_from))
    except ScheduleError as error:
        return str(error)


def same_times(problem: Problem, given: Schedule, size: float) -> Schedule | None:
    """Times, by the interpreted and the compiled clock and by the oracle the same to the last bit; None: refused."""
    oracle = plain_times(problem, given, size)
    found = [times(problem, given, size, limit) for limit in (1 << 60, 0)]
    for one in found:
        if isinstance(one, str) or isinstance(oracle, str):
            assert one == oracle
        else:
            assert (one.start_us.tolist(), one.end_us.tolist()) == oracle
    return None if isinstance(found[1], str) else found[1]


def verdict(problem: Problem, given: Schedule, compiled_from: int) -> str:
    """What the replay says is wrong, or nothing."""
    message = ""
    try:
        replay(problem, given, Tuning(compiled_from=compiled_from))
    except ScheduleRefused as error:
        message = str(error)
    assert "\n" not in message
    return message


def same_verdict(problem: Problem, given: Schedule, words: str | None = None) -> str:
    """What the replay says, interpreted as compiled; it refuses what the oracle does. `words` are in what it says."""
    found = verdict(problem, given, 1 << 60)
    assert verdict(problem, given, 0) == found
    assert is_right(problem, given) == (not found), found
    if words is not None:
        assert re.search(words, found), found
    return found


def shuffled(given: Schedule, rng: random.Random) -> Schedule:
    return given.take(np.array(rng.sample(range(len(given)), len(given)), dtype=np.int64))


def moved(given: Schedule, row: int, **changes: object) -> Schedule:
    """One row with other values."""
    columns = {name: getattr(given, name).copy() for name in changes}
    for name, value in changes.items():
        columns[name][row] = value
    return replace(given, **columns)


def links(problem: Problem, src: Ints, dst: Ints) -> Ints:
    table = np.full((problem.nranks, problem.nranks), -1)
    table[problem.network.src, problem.network.dst] = np.arange(problem.network.nlinks)
    found: Ints = table[src, dst]
    assert (found >= 0).all()
    return found
