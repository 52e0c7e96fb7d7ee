"""Trees over which the parts of a root's buffer go from node to node, each part over its own: rarest first.

As in the swarms that share files (Cohen, "Incentives build robustness in BitTorrent", 2003), a node that is free sends
the part that fewest nodes have, so that the root sends each part once before it sends any twice, and late parts have
many senders. For equal parts and a latency this comes near to the least time of k-item broadcast in the postal model
(Bar-Noy and Kipnis, 1994).
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np


class Hand(NamedTuple):
    """A part that one node sends to another.

    Attributes:
        start: When it leaves, in slots.
        source: The node that sends.
        goal: The node that gets it.
        part: The part.
        depth: Number of nodes that had it on the way before, the root not counted.
    """

    start: float
    source: int
    goal: int
    part: int
    depth: int


@lru_cache(maxsize=64)
def rarest_first(count: int, parts: int, lag: float) -> tuple[float, tuple[Hand, ...]]:
    """Return when all nodes have all parts, in slots, and every part sent, in order of time.

    A node sends and receives at most one part in a slot, which is the time that a message keeps a link busy.

    Args:
        count: Number of nodes; the root is node 0.
        parts: Number of equal parts.
        lag: Slots from the start of a message until the part has come.
    """
    comes = np.full((count, parts), np.inf)  # when each node has each part
    comes[0] = 0.0
    depth = np.zeros((count, parts), dtype=np.int64)
    sends_from, gets_from = np.zeros(count), np.zeros(count)  # when each node can send, and get, the next part
    hands: list[Hand] = []
    now = end = 0.0
    while len(hands) < (count - 1) * parts:
        has = (comes <= now) & (sends_from <= now)[:, None]
        lacks = np.isinf(comes) & (gets_from <= now)[:, None]
        parts_to_send = np.flatnonzero(has.any(axis=0) & lacks.any(axis=0))
        if not len(parts_to_send):
            times = np.concatenate([sends_from, gets_from, comes[np.isfinite(comes)]])
            now = float(times[times > now].min())
            continue
        had = np.isfinite(comes)
        part = int(parts_to_send[had[:, parts_to_send].sum(axis=0).argmin()])
        # The node that has least gets it, from the node that has it and is first.
        goal = int(np.where(lacks[:, part], had.sum(axis=1), parts + 1).argmin())
        source = int(has[:, part].argmax())
        depth[goal, part] = depth[source, part] + 1
        hands.append(Hand(now, source, goal, part, int(depth[source, part])))
        sends_from[source] = gets_from[goal] = now + 1.0
        comes[goal, part] = now + lag
        end = max(end, now + lag)
    return end, tuple(hands)
