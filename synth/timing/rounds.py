"""Count the rounds of a schedule in SCCL's k-synchronous model (section 3.2).

The busiest resource of a step determines how many rounds the step takes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from synth.model.collective import Floats
from synth.model.compiled import Runner, is_little
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from synth.timing.simulate import TUNING, ClockTuning
from topologies.arrays import sorted_rows


def unit_gbs(problem: Problem) -> float:
    """Return the bandwidth in GB/s that moves one chunk a round: that of the network's slowest link (SCCL's unit)."""
    return float(problem.network.bandwidth_gbs.min())


def rounds(problem: Problem, schedule: Schedule) -> int:
    """Return R of the k-synchronous model: the whole rounds of all steps, summed.

    A step takes the rounds of its busiest resource or link, rounded up, but at least one, even if it has no sends. A
    schedule without sends has 0.
    """
    if not len(schedule):
        return 0
    peaks = step_peaks(problem, schedule)
    return int(np.maximum(np.ceil(peaks - 1e-9), 1).sum()) + schedule.nsteps - len(peaks)


def step_peaks(problem: Problem, schedule: Schedule, tuning: ClockTuning = TUNING) -> Floats:
    """Return the rounds that the busiest resource or link needs in every step that has sends, steps ascending.

    A round moves a chunk of the smallest size over the slowest link. Takes O(sends · resources a link uses) time.

    Returns:
        Fractions of rounds, not rounded, shape (steps with sends,).
    """
    net, collective = problem.network, problem.collective
    step, unit = schedule.step, unit_gbs(problem)
    chunk, link = schedule.chunk, schedule.link
    if not (step[1:] >= step[:-1]).all():
        order = sorted_rows(step)
        chunk, link, step = chunk[order], link[order], step[order]
    ptr, uses, capacity = net.uses_and_links(hyperlinks=True)
    factor = unit / capacity
    first = np.append(np.flatnonzero(np.diff(step, prepend=-1)), len(step))
    run = Runner(interpreted=is_little(len(schedule), tuning.compiled_from))
    weight = collective.fraction / collective.fraction.min()
    columns = first, chunk, link, weight, net.carriers.holds, ptr, uses, factor, np.zeros(len(factor))
    *inputs, peaks = run.columns(*columns, np.zeros(len(first) - 1))
    run(_add_steps, *inputs, peaks)
    return np.asarray(peaks)


def _add_steps(  # A loop that Numba compiles takes columns, however many.
    first: Any, chunk: Any, link: Any, weight: Any, holds: Any, ptr: Any, uses: Any, factor: Any, load: Any, peaks: Any
) -> None:
    """Set `peaks`: the rounds that the busiest resource or link needs in each step.

    Args:
        first: First row of each step, then the number of rows.
        chunk: Chunk of each row.
        link: Link or hyperlink of each row.
        weight: Size of each chunk in smallest chunks.
        holds: Rate that each link or hyperlink takes of what it uses per GB/s that it carries.
        ptr: First entry in `uses` of each link or hyperlink.
        uses: What each uses: resources, then links.
        factor: Rounds that a smallest chunk takes of each resource or link.
        load: Zeros for each resource or link; all 0 again afterwards.
        peaks: The result, one for each step.
    """
    for index in range(len(peaks)):
        for row in range(first[index], first[index + 1]):
            for u in range(ptr[link[row]], ptr[link[row] + 1]):
                load[uses[u]] += weight[chunk[row]] * holds[link[row]]
        peak = 0.0
        for row in range(first[index], first[index + 1]):
            for u in range(ptr[link[row]], ptr[link[row] + 1]):
                peak = max(peak, load[uses[u]] * factor[uses[u]])
                load[uses[u]] = 0.0
        peaks[index] = peak
