"""Witnesses at the ends of routes: what comes to ranks uses links into them, what leaves them uses links out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from synth.bounds.witness import NOTHING, Limit, ResourceWitness
from synth.model.problem import Problem
from synth.model.requirements import find_requirements
from topologies.arrays import row_of_entry, segment_sums


@dataclass(frozen=True, kw_only=True)
class Ends(ResourceWitness):
    """A set of ranks, with resources of which every link into it, or every link out of it, uses one.

    A chunk that several of the ranks want arrives that many times. A sum that several hold leaves that many times.

    Attributes:
        ranks: The local ranks at which data arrives or leaves.
        arrivals: True for arrivals, False for departures.
    """

    arrivals: ClassVar[bool]
    ranks: tuple[int, ...] = ()

    def limit(self, problem: Problem) -> Limit:
        """Return (µs, µs per byte, inf at most): what comes to (leaves) a rank uses a link into (out of) it.

        The µs are the least α of these links. The result is (0, 0, inf) where nothing has to come or leave, or where
        there is no such link.

        Raises:
            BadWitness: A rank or resource does not exist, such a link uses none of the resources, or not all ranks are
                named for a quotient problem.
        """
        net, collective = problem.network, problem.collective
        ranks = self.flags(problem, self.ranks)
        if problem.quotient is not None and not ranks.all():
            raise self.refusal("names some ranks; for a quotient problem it must name all ranks")
        at_ranks = ranks[net.pairs.dst if self.arrivals else net.pairs.src]
        times = segment_sums(at_ranks, net.pairs.ptr)
        if net.hyperlinks is not None:  # A multicast leaves one rank, and a reduction comes to one rank.
            single = np.append(np.ones(net.nlinks, dtype=bool), net.hyperlinks.multicast != self.arrivals)
            times = np.where(single, np.minimum(times, 1), times)
        capacity = self.capacity(problem, net, times)
        need = find_requirements(collective)
        if self.arrivals:
            counts, chunk = need.arrive & ranks[collective.goals[1]], need.goal_chunk
        else:
            counts, chunk = need.depart & ranks[collective.holders[1]], need.hold_chunk
        if not counts.any() or not at_ranks.any():
            return NOTHING
        load = float(collective.fraction[chunk[counts]].sum())
        alpha = net.carriers.alpha_us[row_of_entry(net.pairs.ptr)[at_ranks]]
        return float(alpha.min()), load / capacity / 1e3, np.inf


class Arrivals(Ends):
    """A set of ranks at which data must arrive, with resources of which every link into it uses one."""

    kind: ClassVar[str] = "arrivals"
    arrivals: ClassVar[bool] = True


class Departures(Ends):
    """A set of ranks from which data must leave, with resources of which every link out of it uses one."""

    kind: ClassVar[str] = "departures"
    arrivals: ClassVar[bool] = False
