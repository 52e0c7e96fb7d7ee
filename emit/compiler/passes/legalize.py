"""Turn instructions into ones that an executor accepts: not too many chunks each, and fused only if it can fuse."""

from __future__ import annotations

from emit.compiler.ir import NONE, SCRATCH, Instructions, scratch_chunks


def split(ir: Instructions, most: int) -> Instructions:
    """Split every instruction into the fewest pieces of at most `most` chunks, and so at both ends of a message.

    The result is new instructions, or `ir` itself if none is too large.
    """
    if all(count <= most for count in ir.count):
        return ir
    pieces = Instructions(ir.header, ir.goal)
    first = [0] * len(ir)
    for n, count in enumerate(ir.count):
        first[n] = len(pieces)
        for piece, at in enumerate(range(0, count, most)):
            src, dst = (place + at if place != NONE else NONE for place in (ir.src[n], ir.dst[n]))
            source = first[ir.source[n]] + piece if ir.source[n] != NONE else NONE
            pieces.add(
                ir.rank[n], ir.op[n], src, dst, min(most, count - at), source, ir.channel[n], ir.threadblock[n],
                ir.out[n],
            )  # fmt: skip
    return pieces


def unfuse(ir: Instructions, ops: frozenset[str]) -> Instructions:
    """Split fused instructions that `ops` lacks into s, r, cpy and re.

    Data to be reduced is received into scratch first. The result is new instructions, or `ir` itself if `ops` has all
    of their operations.
    """
    if all(op in ops for op in ir.op):
        return ir
    unfused = Instructions(ir.header, ir.goal)
    free_scratch = [SCRATCH + size for size in scratch_chunks(ir)]
    sender = [NONE] * len(ir)  # the new instruction that sends for each old instruction
    for n, op in enumerate(ir.op):
        rank, src, dst, count, channel = ir.rank[n], ir.src[n], ir.dst[n], ir.count[n], ir.channel[n]
        block = ir.threadblock[n]
        source = sender[ir.source[n]] if ir.source[n] != NONE else NONE
        if op in ops:
            sender[n] = unfused.add(rank, op, src, dst, count, source, channel, block, ir.out[n])
            continue
        if op == "rcs":
            unfused.add(rank, "r", NONE, dst, count, source, channel, block)
            result_at = dst
        else:
            # The sum is computed in the destination, or for an rrs in the scratch that receives.
            received_at = free_scratch[rank]
            free_scratch[rank] += count
            unfused.add(rank, "r", NONE, received_at, count, source, channel, block)
            result_at = received_at if op == "rrs" else dst
            if op != "rrs" and src != dst:
                unfused.add(rank, "cpy", src, dst, count, threadblock=block)
            unfused.add(rank, "re", src if op == "rrs" else received_at, result_at, count, threadblock=block)
        if op != "rrc":
            sender[n] = unfused.add(rank, "s", result_at, NONE, count, NONE, channel, block, ir.out[n])
    return unfused
