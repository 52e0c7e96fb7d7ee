"""For executors without fused instructions: receive, reduce and send on are instructions of their own."""

from __future__ import annotations

from emit.compiler.ir import NONE, SCRATCH, Draft, scratch_chunks


def unfuse(draft: Draft, ops: frozenset[str]) -> Draft:
    """The draft in terms of s, r, cpy and re where `ops` lacks what it uses.

    What is to be reduced is received into scratch of its own first.
    """
    if all(op in ops for op in draft.op):
        return draft
    made = Draft(draft.like, draft.goal)
    spare = [SCRATCH + size for size in scratch_chunks(draft)]
    sender = [NONE] * len(draft)  # of each old instruction, the new one that sends
    for n, op in enumerate(draft.op):
        rank, src, dst, count, lane = draft.rank[n], draft.src[n], draft.dst[n], draft.count[n], draft.lane[n]
        source = sender[draft.source[n]] if draft.source[n] != NONE else NONE
        if op in ops:
            sender[n] = made.add(rank, op, src, dst, count, source, lane)
            continue
        if op == "rcs":
            made.add(rank, "r", NONE, dst, count, source, lane)
            at = dst
        else:
            # the sum is made where it must be, or beside it
            beside = spare[rank]
            spare[rank] += count
            made.add(rank, "r", NONE, beside, count, source, lane)
            if op == "rrs":
                made.add(rank, "re", src, beside, count)
                at = beside
            elif src == dst:
                made.add(rank, "re", beside, dst, count)
                at = dst
            else:
                made.add(rank, "cpy", src, dst, count)
                made.add(rank, "re", beside, dst, count)
                at = dst
        if op != "rrc":
            sender[n] = made.add(rank, "s", at, NONE, count, NONE, lane)
    return made
