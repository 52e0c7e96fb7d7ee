"""What the checks take on at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Capacity:
    """Bounds that keep a check of hostile input under 1 GiB and a minute or so; real programs stay far below.

    Attributes:
        moves: chunks moved by all steps (cells, in an execution plan).
        contributions: in all different contents together.
        clock_entries: int32 entries of vector clocks that are held at a time.
        clock_visits: steps looked at in all passes over a program that follow clocks.
        plan_cells: cells of all buffers of an execution plan.
        root_steps: steps and chunks of a program that are looked at while the root of a plan is sought.
    """

    moves: int = 1 << 20
    contributions: int = 1 << 25
    clock_entries: int = 1 << 25
    clock_visits: int = 1 << 26
    plan_cells: int = 1 << 21
    root_steps: int = 1 << 19


CAPACITY = Capacity()
