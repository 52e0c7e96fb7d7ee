"""Instructions for more chunks than an executor takes at once become several."""

from __future__ import annotations

from emit.compiler.ir import NONE, Instructions


def split(ir: Instructions, most: int) -> Instructions:
    """Every instruction for `most` chunks or fewer, in as few pieces as that takes, and so at both ends."""
    if all(count <= most for count in ir.count):
        return ir
    made = Instructions(ir.header, ir.goal)
    first = [0] * len(ir)
    for n, count in enumerate(ir.count):
        first[n] = len(made)
        for piece, at in enumerate(range(0, count, most)):
            src, dst = (place + at if place != NONE else NONE for place in (ir.src[n], ir.dst[n]))
            source = first[ir.source[n]] + piece if ir.source[n] != NONE else NONE
            made.add(ir.rank[n], ir.op[n], src, dst, min(most, count - at), source, ir.channel[n])
    return made
