"""Limits and settings of the baselines."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BaselineTuning:
    """Limits and settings that are the same for all problems.

    Attributes:
        most_sends: Most sends that a baseline may hold in memory (some 3 GB).
        likely_sends: Most sends of a baseline that an answer is compared with where it may well be the best. It is
            larger than `further_sends`: without two levels, or without turns, libraries would look worse than they are.
        further_sends: Most sends of any other baseline that an answer is compared with.
        pieces: Numbers of pieces of a pipeline; the best number depends on the size.
        orders_bytes: Sizes of the smallest chunk for which queues are run.
        ordered_once: Number of sends above which only the first of these orders is built, since each takes seconds.
        cycle_steps: Most steps of backtracking for one cycle (some 0.1 s).
        all_cycles_steps: Most steps of backtracking for all cycles (some 1 s).
        most_cycles: Most distinct cycles in a network.
        most_shares: Most repetitions of a wide cycle.
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


TUNING = BaselineTuning()
