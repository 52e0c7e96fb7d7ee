"""What a step takes: its phases one after the other, the calls of a phase at once on the links that they share.

A phase takes as long as its longest call, done as often as it is, and as all its calls take together: their plans as
one schedule, in which a call that is done n times moves n times its bytes. Where that schedule would be too large, or
there are no plans, it is as long as the busiest resource is. It never takes longer than its calls in turn.
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

MOST_SENDS = 300_000  # of calls that are simulated together
_LATENCY = "latency"


@dataclass(frozen=True, eq=False)
class StepTime:
    """A step under one placement.

    Attributes:
        time_us: of the whole step, every call as often as it is done.
        call_us: what one of each call's runs takes, in the workload's order, all its groups at once.
        bottleneck: the resource that is busy longest, or "latency" where none is for half of the time.
        busy_us: how long it is.
        level_us: for each level how long its busiest resource is busy.
        searched: whether the times are those of replayed schedules; else they are estimated (and scaled by how
            far those estimates were off, in the median, beside which there are searched times).
    """

    time_us: float
    call_us: tuple[float, ...]
    bottleneck: str
    busy_us: float
    level_us: tuple[float, ...]
    searched: bool = False

    def scaled(self, factor: float) -> StepTime:
        """The same with all times longer by a factor."""
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
    """The step of these calls; all `busy_us` are of the resources of the estimator's network.

    plans: of the calls, as searched; without them the times are estimates.
    """
    net, total = estimator.net, 0.0
    busy = np.zeros(net.nresources)
    for phase in workload.phases:
        together = np.zeros(net.nresources)
        for i in phase:
            together += workload.calls[i].times * times[i].busy_us
        longest = max(workload.calls[i].times * times[i].time_us for i in phase)
        in_turn = sum(workload.calls[i].times * times[i].time_us for i in phase)
        at_once = float(together.max(initial=0.0))
        if plans and len(phase) > 1:
            at_once = overlapped_us([plans[i] for i in phase], [workload.calls[i].times for i in phase]) or at_once
        total += min(in_turn, max(longest, at_once))
        busy += together
    most = int(np.argmax(np.round(busy, 6))) if len(busy) else 0
    busiest = float(busy[most]) if len(busy) else 0.0
    name = net.resource_names[most] if busiest * 2 >= total else _LATENCY
    levels = np.zeros(len(estimator.hierarchy.levels))
    np.maximum.at(levels, estimator.level_of, busy)
    return StepTime(total, tuple(t.time_us for t in times), name, busiest, tuple(levels.tolist()), bool(plans))


def overlapped_us(plans: Sequence[ConcurrentResult], times: Sequence[float]) -> float | None:
    """What plans of one topology take together that begin at once, in µs; None where they have too many sends.

    times: how often each is done: it moves so many times its bytes, every send so many times as many.
    """
    if sum(len(own.algorithm.schedule) for own in plans) > MOST_SENDS:
        return None
    members = [
        replace(member, size_bytes=member.size_bytes * count)
        for own, count in zip(plans, times, strict=True)
        for member in own.problem.members
    ]
    relays = "none" if all(own.problem.allowed is not None for own in plans) else "all"
    problem = union_problem(plans[0].problem.topology, members, relays)
    place = {rank: at for at, rank in enumerate(problem.ranks)}
    columns, chunks = [], 0
    for own, count in zip(plans, times, strict=True):
        links = links_among(problem.network, np.array([place[rank] for rank in own.problem.ranks]))[0]
        rows = timed(own.problem, own.algorithm.schedule, own.problem.size_bytes * count)
        when = np.maximum.accumulate(rows.start_us)
        columns.append((rows.chunk + chunks, links[rows.link], rows.step, rows.reduces, when))
        chunks += own.problem.collective.nchunks
    chunk, link, step, reduces, when = (np.concatenate(column) for column in zip(*columns, strict=True))
    order = np.argsort(when, kind="stable")
    schedule = untimed(chunk[order], link[order], step[order], reduces[order])
    return time_us(problem, timed(problem, schedule, problem.size_bytes))
