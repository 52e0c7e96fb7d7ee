"""The same groups with their chunks cut otherwise, and the same sends for finer chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from synth.concurrent.union import Member, Together, together
from synth.model.collective import Collective
from synth.model.schedule import Schedule, untimed

__all__ = ["even_counts", "finer_rows", "restated"]

_UNEVEN = 8  # how many times finer the chunks of large messages are cut than those of small ones
_LONG_NAME = 40  # characters that a schedule file takes


def restated(
    asked: Together, collectives: Sequence[Collective], relays: Sequence[int] | str, dead: Sequence[int]
) -> Together:
    """The same groups with other collectives, and the same rule for relays; see `groups.together`."""
    members = [replace(m, collective=c) for m, c in zip(asked.members, collectives, strict=True)]
    again = together(asked.problem.topology, members, relays, dead)
    if len(again.problem.collective.name) <= _LONG_NAME:
        return again
    whole = replace(again.problem.collective, name="together")
    return replace(again, problem=replace(again.problem, collective=whole))


def even_counts(members: Sequence[Member]) -> list[int]:
    """Into how many parts each group's chunks are to be cut so that all are of like sizes, and all ranks busy.

    An allreduce is cut into a share a rank; of messages of different sizes the larger are cut finer.
    """
    shares, sizes = [], []
    for member in members:
        whole = member.collective
        shares.append(whole.nranks if whole.kind.in_shares and whole.chunks % whole.nranks else 1)
        sizes.append(float(whole.fraction.max()) * member.size_bytes / shares[-1])
    least = max(min(sizes), max(sizes) / _UNEVEN)
    return [share * max(1, round(size / least)) for share, size in zip(shares, sizes, strict=True)]


def finer_rows(schedule: Schedule, times: int) -> Schedule:
    """The same sends with every chunk cut into `times` parts, which follow each other; to be timed anew."""
    if times == 1:
        return schedule
    part = np.tile(np.arange(times), len(schedule))
    row = np.repeat(np.arange(len(schedule)), times)
    return untimed(
        schedule.chunk[row] * times + part, schedule.link[row], schedule.step[row], schedule.reduces[row]
    )
