"""Dead code: what nobody reads is not written, and what only serves that is not done at all."""

from __future__ import annotations

from emit.compiler.ir import BUFFER, NONE, Instructions, memory_span
from emit.goal import Goal


def prune(ir: Instructions) -> Instructions:
    """Without instructions whose result nobody needs; a forwarded sum that is not kept is an rrs."""
    needed: list[bool] = [False] * len(ir)
    kept_here: list[bool] = [True] * len(ir)  # whether a fused instruction's own write is needed
    calls = [(_required(ir, *call), call[1]) for call in ir.calls()]
    for n in range(len(ir) - 1, -1, -1):
        first = ir.writes(n)
        useful = first == NONE or any(place in live for live, alias in calls for place in _places(ir, n, first, alias))
        target = ir.target[n]
        sends = target != NONE and needed[target]
        needed[n] = sends or (useful and first != NONE)
        kept_here[n] = useful
        if not needed[n]:
            continue
        for live, alias in calls:
            if first != NONE and useful:
                live.difference_update(_places(ir, n, first, alias))
            for read in ir.reads(n):
                live.update(_places(ir, n, read, alias))
    if all(needed) and not any(op == "rrcs" and not keep for op, keep in zip(ir.op, kept_here, strict=True)):
        return ir
    made = ir.copy()
    for n in range(len(made)):
        if needed[n] and made.op[n] == "rrcs" and not kept_here[n] and made.target[n] != NONE:
            made.op[n], made.dst[n] = "rrs", made.src[n]
        if needed[n] and made.op[n] in ("rcs", "rrcs") and not needed[made.target[n]]:
            made.op[n] = {"rcs": "r", "rrcs": "rrc"}[made.op[n]]
    return made.select([n for n in range(len(made)) if needed[n]])


def _places(ir: Instructions, n: int, first: int, alias: tuple[int | None, ...]) -> list[tuple[int, int]]:
    rank = ir.rank[n]
    return [(rank, at) for at in memory_span(first, ir.count[n], alias[rank])]


def _required(ir: Instructions, goal: Goal | None, o_in_i: tuple[int | None, ...]) -> set[tuple[int, int]]:
    """Cells whose content matters in the end."""
    if goal is None:  # nobody knows: all that the caller can see
        return {
            (rank, buffer * BUFFER + at)
            for rank, gpu in enumerate(ir.header.gpus)
            for buffer, size in ((0, gpu.i_chunks), (1, gpu.o_chunks))
            for at in range(size)
        }
    rows = zip(*(column.tolist() for column in goal.required[:3]), strict=True)
    return {
        (rank, at + (shift if code == 1 and (shift := o_in_i[rank]) is not None else code * BUFFER))
        for rank, code, at in rows
    }
