"""Order by depth: what can go at once goes together, and, where asked, ranks take turns to send."""

from __future__ import annotations

from collections.abc import Sequence

from emit.compiler.ir import NONE, Draft, followed


def by_depth(draft: Draft, turns: bool = False) -> Draft:
    """Messages and local instructions by how many must come before them.

    Of one depth what is sent comes before what is received, each in the order in which it was, so that both ends of
    every connection keep one order. With `turns` messages to higher ranks come before those to lower ones: two ranks
    that exchange do not both send before they receive, which needs room for all that is sent.
    The draft comes back as it is where that order is not possible: a message may have to leave before, and to arrive
    after, what has the same depth.
    """
    after = followed(draft)
    depth = [0] * len(draft)
    for n, source in enumerate(draft.source):
        if source != NONE:
            depth[n] = depth[source]  # a message is one with its receipt
            continue
        target = draft.target[n]
        others = [*after[n], *(after[target] if target != NONE else ())]
        depth[n] = 1 + max((depth[other] for other in others if other != n), default=0)

    def key(n: int) -> tuple[int, bool, bool]:
        source, target = draft.source[n], draft.target[n]
        here = draft.rank[n]
        down = (source != NONE and draft.rank[source] > here) or (
            target != NONE and draft.rank[target] < here
        )
        return depth[n], turns and down, source != NONE

    order = sorted(range(len(draft)), key=key)
    place = [0] * len(draft)
    for at, n in enumerate(order):
        place[n] = at
    kept = all(place[other] < place[n] for n, others in enumerate(after) for other in others)
    sent = all(source == NONE or place[source] < place[n] for n, source in enumerate(draft.source))
    return draft.kept(order) if kept and sent and one_order(draft, order) else draft


def one_order(draft: Draft, order: Sequence[int] | None = None) -> bool:
    """Whether both ends of every connection have their messages in one order."""
    order = range(len(draft)) if order is None else order
    left: dict[tuple[int, int, int], list[int]] = {}
    for n in order:
        target = draft.target[n]
        if target != NONE:
            left.setdefault((draft.rank[n], draft.rank[target], draft.lane[target]), []).append(n)
    passed = dict.fromkeys(left, 0)
    for n in order:
        source = draft.source[n]
        if source != NONE:
            key = (draft.rank[source], draft.rank[n], draft.lane[n])
            if left[key][passed[key]] != source:
                return False
            passed[key] += 1
    return True
