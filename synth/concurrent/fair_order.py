"""The same sends in another order, so that no group is slowed much more than the others.

A schedule's rows stand in order of priority. Each group's rows keep their order among themselves, which any
schedule of the group allows; how early a group's rows stand among all others is what is tried out.
"""

from __future__ import annotations

import numpy as np

from synth.concurrent.union import Together, times_by_group
from synth.model.collective import Floats, Ints
from synth.model.schedule import Schedule
from synth.timing.simulate import timed

_ROUNDS = 16
_MANY = 100_000  # sends from which on fewer rounds are made
_FEWER = 6
_FIRM = 1.5  # how strongly a group that is slowed more than the mean is moved forward


def fairer(asked: Together, schedule: Schedule, size_bytes: float, alone_us: Floats) -> Schedule | None:
    """The schedule in the order with the smallest largest slowdown, then makespan; None where none is better.

    Every group's times are stretched by a factor, and rows stand in the order of these stretched times. The factors
    start at 1; those of groups that are slowed more than the geometric mean shrink.

    Args:
        schedule: of the union; need not be timed.
        size_bytes: the union's message size.
        alone_us: what each group takes alone, shape (groups,).
    """
    group = asked.group_of_chunk[schedule.chunk]
    at_size = timed(asked.problem, schedule, size_bytes)
    when = _in_turn(at_size.start_us, group, len(asked.members))
    slow = times_by_group(asked, at_size) / alone_us
    best, found = _score(slow, alone_us), None
    stretch = np.zeros(len(alone_us))  # logarithms
    for _ in range(_ROUNDS if len(schedule) < _MANY else _FEWER):
        logs = np.log(slow)
        stretch -= _FIRM * (logs - logs.mean())
        order = np.argsort(when * np.exp(stretch - stretch.max())[group], kind="stable")
        trial = timed(asked.problem, schedule.take(order), size_bytes)
        slow = times_by_group(asked, trial) / alone_us
        score = _score(slow, alone_us)
        if score < best:
            best, found = score, trial
    return found


def _score(slow: Floats, alone_us: Floats) -> tuple[float, float]:
    """What is less is fairer; differences that rounding makes do not count."""
    return float(f"{slow.max():.9g}"), float(f"{(slow * alone_us).max():.9g}")


def _in_turn(start_us: Floats, group: Ints, groups: int) -> Floats:
    """Starts that never go back within a group: sorted by them, a group's rows keep their order."""
    when = np.empty(len(start_us))
    order = np.argsort(group, kind="stable")
    cuts = np.searchsorted(group[order], np.arange(groups + 1))
    for begin, end in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True):
        rows = order[begin:end]
        when[rows] = np.maximum.accumulate(start_us[rows])
    return when
