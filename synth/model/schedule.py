"""A Schedule: all sends of an algorithm as columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem

COMPILED_FROM = 20_000  # sends; from here on, or
COMPILED_FROM_CELLS = 10_000_000  # of the table of loads, rounds are counted without it


@dataclass(frozen=True, eq=False)
class Schedule:
    """Sends, one a row, in order of priority (a send stands behind the sends that bring what it carries).

    Attributes:
        chunk, link: int, shape (n,): which chunk goes over which link of the problem's network.
        step: int, shape (n,), from 0. A send carries what its source holds after all arrivals of earlier steps
            and none of its own step or later; this, and not the clock, says which partial sum is meant.
        reduces: bool, shape (n,): added to what the destination holds (else it replaces it).
        start_us, end_us: float, shape (n,): when the send takes and leaves the link; the chunk can be used at
            the other end α later.
        size_bytes: the message size that the times are for.
    """

    chunk: Ints
    link: Ints
    step: Ints
    reduces: Bools
    start_us: Floats
    end_us: Floats
    size_bytes: float

    def __len__(self) -> int:
        return len(self.chunk)

    @property
    def nsteps(self) -> int:
        return int(self.step.max()) + 1 if len(self.step) else 0

    def take(self, rows: Ints | Bools) -> Schedule:
        """The rows given, in the order given."""
        columns = ("chunk", "link", "step", "reduces", "start_us", "end_us")
        return replace(self, **{name: getattr(self, name)[rows] for name in columns})


def untimed(chunk: Ints, link: Ints, step: Ints, reduces: Bools) -> Schedule:
    """A schedule whose times are still to be set by `simulate.timed`."""
    none = np.zeros(len(chunk))
    return Schedule(
        np.asarray(chunk, dtype=np.int64),
        np.asarray(link, dtype=np.int64),
        np.asarray(step, dtype=np.int64),
        np.asarray(reduces, dtype=bool),
        none,
        none,
        0.0,
    )


def unit_gbs(problem: Problem) -> float:
    """GB/s that moves one chunk a round: the slowest link of the network (SCCL's unit)."""
    return float(problem.network.bandwidth_gbs.min())


def step_loads(problem: Problem, schedule: Schedule) -> Floats:
    """Rounds that every resource and link is busy in every step, in chunks of the smallest size.

    Shape (steps, resources + links): for small schedules; see `rounds`.
    """
    net, collective = problem.network, problem.collective
    weight = collective.fraction / collective.fraction.min()
    loads = np.zeros((schedule.nsteps, net.nresources))
    counts = (net.uses_ptr[1:] - net.uses_ptr[:-1])[schedule.link]
    rows = np.repeat(np.arange(len(schedule)), counts)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    uses = net.uses_idx[net.uses_ptr[schedule.link[rows]] + within]
    np.add.at(loads, (schedule.step[rows], uses), weight[schedule.chunk[rows]])
    loads *= unit_gbs(problem) / net.capacity_gbs
    # a link that is narrower than every resource on its way is busy longer than they are
    own = np.zeros((schedule.nsteps, net.nlinks))
    np.add.at(own, (schedule.step, schedule.link), weight[schedule.chunk])
    own *= unit_gbs(problem) / net.bandwidth_gbs
    return np.concatenate([loads, own], axis=1)


def rounds(problem: Problem, schedule: Schedule) -> int:
    """R of the k-synchronous model: whole rounds of all steps together, one at least a step."""
    if not len(schedule):
        return 0
    net, steps = problem.network, schedule.nsteps
    if len(schedule) < COMPILED_FROM and steps * (net.nresources + net.nlinks) < COMPILED_FROM_CELLS:
        peaks = step_loads(problem, schedule).max(axis=1)
    else:
        from synth.timing.rounds import step_peaks  # brings Numba

        peaks = step_peaks(problem, schedule)
    # a step without sends is a round too
    return int(np.maximum(np.ceil(peaks - 1e-9), 1).sum()) + steps - len(peaks)
