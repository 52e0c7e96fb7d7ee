"""How long a schedule keeps the network's resources busy."""

from __future__ import annotations

import numpy as np

from synth.model.collective import Floats
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import row_entries


def resource_loads_us(problem: Problem, schedule: Schedule) -> Floats:
    """How long a timed schedule keeps each resource busy, in µs, shape (nresources,)."""
    net = problem.network
    count = np.diff(net.uses_ptr)[schedule.link]
    used = net.uses_idx[row_entries(net.uses_ptr, schedule.link)]
    work = problem.collective.chunk_bytes(schedule.size_bytes)[schedule.chunk] * US_PER_BYTE_AT_1_GBS
    return np.bincount(used, np.repeat(work, count), net.nresources) / net.capacity_gbs
