"""What the engine `levels` is set to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """How much is tried.

    Attributes:
        most_ranks: of a group: pairs are looked up in a table of all links.
        near: time / bound that is not improved.
        doublings: of the number of chunks. worth: of the time: what one, or the one after
            it, must gain; half of it makes an answer.
        hopeless: over the best time: a shape whose fewest chunks take longer, and gain nothing, is left.
        orders: list schedules made at most for each.
        most_sends: of a schedule (of a quotient problem's too).
        variants: trees from each rank on a level where not all ranks are linked, by which chunks go in turn.
        passes: how often these are routed.
    """

    most_ranks: int = 2048
    near: float = 1.003
    doublings: int = 12
    worth: float = 0.01
    hopeless: float = 3.0
    orders: int = 5
    most_sends: int = 200_000
    variants: int = 4
    passes: int = 8


TUNING = Tuning()
