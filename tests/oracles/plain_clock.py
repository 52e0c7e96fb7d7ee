"""The clock of schedules as the model of time states it, send by send, with dictionaries.

It shares only one constant with `synth.timing.simulate`.
"""

from __future__ import annotations

import heapq

import numpy as np

from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.network import Network


def plain_times(problem: Problem, schedule: Schedule, size_bytes: float) -> tuple[list[float], list[float]] | str:
    """Return the start and the end of every send in µs, or a message that says what is wrong with the schedule."""
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
    initial = {(c, r) for r, c in collective.pre.tolist()}
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
        arrival_times = [t for s, t in arrivals.get(cell, ()) if s < step]
        if cell not in initial and not arrival_times:
            rank = problem.ranks[src[link]]
            return f"send {row}: chunk {chunk} is not at rank {rank} before step {schedule.step[row]}"
        ready = (max(arrival_times, default=0.0) if adds[chunk] else min(arrival_times)) if arrival_times else 0.0
        if not adds[chunk] and cell in initial:
            ready = 0.0
        lasts = hold[chunk] / rate[link]
        if adds[chunk] and not reduces:
            # The content that it replaces must have arrived before.
            for s, t in arrivals.get((chunk, dst[link]), ()):
                if s < step:
                    ready = max(ready, t - lasts - alpha[link])
        elif reduces:
            # The content to which it is added must have arrived before.
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
    """Return the resources that several sends can use at once, and the resources of every link.

    Several sends can use a resource at once where a link through it is narrower than the resource.
    """
    link_of = net.link_of_use
    narrow = net.bandwidth_gbs[link_of] < net.capacity_gbs[net.uses_idx] * (1 - 1e-12)
    cuts = net.uses_ptr.tolist()
    flat = net.uses_idx.tolist()
    uses = [flat[cuts[i] : cuts[i + 1]] for i in range(net.nlinks)]
    return [int(r) for r in np.unique(net.uses_idx[narrow])], uses


class _Shared:
    """The sends in flight through one resource, in order of their start."""

    def __init__(self, capacity: float) -> None:
        self.capacity = capacity * (1 + 1e-12)
        self.used = 0.0
        self.latest = 0.0
        self.ends: list[tuple[float, float]] = []

    def room_from(self, time: float, rate: float) -> float:
        """Return the first time from which the resource has room for a rate."""
        time = max(time, self.latest)
        used = self.used
        for end, freed in sorted(self.ends):
            if end > time and used + rate <= self.capacity:
                break
            time = max(time, end)
            used -= freed
        return time

    def add(self, start: float, end: float, rate: float) -> None:
        while self.ends and self.ends[0][0] <= start:
            self.used -= heapq.heappop(self.ends)[1]
        self.used = self.used + rate if self.ends else rate
        self.latest = start
        heapq.heappush(self.ends, (end, rate))


def _fit(limits: list[_Shared], begin: float, rate: float) -> float:
    """Return the first time from `begin` on at which all limits have room for a rate."""
    while True:
        then = begin
        for limit in limits:
            then = limit.room_from(then, rate)
        if then == begin:
            return begin
        begin = then
