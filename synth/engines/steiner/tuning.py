"""Settings of the engine `steiner`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SteinerTuning:
    """Settings of the engine.

    Attributes:
        most_ranks: Most ranks for which the engine is tried.
        most_ends: Most ranks that begin or end chunks, as it looks at all their subsets.
        most_demands: Most sets of chunks with the same ends.
        least_amount: Least size of such a set, as a part of the message, that trees are packed for.
        most_chunks: Most chunks of a problem, with one chunk a block.
        bulk: Factor on the bound of an empty message above which latencies do not distinguish trees.
        work: Most entries of a table of cheapest trees: ranks × levels of latency × 3 to the power of ends. A second
            for each 10⁹.
        most_levels: Most levels of latency.
        unlike: The least length of a level is the longest latency of a link divided by this number.
        near: Load of the busiest resource / its proved load, up to which no more trees are searched for.
        steps: Most linear programs for one time.
        stall: Linear programs in a row that must gain `gains` in all, else the search ends.
        gains: Factor that these programs must gain.
        times: Most times that are tried for one number of chunks.
        fits: Deviation of the busiest resource's load from full at which a time is accepted.
        patience: Part of the budget for all linear programs of a number of chunks.
        smoothing: Weight of the best prices so far in the prices of the next trees (Wentges, 1997).
        roots: Number of meetings (a rank, or the two ends of a link) whose trees become columns at a time.
        dearer: Factor on the least cost up to which such trees become columns.
        unsteady: Part of the time that a chunk is in flight, above which trees over time are tried.
        fine: Part of the least time that a chunk's hops take at most in that case.
        slots: Slots of time.
        finer: Units in a slot, in which trees over time are searched for.
        stretches: Stretches of the time, whose cheapest trees become columns.
        over_steps: Most linear programs over time for a number of chunks.
        over_near: Proved load / load of the fullest slot, above which no more trees are searched for.
        sooner: Factor on the time that the prices suggest, for the next trial.
        over_work: Most entries of the tables over time: ranks × 3 to the power of ends × units of time.
        unused: Linear programs after which an unused tree is dropped.
        places: Times at which each new tree is tried, besides the time at which it was found.
        counts: Numbers of chunks a block.
        program_counts: The same for programs.
        many_more: Factor on the last number that fits, above which the most that fit are tried, too.
        hopeful: Ratio of the flow's time to the best time above which no schedule is built.
        hops: Approximate number of links in a row in a tree.
        under_way: Part of the bound that a chunk may be in flight.
        near_count: Factor on the time that more chunks must gain.
        idle: Trials in a row that may fail to gain it.
        swaps: Most swaps of trees among the chunks, to balance loads.
        orders: Most list schedules of each number of chunks.
        most_sends: Most sends of a schedule.
        s_a_send: Seconds to build and replay one send.
    """

    most_ranks: int = 32
    most_ends: int = 12
    most_demands: int = 32
    least_amount: float = 1e-5
    most_chunks: int = 1_000
    bulk: float = 200.0
    work: int = 40_000_000
    most_levels: int = 24
    unlike: float = 4.0
    near: float = 1.002
    steps: int = 100
    stall: int = 12
    gains: float = 1.001
    times: int = 8
    fits: float = 0.003
    patience: float = 0.2
    smoothing: float = 0.5
    roots: int = 4
    dearer: float = 1.02
    unsteady: float = 0.03
    fine: float = 0.06
    slots: int = 32
    finer: int = 4
    stretches: int = 12
    over_steps: int = 60
    over_near: float = 0.995
    sooner: float = 0.995
    over_work: int = 200_000_000
    unused: int = 5
    places: int = 8
    counts: tuple[int, ...] = (1, 3, 8, 24, 64, 192, 512, 1_536, 4_096)
    program_counts: tuple[int, ...] = (1, 2, 8, 32, 64, 256, 512, 1_024, 2_048, 4_096)
    many_more: float = 1.5
    hopeful: float = 1.1
    hops: float = 6.0
    under_way: float = 0.5
    near_count: float = 1.002
    idle: int = 1
    swaps: int = 400
    orders: int = 12
    most_sends: int = 30_000
    s_a_send: float = 5e-5


TUNING = SteinerTuning()
