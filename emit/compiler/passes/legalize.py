"""Instructions that an executor takes: of no more chunks than it takes at once, and fused only where it can."""

from __future__ import annotations

from emit.compiler.ir import NONE, SCRATCH, Instructions, scratch_chunks


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
            made.add(ir.rank[n], ir.op[n], src, dst, min(most, count - at), source, ir.channel[n], ir.threadblock[n])
    return made


def unfuse(ir: Instructions, ops: frozenset[str]) -> Instructions:
    """What `ops` lacks in terms of s, r, cpy and re; what is to be reduced is received into scratch first."""
    if all(op in ops for op in ir.op):
        return ir
    made = Instructions(ir.header, ir.goal)
    spare = [SCRATCH + size for size in scratch_chunks(ir)]
    sender = [NONE] * len(ir)  # of each old instruction, the new one that sends
    for n, op in enumerate(ir.op):
        rank, src, dst, count, channel = ir.rank[n], ir.src[n], ir.dst[n], ir.count[n], ir.channel[n]
        block = ir.threadblock[n]
        source = sender[ir.source[n]] if ir.source[n] != NONE else NONE
        if op in ops:
            sender[n] = made.add(rank, op, src, dst, count, source, channel, block)
            continue
        if op == "rcs":
            made.add(rank, "r", NONE, dst, count, source, channel, block)
            at = dst
        else:
            # the sum is made where it must be, or beside it
            beside = spare[rank]
            spare[rank] += count
            made.add(rank, "r", NONE, beside, count, source, channel, block)
            at = beside if op == "rrs" else dst
            if op != "rrs" and src != dst:
                made.add(rank, "cpy", src, dst, count, threadblock=block)
            made.add(rank, "re", src if op == "rrs" else beside, at, count, threadblock=block)
        if op != "rrc":
            sender[n] = made.add(rank, "s", at, NONE, count, NONE, channel, block)
    return made
