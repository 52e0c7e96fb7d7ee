"""Run several instances of a program until links are full, if one threadblock moves less than a link carries.

This applies only if an executor's costs are on (`topologies.costs`): with α and bandwidth alone, a threadblock fills
any link.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from emit.compiler.instances import side_by_side
from emit.compiler.ir import Instructions
from emit.compiler.lower import Lowering
from emit.goal import Goal
from emit.program import Program
from emit.targets import Limits
from emit.timing.predict import Predictor
from synth.model.deadline import now
from topologies.arrays import row_of_entry
from topologies.costed import protocol_costs
from topologies.errors import InputError
from topologies.network import Network

_GAIN = 0.99  # part of the best score that more instances must reach
_NEAR = 1.5  # multiple of the best score up to which a program may be the fastest by another model of time
_HASTY = 1.1  # score up to which a program of one instance is taken where time is short
_HASTY_STEPS = 6_000  # steps of all instances up to which more than 2 are tried where time is short
_MOST = 16  # instances
_PARTS = (2, 4, 8)  # of messages inside nodes
_SIZES = (1 << 20, 16 << 20, 256 << 20)  # Bytes; smaller messages are dominated by latencies.
_NSIZES = 3  # number of message sizes that are timed, the smallest and the largest included
_WAITING = 1.5  # A message occupies its slot for so many times its latency, because it also waits for the link.


class Repetition(NamedTuple):
    """How often a program runs side by side.

    Attributes:
        instances: Number of instances, a power of two.
        is_narrow: Whether each instance is the program on the fewest channels.
        is_inside: Whether only messages inside nodes are divided among as many channels, and those between nodes stay
            whole, because each would cost a gap.
        unit: Chunks of each instance that a step moves at a time (`Program.unit_bytes`); 0 if it moves all at once.
    """

    instances: int
    is_narrow: bool = False
    is_inside: bool = False
    unit: float = 0.0


ONCE = Repetition(1)


class ProgramRequest(NamedTuple):
    """The messages that a program is to be lowered for.

    Attributes:
        protocol: "Simple", "LL" or "LL128".
        low: Smallest message in bytes.
        high: Largest message in bytes; 0 does not stand for no limit.
        sizes: Message sizes in bytes for which it is to be fast; empty for any.
        until: Time of `synth.model.deadline.now` after which the best program so far is taken, or the first.
        in_units: Whether its steps move their data unit by unit (`Program.unit_bytes`).
    """

    protocol: str
    low: int
    high: int
    sizes: tuple[int, ...] = ()
    until: float = math.inf
    in_units: bool = False

    @property
    def compared(self) -> list[int]:
        """Return the message sizes in bytes at which programs are compared: some of `sizes`, or `high`."""
        return some_of(self.sizes or (self.high,))


def repeated(
    lowering: Lowering, program: Program, repetition: Repetition, limits: Limits, request: ProgramRequest
) -> Program:
    """Return a lowered program that runs side by side as often as `repetition` says.

    If `repetition` is ONCE, that is `program` itself.

    Args:
        lowering: The lowering that made the program.
        program: The program.
        repetition: Number of instances, and whether each is the program on the fewest channels instead. Its unit is
            ignored.
        limits: Limits of the target.
        request: Messages of the program if it is lowered again, on other channels.

    Raises:
        InputError: The limits do not allow that.
    """
    if repetition.is_inside:
        return _lowered_again(lowering, request, parts=repetition.instances)
    instance = _lowered_again(lowering, request, narrow=True) if repetition.is_narrow else program
    if repetition.instances == 1:
        return instance
    return _side_by_side(instance, lowering.goal, repetition.instances, limits)


def rank_instances(  # Longer than 60 lines because of its documentation.
    lowering: Lowering,
    program: Program,
    limits: Limits,
    request: ProgramRequest,
    most_steps: float = math.inf,
) -> list[tuple[Repetition, Program]]:
    """Rank numbers of instances of a lowered program by their times for its message sizes.

    Two programs are repeated: the given program, and the program on the fewest channels. The given one is also repeated
    inside nodes only. If chunks that pass through several ranks one after the other are spread over channels, the
    pipeline becomes shorter, whereas each instance has a pipeline on one channel. A score is the mean of a program's
    times over the times of the schedule: it can be below 1, because a program moves large chunks in slices.

    Args:
        lowering: The lowering that made the program.
        program: The program.
        limits: Limits of the target.
        request: Messages that the program is for. At most three of its sizes in low..high are compared, of default
            sizes if it has none, or `high` if there are none. After its time `until` no more instances are tried. If
            it is over at once and the program is much slower than the schedule, numbers are tried downwards, from as
            many as fill a link, as long as that gains.
        most_steps: Steps of all instances up to which more are tried.

    Returns:
        Repetitions, each with the program, whose chunks are as many times as fine as there are instances. The best is
        first, then come those inside nodes, then the others; only those that are nearly as fast. It is the given
        program alone if links are full anyway.
    """
    problem, until = lowering.algorithm.problem, request.until
    sizes = [size for size in request.sizes or _SIZES if request.low <= size <= request.high]
    sizes_to_time = some_of(sizes or [request.high])
    schedule_us = np.array([lowering.algorithm.time_us(size) for size in sizes_to_time])

    def score(candidate: Program) -> float:
        """Return the mean, over the sizes that are timed, of a program's times over the times of the schedule."""
        predictor = Predictor(candidate, problem.topology, problem.ranks, fifo_depth=limits.slots)
        return float((predictor.times_us(sizes_to_time) / schedule_us).mean())

    best, best_repetition = program, ONCE
    costs = protocol_costs(problem.topology)
    if costs is None or costs.threadblock_gbs >= problem.network.bandwidth_gbs.max():
        return [(ONCE, best)]
    best_score = score(program)
    tried = [(best_score, ONCE, best)]
    filling = 1 << math.ceil(math.log2(problem.network.bandwidth_gbs.max() / costs.threadblock_gbs))

    def consider(repetition: Repetition, candidate: Program) -> float:
        """Return the score of a repeated program, which becomes the best one if it gains enough."""
        nonlocal best, best_score, best_repetition
        candidate_score = score(candidate)
        tried.append((candidate_score, repetition, candidate))
        if candidate_score <= _GAIN * best_score:
            best, best_score, best_repetition = candidate, candidate_score, repetition
        return candidate_score

    # In haste, one number that fills links inside nodes is tried, so that no more messages between nodes cost a gap.
    is_tried = False
    if now() >= until and best_score > _HASTY:
        numbers = [parts for parts in _PARTS if parts <= filling and parts * program.nsteps <= _HASTY_STEPS][-1:]
        for repetition, candidate in _inside(lowering, program, limits, request, numbers or _PARTS[:1]):
            consider(repetition, candidate)
            is_tried = bool(numbers)
    # The narrow program comes first: if many instances are needed it is mostly better, and time may be short.
    for narrow in (True, False):
        is_hasty = now() >= until
        if is_hasty and (best_score <= _HASTY or is_tried):
            break
        instance, last_score = program, best_score
        if narrow:
            try:
                instance = _lowered_again(lowering, request, narrow=True)
            except InputError:
                continue
            if instance.nchannels == program.nchannels:
                continue
            last_score = score(instance)
            tried.append((last_score, Repetition(1, True), instance))
        is_tried = True
        numbers = [2 << doublings for doublings in range(_MOST.bit_length() - 1)]
        numbers = [number for number in numbers if number == 2 or number * instance.nsteps <= most_steps]
        if is_hasty:
            hasty_most = max(2, min(filling, _HASTY_STEPS // instance.nsteps))
            numbers = [number for number in reversed(numbers) if number <= hasty_most]
        for instances, candidate in _repeated(instance, lowering.goal, limits, numbers, until):
            candidate_score = consider(Repetition(instances, narrow), candidate)
            if candidate is not best and candidate_score > _GAIN * last_score:
                break
            last_score = candidate_score
    if not is_hasty:
        numbers = [parts for parts in _PARTS if parts * program.nsteps <= most_steps]
        for repetition, candidate in _inside(lowering, program, limits, request, numbers):
            consider(repetition, candidate)
    near = [
        (repetition, candidate)
        for own_score, repetition, candidate in sorted(tried, key=lambda row: (not row[1].is_inside, row[0]))
        if candidate is not best and own_score <= _NEAR * best_score
    ]
    return [(best_repetition, best), *near]


def _inside(
    lowering: Lowering, program: Program, limits: Limits, request: ProgramRequest, numbers: Sequence[int]
) -> Iterator[tuple[Repetition, Program]]:
    """Yield programs with messages inside nodes divided among more and more channels.

    There are none where no link has a gap, or all have. After the first number, none is tried once the time is over.

    Args:
        lowering: The lowering that made the program.
        program: The program.
        limits: Limits of the target.
        request: Messages that the program is for.
        numbers: Numbers of channels to try, ascending.
    """
    gap_us = lowering.algorithm.problem.network.gap_us
    if not gap_us.any() or gap_us.all() or lowering.algorithm.problem.quotient is not None:
        return
    for parts in numbers:
        if parts > numbers[0] and now() >= request.until:
            return
        repetition = Repetition(parts, is_inside=True)
        try:
            candidate = repeated(lowering, program, repetition, limits, request)
        except InputError:
            return
        yield repetition, candidate


def some_of(sizes: Sequence[int]) -> list[int]:
    """Return at most three of some message sizes, ascending, the smallest and the largest included."""
    ascending = sorted(sizes)
    return [ascending[i] for i in sorted({round(i) for i in np.linspace(0, len(ascending) - 1, _NSIZES)})]


def _lowered_again(lowering: Lowering, request: ProgramRequest, narrow: bool = False, parts: int = 1) -> Program:
    """Return the lowering's program for the messages of a request, whatever its time.

    Args:
        lowering: The lowering.
        request: Protocol and messages of the program.
        narrow: Whether the program is on the fewest channels.
        parts: Number of channels among which messages inside nodes are divided.

    Raises:
        InputError: As `Lowering.program` raises it.
    """
    return lowering.program(request.protocol, min_bytes=request.low, max_bytes=request.high, narrow=narrow, parts=parts)


def _side_by_side(instance: Program, goal: Goal | None, instances: int, limits: Limits) -> Program:
    """Return a program of so many instances of a program, which run side by side with finer chunks.

    Instances are blocked if that divides no span, else interleaved. `goal` is the program's if its collective does not
    name it; the instances are then interleaved, because blocks of a custom goal are not known.

    Raises:
        InputError: The limits do not allow that.
    """
    return side_by_side(instance, Instructions(instance, goal, instances=instances), limits)


def _repeated(
    instance: Program, goal: Goal | None, limits: Limits, numbers: Sequence[int], until: float
) -> Iterator[tuple[int, Program]]:
    """Yield (number, program) for the numbers of instances that the limits allow, until the time is over.

    Args:
        instance: The program of one instance.
        goal: As for `_side_by_side`.
        limits: Limits of the target.
        numbers: Numbers of instances in the order in which they are tried, rising or falling.
        until: Time (of `synth.model.deadline.now`) after which no number is tried that is larger than the one before.
    """
    most = math.inf
    for before, number in pairwise([0, *numbers]):
        if number > most or (number > before > 0 and now() >= until):
            return
        try:
            candidate = _side_by_side(instance, goal, number, limits)
        except InputError:
            most = number
        else:
            yield number, candidate


def least_bytes(net: Network, limits: Limits, slots: int) -> int:
    """Return the least bytes of a chunk with which FIFO slots suffice to keep all connections of a rank busy.

    The result is rounded down. Each message occupies one of a channel's `slots` for 1.5 times its latency. There are as
    many channels as a rank has threadblocks for: one to send to each of its peers and one to receive. Links that share
    a limit divide it evenly.

    Args:
        net: The network.
        limits: Limits of the target.
        slots: FIFO slots of a channel.
    """
    pairs = np.unique(net.src * net.nranks + net.dst)
    peers = int(np.bincount(pairs // net.nranks).max(initial=1))
    channels = max(1, min(limits.channels, (limits.sms or limits.tbs_per_gpu) // (2 * peers)))
    uses_ptr, uses, capacity_gbs = net.uses_and_links()
    link = row_of_entry(uses_ptr)
    _, shared, counts = np.unique(net.src[link] * len(capacity_gbs) + uses, return_inverse=True, return_counts=True)
    gbs = np.full(net.nlinks, np.inf)
    np.minimum.at(gbs, link, capacity_gbs[uses] / counts[shared])
    return int(float((net.alpha_us * gbs).max(initial=0.0)) * 1e3 * _WAITING / (channels * slots))
