"""Absorption: what is received into scratch only to be reduced is reduced as it arrives (r, re → rrc)."""

from __future__ import annotations

from emit.compiler.ir import NONE, SCRATCH, Instructions
from emit.compiler.passes.links import Neighbours


def absorb(ir: Instructions) -> Instructions:
    """Replace a receive and the local reductions that use up what it brought."""
    made = ir.copy()
    near = Neighbours(made)
    gone: set[int] = set()
    for r in range(len(made)):
        if made.op[r] != "r" or made.dst[r] < SCRATCH or r in gone:
            continue
        low, high = made.dst[r], made.dst[r] + made.count[r]
        sums = [n for n in near.before[r] if made.op[n] == "re" and low <= made.src[n] <= high - made.count[n]]
        stays = _where(near, r, sums) if sums and _used_up(made, near, r, sums) else NONE
        if stays == NONE:
            continue
        at = made.dst[sums[0]] - made.src[sums[0]] + made.dst[r]
        count, source, channel = made.count[r], made.source[r], made.channel[r]
        made.op[stays], made.src[stays], made.dst[stays], made.count[stays] = "rrc", at, at, count
        made.source[stays], made.channel[stays], made.target[source] = source, channel, stays
        if stays != r:
            near.receives_as(r, stays)
        for n in {r, *sums} - {stays}:
            gone.add(n)
            near.leave(n, stays)
    return made.select([n for n in range(len(made)) if n not in gone]) if gone else ir


def _used_up(ir: Instructions, near: Neighbours, r: int, sums: list[int]) -> bool:
    """Whether the reductions take every chunk once, to places at one distance, and nobody else takes any."""
    low, high = ir.dst[r], ir.dst[r] + ir.count[r]
    apart = {ir.dst[n] - ir.src[n] for n in sums}
    cells = sorted(c for n in sums for c in range(ir.src[n], ir.src[n] + ir.count[n]))
    if len(apart) != 1 or cells != list(range(low, high)) or abs(next(iter(apart))) < high - low:
        return False
    # another may only write there anew, after all of them
    others = [n for n in near.before[r] if n not in sums]
    read = any(first < high and low < first + ir.count[n] for n in others for first in ir.reads(n))
    return not read and all(n > sums[-1] for n in others)


def _where(near: Neighbours, r: int, sums: list[int]) -> int:
    """In whose place the arriving data can be reduced: the receive's, the last reduction's, or −1 for neither."""
    own = {r, *sums}
    if all(o in own or o < r for n in sums for o in near.after[n]):
        return r
    last = sums[-1]
    if near.received_after[r] != NONE and near.received_after[r] < last:
        return NONE
    return last if all(o in own or o > last for n in own for o in near.before[n]) else NONE
