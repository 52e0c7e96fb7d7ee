"""Settings of the engine `trees`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TreesTuning:
    """Settings of the engine.

    Attributes:
        counts: Numbers of trees a root that are tried, besides the number that attains the optimum if it is larger.
        most_trees: Most trees of an all-reduce.
        losses: Factors on the least time of all numbers of trees; for each the fewest trees within it are tried.
        restarts: Packings of an all-reduce, of which the shallowest counts, for up to `restart_ranks` ranks; fewer
            packings for more ranks.
        restart_ranks: Number of ranks up to which all restarts are made.
        waits: Times at which a number of trees is tried, as only a trial shows whether they can be packed.
        most_combs: Mixtures of a mesh's trees that are tried.
        round_sends: Sends of a round up to which more trees a root are tried.
        most_arcs: Most arcs of one tree a root over all roots; packing takes some ms for each arc.
        most_sends: Most sends of a schedule.
        most_sends_of_fewer: Most sends of a schedule with fewer trees than the largest number tried.
        s_a_send: Seconds to build and replay one send.
        share_of_time: Part of the remaining time that a schedule may take.
        orders: Most list schedules, for up to `sends_of_many_orders` sends; one for more sends.
        sends_of_many_orders: Number of sends up to which several orders are tried.
        worth: Factor on the time that a longer schedule must gain.
    """

    counts: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    most_trees: int = 64
    losses: tuple[float, ...] = (1.005, 1.05, 1.5)
    restarts: int = 40
    restart_ranks: int = 128
    waits: int = 12
    most_combs: int = 100
    round_sends: int = 100_000
    most_arcs: int = 4_000
    most_sends: int = 4_000_000
    most_sends_of_fewer: int = 200_000
    s_a_send: float = 2e-6
    share_of_time: float = 0.9
    orders: int = 4
    sends_of_many_orders: int = 50_000
    worth: float = 1.003


TUNING = TreesTuning()
