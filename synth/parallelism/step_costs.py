"""What steps take by a formula, so that thousands of programs are ranked before any is made (P²'s cost, on our links).

A step's groups run at once. Each sends along the ring of its devices, or straight between all pairs; the busiest
resource of the network, with all groups' bytes on it, and the α of the messages that follow each other make its time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as Ordered
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from synth.baselines.routes import Routes
from synth.model.collective import Floats, Ints
from synth.parallelism.concrete import shares
from synth.parallelism.join_steps import Reduction
from synth.parallelism.sequences import Sequence, Step
from synth.parallelism.states import ALLREDUCE, BROADCAST, REDUCE, Slice, SynthesisHierarchy
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import row_entries
from topologies.errors import NoRoute, TooManySends
from topologies.network import network
from topologies.topology import Topology

_OVERLAPPED = 300  # sequences, the best in turn, of which the time with overlap is worked out


@dataclass(frozen=True, eq=False)
class _Traffic:
    """What a slice's groups do to the network if each message has one byte.

    busy_us: of every resource, then of every link, µs. alpha_us: the largest α of a message.
    """

    busy_us: Floats
    alpha_us: float

    @cached_property
    def busiest_us(self) -> float:
        return float(self.busy_us.max())


class StepCosts:
    """Costs of the steps of one reduction's programs, each slice's traffic worked out once."""

    def __init__(self, asked: Reduction, hierarchy: SynthesisHierarchy) -> None:
        self.asked, self.hierarchy = asked, hierarchy
        self._of_slice: dict[tuple[Slice, bool], _Traffic | None] = {}
        self._of_step: dict[tuple[Step, float], tuple[float, float, _Traffic | None]] = {}

    def in_turn_us(self, sequence: Sequence) -> float:
        """The sum of its steps' times, as if each waited for the one before, in µs; inf where one has no routes."""
        return sum(us for us, _, _ in self._steps(sequence))

    def overlapped_us(self, sequence: Sequence) -> float:
        """What the busiest resource has to do in all steps together, in µs: no overlap of them takes less."""
        total: Floats | float = 0.0
        for _, size, traffic in self._steps(sequence):
            if traffic is None:
                return np.inf
            total = total + size * traffic.busy_us
        return float(np.max(total))

    def _steps(self, sequence: Sequence) -> Iterator[tuple[float, float, _Traffic | None]]:
        for step, share in zip(sequence, shares(sequence, self.hierarchy.factors), strict=True):
            if (step, share) not in self._of_step:
                self._of_step[step, share] = self._step(step, self.asked.size_bytes * share)
            yield self._of_step[step, share]

    def _step(self, step: Step, size: float) -> tuple[float, float, _Traffic | None]:
        """Of a step over so many bytes: its time in µs, the bytes of its messages in all, and their traffic."""
        members = math.prod(self.hierarchy.factors[step.slice.low : step.slice.high])
        ring = self._traffic(step.slice, ring=True)
        if ring is None:
            return np.inf, 0.0, None
        if step.collective in (REDUCE, BROADCAST):  # a pipeline
            return size * ring.busiest_us + (members - 1) * ring.alpha_us, size, ring
        times = 2 if step.collective == ALLREDUCE else 1
        each = size / members
        around = times * (members - 1) * (each * ring.busiest_us + ring.alpha_us), times * (members - 1) * each, ring
        pairs = self._traffic(step.slice, ring=False)
        if pairs is None:
            return around
        return min(around, (times * (each * pairs.busiest_us + pairs.alpha_us), times * each, pairs), key=_time)

    def _traffic(self, cut: Slice, ring: bool) -> _Traffic | None:
        """Of messages from each device to the next in its group, or to all others; None without routes."""
        if (cut, ring) not in self._of_slice:
            groups = np.array(cut.groups(self.hierarchy), dtype=np.int64)
            ranks = np.array(self.asked.groups, dtype=np.int64)
            each = self._place[ranks[:, groups].reshape(-1, groups.shape[1])]
            if ring:
                at, goal = each, np.roll(each, -1, axis=1)
            else:
                a, b = (x.ravel() for x in np.indices((each.shape[1],) * 2))
                at, goal = each[:, a[a != b]], each[:, b[a != b]]
            try:
                self._of_slice[cut, ring] = self._routed(at.ravel(), goal.ravel())
            except (NoRoute, TooManySends):
                self._of_slice[cut, ring] = None
        return self._of_slice[cut, ring]

    def _routed(self, at: Ints, goal: Ints) -> _Traffic:
        routes = _routes(self.asked.topology, self._ranks)
        net, (message, link, _) = routes.network, routes.expand(at, goal)
        used = net.uses_idx[row_entries(net.uses_ptr, link)]
        work = np.bincount(used, minlength=net.nresources) / net.capacity_gbs
        alone = np.bincount(link, minlength=net.nlinks) / net.bandwidth_gbs
        alpha_us = np.bincount(message, net.alpha_us[link])
        return _Traffic(np.concatenate([work, alone]) * US_PER_BYTE_AT_1_GBS, float(alpha_us.max()))

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        every = range(self.asked.topology.nranks)
        return tuple(every if self.asked.relays != "none" else sorted(r for group in self.asked.groups for r in group))

    @cached_property
    def _place(self) -> Ints:
        place = np.full(self.asked.topology.nranks, -1, dtype=np.int64)
        place[list(self._ranks)] = np.arange(len(self._ranks))
        return place


@lru_cache(maxsize=4)
def _routes(topology: Topology, ranks: tuple[int, ...]) -> Routes:
    """Between all of these; one for all requests on a topology."""
    return Routes(network(topology, ranks), np.arange(len(ranks)))


def _time(step: tuple[float, float, _Traffic | None]) -> float:
    return step[0]


def ranked(sequences: Ordered[Sequence], costs: StepCosts) -> list[Sequence]:
    """Sequences, the fastest first, then the shortest: in turn by their times without and with overlap.

    Which of the two a program comes near depends on what its steps share. Those without routes are left out.
    """
    each = [(costs.in_turn_us(sequence), sequence) for sequence in sequences]
    finite = sorted(
        ((us, s) for us, s in each if np.isfinite(us)), key=lambda found: (_rounded(found[0]), len(found[1]))
    )
    in_turn = [sequence for _, sequence in finite]
    likely = in_turn[:_OVERLAPPED]
    by_load = sorted(likely, key=lambda s: (_rounded(costs.overlapped_us(s)), _rounded(costs.in_turn_us(s)), len(s)))
    mixed = (sequence for pair in zip(likely, by_load, strict=True) for sequence in pair)
    return list(dict.fromkeys([*mixed, *in_turn]))


def _rounded(us: float) -> float:
    """What differs by rounding only is equal."""
    return float(f"{us:.9g}")
