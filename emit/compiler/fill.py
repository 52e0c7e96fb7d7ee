"""Programs side by side until links are filled, where one threadblock moves less than a link carries.

Only where an executor's costs are on (`topologies.costs`): in α and bandwidth alone a threadblock fills any link.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from emit.compiler.instances import side_by_side
from emit.compiler.ir import instructions_of
from emit.compiler.lower import Lowering
from emit.program import Program
from emit.targets import Limits
from emit.timing.predict import Predictor
from synth.model.deadline import now
from topologies.arrays import row_of_entry
from topologies.costed import protocol_costs
from topologies.errors import InputError
from topologies.network import Network

_GAIN = 0.99  # of the best score, that more instances must come to
_MOST = 16  # instances
_SIZES = (1 << 20, 16 << 20, 256 << 20)  # bytes; below, latencies are what a time is made of
_TELLING = 3  # of the sizes that are asked for, the ends among them
_WAITING = 1.5  # times its latency, that a message has its slot: it also waits for its turn


def filled(
    lowering: Lowering,
    program: Program,
    limits: Limits,
    low: int,
    high: int,
    sizes: Sequence[int] = (),
    until: float = math.inf,
) -> tuple[int, Program]:
    """A lowered program in as many instances as gain for messages of `low` to `high` bytes, or of `sizes`.

    Of the program itself, and of the one on fewest channels, for where chunks that go one behind the other
    through several ranks are spread over channels, a pipeline becomes shorter: instances have one each. A score is the
    mean of its times over those of the schedule: a program may be faster, since it moves large chunks in slices.

    Returns how many, a power of two, and the program: its cells are so many times as fine. One where no threadblocks
    are needed to fill links; and of a goal of one's own, whose cells are what is asked. until: of
    `synth.model.deadline.now`, when no more are made.
    """
    problem = lowering.algorithm.problem
    asked = [one for one in sorted(sizes or _SIZES) if low <= one <= high] or [high]
    asked = [asked[i] for i in sorted({round(i) for i in np.linspace(0, len(asked) - 1, _TELLING)})]
    schedule_us = np.array([lowering.algorithm.time_us(one) for one in asked])

    def score(made: Program) -> float:
        predictor = Predictor(made, problem.topology, problem.ranks)
        return float((predictor.times_us(asked) / schedule_us).mean())

    best, number = program, 1
    costs = protocol_costs(problem.topology)
    if lowering.goal is not None or costs is None or costs.threadblock_gbs >= problem.network.bandwidth_gbs.max():
        return number, best
    best_score = score(program)
    # narrow first: where many instances are needed it is mostly the better one, and time may be short
    for narrow in (True, False):
        if now() >= until:
            break
        try:
            one = lowering.program(program.protocol, min_bytes=low, max_bytes=high, narrow=True) if narrow else program
        except InputError:
            continue
        if narrow and one.nchannels == program.nchannels:
            continue
        last, instances = score(one) if narrow else best_score, 2
        while instances <= _MOST and now() < until:
            ir = replace(instructions_of(one, None, False), instances=instances, interleaved=None)
            try:
                made = side_by_side(one, ir, limits)
            except InputError:
                break
            made_score = score(made)
            if made_score <= _GAIN * best_score:
                best, best_score, number = made, made_score, instances
            elif made_score > _GAIN * last:
                break
            last, instances = made_score, 2 * instances
    return number, best


def least_bytes(net: Network, limits: Limits, slots: int) -> int:
    """Of a chunk, so that the slots of their FIFOs are enough for all connections of a rank to be busy at once.

    Each message has one of `slots` of a channel for its latency at least. There are as many channels as a rank has
    threadblocks for, one to send to each of its peers and one to receive. What several of its links share they have
    between them.
    """
    pairs = np.unique(net.src * net.nranks + net.dst)
    peers = int(np.bincount(pairs // net.nranks).max(initial=1))
    channels = max(1, min(limits.channels, (limits.sms or limits.tbs_per_gpu) // (2 * peers)))
    uses_ptr, uses, capacity_gbs = net.uses_and_links()
    link = row_of_entry(uses_ptr)
    _, shared, many = np.unique(net.src[link] * len(capacity_gbs) + uses, return_inverse=True, return_counts=True)
    gbs = np.full(net.nlinks, np.inf)
    np.minimum.at(gbs, link, capacity_gbs[uses] / many[shared])
    return int(float((net.alpha_us * gbs).max(initial=0.0)) * 1e3 * _WAITING / (channels * slots))
