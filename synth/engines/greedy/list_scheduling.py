"""List scheduling for few ranks: a send starts when its ports are free, the one with the longest chain behind it first.

The rule differs from that of `synth.engines.flow.list_scheduling`, and neither is better everywhere. Here a narrow link
takes its part of a wide resource's time, and the send that can begin first goes first. There the most urgent send that
fits goes first.
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
    """Return the same sends in the order of a list schedule for messages of `size_bytes`, in O(sends · log sends) time.

    No port stays idle while a send that could use it is ready (Graham, 1966). Of the ready sends the one with the
    longest chain of sends behind it goes first.

    Raises:
        ScheduleError: If sends wait for each other.
    """
    net, collective = problem.network, problem.collective
    link, step = schedule.link.tolist(), schedule.step.tolist()
    send_us = (
        collective.chunk_bytes(size_bytes)[schedule.chunk] * US_PER_BYTE_AT_1_GBS / net.bandwidth_gbs[schedule.link]
    ).tolist()
    alpha_us = net.alpha_us[schedule.link].tolist()
    inputs_of = _inputs_of_sends(problem, schedule)
    successors_of: dict[int, list[int]] = defaultdict(list)
    for row, rows in enumerate(inputs_of):
        for input_row in rows:
            successors_of[input_row].append(row)
    urgency = [0.0] * len(schedule)
    for row in sorted(range(len(schedule)), key=lambda r: -step[r]):
        urgency[row] = send_us[row] + alpha_us[row] + max((urgency[later] for later in successors_of[row]), default=0.0)
    uses = [net.uses(i).tolist() for i in range(net.nlinks)]
    share = [(net.bandwidth_gbs[i] / net.capacity_gbs[uses[i]]).tolist() for i in range(net.nlinks)]
    resource_free = [0.0] * net.nresources
    link_free = [0.0] * net.nlinks
    waiting = [len(rows) for rows in inputs_of]
    ready = [0.0] * len(schedule)
    heap = [(0.0, -urgency[r], r) for r in range(len(schedule)) if not waiting[r]]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        when, _, row = heapq.heappop(heap)
        i = link[row]
        begin = max(ready[row], link_free[i])
        for r in uses[i]:
            if resource_free[r] > begin:
                begin = resource_free[r]
        if begin > when:
            heapq.heappush(heap, (begin, -urgency[row], row))
            continue
        order.append(row)
        link_free[i] = begin + send_us[row]
        for r, part in zip(uses[i], share[i], strict=True):
            # A narrow link counts as if it had all of a wide resource for its part of the time.
            resource_free[r] = max(resource_free[r], begin) + send_us[row] * part
        for successor in successors_of[row]:
            waiting[successor] -= 1
            ready[successor] = max(ready[successor], begin + send_us[row] + alpha_us[row])
            if not waiting[successor]:
                heapq.heappush(heap, (ready[successor], -urgency[successor], successor))
    if len(order) != len(schedule):
        raise ScheduleError(f"list schedule: {len(schedule) - len(order)} sends of {len(schedule)} wait for each other")
    return schedule.take(np.array(order, dtype=np.int64))


def _inputs_of_sends(problem: Problem, schedule: Schedule) -> list[list[int]]:
    """Return for every send the sends that bring its chunk to its source (for a plain value the first in the list)."""
    net, collective = problem.network, problem.collective
    initial_holders = {(c, r) for r, c in collective.pre.tolist()}
    chunk, step = schedule.chunk.tolist(), schedule.step.tolist()
    arrivals_at: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row, cell in enumerate(zip(chunk, net.dst[schedule.link].tolist(), strict=True)):
        arrivals_at[cell].append(row)
    inputs_of: list[list[int]] = []
    for row, cell in enumerate(zip(chunk, net.src[schedule.link].tolist(), strict=True)):
        inputs = [r for r in arrivals_at.get(cell, ()) if step[r] < step[row]]
        if not collective.reduces[cell[0]]:
            inputs = [] if cell in initial_holders else inputs[:1]
        inputs_of.append(inputs)
    return inputs_of
