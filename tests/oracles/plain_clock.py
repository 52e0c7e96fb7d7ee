"""The clock of schedules as the model of time states it, send by send, with dictionaries.

It shares nothing with `synth.timing.simulate` but one constant.
"""

from __future__ import annotations

import heapq

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.network import Network


def plain_times(problem: Problem, schedule: Schedule, size_bytes: float) -> tuple[list[float], list[float]] | str:
    """(start, end) of every send in µs, or what is wrong with the schedule."""
    hold_us = problem.collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
    net = problem.network
    collective = problem.collective
    shared, uses = _shared_resources(net)
    free = [0.0] * net.nresources
    link_free = [0.0] * net.nlinks
    active: dict[int, _Shared] = {r: _Shared(float(net.capacity_gbs[r])) for r in shared}
    src, dst = net.src.tolist(), net.dst.tolist()
    alpha, rate = net.alpha_us.tolist(), net.bandwidth_gbs.tolist()
    hold = hold_us.tolist()
    adds = collective.reduces.tolist()
    held = {(c, r) for r, c in collective.pre.tolist()}
    arrivals: dict[tuple[int, int], list[tuple[int, float]]] = {}
    copied: dict[tuple[int, int], float] = {}
    start_us, end_us = [], []
    rows = zip(
        schedule.chunk.tolist(),
        schedule.link.tolist(),
        schedule.step.tolist(),
        schedule.reduces.tolist(),
        strict=True,
    )
    for row, (chunk, link, step, reduces) in enumerate(rows):
        cell = (chunk, src[link])
        came = [t for s, t in arrivals.get(cell, ()) if s < step]
        if cell not in held and not came:
            at = problem.ranks[src[link]]
            return f"send {row}: chunk {chunk} is not at rank {at} before step {schedule.step[row]}"
        ready = (max(came, default=0.0) if adds[chunk] else min(came)) if came else 0.0
        if not adds[chunk] and cell in held:
            ready = 0.0
        lasts = hold[chunk] / rate[link]
        if adds[chunk] and not reduces:
            # what it replaces must have come before it does
            for s, t in arrivals.get((chunk, dst[link]), ()):
                if s < step:
                    ready = max(ready, t - lasts - alpha[link])
        elif reduces:
            # and what it is added to must have been put there
            ready = max(ready, copied.get((chunk, dst[link]), 0.0) - lasts - alpha[link])
        begin = max(ready, link_free[link])
        for r in uses[link]:
            if r not in active and free[r] > begin:
                begin = free[r]
        limits = [active[r] for r in uses[link] if r in active]
        if limits:
            begin = _fit(limits, begin, rate[link])
            for limit in limits:
                limit.add(begin, begin + lasts, rate[link])
        end = begin + lasts
        link_free[link] = end
        for r in uses[link]:
            free[r] = end
        arrivals.setdefault((chunk, dst[link]), []).append((step, end + alpha[link]))
        if adds[chunk] and not reduces:
            copied[chunk, dst[link]] = end + alpha[link]
        start_us.append(begin)
        end_us.append(end)
    return start_us, end_us


def _shared_resources(net: Network) -> tuple[list[int], list[list[int]]]:
    """Resources that several sends can use at once, because some link through them is narrower; and every link's."""
    link_of = net.link_of_use
    narrow = net.bandwidth_gbs[link_of] < net.capacity_gbs[net.uses_idx] * (1 - 1e-12)
    cuts = net.uses_ptr.tolist()
    flat = net.uses_idx.tolist()
    uses = [flat[cuts[i] : cuts[i + 1]] for i in range(net.nlinks)]
    return [int(r) for r in np.unique(net.uses_idx[narrow])], uses


class _Shared:
    """Sends in flight through one resource, taken in order of their start."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity * (1 + 1e-12)
        self.used = 0.0
        self.latest = 0.0
        self.ends: list[tuple[float, float]] = []

    def room_from(self, when: float, rate: float) -> float:
        when = max(when, self.latest)
        used = self.used
        for end, freed in sorted(self.ends):
            if end > when and used + rate <= self.capacity:
                break
            when = max(when, end)
            used -= freed
        return when

    def add(self, start: float, end: float, rate: float) -> None:
        while self.ends and self.ends[0][0] <= start:
            self.used -= heapq.heappop(self.ends)[1]
        self.used = self.used + rate if self.ends else rate
        self.latest = start
        heapq.heappush(self.ends, (end, rate))


def _fit(limits: list[_Shared], begin: float, rate: float) -> float:
    while True:
        then = begin
        for limit in limits:
            then = limit.room_from(then, rate)
        if then == begin:
            return begin
        begin = then
