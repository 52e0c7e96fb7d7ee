"""The one place that turns a schedule into microseconds (the model of time in the design document).

A send of b bytes holds its link for b / bandwidth; the sends in flight through a shared resource never have more
rate together than its capacity; the chunk can be used at the far end α after the send has ended.
"""

from __future__ import annotations

import heapq
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from synth.model.collective import Floats
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.errors import ScheduleError
from topologies.network import Network

if TYPE_CHECKING:
    from synth.timing.clock import Prepared

US_PER_BYTE_AT_1_GBS = 1e-3
COMPILED_FROM = 20_000  # sends; from here on the loop below costs more than to load its compiled twin


def timed(problem: Problem, schedule: Schedule, size_bytes: float) -> Schedule:
    """The schedule with every send as early as its place in the order allows, for this message size.

    Rows are served in their order: a send starts when what it carries has arrived and its link and shared
    resources are free of the rows before it.

    Raises:
        ScheduleError: a send whose chunk is not at its source, or comes only in a later row.
    """
    return Clock(problem, schedule).timed(size_bytes)


class Clock:
    """`timed` for one schedule at several sizes. Large ones are left to `synth.timing.clock`: the same to the last bit.

    Raises ScheduleError as `timed` does, when it is made or used.
    """

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self._compiled: Prepared | None = None
        if len(schedule) >= COMPILED_FROM:
            from synth.timing.clock import Prepared  # brings Numba

            self._compiled = Prepared(problem, schedule)
            if self._compiled.bad >= 0:
                raise _absent(problem, schedule, self._compiled.bad)

    def timed(self, size_bytes: float) -> Schedule:
        """The schedule at this size."""
        hold_us = self.problem.collective.chunk_bytes(size_bytes) * US_PER_BYTE_AT_1_GBS
        if self._compiled is None:
            start_us, end_us = _interpreted(self.problem, self.schedule, hold_us)
        else:
            start_us, end_us = self._compiled.starts_and_ends(hold_us)
        return replace(self.schedule, start_us=start_us, end_us=end_us, size_bytes=float(size_bytes))


def _absent(problem: Problem, schedule: Schedule, row: int) -> ScheduleError:
    rank = problem.ranks[int(problem.network.src[schedule.link[row]])]
    return ScheduleError(
        f"send {row}: chunk {schedule.chunk[row]} is not at rank {rank} before step {schedule.step[row]}"
    )


def _interpreted(problem: Problem, schedule: Schedule, hold_us: Floats) -> tuple[Floats, Floats]:
    net = problem.network
    collective = problem.collective
    shared, uses = _plan(net)
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
    start_us = np.empty(len(schedule))
    end_us = np.empty(len(schedule))
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
            raise _absent(problem, schedule, row)
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
        start_us[row], end_us[row] = begin, end
    return start_us, end_us


def time_us(problem: Problem, schedule: Schedule) -> float:
    """When the last chunk has arrived, in µs, of a timed schedule."""
    if not len(schedule):
        return 0.0
    return float((schedule.end_us + problem.network.alpha_us[schedule.link]).max())


def predict_us(problem: Problem, schedule: Schedule, size_bytes: float) -> float:
    """Time of the algorithm at a message size, in µs."""
    return time_us(problem, timed(problem, schedule, size_bytes))


@lru_cache(maxsize=8)
def _plan(net: Network) -> tuple[list[int], list[list[int]]]:
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
