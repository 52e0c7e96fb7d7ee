"""Groups that the network's shifts bring onto each other: one's answer alone is the other's, moved.

Without this every group of a large torus or of many equal nodes would be searched for by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from synth.model.collective import Collective, Ints
from synth.model.problem import Problem
from synth.model.schedule import Schedule
from topologies.network import Network, network
from topologies.subnetwork import links_among
from topologies.symmetry.translations import Shifts, digits, image, link_image, shifts
from topologies.topology import Topology

__all__ = ["Alike"]


class Alike:
    """Moves schedules from one group's problem to another's on the same topology."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology

    @cached_property
    def whole(self) -> Network:
        """All ranks, in their order."""
        return network(self.topology, range(self.topology.nranks))

    @cached_property
    def shifts(self) -> Shifts:
        return shifts(self.whole)

    def way(self, one: Problem, other: Problem) -> tuple[int, ...] | None:
        """How often each shift is to be done to bring one problem onto the other; None where that does not."""
        if not self.shifts or not _same(one.collective, other.collective) or one.nranks != other.nranks:
            return None
        ranks, onto = np.array(one.ranks), np.array(other.ranks)
        first, last = digits(self.shifts, ranks[:1]), digits(self.shifts, onto[:1])
        by = tuple(int(b[0] - a[0]) for a, b in zip(first, last, strict=True))
        moved = image(self.shifts, ranks, by)
        k = len(one.group)
        alike = np.array_equal(moved[:k], onto[:k]) and np.array_equal(np.sort(moved[k:]), np.sort(onto[k:]))
        return by if alike else None

    def moved(self, one: Problem, schedule: Schedule, other: Problem, by: Sequence[int]) -> Schedule:
        """The schedule of `one` as one of `other`; times stay."""
        whole = self._links(one)[schedule.link]
        onto = link_image(self.whole, self.shifts, whole, by)
        number = np.full(self.whole.nlinks, -1, dtype=np.int64)
        there = self._links(other)
        number[there] = np.arange(len(there))
        return replace(schedule, link=number[onto])

    def _links(self, problem: Problem) -> Ints:
        """The whole network's number of each of the problem's links."""
        return links_among(self.whole, np.array(problem.ranks))[0]


def _same(one: Collective, other: Collective) -> bool:
    if one is other:
        return True
    plain = ("name", "nranks", "chunks", "nchunks", "root")
    columns = ("reduces", "fraction", "pre", "post")
    return all(getattr(one, name) == getattr(other, name) for name in plain) and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in columns
    )
