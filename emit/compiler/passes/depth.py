"""Order messages by depth: messages that can go simultaneously are adjacent, and exchanging ranks may alternate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from emit.compiler.ir import NONE, Instructions, predecessors


def order_by_depth(ir: Instructions, exchanges: bool = False) -> Instructions:
    """Order messages and local instructions by the number of instructions that must come before them.

    At equal depth, sends come before receives, each in their previous order, so that both ends of every connection keep
    the same order.

    Args:
        ir: Instructions.
        exchanges: Whether messages to higher ranks come before messages to lower ranks. Then two ranks that exchange do
            not both send before they receive, which needs slots for everything that is sent.

    Returns:
        The ordered instructions; `ir` itself if that order is impossible, because a message must leave before, and
        arrive after, an instruction of the same depth.
    """
    after = predecessors(ir)
    depth = [0] * len(ir)
    for n, source in enumerate(ir.source):
        if source != NONE:
            depth[n] = depth[source]  # Both ends of a message have one depth.
            continue
        target = ir.target[n]
        earlier = [*after[n], *(after[target] if target != NONE else ())]
        depth[n] = 1 + max((depth[instruction] for instruction in earlier if instruction != n), default=0)

    def key(n: int) -> tuple[int, bool, bool]:
        """Return the key by which instruction `n` is sorted: depth, whether to a lower rank, whether it receives.

        The second is always False without `exchanges`; a receive counts as its message does.
        """
        source, target = ir.source[n], ir.target[n]
        own_rank = ir.rank[n]
        to_lower_rank = (source != NONE and ir.sender(n) > own_rank) or (target != NONE and ir.receiver(n) < own_rank)
        return depth[n], exchanges and to_lower_rank, source != NONE

    order = sorted(range(len(ir)), key=key)
    place = [0] * len(ir)
    for at, n in enumerate(order):
        place[n] = at
    keeps_dependencies = all(
        place[instruction] < place[n] for n, earlier in enumerate(after) for instruction in earlier
    )
    sends_before_receives = all(source == NONE or place[source] < place[n] for n, source in enumerate(ir.source))
    return ir.select(order) if keeps_dependencies and sends_before_receives and keeps_message_order(ir, order) else ir


def keeps_message_order(ir: Instructions, order: Sequence[int] | None = None) -> bool:
    """Return True if both ends of every connection have their messages in the same order.

    A connection is a sender, a receiver and a requested channel. The instructions are taken in `order`, a permutation
    of their numbers; None for the order in which they are.
    """
    sent: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    received: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    for n in range(len(ir)) if order is None else order:
        source, target = ir.source[n], ir.target[n]
        if target != NONE:
            sent[ir.rank[n], ir.receiver(n), ir.channel[target]].append(n)
        if source != NONE:
            received[ir.rank[source], ir.receiver(source), ir.channel[n]].append(source)
    return sent == received
