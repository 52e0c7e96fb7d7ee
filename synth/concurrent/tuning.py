"""What the search for concurrent groups is set to."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Tuning:
    """Shares of the budget, and when to stop.

    Attributes:
        isolated, within: the part of the budget for isolated runs, and for those without relays.
        union: the part of it by which the union's search is over; the rest is for the bound.
        max_flow_ranks: up to which the worst cut is looked for before there is a plan.
        most_sends: to which chunks are refined.
        worth: what refined chunks must gain.
        reordered: plans whose order is made fairer.
        settling: times that a plan may teach how a group is faster in isolation.
        lowered: plans that become programs at most, the fastest first, beyond the first that can.
        lowering: the part of the budget, at its end, in which plans become programs and these files.
        writing: the part of it, likewise, where there is no program.
    """

    isolated: float = 0.25
    within: float = 0.1
    union: float = 0.65
    max_flow_ranks: int = 256
    most_sends: int = 400_000
    worth: float = 0.003
    reordered: int = 4
    settling: int = 4
    lowered: int = 4
    lowering: float = 0.3
    writing: float = 0.05

    def limited(self, rank_sends: int | None, nranks: int) -> Tuning:
        """The same for schedules of which a rank takes part in no more sends, on average; None: any number."""
        return self if rank_sends is None else replace(self, most_sends=min(self.most_sends, rank_sends * nranks))
