"""Settings of the engine `flow`: its routing and list scheduling, and its search."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class FlowTuning:
    """Settings of routing and list scheduling, equal for all problems.

    Attributes:
        sharpness: Exponent of the prices for each pass: the busiest resource costs e to this power as much as an idle
            one. It rises as the loads come near their best, where small differences must count.
        wide_links: Links looked at in a pass (chunks × links) up to which paths may be longer than the shortest; 30
            million take some seconds.
        spreads: Distances in time between the parts of a message, as fractions of the whole time, the most promising
            first.
        turns: Distances in time between the first turn and the last, as fractions of the whole time, where sends have
            turns; the most promising first.
        swings: Backward and forward passes of an order of sends; a fourth pass gained nothing on grids and machines.
        levels: Lists of ready sends over all bundles, 64 to 4096 levels of urgency each, so that they fit into the
            cache.
        matched_share: Part of the ranks above which matching in time is tried: so many want each chunk (or add to it).
        matched_cells: Chunks × ranks up to which matching is tried; its table takes a byte each.
    """

    sharpness: tuple[float, ...] = (8.0, 12.0, 20.0, 30.0, 40.0, 60.0, 80.0)
    wide_links: int = 30_000_000
    spreads: tuple[float, ...] = (0.25, 1.0, 0.0)
    turns: tuple[float, ...] = (0.01, 0.05)
    swings: int = 3
    levels: int = 1 << 21
    matched_share: float = 0.5
    matched_cells: int = 400_000_000


TUNING = FlowTuning()


@dataclass(frozen=True)
class SearchTuning:
    """Settings of the search: when to refine chunks, how long to route, and when to stop.

    Attributes:
        near: Ratio time / bound up to which the search goes on.
        near_many: The same where every trial takes seconds.
        near_whole: The same for the whole problem, after its quotient, where that takes seconds.
        expanded: Sends up to which a quotient problem's schedule is expanded.
        most_sends: Sends to which chunks are refined; more sends are not ordered within a usual budget.
        sends_of_one_order: Sends from which on one order is tried.
        sends_of_few_orders: Sends from which on fewer orders and passes are tried.
        sends_of_seconds: Sends from which on every trial takes a second or more.
        sends_of_all_variants: Sends up to which all variants of routing are tried.
        least_busy: Part of the latency for which a chunk must hold a link to be refined.
        bulk: Latencies for which a chunk holds a link where latency hardly counts.
        bulk_sends: Sends up to which the first trial may use such chunks.
        worth: Part of the time that more chunks must gain, else the search for more chunks ends after one further
            trial.
        passes: Number of times that all chunks are routed.
        passes_of_many: The same for many sends.
        passes_of_most: The same for most sends.
        passes_at_last: The same for the best number of chunks.
        orders: Most list schedules for the best routes.
        orders_of_many: The same for many sends.
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
        """Return the ratio time / bound up to which the search goes on, for a schedule with a number of sends."""
        return self.near if sends < self.sends_of_seconds else self.near_many


SEARCH = SearchTuning()
