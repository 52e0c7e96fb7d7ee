"""Rounds of every step of a large schedule, without a table of steps × resources."""

from __future__ import annotations

import numpy as np

from synth.model.collective import Floats, Ints
from synth.model.compiled import kernel
from synth.model.problem import Problem
from synth.model.schedule import Schedule, unit_gbs


def step_peaks(problem: Problem, schedule: Schedule) -> Floats:
    """Rounds that the busiest resource or link is busy in every step that has sends, steps ascending."""
    net, collective = problem.network, problem.collective
    step = schedule.step
    order = np.zeros(0, dtype=np.int64)
    if not (step[1:] >= step[:-1]).all():
        # 16 bits are sorted by radix
        small = step.max() <= np.iinfo(np.uint16).max
        order = np.argsort(step.astype(np.uint16) if small else step, kind="stable")
    unit = unit_gbs(problem)
    weight = collective.fraction / collective.fraction.min()
    # a link is one more resource, of its own bandwidth
    ptr = net.uses_ptr + np.arange(net.nlinks + 1)
    uses = np.insert(net.uses_idx, net.uses_ptr[1:], net.nresources + np.arange(net.nlinks))
    factor = np.concatenate([unit / net.capacity_gbs, unit / net.bandwidth_gbs])
    chunk, link, step = (_column(column) for column in (schedule.chunk, schedule.link, step))
    return _step_peaks(order, chunk, link, step, weight, ptr, uses, factor)


def _column(array: Ints) -> Ints:
    """As the kernel takes it: contiguous and writable, so that it is compiled once."""
    plain = np.ascontiguousarray(array, dtype=np.int64)
    return plain if plain.flags.writeable else plain.copy()


@kernel
def _step_peaks(
    order: Ints, chunk: Ints, link: Ints, step: Ints, weight: Floats, ptr: Ints, uses: Ints, factor: Floats
) -> Floats:
    """`order` brings the rows to ascending steps; empty where they are."""
    load = np.zeros(len(factor))
    peaks = [0.0][:0]
    first = 0
    while first < len(chunk):
        row = order[first] if len(order) else first
        now, last, peak = step[row], first, 0.0
        while last < len(chunk) and step[row] == now:
            for u in range(ptr[link[row]], ptr[link[row] + 1]):
                load[uses[u]] += weight[chunk[row]]
            last += 1
            if last < len(chunk):
                row = order[last] if len(order) else last
        for i in range(first, last):
            row = order[i] if len(order) else i
            for u in range(ptr[link[row]], ptr[link[row] + 1]):
                peak = max(peak, load[uses[u]] * factor[uses[u]])
                load[uses[u]] = 0.0
        peaks.append(peak)
        first = last
    return np.array(peaks)
