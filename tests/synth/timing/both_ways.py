"""The plain clock and replay beside the compiled ones: what each says of a schedule, and that they say the same."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from synth.model.collective import Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing import simulate
from synth.timing.simulate import timed
from synth.verify import replay as verify
from topologies.errors import ScheduleError, ScheduleRefused


def times(problem: Problem, given: Schedule, size: float, most: int) -> Schedule | str:
    """Times by the compiled clock (`most` 0) or the plain one, or what it says is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulate, "COMPILED_FROM", most)
        try:
            return timed(problem, given, size)
        except ScheduleError as error:
            return str(error)


def same_times(problem: Problem, given: Schedule, size: float) -> Schedule | None:
    plain, fast = (times(problem, given, size, most) for most in (len(given) + 1, 0))
    if isinstance(plain, str) or isinstance(fast, str):
        assert plain == fast
        return None
    assert plain.start_us.tolist() == fast.start_us.tolist()
    assert plain.end_us.tolist() == fast.end_us.tolist()
    return fast


def verdict(check: Callable[[Problem, Schedule], None], problem: Problem, given: Schedule) -> str:
    said = ""
    try:
        check(problem, given)
    except ScheduleRefused as error:
        said = str(error)
    assert "\n" not in said
    return said


def same_verdict(problem: Problem, given: Schedule, words: str | None = None) -> str:
    """Both refuse it, or both accept it; `words` are in what both say."""
    plain, fast = (verdict(f, problem, given) for f in (verify._replay_dense, verify._replay_compiled))
    assert bool(plain) == bool(fast), (plain, fast)
    if words is not None:
        assert re.search(words, plain), plain
        assert re.search(words, fast), fast
    return fast


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
