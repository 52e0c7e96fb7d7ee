"""Exchange ordering: what can go at once goes together, and, where asked, ranks that exchange take turns to send."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from emit.compiler.ir import NONE, Instructions, predecessors


def order_by_depth(ir: Instructions, exchanges: bool = False) -> Instructions:
    """Messages and local instructions by how many must come before them.

    Of one depth what is sent comes before what is received, each in the order in which it was, so that both ends of
    every connection keep one order. With `exchanges` messages to higher ranks come before those to lower ones: two
    ranks that exchange do not both send before they receive, which needs room for all that is sent.
    The instructions come back as they are where that order is not possible: a message may have to leave before, and
    to arrive after, what has the same depth.
    """
    after = predecessors(ir)
    depth = [0] * len(ir)
    for n, source in enumerate(ir.source):
        if source != NONE:
            depth[n] = depth[source]  # a message is one with its receipt
            continue
        target = ir.target[n]
        others = [*after[n], *(after[target] if target != NONE else ())]
        depth[n] = 1 + max((depth[other] for other in others if other != n), default=0)

    def key(n: int) -> tuple[int, bool, bool]:
        source, target = ir.source[n], ir.target[n]
        here = ir.rank[n]
        down = (source != NONE and ir.rank[source] > here) or (target != NONE and ir.rank[target] < here)
        return depth[n], exchanges and down, source != NONE

    order = sorted(range(len(ir)), key=key)
    place = [0] * len(ir)
    for at, n in enumerate(order):
        place[n] = at
    kept = all(place[other] < place[n] for n, others in enumerate(after) for other in others)
    sent = all(source == NONE or place[source] < place[n] for n, source in enumerate(ir.source))
    return ir.select(order) if kept and sent and keeps_message_order(ir, order) else ir


def keeps_message_order(ir: Instructions, order: Sequence[int] | None = None) -> bool:
    """Whether both ends of every connection have their messages in one order."""
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for n in range(len(ir)) if order is None else order:
        source, target = ir.source[n], ir.target[n]
        if target != NONE:
            sent[ir.rank[n], ir.rank[target], ir.channel[target]].append(n)
        if source != NONE:
            received[ir.rank[source], ir.rank[n], ir.channel[n]].append(source)
    return sent == received
