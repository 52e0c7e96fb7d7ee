"""What baselines are set to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The same for all problems.

    Attributes:
        most_sends: that a baseline may hold in memory, some 3 GB.
        likely_sends, further_sends: that one may have to be compared with an answer: where it could well be the best,
            and elsewhere. Of the first kind more are looked at: without two levels, or without turns, libraries would
            look worse than they are.
        pieces: of a pipeline; the best number depends on the size.
        orders_bytes: sizes of the smallest chunk for which queues are run.
        ordered_once: sends; with more only the first of these orders is made, since each takes seconds.
        cycle_steps, all_cycles_steps: of backtracking for one cycle, and for all: some 0.1 s and 1 s.
        most_cycles: that a network is filled with. most_shares: times that a wide one stands.
    """

    most_sends: int = 30_000_000
    likely_sends: int = 2_500_000
    further_sends: int = 200_000
    pieces: tuple[int, ...] = (1, 4, 16, 64)
    orders_bytes: tuple[float, ...] = (float(1 << 20), float(1 << 10))
    ordered_once: int = 200_000
    cycle_steps: int = 100_000
    all_cycles_steps: int = 1_000_000
    most_cycles: int = 16
    most_shares: int = 8


TUNING = Tuning()
