"""Settings of the engine `messages`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MessagesTuning:
    """Settings of the engine.

    Attributes:
        radixes: Radixes of the phases besides the number of nodes.
        widths: Most nodes whose data a message of growing width carries.
        forms: Number of forms that are planned, those of the least estimates.
        worth: Ratio of a form's estimate to the best time above which it is not planned.
        waves: Numbers of waves to try for the best forms.
        hopeless: Factor on the best time above which a form is not tried with more waves.
        orders: List schedules of each form.
        orders_at_last: List schedules of the best form.
        chunks_of_message: Chunks, at least, of a message to a node where an executor needs powers of two.
        parts: Numbers of messages in which a node gets its part.
        uneven_parts: Chunks of an average block to try where blocks have sizes of their own.
        finer: Factors on these numbers, to try for the best forms.
        trees: Numbers of parts of a root's buffer that go over trees of their own.
        most_hands: Most messages from node to node of such trees.
        most_edges: Most edges of trees in which each door has one peer.
        most_sends: Most sends of a schedule.
    """

    radixes: tuple[int, ...] = (2, 3, 4, 5, 9)
    widths: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16)
    forms: int = 16
    worth: float = 1.0
    waves: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    hopeless: float = 2.0
    orders: int = 3
    orders_at_last: int = 24
    chunks_of_message: int = 4
    parts: tuple[int, ...] = (1, 2, 4)
    uneven_parts: tuple[int, ...] = (1, 4)
    finer: tuple[int, ...] = (2, 3, 4, 6, 8, 12, 16)
    trees: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    most_hands: int = 4000
    most_edges: int = 250
    most_sends: int = 150_000


TUNING = MessagesTuning()
