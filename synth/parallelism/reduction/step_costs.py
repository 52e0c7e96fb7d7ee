"""Times of steps by a formula, which ranks thousands of programs before any is built (P²'s cost, on our links).

The groups of a step run at the same time. Each sends along the ring of its devices, or directly between all pairs. The
time of a step is that of the busiest resource of the network, with the bytes of all groups, and the α of the messages
that follow each other.
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
from synth.parallelism.reduction.concrete import shares
from synth.parallelism.reduction.join_steps import Reduction
from synth.parallelism.reduction.sequences import ReductionStep, Sequence
from synth.parallelism.reduction.states import ALLREDUCE, BROADCAST, REDUCE, Slice, SynthesisHierarchy
from synth.timing.simulate import US_PER_BYTE_AT_1_GBS
from topologies.arrays import row_entries
from topologies.errors import NoRoute, TooManySends
from topologies.network import network
from topologies.topology import Topology

_OVERLAPPED = 300  # The best sequences without overlap that also get their time with overlap.


@dataclass(frozen=True, eq=False)
class _StepTraffic:
    """The load that a slice's groups put on the network if each message has one byte.

    Attributes:
        busy_us: Busy time of every resource, then of every link, in µs.
        alpha_us: Largest α of a message, in µs.
    """

    busy_us: Floats
    alpha_us: float

    @cached_property
    def busiest_us(self) -> float:
        """Return the busy time of the busiest resource or link, in µs."""
        return float(self.busy_us.max())


class StepCosts:
    """Costs of the steps of one reduction's programs, with the traffic of each slice computed once.

    Attributes:
        request: The reduction.
        hierarchy: Synthesis hierarchy of one of its groups.
    """

    def __init__(self, request: Reduction, hierarchy: SynthesisHierarchy) -> None:
        self.request, self.hierarchy = request, hierarchy
        self._of_slice: dict[tuple[Slice, bool], _StepTraffic | None] = {}
        self._of_step: dict[tuple[ReductionStep, float], tuple[float, float, _StepTraffic | None]] = {}

    def in_turn_us(self, sequence: Sequence) -> float:
        """Return the sum of the steps' times in µs, as if each waited for the one before; inf without routes."""
        return sum(us for us, _, _ in self._steps(sequence))

    def overlapped_us(self, sequence: Sequence) -> float:
        """Return the busy time in µs of the busiest resource in all steps; no overlap of the steps takes less.

        It is inf if a step has no routes.
        """
        total: Floats | float = 0.0
        for _, size, traffic in self._steps(sequence):
            if traffic is None:
                return np.inf
            total = total + size * traffic.busy_us
        return float(np.max(total))

    def _steps(self, sequence: Sequence) -> Iterator[tuple[float, float, _StepTraffic | None]]:
        """Yield the time in µs, the bytes and the traffic of every step of a sequence."""
        for step, share in zip(sequence, shares(sequence, self.hierarchy.factors), strict=True):
            if (step, share) not in self._of_step:
                self._of_step[step, share] = self._step(step, self.request.size_bytes * share)
            yield self._of_step[step, share]

    def _step(self, step: ReductionStep, size: float) -> tuple[float, float, _StepTraffic | None]:
        """Return a step's time in µs, the bytes that each of its messages has in all, and the traffic of one such byte.

        The step runs over a ring or between all pairs, whichever is faster. The result is (inf, 0, None) if ranks do
        not reach each other.

        Args:
            step: The step.
            size: Bytes on which its collective works.
        """
        members = math.prod(self.hierarchy.factors[step.slice.low : step.slice.high])
        ring = self._traffic(step.slice, ring=True)
        if ring is None:
            return np.inf, 0.0, None
        if step.collective in (REDUCE, BROADCAST):  # They run as a pipeline.
            return size * ring.busiest_us + (members - 1) * ring.alpha_us, size, ring
        passes = 2 if step.collective == ALLREDUCE else 1
        part_bytes = size / members
        ring_cost = (
            passes * (members - 1) * (part_bytes * ring.busiest_us + ring.alpha_us),
            passes * (members - 1) * part_bytes,
            ring,
        )
        all_pairs = self._traffic(step.slice, ring=False)
        if all_pairs is None:
            return ring_cost
        return min(
            ring_cost,
            (passes * (part_bytes * all_pairs.busiest_us + all_pairs.alpha_us), passes * part_bytes, all_pairs),
            key=_time,
        )

    def _traffic(self, cut: Slice, ring: bool) -> _StepTraffic | None:
        """Return the traffic if each device sends to the next of its group, or to all others; None without routes."""
        if (cut, ring) not in self._of_slice:
            groups = np.array(cut.groups(self.hierarchy), dtype=np.int64)
            ranks = np.array(self.request.groups, dtype=np.int64)
            members = self._place[ranks[:, groups].reshape(-1, groups.shape[1])]
            if ring:
                src, dst = members, np.roll(members, -1, axis=1)
            else:
                a, b = (x.ravel() for x in np.indices((members.shape[1],) * 2))
                src, dst = members[:, a[a != b]], members[:, b[a != b]]
            try:
                self._of_slice[cut, ring] = self._routed(src.ravel(), dst.ravel())
            except (NoRoute, TooManySends):
                self._of_slice[cut, ring] = None
        return self._of_slice[cut, ring]

    def _routed(self, src: Ints, dst: Ints) -> _StepTraffic:
        """Compute the traffic of one byte from each source to its destination.

        Raises:
            NoRoute: A destination cannot be reached.
            TooManySends: The routes have too many links.
        """
        routes = _routes(self.request.topology, self._ranks)
        net, (message, link, _) = routes.network, routes.expand(src, dst)
        used = net.uses_idx[row_entries(net.uses_ptr, link)]
        resource_load = np.bincount(used, minlength=net.nresources) / net.capacity_gbs
        link_load = np.bincount(link, minlength=net.nlinks) / net.bandwidth_gbs
        alpha_us = np.bincount(message, net.alpha_us[link])
        return _StepTraffic(np.concatenate([resource_load, link_load]) * US_PER_BYTE_AT_1_GBS, float(alpha_us.max()))

    @cached_property
    def _ranks(self) -> tuple[int, ...]:
        """Return the ranks of the network: all of them if others may relay, else those of the groups."""
        every = range(self.request.topology.nranks)
        return tuple(
            every if self.request.relays != "none" else sorted(r for group in self.request.groups for r in group)
        )

    @cached_property
    def _place(self) -> Ints:
        """Return the position of every rank in the network, -1 for a rank outside of it: int64 (ranks,)."""
        place = np.full(self.request.topology.nranks, -1, dtype=np.int64)
        place[list(self._ranks)] = np.arange(len(self._ranks))
        return place


