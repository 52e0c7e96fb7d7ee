"""Instructions → a program for one target: which passes are used, and which of several layouts is best."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

from emit.check.program import check
from emit.compiler.assembly import describe_size
from emit.compiler.instances import share_of, side_by_side
from emit.compiler.ir import NONE, Instructions, instructions_of
from emit.compiler.manual import settle_threadblocks
from emit.compiler.passes.depth import keeps_message_order, order_by_depth
from emit.compiler.passes.registry import PASSES, REQUIRED
from emit.compiler.search import Search, Timer, Times, Variants, describe, logged, mean_ratio, worst_ratio
from emit.goal import Goal
from emit.program import Program
from emit.targets import Limits, target_named
from topologies.errors import InputError, did_you_mean

_ROUNDING = 1e-9  # of times that are compared


@dataclass
class Compiled:
    """A program, and what was done to get it, a line each; first: of `now`, when there was any that could be it."""

    program: Program
    log: list[str]
    first: float = math.inf


class Compiler:
    """Compiles instructions for one target, once or for several protocols: what these have in common is done once.

    Args:
        ir: without instances.
        limits: that programs keep. without: names of PASSES not to use.

    Raises InputError: the instructions ask for more channels than there are.
    """

    def __init__(self, ir: Instructions, limits: Limits, without: Collection[str] = ()) -> None:
        self.header = ir.header
        log = [f"instruction IR: {describe(ir)}"]
        asked = max(ir.channel, default=NONE)
        if asked >= limits.channels:
            raise InputError(f"{ir.header.name}: channel {asked}; {limits.name} has {limits.channels}")
        if asked != NONE or max(ir.threadblock, default=NONE) != NONE:  # what asks for none is on channel 0
            ir = ir.copy()
            ir.channel = [max(channel, 0) for channel in ir.channel]
            ir.threadblock = settle_threadblocks(ir)
        without = {*without, *(row.name for row in PASSES.values() if not limits.ops.issuperset(row.needs))}
        for name, apply in REQUIRED.items():
            ir = logged(log, name, ir, apply(ir, limits))
        self.variants = Variants(ir, limits, without, log)

    def best(
        self, timer: Timer | None = None, enough: Times | None = None, until: float = math.inf, **header: Any
    ) -> Compiled:
        """The best program; timer and enough as those of `compile_instructions`, header: what it says otherwise.

        until: of `synth.model.deadline.now`, after which the best of those that were made is taken, or the first.
        """
        search = Search(self.variants, replace(self.header, **header), timer, enough, until)
        best = search.best()
        program = best.program
        log = self.variants.log + self.variants.by(best.variant)[1]
        if len(search.tried) > 1:
            log.append("tried: " + "; ".join(search.tried))
        log.append(f"program: {describe_size(program)}")
        return Compiled(program, log, search.first)


def compile_instructions(
    ir: Instructions,
    target: str = "executor-nccl",
    *,
    limits: Limits | None = None,
    timer: Timer | None = None,
    enough: Times | None = None,
    without: Collection[str] = (),
) -> Compiled:
    """A program for `target` that executes the instructions.

    Args:
        limits: that it keeps; None: the target's.
        timer: how long a program takes; of those with next to the least time the one of fewest threadblocks is chosen.
            None: the first that is free of deadlock.
        enough: times that are as good as the least, at the timer's sizes, so that the first that has them is taken.
        without: names of PASSES not to use.

    Raises InputError: the instructions do not fit the target's limits, or there is no such pass.
    """
    _check_passes(without)
    limits = target_named(target).limits if limits is None else limits
    if ir.instances > 1:
        return _compile_instances(ir, limits, timer, without)
    return Compiler(ir, limits, without).best(timer, enough)


def _compile_instances(ir: Instructions, limits: Limits, timer: Timer | None, without: Collection[str]) -> Compiled:
    """One instance compiled for its share of the limits, and all of them side by side."""
    if ir.instances > limits.channels:
        many = f"{ir.header.name}: {ir.instances} instances, each on channels of its own"
        raise InputError(f"{many}; {limits.name} has {limits.channels} channels")
    one, share = ir.copy(), share_of(limits, ir.instances, ir.header.nranks)
    try:  # each instance has channels of its own; more than one a connection only where it does not end otherwise
        made = compile_instructions(one, limits=share, timer=timer, without={*without, "deal"})
    except InputError:
        made = compile_instructions(one, limits=share, timer=timer, without=without)
    program = side_by_side(made.program, ir, limits)
    return Compiled(program, [*made.log, f"{ir.instances} instances: {describe_size(program)}"])


def optimize(
    program: Program,
    goal: Goal | None = None,
    target: str = "executor-nccl",
    *,
    limits: Limits | None = None,
    timer: Timer | None = None,
    without: Collection[str] = (),
) -> Compiled:
    """Somebody's program compiled anew: never slower in the model, never longer, still right.

    The best of the program itself and of what the passes make of it, on its own channels or on others.

    Arguments as those of `compile_instructions`.
    Raises InputError for a program that is not right, or that `target` cannot hold in any form.
    """
    _check_passes(without)
    limits = target_named(target).limits if limits is None else limits
    check(program, goal, target=None, split=False).raise_if_wrong()
    own = instructions_of(program, goal)
    free = replace(own.copy(), channel=[NONE] * len(own))
    candidates: list[Compiled] = []
    if check(program, goal, target=limits).ok:
        log = [f"program: {describe_size(program)}", "kept as it was: nothing is better"]
        candidates.append(Compiled(program, log))
    fault: InputError | None = None
    # on other channels only where both ends of every connection then still have one order
    for ir in (own, free, order_by_depth(free)) if keeps_message_order(free) else (own,):
        try:
            made = compile_instructions(ir, target, limits=limits, timer=timer, without=without)
            if check(made.program, goal, target=limits).ok:
                candidates.append(made)
        except InputError as error:
            fault = fault or error
    if not candidates:
        raise fault or InputError(f"{program.name}: {target} cannot hold it")
    able = candidates
    if timer is not None:
        times = [tuple(timer(made.program)) for made in candidates]
        if candidates[0].program is program:
            able = [c for c, own in zip(candidates, times, strict=True) if worst_ratio(own, times[0]) <= 1 + _ROUNDING]
        else:
            best = min(times, key=lambda own: mean_ratio(own, times[0]))
            able = [c for c, own in zip(candidates, times, strict=True) if own == best]
    return min(able, key=lambda made: _size(made.program))


def _check_passes(names: Collection[str]) -> None:
    for name in names:
        if name not in PASSES:
            near = did_you_mean(name, list(PASSES)) or f"it must be one of {', '.join(PASSES)}"
            raise InputError(f"pass {name!r} is not known; {near}")


def _size(program: Program) -> tuple[int, int, int]:
    """Steps, threadblocks, channels."""
    return program.nsteps, sum(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels
