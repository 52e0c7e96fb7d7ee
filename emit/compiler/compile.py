"""Compile Instructions to a program for one target: choose the passes, and the best of several layouts."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any

from emit.check.program import check
from emit.compiler.assembly import describe_size
from emit.compiler.instances import share_of, side_by_side
from emit.compiler.ir import NONE, Instructions, instructions_of
from emit.compiler.manual import settle_threadblocks
from emit.compiler.passes.depth import keeps_message_order, order_by_depth
from emit.compiler.passes.registry import FORMER_NAMES, PASSES, REQUIRED
from emit.compiler.prepared import Lanes
from emit.compiler.search import LoweringSearch, Timer, Times, Variants, describe, logged, mean_ratio, worst_ratio
from emit.goal import Goal
from emit.program import Program
from emit.targets import USUAL_LIMITS, Limits
from topologies.errors import InputError, did_you_mean

_ROUNDING = 1e-9  # relative rounding error of times that are compared


@dataclass
class Compiled:
    """A compiled program and the record of how it was compiled.

    Attributes:
        program: The program.
        log: What was done, one line for each pass or choice.
        first: Time (of `synth.model.deadline.now`) when the first program existed; inf: not recorded.
    """

    program: Program
    log: list[str]
    first: float = math.inf


class Compiler:
    """A compiler of instructions for one target, which shares its work between several protocols and ranges of sizes.

    Attributes:
        header: Header of the instructions.
        variants: The instructions after the passes of each variant.
    """

    def __init__(
        self, ir: Instructions, limits: Limits, without: Collection[str] = (), lanes: Lanes | None = None
    ) -> None:
        """Apply the passes that the target requires.

        Args:
            ir: Instructions of one instance.
            limits: Limits that programs keep.
            without: Names of PASSES that are not used.
            lanes: Lanes of the network, as in `Prepared`; None where it is not known.

        Raises:
            InputError: The instructions request more channels than the target has.
        """
        self.header = ir.header
        log = [f"instruction IR: {describe(ir)}"]
        last_channel = max(ir.channel, default=NONE)
        if last_channel >= limits.channels:
            raise InputError(f"{ir.header.name}: channel {last_channel}; {limits.name} has {limits.channels}")
        if last_channel != NONE or max(ir.threadblock, default=NONE) != NONE:  # Other instructions are on channel 0.
            ir = ir.copy()
            ir.channel = [max(channel, 0) for channel in ir.channel]
            ir.threadblock = settle_threadblocks(ir)
        without = {*without, *(row.name for row in PASSES.values() if not limits.ops.issuperset(row.needs))}
        for name, apply in REQUIRED.items():
            ir = logged(log, name, ir, apply(ir, limits))
        self.variants = Variants(ir, limits, without, lanes, log)

    def best(
        self, timer: Timer | None = None, enough: Times | None = None, until: float = math.inf, **header: Any
    ) -> Compiled:
        """Return the best program.

        Args:
            timer: As in `compile_instructions`.
            enough: Times at the timer's sizes that are as good as the least; the first program that reaches them is
                chosen.
            until: Time (of `synth.model.deadline.now`) after which the search ends with the best program so far, or the
                first.
            **header: Fields of the program's header (a Program) to be replaced, as protocol, min_bytes and max_bytes.

        Raises:
            InputError: No program fits the target, or all deadlock.
        """
        search = LoweringSearch(self.variants, replace(self.header, **header), timer, enough, until)
        best = search.best()
        program = best.program
        log = self.variants.log + self.variants.by(best.variant)[1]
        if len(search.tried) > 1:
            log.append("tried: " + "; ".join(search.tried))
        log.append(f"program: {describe_size(program)}")
        return Compiled(program, log, search.first)


def compile_instructions(
    ir: Instructions,
    limits: Limits = USUAL_LIMITS,
    *,
    timer: Timer | None = None,
    without: Collection[str] = (),
) -> Compiled:
    """Lower instructions to a program, and record how.

    Args:
        ir: Instructions, with the number of their instances; they are not changed.
        limits: Limits that the program keeps.
        timer: Predicts the times of a program; of the programs with nearly the least time, the one with the fewest
            threadblocks is chosen. None: the first program without deadlock is chosen.
        without: Names of PASSES that are not used, or former names of these.

    Raises:
        InputError: The instructions do not fit the target's limits, every program deadlocks, or a pass is unknown.
    """
    without = current_names(without)
    if ir.instances > 1:
        return _compile_instances(ir, limits, timer, without)
    return Compiler(ir, limits, without).best(timer)


def _compile_instances(ir: Instructions, limits: Limits, timer: Timer | None, without: Collection[str]) -> Compiled:
    """Lower one instance for its share of the limits, and lay out all instances in one program.

    Raises:
        InputError: There are more instances than channels or SMs, or the instances do not fit the limits or deadlock.
    """
    if ir.instances > limits.channels:
        subject = f"{ir.header.name}: {ir.instances} instances, each on channels of its own"
        raise InputError(f"{subject}; {limits.name} has {limits.channels} channels")
    instance, share = ir.copy(), share_of(limits, ir.instances, ir.header.nranks)
    try:  # Each instance has its own channels; a connection gets several only if the instance deadlocks with one.
        compiled = compile_instructions(instance, share, timer=timer, without={*without, "more-channels"})
    except InputError:
        compiled = compile_instructions(instance, share, timer=timer, without=without)
    program = side_by_side(compiled.program, ir, limits)
    return Compiled(program, [*compiled.log, f"{ir.instances} instances: {describe_size(program)}"])


def optimize(
    program: Program,
    goal: Goal | None = None,
    limits: Limits = USUAL_LIMITS,
    *,
    timer: Timer | None = None,
    without: Collection[str] = (),
) -> Compiled:
    """Return a program that does the same, is right, is not slower in the model, and is not longer.

    The result is the best of the program itself and of programs compiled from it, on its own channels or on others. A
    program that exceeds the limits is not a candidate itself; without `timer`, the shortest candidate is the best.

    Args:
        program: The program.
        goal: Its goal, if the collective's name does not define it.
        limits: Limits that the program keeps.
        timer: As in `compile_instructions`.
        without: As in `compile_instructions`.

    Raises:
        InputError: The program is not right, the limits allow it in no form, or a pass is unknown.
    """
    without = current_names(without)
    check(program, goal, target=None, split=False).raise_if_wrong()
    own_channels = instructions_of(program, goal)
    any_channels = replace(own_channels.copy(), channel=[NONE] * len(own_channels))
    candidates: list[Compiled] = []
    if check(program, goal, target=limits).ok:
        log = [f"program: {describe_size(program)}", "unchanged: no other program is better"]
        candidates.append(Compiled(program, log))
    fault: InputError | None = None
    # Other channels are tried only if both ends of every connection still have their messages in the same order.
    for ir in (
        (own_channels, any_channels, order_by_depth(any_channels))
        if keeps_message_order(any_channels)
        else (own_channels,)
    ):
        try:
            compiled = compile_instructions(ir, limits, timer=timer, without=without)
            if check(compiled.program, goal, target=limits).ok:
                candidates.append(compiled)
        except InputError as error:
            fault = fault or error
    if not candidates:
        raise fault or InputError(f"{program.name}: {limits.name} cannot hold it")
    return min(
        candidates if timer is None else _fastest(candidates, timer, program),
        key=lambda compiled: _size(compiled.program),
    )


def _fastest(candidates: list[Compiled], timer: Timer, program: Program) -> list[Compiled]:
    """Return the candidates that may be chosen for their times, in the same order.

    If the first candidate is `program` itself, they are those that are slower than it at no size of the timer, itself
    included. Otherwise they are those with the least mean of times, relative to the first candidate's.
    """
    times = [tuple(timer(compiled.program)) for compiled in candidates]
    if candidates[0].program is program:
        is_fast = [worst_ratio(own_times, times[0]) <= 1 + _ROUNDING for own_times in times]
    else:
        best = min(times, key=lambda own_times: mean_ratio(own_times, times[0]))
        is_fast = [own_times == best for own_times in times]
    return list(compress(candidates, is_fast))


def current_names(names: Collection[str]) -> set[str]:
    """Return the names of passes, former names replaced; raise InputError if a pass is unknown."""
    current_names = {FORMER_NAMES.get(name, name) for name in names}
    for name in sorted(current_names.difference(PASSES)):
        hint = did_you_mean(name, list(PASSES)) or f"it must be one of {', '.join(PASSES)}"
        raise InputError(f"pass {name!r} is not known; {hint}")
    return current_names


def _size(program: Program) -> tuple[int, int, int]:
    """Return the numbers of steps, of threadblocks on all ranks, and of channels."""
    return program.nsteps, sum(len(gpu.threadblocks) for gpu in program.gpus), program.nchannels
