"""The time of a step: its phases in turn, the calls of a phase at the same time on the links that they share.

A phase takes at least as long as its longest call with all its runs. It also takes as long as all its calls in one
schedule, in which a call with n runs moves n times its bytes. Where that schedule would be too large, or there are no
plans, the busy time of the busiest resource stands for it. A phase never takes longer than its calls in turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from synth.concurrent.result import ConcurrentResult
from synth.concurrent.union import union_problem
from synth.model.schedule import untimed
from synth.parallelism.estimate import Estimator, RequestTime
from synth.parallelism.workload import Workload
from synth.timing.simulate import time_us, timed
from topologies.network import links_among

MOST_SENDS = 300_000  # Of all calls in one simulation.
_LATENCY = "latency"


@dataclass(frozen=True, eq=False)
class StepTime:
    """The times of a step under one placement.

    Attributes:
        time_us: Time of the whole step in µs, with all runs of every call.
        call_us: Time in µs of one run of each call, in the workload's order, in all its groups at the same time.
        bottleneck: Name of the resource that is busy longest, or "latency" if none is busy for half of the time.
        busy_us: Busy time in µs of the busiest resource in the whole step, also if `bottleneck` is "latency".
        level_us: Busy time in µs of the busiest resource of each level in the whole step, the outermost level first.
        searched: True if the times are those of replayed schedules. Otherwise they are estimates, scaled by the median
            error of the estimates of the searched placements where there are any.
    """

    time_us: float
    call_us: tuple[float, ...]
    bottleneck: str
    busy_us: float
    level_us: tuple[float, ...]
    searched: bool = False

    def scaled(self, factor: float) -> StepTime:
        """Return a copy with all times multiplied by a factor; `bottleneck` and `searched` stay."""
        calls, levels = (tuple(factor * time for time in times) for times in (self.call_us, self.level_us))
        return replace(
            self, time_us=factor * self.time_us, call_us=calls, busy_us=factor * self.busy_us, level_us=levels
        )


def step_time(
    workload: Workload,
    times: Sequence[RequestTime],
    estimator: Estimator,
    plans: Sequence[ConcurrentResult] = (),
) -> StepTime:
    """Compute the time of a step from the times of its calls: the sum of its phases, whose calls overlap.

    A phase takes as long as its calls do at the same time, at least as long as its longest call, and never longer than
    its calls one after another.

    Args:
        workload: The calls.
        times: Time of one run of each call, in the order of the workload; the busy times are of the resources of the
            estimator's network.
        estimator: The estimator of the topology; only its network and its levels are used.
        plans: Searched result of each call, in the same order. Calls that overlap are then simulated (`overlapped_us`).
            If it is empty, or a phase has more than `MOST_SENDS` sends, the busiest resource's busy time stands for the
            simulation. `StepTime.searched` only states whether there are plans.
    """
    net, total = estimator.net, 0.0
    busy = np.zeros(net.nresources)
    for phase in workload.phases:
        phase_busy = np.zeros(net.nresources)
        for i in phase:
            phase_busy += workload.calls[i].times * times[i].busy_us
        longest = max(workload.calls[i].times * times[i].time_us for i in phase)
        in_turn = sum(workload.calls[i].times * times[i].time_us for i in phase)
        at_once = float(phase_busy.max(initial=0.0))
        if plans and len(phase) > 1:
            at_once = overlapped_us([plans[i] for i in phase], [workload.calls[i].times for i in phase]) or at_once
        total += min(in_turn, max(longest, at_once))
        busy += phase_busy
    most = int(np.argmax(np.round(busy, 6))) if len(busy) else 0
    busiest = float(busy[most]) if len(busy) else 0.0
    name = net.resource_names[most] if busiest * 2 >= total else _LATENCY
    levels = np.zeros(len(estimator.hierarchy.levels))
    np.maximum.at(levels, estimator.level_of, busy)
    return StepTime(total, tuple(t.time_us for t in times), name, busiest, tuple(levels.tolist()), bool(plans))


def overlapped_us(plans: Sequence[ConcurrentResult], times: Sequence[float]) -> float | None:
    """Compute the time in µs until plans that begin at the same time on one topology are all done.

    Args:
        plans: One or more plans on the same topology.
        times: Number of runs of each plan, which may be a fraction; each send moves as many times its bytes at once.

    Returns:
        The time, or None if the plans have more than `MOST_SENDS` sends in all.
    """
    if sum(len(result.algorithm.schedule) for result in plans) > MOST_SENDS:
        return None
    members = [
        replace(member, size_bytes=member.size_bytes * count)
        for result, count in zip(plans, times, strict=True)
        for member in result.problem.members
    ]
    relays = "none" if all(result.problem.allowed_holders is not None for result in plans) else "all"
    problem = union_problem(plans[0].problem.topology, members, relays)
    position = {rank: index for index, rank in enumerate(problem.ranks)}
    columns, chunks = [], 0
    for result, count in zip(plans, times, strict=True):
        links = links_among(problem.network, np.array([position[rank] for rank in result.problem.ranks]))[0]
        rows = timed(result.problem, result.algorithm.schedule, result.problem.size_bytes * count)
        start_us = np.maximum.accumulate(rows.start_us)
        columns.append((rows.chunk + chunks, links[rows.link], rows.step, rows.reduces, start_us))
        chunks += result.problem.collective.nchunks
    chunk, link, step, reduces, start_us = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(start_us, kind="stable")
    schedule = untimed(chunk[order], link[order], step[order], reduces[order])
    return time_us(problem, timed(problem, schedule, problem.size_bytes))
