"""A witness of sums: what reaches a rank early has come from few ranks, so that it brings few contributions."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from synth.bounds.distances import Distances
from synth.bounds.metric import latencies
from synth.bounds.witness import NOTHING, Limit, ResourceWitness
from synth.model.collective import Floats, Ints
from synth.model.problem import Problem
from topologies.arrays import segment_sums

MOST_RANKS = 96  # of a network; distances between all of them take some milliseconds
_MOST_CELLS = 1 << 22  # contributors × links × slots of time
_SAME = 1e-9  # relative difference of two times that count as equal


@dataclass(frozen=True, kw_only=True)
class Contributions(ResourceWitness):
    """A rank that wants sums, in a set of ranks that their contributions must enter, at one message size.

    A message that leaves rank w for the set by time s brings, for each of its bytes, contributions of those ranks only
    from which data can be at w by s; paths through the set do not count, since what takes them has entered the set
    before. To be at the rank by time T, it leaves by T - λ, where λ is the latency from w into the set and on to the
    rank. Every link into the set uses one of the resources, and a resource of capacity C carries at most C bytes a µs.
    So the resources bring no more contributions by T than ∫ Σ C · (the most contributions a byte that a link of theirs
    brings at s) ds, where wide links count no more than their bandwidth. All contributions from outside of the set to
    all sums that the rank wants must come.

    Attributes:
        ranks: The local rank that wants the sums, a member of the group.
        parts: One part: the local ranks of the set, the rank among them.
        at_bytes: Message size in bytes.
    """

    kind: ClassVar[str] = "contributions"
    of_quotients: ClassVar[bool] = False
    ranks: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()
    at_bytes: float = 0.0

    def limit(self, problem: Problem) -> Limit:
        """Return (0, µs / `at_bytes`, µs): the least time in which all contributions can have come.

        Larger messages need that time too, and smaller ones their part of it (see `synth.bounds.witness`). The result
        is (0, 0, inf) where no sum is wanted, where switches multicast or reduce, and where the network is too large.

        Raises:
            BadWitness: Not one rank of the group or not one set around it is named, a link into the set uses none of
                the resources, or the size is no number of bytes from 1 to 10¹⁸.
        """
        net, rank = problem.network, self.one_member(problem, self.ranks)
        if len(self.parts) != 1 or rank not in self.parts[0]:
            raise self.refusal("it must name one set of ranks, the rank among them")
        self.check_size(self.at_bytes)
        inside = self.flags(problem, self.parts[0])
        entering = inside[net.dst] & ~inside[net.src]
        if net.hyperlinks is not None or not entering.any() or net.nranks > MOST_RANKS:
            return NOTHING
        self.capacity(problem, net, entering.astype(np.int64))  # It refuses links without a resource.
        groups, share = _contributors(problem, rank)
        groups = [np.array([holder for holder in group if not inside[holder]], dtype=np.int64) for group in groups]
        lacking = sum(len(group) * part for group, part in zip(groups, share, strict=True))
        if not lacking:
            return NOTHING
        links = np.flatnonzero(entering)
        outer = ~inside[net.src] & ~inside[net.dst]
        outside = Distances(net.nranks, net.src[outer], net.dst[outer], net.alpha_us[outer])
        reached_us = [np.sort(outside.rows(group)[:, net.src[links]], axis=0) for group in groups if len(group)]
        on_us = latencies(net).rows(np.array([rank]), to=True)[0]
        intake = _Intake(
            [(links[own], float(net.capacity_gbs[resource])) for resource, own in self._links_of(problem, links)],
            net.bandwidth_gbs,
            dict(zip(links.tolist(), (net.alpha_us + on_us[net.dst])[links].tolist(), strict=True)),
            {link: [times[:, n] for times in reached_us] for n, link in enumerate(links.tolist())},
        )
        least_us = intake.least_us(lacking * self.at_bytes * 1e-3)
        return 0.0, least_us / self.at_bytes, least_us

    def _links_of(self, problem: Problem, links: Ints) -> list[tuple[int, Ints]]:
        """Return each resource with the places in `links` of those whose first resource of the witness it is."""
        net, chosen = problem.network, np.unique(np.array(self.resources, dtype=np.int64))
        first = [
            int(chosen[np.isin(chosen, net.uses_idx[net.uses_ptr[link] : net.uses_ptr[link + 1]])][0])
            for link in links.tolist()
        ]
        return [(resource, np.flatnonzero(np.array(first) == resource)) for resource in sorted(set(first))]


def _contributors(problem: Problem, rank: int) -> tuple[list[Ints], list[float]]:
    """Return for each kind of sum that a rank wants its contributors, and its share of the message.

    Sums with the same contributors are one kind. The rank itself is left out of the contributors.
    """
    collective = problem.collective
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    wanted = (segment_sums(goal == rank, goal_ptr) > 0) & collective.reduces
    share_of: dict[bytes, float] = {}
    for chunk in np.flatnonzero(wanted).tolist():
        others = hold[hold_ptr[chunk] : hold_ptr[chunk + 1]]
        key = others[others != rank].tobytes()
        share_of[key] = share_of.get(key, 0.0) + float(collective.fraction[chunk])
    return [np.frombuffer(key, dtype=np.int64) for key in share_of], list(share_of.values())


class _Intake:
    """What can enter a set of ranks by a time."""

    def __init__(
        self,
        groups: list[tuple[Ints, float]],
        bandwidth_gbs: Floats,
        tail_us: dict[int, float],
        reached_us: dict[int, list[Floats]],
    ) -> None:
        """Prepare for any time.

        Args:
            groups: (links, capacity in GB/s of the resource that they share) of all links into the set.
            bandwidth_gbs: Bandwidth of every link of the network, shape (nlinks,).
            tail_us: Least latency in µs from the start of each link into the set to the rank.
            reached_us: For each link into the set and each kind of sum, when its contributors can have reached the
                start of the link, ascending, in µs.
        """
        self._groups = [(links.tolist(), bandwidth_gbs[links], capacity) for links, capacity in groups]
        self._tail_us, self._reached_us = tail_us, reached_us
        steps = [times for kinds in reached_us.values() for times in kinds]
        self._steps_us = np.unique(np.concatenate([np.zeros(1), *(times[np.isfinite(times)] for times in steps)]))

    def least_us(self, load: float) -> float:
        """Return a time in µs before which contributions of `load` KB cannot have come; 0 if the intake is too large.

        What has come by a time is linear between the times at which a step of a link's contributions reaches the rank,
        and beyond the last of them.
        """
        if len(self._tail_us) * (len(self._steps_us) + len(self._tail_us)) > _MOST_CELLS:
            return 0.0
        tails_us = np.unique(np.array(list(self._tail_us.values())))
        knots_us = np.unique(self._steps_us[:, None] + tails_us)
        # The first knot by which as much as the load can have come.
        place = bisect_left(range(len(knots_us)), load, key=lambda knot: self._brought(float(knots_us[knot])))
        if place == 0:
            return 0.0
        low_us = float(knots_us[place - 1])
        high_us = float(knots_us[place]) if place < len(knots_us) else low_us + 1.0
        low, high = self._brought(low_us), self._brought(high_us)
        if high <= low:
            return 0.0
        return (low_us + (load - low) / (high - low) * (high_us - low_us)) * (1 - _SAME)

    def _brought(self, end_us: float) -> float:
        """Return the KB of contributions that links can have brought to the rank by a time in µs.

        A byte counts once for each contribution in it.
        """
        ends_us = np.maximum(0.0, end_us - np.array(list(self._tail_us.values())))
        edges_us = np.unique(np.concatenate([self._steps_us, ends_us]))
        edges_us = edges_us[edges_us <= ends_us.max()]
        begins_us, lasts_us = edges_us[:-1], np.diff(edges_us)
        brought = 0.0
        for links, bandwidth_gbs, capacity_gbs in self._groups:
            levels = np.array([self._level(link, begins_us, end_us) for link in links])
            order = np.argsort(-levels, axis=0, kind="stable")
            carried = np.minimum(np.cumsum(bandwidth_gbs[order], axis=0), capacity_gbs)
            rates = np.diff(carried, axis=0, prepend=0.0)
            brought += float(((rates * np.take_along_axis(levels, order, axis=0)).sum(axis=0) * lasts_us).sum())
        return brought

    def _level(self, link: int, begins_us: Floats, end_us: float) -> Floats:
        """Return how many contributions a byte can have that a link carries, in the slot of time from each begin on.

        It is 0 in slots so late that the byte does not reach the rank by `end_us`.
        """
        most = np.zeros(len(begins_us))
        for times in self._reached_us[link]:
            np.maximum(most, np.searchsorted(times, begins_us, side="right"), out=most)
        return np.where(begins_us < end_us - self._tail_us[link], most, 0.0)
