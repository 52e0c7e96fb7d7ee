"""What the engine `steiner` is set to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """How much is tried.

    Attributes:
        most_ranks: up to which the engine is asked. most_ends: ranks that begin or end chunks, of which all subsets are
            looked at. most_demands: sets of chunks with the same ends. least_amount: of such a set, as a part of the
            message. most_chunks: of a problem, one a block.
        bulk: times the bound of an empty message from which on latencies do not tell trees apart.
        work: ranks × levels of latency × 3 to the power of ends of a table of cheapest trees: a second for each 10⁹.
        most_levels: of these. unlike: parts of the longest latency of a link that a level is at least.
        stall: linear programs one after another that must gain `gains` times in all; else no more are solved.
        near: how full the busiest resource is / what is proved of it up to which trees are looked for. steps: linear
            programs at most for a time. times: that are tried. fits: how nearly full one is that is taken.
        patience: the part of the budget that these may take together, for a number of chunks.
        smoothing: the part of the best prices so far in those by which the next trees are cheapest (Wentges, 1997).
        roots: where trees meet, a rank or both ends of a link, of which so many are taken at a time. dearer: how often
            the cheapest these may cost.
        unsteady: the part of the time that chunks are under way, from which on trees over time are worth it.
            fine: the part of the least time found that a chunk's hops take at most then.
        slots: of time. finer: units of a slot in which trees over time are looked for. stretches: of the time, whose
            cheapest trees are taken. over_steps: linear programs over time at most for a number of chunks.
            over_near: what is proved / how full the fullest slot is, from which on no more trees are looked for.
            sooner: of the time that prices say suffices, what is tried next. over_work: ranks × 3 to the power of ends
            × units of time of the tables at most. unused: programs after which a tree that none used is dropped.
            places: times at which each new tree is tried besides the one at which it was found.
        counts: numbers of chunks a block. many_more: times the last that fits, from which on the most that fit are
            tried. hops: links one after another in a tree, about. under_way: the part of the bound that a chunk may be
            there. hopeful: what flows take / the best time, over which no schedule is made.
        near_count: what more chunks must gain, or idle: so many times they need not.
        swaps: of trees among the chunks, at most, for even loads.
        orders: list schedules of each. most_sends: of a schedule. s_a_send: seconds that making and replaying one send
            takes.
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


TUNING = Tuning()
