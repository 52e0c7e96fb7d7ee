"""Dead code: what nobody reads is not written, and what only serves that is not done at all."""

from __future__ import annotations

from emit.compiler.ir import BUFFER, NONE, SCRATCH, Draft
from emit.goal import Goal, goal_for


def prune(draft: Draft) -> Draft:
    """Without instructions whose result nobody needs; a forwarded sum that is not kept is an rrs."""
    needed: list[bool] = [False] * len(draft)
    kept_here: list[bool] = [True] * len(draft)  # whether a fused instruction's own write is needed
    alive = [_required(draft, mode) for mode in range(len(draft.aliases()))]
    aliases = draft.aliases()
    for n in range(len(draft) - 1, -1, -1):
        first = draft.writes(n)
        useful = first == NONE
        if first != NONE:
            for live, alias in zip(alive, aliases, strict=True):
                places = _places(draft, n, first, alias)
                if any(place in live for place in places):
                    useful = True
        target = draft.target[n]
        sends = target != NONE and needed[target]
        needed[n] = sends or (useful and first != NONE)
        kept_here[n] = useful
        if not needed[n]:
            continue
        for live, alias in zip(alive, aliases, strict=True):
            if first != NONE and useful:
                live.difference_update(_places(draft, n, first, alias))
            for read in draft.reads(n):
                live.update(_places(draft, n, read, alias))
    if all(needed) and not any(
        op == "rrcs" and not keep for op, keep in zip(draft.op, kept_here, strict=True)
    ):
        return draft
    made = draft.copy()
    for n in range(len(made)):
        if needed[n] and made.op[n] == "rrcs" and not kept_here[n] and made.target[n] != NONE:
            made.op[n], made.dst[n] = "rrs", made.src[n]
        if needed[n] and made.op[n] in ("rcs", "rrcs") and not needed[made.target[n]]:
            made.op[n] = {"rcs": "r", "rrcs": "rrc"}[made.op[n]]
    return made.kept([n for n in range(len(made)) if needed[n]])


def _places(draft: Draft, n: int, first: int, alias: list[int | None]) -> list[tuple[int, int]]:
    rank = draft.rank[n]
    shift = alias[rank]
    if shift is not None and BUFFER <= first < SCRATCH:
        first += shift - BUFFER
    return [(rank, first + k) for k in range(draft.count[n])]


def _required(draft: Draft, mode: int) -> set[tuple[int, int]]:
    """Cells whose content matters in the end."""
    p = draft.like
    inplace = [True] * p.inplace + [False] * p.outofplace
    goal: Goal | None = draft.goal
    if goal is None:
        goal = goal_for(p.collective, p.nranks, p.nchunks_per_loop, inplace[mode], p.root)
    if goal is None:  # nobody knows: all that the caller can see
        return {
            (rank, buffer * BUFFER + at)
            for rank, gpu in enumerate(p.gpus)
            for buffer, size in ((0, gpu.i_chunks), (1, gpu.o_chunks))
            for at in range(size)
        }
    shift = goal.o_in_i
    found = set()
    for rank, buffer, index, _ in zip(*(column.tolist() for column in goal.required), strict=True):
        place = buffer * BUFFER + index
        if buffer == 1 and shift[rank] is not None:
            place = index + (shift[rank] or 0)
        found.add((rank, place))
    return found
