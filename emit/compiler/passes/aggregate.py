"""Aggregation: chunks that lie side by side at both ends and are ready together go as one message.

Source: MSCCLang (ASPLOS 2023), section 4.1, where the programmer asks for it; here it is found.
"""

from __future__ import annotations

from emit.compiler.ir import NONE, Draft
from emit.compiler.passes.links import Neighbours


def aggregate(draft: Draft, most: int) -> Draft:
    """Merge messages that follow one another on a connection, up to `most` chunks each.

    The later one's data must be there when the earlier one is sent; neither end may have to wait for something that
    stands between.
    """
    made = draft.copy()
    near = Neighbours(made)
    gone: set[int] = set()
    for first in range(len(made)):
        if made.op[first] != "s" or first in gone:
            continue
        s = first
        while True:
            later = near.sent_after[s]
            if later == NONE or made.op[later] != "s":
                break
            staying = _merged(made, near, s, later, most)
            if staying == NONE:
                break
            gone.add(later)
            gone.add(made.target[later] if staying != made.target[later] else made.target[s])
            _join(made, near, s, later, staying)
    return made.kept([n for n in range(len(made)) if n not in gone]) if gone else draft


def _merged(draft: Draft, near: Neighbours, s: int, later: int, most: int) -> int:
    """Of the two receiving instructions the one whose place the merged one takes, −1 where it cannot be."""
    r, behind = draft.target[s], draft.target[later]
    if (
        draft.op[r] != draft.op[behind]
        or draft.op[r] not in ("r", "rrc")
        or near.received_after[r] != behind
        or draft.count[s] + draft.count[later] > most
    ):
        return NONE
    apart = draft.src[later] - draft.src[s]
    if apart not in (draft.count[s], -draft.count[later]) or draft.dst[behind] - draft.dst[r] != apart:
        return NONE
    if draft.op[r] == "rrc" and draft.src[behind] - draft.src[r] != apart:
        return NONE
    if any(n > s for n in near.after[later]):
        return NONE
    if all(n < r for n in near.after[behind]):
        return r
    if all(n > behind for n in near.before[r]):
        return behind
    return NONE


def _join(draft: Draft, near: Neighbours, s: int, later: int, stays: int) -> None:
    r, behind = draft.target[s], draft.target[later]
    goes = behind if stays == r else r
    src, dst = min(draft.src[s], draft.src[later]), min(draft.dst[r], draft.dst[behind])
    own = min(draft.src[r], draft.src[behind])
    count = draft.count[s] + draft.count[later]
    draft.src[s], draft.count[s] = src, count
    draft.src[stays], draft.dst[stays], draft.count[stays] = own, dst, count
    draft.target[s], draft.source[stays] = stays, s
    near.leave(later, s)
    near.leave(goes, stays)
