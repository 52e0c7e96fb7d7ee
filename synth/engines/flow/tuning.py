"""What the flow engine is set to: its routing and list scheduling, and its search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """The same for all problems.

    Attributes:
        sharpness: of the prices, pass by pass: how much longer the busiest resource is than an idle one, as a power of
            e. It rises as the loads come near their best, where small differences must count.
        wide_links: links looked at in a pass (chunks times links) up to which paths may be longer than the shortest;
            30 million take some seconds.
        spreads: how far apart in time the parts of a message are asked for, in parts of the whole time, most
            promising first.
        swings: backward and forward passes of an order of sends; a fourth gained nothing on grids and machines.
        levels: lists of ready sends over all bundles, 64 to 4096 levels of urgency each: what fits into the cache.
        matched_share: of the ranks: where more want each chunk (or add to it), matching in time is tried too.
        matched_cells: chunks times ranks up to which it is: its table takes a byte each.
    """

    sharpness: tuple[float, ...] = (8.0, 12.0, 20.0, 30.0, 40.0, 60.0, 80.0)
    wide_links: int = 30_000_000
    spreads: tuple[float, ...] = (0.25, 1.0, 0.0)
    swings: int = 3
    levels: int = 1 << 21
    matched_share: float = 0.5
    matched_cells: int = 400_000_000


TUNING = Tuning()


@dataclass(frozen=True)
class SearchTuning:
    """When to refine chunks, how long to route, and when to stop.

    Attributes:
        near: time / bound from which on nothing is gained by going on.
        near_many: the same where every trial takes seconds.
        near_whole: the same for the whole problem, after its quotient, where that takes seconds.
        expanded: sends up to which a quotient problem's schedule is written out in full.
        most_sends: to which chunks are refined: more are not ordered within a usual budget.
        sends_of_one_order: from which on one order is tried.
        sends_of_few_orders: from which on fewer orders and passes are tried.
        sends_of_seconds: from which on every trial takes a second or more.
        sends_of_all_variants: up to which all variants of routing are tried.
        least_busy: of the latency: a chunk holds a link for at least this part of it, or need not be refined.
        bulk: latencies that a chunk holds a link where latency hardly counts.
        bulk_sends: up to which a trial may begin there.
        worth: a step to more chunks must gain this part, or it was the last but one.
        passes, passes_of_many, passes_of_most: how often all chunks are routed, by the number of sends.
        passes_at_last: the same for the best number of chunks.
        orders, orders_of_many: list schedules made at most for the best routes.
    """

    near: float = 1.005
    near_many: float = 1.008
    near_whole: float = 1.03
    expanded: int = 500_000
    most_sends: int = 400_000
    sends_of_one_order: int = 1_000_000
    sends_of_few_orders: int = 150_000
    sends_of_seconds: int = 20_000
    sends_of_all_variants: int = 10_000
    least_busy: float = 0.02
    bulk: float = 20.0
    bulk_sends: int = 50_000
    worth: float = 0.003
    passes: int = 12
    passes_of_many: int = 6
    passes_of_most: int = 3
    passes_at_last: int = 20
    orders: int = 12
    orders_of_many: int = 6

    def close_enough(self, sends: int) -> float:
        """time / bound from which on nothing is gained by going on, for a schedule of so many sends."""
        return self.near if sends < self.sends_of_seconds else self.near_many


SEARCH = SearchTuning()