@lru_cache(maxsize=4)
def _routes(topology: Topology, ranks: tuple[int, ...]) -> Routes:
    """Return the routes between all of these ranks, cached for all requests on a topology."""
    return Routes(network(topology, ranks), np.arange(len(ranks)))


def _time(step: tuple[float, float, _StepTraffic | None]) -> float:
    """Return the time in µs of a step's cost, its first entry."""
    return step[0]


def ranked(sequences: Ordered[Sequence], costs: StepCosts) -> list[Sequence]:
    """Sort sequences by their estimated times, the fastest first, then by length; leave out those without routes.

    The best by the times without and with overlap of the steps take turns, since it depends on the resources that the
    steps share which of the two times a program comes near.
    """
    timed_sequences = [(costs.in_turn_us(sequence), sequence) for sequence in sequences]
    finite = sorted(
        ((us, s) for us, s in timed_sequences if np.isfinite(us)), key=lambda timed: (_rounded(timed[0]), len(timed[1]))
    )
    in_turn = [sequence for _, sequence in finite]
    candidates = in_turn[:_OVERLAPPED]
    by_load = sorted(
        candidates, key=lambda s: (_rounded(costs.overlapped_us(s)), _rounded(costs.in_turn_us(s)), len(s))
    )
    mixed = (sequence for pair in zip(candidates, by_load, strict=True) for sequence in pair)
    return list(dict.fromkeys([*mixed, *in_turn]))


def _rounded(us: float) -> float:
    """Return a time rounded to nine digits, so that times that differ only by rounding are equal."""
    return float(f"{us:.9g}")
