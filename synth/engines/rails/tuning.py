"""Settings of the engine `rails`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RailsTuning:
    """Settings of the engine.

    Attributes:
        most_ranks: Most ranks of a group, as pairs are looked up in a table of all pairs.
        near: Ratio time / bound up to which a schedule is not improved.
        parts: Numbers of chunks into which each block, or each share of a sum, is cut.
        worth: Part of the time that the next number must gain; half of it is enough for an answer.
        most_sends: Most sends of a schedule with more than the fewest chunks (some seconds).
        most_listed: Most sends that are list scheduled (some seconds).
        most_joint_sends: Most sends of an all-reduce whose phases are list scheduled as one (some seconds).
        orders: List schedules of both phases as one.
    """

    most_ranks: int = 4096
    near: float = 1.003
    parts: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    worth: float = 0.01
    most_sends: int = 6_500_000
    most_listed: int = 300_000
    most_joint_sends: int = 60_000
    orders: int = 8


TUNING = RailsTuning()
