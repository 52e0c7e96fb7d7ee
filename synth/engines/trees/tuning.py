"""What the engine `trees` is set to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tuning:
    """How much is tried.

    Attributes:
        counts: trees a root beside the number that attains the optimum, if it is larger than these.
        most_trees: of an all-reduce. losses: over the least time of these, as fractions: of each the fewest trees.
        restarts: packings of an all-reduce, of which the shallowest is taken, at `restart_ranks` ranks or fewer; of
            more ranks fewer. waits: times at which it is tried to
            pack so many trees, since where they cannot be packed is only known when it has been tried.
        most_combs: mixtures of the trees of a mesh that are tried.
        round_sends: sends of a round, up to which more trees a root are tried.
        most_arcs: that all trees of a problem have if each root had one: packing takes some ms for each.
        most_sends: of a schedule. most_sends_of_fewer: of one of fewer trees than are tried at most.
        s_a_send: seconds that making and replaying one takes. share_of_time: that is left, which a schedule may take.
        orders: list schedules made at most, for `sends_of_many_orders` sends or fewer; for more sends one.
        worth: of the time: what a longer one must gain.
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


TUNING = Tuning()
