"""Messages of growing width: a node sends its own data first, and merges what has come to it with later messages.

In dissemination (Bruck and others, IEEE TPDS 8, 1997) nodes wait for all messages of a phase before they send the next.
Here they go on sending their own data to further nodes meanwhile, so that no door waits, and as soon as data of other
nodes have come, a message carries these too. Fewer messages have fewer gaps. All nodes do the same: message after
message goes to the first node ahead that lacks the sender's data, with the data of the nearest nodes behind it.
"""

from __future__ import annotations

from heapq import heapreplace
from itertools import groupby
from typing import NamedTuple


class MessagePhase(NamedTuple):
    """Messages that each node sends.

    Attributes:
        messages: Number of messages.
        width: Number of nodes, at most, whose data each carries: the sender and the nearest nodes behind it.
        links: Number of links over which each is spread.
    """

    messages: int
    width: int
    links: int


class Doors(NamedTuple):
    """The links over which a node sends to others, all alike.

    Attributes:
        places: Number of messages that leave at once.
        block_us: Time in µs that the data of one node take on a link.
        gap_us: Time in µs after a message before the next one leaves.
        alpha_us: Time in µs from the end of a message until what it brought can leave again.
    """

    places: int
    block_us: float
    gap_us: float
    alpha_us: float


def growing(nodes: int, doors: Doors, widest: int) -> tuple[MessagePhase, ...]:
    """Return phases in which a message carries all that has come to its node by then, of at most `widest` nodes.

    Args:
        nodes: Number of nodes, 2 or more.
        doors: The doors of a node.
        widest: Most nodes whose data a message carries.
    """
    widths, free_us, arrived_us = list[int](), [0.0] * doors.places, [0.0]
    while len(arrived_us) < nodes:
        arrived = sum(at_us <= free_us[0] for at_us in arrived_us)
        width = min(arrived, widest, nodes - len(arrived_us))
        arrived_us += [_send(free_us, doors, width, 1, 0.0) + doors.alpha_us] * width
        widths.append(width)
    return tuple(MessagePhase(len(list(equal_widths)), width, 1) for width, equal_widths in groupby(widths))


def evened(phases: tuple[MessagePhase, ...], doors: int) -> tuple[MessagePhase, ...]:
    """Return phases whose last messages, where these are fewer than the doors, are spread over all doors."""
    extra = sum(phase.messages for phase in phases) % doors
    divided = list[MessagePhase]()
    for phase in reversed(phases):
        last = min(extra, phase.messages)
        extra -= last
        unspread = phase._replace(messages=phase.messages - last)
        divided += [own for own in (phase._replace(messages=last, links=doors), unspread) if own.messages]
    return tuple(reversed(divided))


def lasts_us(nodes: int, doors: Doors, phases: tuple[MessagePhase, ...]) -> float:
    """Return the time in µs until every node has the data of all, and could send them on."""
    free_us, arrived_us = [0.0] * doors.places, [0.0]  # of the nodes 0, 1, … behind
    for phase in phases:
        for _ in range(phase.messages):
            width = min(phase.width, nodes - len(arrived_us))
            end_us = _send(free_us, doors, width, phase.links, arrived_us[width - 1])
            arrived_us += [end_us + doors.alpha_us] * width
    return max(arrived_us)


def _send(free_us: list[float], doors: Doors, width: int, links: int, ready_us: float) -> float:
    """Send a message over the doors that are free first, and return when its last part has left.

    Args:
        free_us: When each door is free, a heap, which changes.
        doors: The doors.
        width: Number of nodes whose data it carries.
        links: Number of links over which it is spread.
        ready_us: When its data are there.
    """
    end_us = 0.0
    for _ in range(links):
        left_us = max(free_us[0], ready_us) + width * doors.block_us / links
        heapreplace(free_us, left_us + doors.gap_us)
        end_us = max(end_us, left_us)
    return end_us
