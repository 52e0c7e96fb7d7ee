"""The shares of the budget of a search for concurrent groups, and when it stops."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class ConcurrentTuning:
    """Shares of the budget, and limits of the work.

    Attributes:
        isolated: Share of the budget for isolated runs.
        within: Share for isolated runs without relays.
        union: Part of the budget after which the engine on the union ends; the rest is for the bound.
        max_flow_ranks: Most ranks for which the worst cut is searched before there is a plan.
        most_sends: Most sends to which chunks are refined.
        worth: Part of the makespan that finer chunks must gain.
        reordered: Number of plans whose order is made fairer.
        settling: Times that a plan may replace isolated runs.
        lowered: Most plans that become programs, the fastest first, after the first that can.
        lowering: Share of the budget, at its end, in which plans become programs and files.
        writing: The same share if there are no programs.
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

    def limited(self, rank_sends: int | None, nranks: int) -> ConcurrentTuning:
        """Return the tuning for schedules in which a rank takes part in at most so many sends; None for any number."""
        return self if rank_sends is None else replace(self, most_sends=min(self.most_sends, rank_sends * nranks))
