"""List scheduling for few ranks: a send starts when its ports are free, the one with the longest chain behind it first.

The rule is not that of `synth.engines.flow.list_scheduling`, and neither is better everywhere: here a narrow link
takes its part of a wide resource's time, and what can begin first goes first; there what is most urgent and fits.
"""

from __future__ import annotations

import heapq
from collections import defaultdict

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.errors import ScheduleError


def order_sends(problem: Problem, schedule: Schedule, size_bytes: float) -> Schedule:
    """The same sends in the order of a list schedule for messages of `size_bytes`; time O(sends · log sends).

    No port stays idle while a send that could use it is ready (Graham, 1966); of those that are ready the one with the
    longest chain of sends behind it goes first.

    Raises:
        ScheduleError: sends that wait for each other.
    """
    net, collective = problem.network, problem.collective
    link, step = schedule.link.tolist(), schedule.step.tolist()
    lasts = (
        collective.chunk_bytes(size_bytes)[schedule.chunk] * US_PER_BYTE_AT_1_GBS / net.bandwidth_gbs[schedule.link]
    ).tolist()
    alpha = net.alpha_us[schedule.link].tolist()
    before = _carried(problem, schedule)
    behind: dict[int, list[int]] = defaultdict(list)
    for row, rows in enumerate(before):
        for other in rows:
            behind[other].append(row)
    urgency = [0.0] * len(schedule)
    for row in sorted(range(len(schedule)), key=lambda r: -step[r]):
        urgency[row] = lasts[row] + alpha[row] + max((urgency[o] for o in behind[row]), default=0.0)
    uses = [net.uses(i).tolist() for i in range(net.nlinks)]
    share = [(net.bandwidth_gbs[i] / net.capacity_gbs[uses[i]]).tolist() for i in range(net.nlinks)]
    free = [0.0] * net.nresources
    link_free = [0.0] * net.nlinks
    waiting = [len(rows) for rows in before]
    ready = [0.0] * len(schedule)
    heap = [(0.0, -urgency[r], r) for r in range(len(schedule)) if not waiting[r]]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        when, _, row = heapq.heappop(heap)
        i = link[row]
        begin = max(ready[row], link_free[i])
        for r in uses[i]:
            if free[r] > begin:
                begin = free[r]
        if begin > when:
            heapq.heappush(heap, (begin, -urgency[row], row))
            continue
        order.append(row)
        link_free[i] = begin + lasts[row]
        for r, part in zip(uses[i], share[i], strict=True):
            # a narrow link takes its part of a wide resource: as if it had all of it for that part of the time
            free[r] = max(free[r], begin) + lasts[row] * part
        for other in behind[row]:
            waiting[other] -= 1
            ready[other] = max(ready[other], begin + lasts[row] + alpha[row])
            if not waiting[other]:
                heapq.heappush(heap, (ready[other], -urgency[other], other))
    if len(order) != len(schedule):
        raise ScheduleError(f"list schedule: {len(schedule) - len(order)} sends of {len(schedule)} wait for each other")
    return schedule.take(np.array(order, dtype=np.int64))


def _carried(problem: Problem, schedule: Schedule) -> list[list[int]]:
    """For every send the sends that bring what it carries (of a plain value the first to be listed)."""
    net, collective = problem.network, problem.collective
    held = {(c, r) for r, c in collective.pre.tolist()}
    chunk, step = schedule.chunk.tolist(), schedule.step.tolist()
    into: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, cell in enumerate(zip(chunk, net.dst[schedule.link].tolist(), strict=True)):
        into[cell].append(row)
    before: list[list[int]] = []
    for row, cell in enumerate(zip(chunk, net.src[schedule.link].tolist(), strict=True)):
        brought = [r for r in into.get(cell, ()) if step[r] < step[row]]
        if not collective.reduces[cell[0]]:
            brought = [] if cell in held else brought[:1]
        before.append(brought)
    return before
