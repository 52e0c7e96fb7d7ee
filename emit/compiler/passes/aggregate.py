"""Aggregation: chunks that lie side by side at both ends and are ready together go as one message.

Source: MSCCLang (ASPLOS 2023), section 4.1, where the programmer asks for it; here it is found.
"""

from __future__ import annotations

from emit.compiler.ir import NONE, Instructions
from emit.compiler.passes.links import Neighbours


def aggregate(ir: Instructions, most: int) -> Instructions:
    """Merge messages that follow one another on a connection, up to `most` chunks each.

    The later one's data must be there when the earlier one is sent; neither end may have to wait for something that
    stands between.
    """
    made = ir.copy()
    near = Neighbours(made)
    gone: set[int] = set()
    for first in range(len(made)):
        if made.op[first] != "s" or first in gone:
            continue
        s = first
        while True:
            later = near.sent_after[s]
            staying = _merged(made, near, s, later, most) if later != NONE and made.op[later] == "s" else NONE
            if staying == NONE:
                break
            gone |= {later, _join(made, near, s, later, staying)}
    return made.select([n for n in range(len(made)) if n not in gone]) if gone else ir


def _merged(ir: Instructions, near: Neighbours, s: int, later: int, most: int) -> int:
    """Of the two receiving instructions the one whose place the merged one takes, −1 where it cannot be."""
    r, behind = ir.target[s], ir.target[later]
    if (
        ir.op[r] != ir.op[behind]
        or ir.op[r] not in ("r", "rrc")
        or near.received_after[r] != behind
        or ir.count[s] + ir.count[later] > most
    ):
        return NONE
    apart = ir.src[later] - ir.src[s]
    if apart not in (ir.count[s], -ir.count[later]) or ir.dst[behind] - ir.dst[r] != apart:
        return NONE
    if ir.op[r] == "rrc" and ir.src[behind] - ir.src[r] != apart:
        return NONE
    if any(n > s for n in near.after[later]):
        return NONE
    if all(n < r for n in near.after[behind]):
        return r
    if all(n > behind for n in near.before[r]):
        return behind
    return NONE


def _join(ir: Instructions, near: Neighbours, s: int, later: int, stays: int) -> int:
    """Merge them; the receiving instruction that is no longer needed."""
    r, behind = ir.target[s], ir.target[later]
    goes = behind if stays == r else r
    ir.src[s] = min(ir.src[s], ir.src[later])
    ir.src[stays], ir.dst[stays] = min(ir.src[r], ir.src[behind]), min(ir.dst[r], ir.dst[behind])
    ir.count[s] = ir.count[stays] = ir.count[s] + ir.count[later]
    ir.target[s], ir.source[stays] = stays, s
    near.leave(later, s)
    near.leave(goes, stays)
    return goes
