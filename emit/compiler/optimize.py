"""Somebody's program, compiled anew: never slower in the model, never longer, still right."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from emit.check.program import check
from emit.compiler.compile import Compiled, Price, compiled, mean_ratio, shape, worst_ratio
from emit.compiler.ir import NONE, draft_of
from emit.compiler.passes.depth import by_depth, one_order
from emit.goal import Goal
from emit.program import Program
from topologies.errors import InputError

_SLOWER = 1 + 1e-9


def optimized(
    program: Program,
    goal: Goal | None = None,
    target: str = "executor-nccl",
    *,
    price: Price | None = None,
    off: Collection[str] = (),
) -> Compiled:
    """The best of the program itself and what the passes make of it, on its own channels or on others.

    Raises InputError for a program that is not right, or that `target` cannot hold in any form.
    """
    check(program, goal, target=None, split=False).raise_if_wrong()
    own = draft_of(program, goal)
    free = replace(own.copy(), lane=[NONE] * len(own))
    candidates: list[Compiled] = []
    if check(program, goal, target=target).ok:
        candidates.append(
            Compiled(program, [f"program: {shape(program)}", "kept as it was: nothing is better"])
        )
    fault: InputError | None = None
    # on other channels only where both ends of every connection then still have one order
    for draft in (own, free, by_depth(free)) if one_order(free) else (own,):
        try:
            made = compiled(draft, target, price=price, off=off)
            if check(made.program, goal, target=target).ok:
                candidates.append(made)
        except InputError as error:
            fault = fault or error
    if not candidates:
        raise fault or InputError(f"{program.name}: {target} cannot hold it")
    able = candidates
    if price is not None:
        times = [price(made.program) for made in candidates]
        if candidates[0].program is program:
            able = [
                c for c, own in zip(candidates, times, strict=True) if worst_ratio(own, times[0]) <= _SLOWER
            ]
        else:
            best = min(times, key=lambda own: mean_ratio(own, times[0]))
            able = [c for c, own in zip(candidates, times, strict=True) if own == best]
    return min(able, key=lambda made: _size(made.program))


def _size(program: Program) -> tuple[int, int, int]:
    """Steps, threadblocks, channels."""
    return program.nsteps, sum(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels
