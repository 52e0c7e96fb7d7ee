"""Settings of the engine `levels`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class LevelsTuning:
    """Settings of the engine.

    Attributes:
        most_ranks: Most ranks of a group, as pairs are looked up in a table of all links.
        near: Ratio time / bound up to which a schedule is not improved.
        doublings: Doublings of the number of chunks.
        worth: Part of the time that a doubling, or the next one, must gain; half of it is enough for an answer.
        hopeless: Factor on the best time above which a shape that does not gain is dropped.
        orders: Most list schedules for each shape and number of chunks.
        most_sends: Most sends of a schedule (of a quotient problem's too).
        variants: Trees from each rank on a level where not all ranks are linked, which the chunks take in turn.
        passes: Number of times that these trees are routed.
        instances: Threadblocks between two ranks in a program for blocks of any sizes, which share each chunk.
    """

    most_ranks: int = 4096
    near: float = 1.003
    doublings: int = 12
    worth: float = 0.01
    hopeless: float = 3.0
    orders: int = 5
    most_sends: int = 200_000
    variants: int = 4
    passes: int = 8
    instances: int = 2


TUNING = LevelsTuning()
