"""State the limits on the size of what is checked; each check applies its own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckCapacity:
    """Limits that keep a check of hostile input under 1 GiB and about a minute; real programs stay far below.

    Attributes:
        moves: Chunks moved by all steps of a program (cells, in an execution plan).
        contributions: Contributions in all different partial sums of a replay.
        clock_entries: Entries (int32) of vector clocks that are in memory at a time.
        clock_visits: Steps visited in all passes over a program that follow vector clocks.
        plan_cells: Cells of all buffers of an execution plan.
        root_steps: Steps and chunks of a program that are visited during the search for a plan's root.
    """

    moves: int = 1 << 20
    contributions: int = 1 << 25
    clock_entries: int = 1 << 25
    clock_visits: int = 1 << 26
    plan_cells: int = 1 << 21
    root_steps: int = 1 << 19


CAPACITY = CheckCapacity()
