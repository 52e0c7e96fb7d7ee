"""Witnesses by hops: the least latency between two ranks, and the loads of one-hop paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from synth.bounds.metric import LISTED_BELOW, latencies, pairs
from synth.bounds.witness import Limit, ResourceWitness, Witness
from synth.model.collective import Bools, Floats, chunks_by_ends
from synth.model.problem import Problem
from synth.model.requirements import find_requirements
from topologies.arrays import flags_of, row_of_entry, segment_sums

MOST_DIRECT = 6000  # ranks: the check of a direct exchange needs a table of all pairs


@dataclass(frozen=True, kw_only=True)
class Path(Witness):
    """Two ranks between which a chunk must go.

    Attributes:
        ranks: (from, to).
    """

    kind: ClassVar[str] = "path"
    counts_all_paths: ClassVar[bool] = True
    ranks: tuple[int, ...] = ()

    def limit(self, problem: Problem) -> Limit:
        """Return (µs, 0, inf at most), where µs is the least sum of α from the first rank to the second.

        It holds since a chunk must get from one to the other. The µs are inf where there is no route.

        Raises:
            BadWitness: Not two ranks of the group are named, or nothing has to get from the first to the second.
        """
        collective = problem.collective
        if len(self.ranks) != 2 or max(self.ranks) >= collective.nranks or min(self.ranks) < 0:
            raise self.refusal("it must name two ranks of the group")
        first, last = self.ranks
        chunks_held = flags_of(collective.nchunks, collective.pre[collective.pre[:, 0] == first, 1])
        chunks_wanted = flags_of(collective.nchunks, collective.post[collective.post[:, 0] == last, 1])
        only = np.diff(collective.holders[0]) == 1
        if not (chunks_held & chunks_wanted & (collective.reduces | only)).any():
            raise self.refusal(f"nothing has to get from {first} to {last}; it must be a path that a chunk has to take")
        return float(latencies(problem.network).rows(np.array([first]))[0, last]), 0.0, np.inf


@dataclass(frozen=True, kw_only=True)
class Direct(ResourceWitness):
    """A resource that a direct exchange keeps busy; `cap_us` is the time from which a second hop could pay.

    `resources` has this resource only.
    """

    kind: ClassVar[str] = "direct"
    of_quotients: ClassVar[bool] = False

    def limit(self, problem: Problem) -> Limit:
        """Return (α, µs per byte, 2 α): the load of a resource if all goes directly, up to the time of two hops.

        α is the network's least in µs, or 0 where nothing has to move. Only pairs of ranks count whose links all use
        the resource.

        Raises:
            BadWitness: Not one of the network's resources is named, or the group has more than 6000 ranks.
        """
        net, collective = problem.network, problem.collective
        k = collective.nranks
        if len(self.resources) != 1 or not 0 <= self.resources[0] < net.nresources:
            raise self.refusal(f"resources are {self.resources[:4]}; it must be one of the network's")
        if k > MOST_DIRECT:
            raise self.refusal(f"{k} ranks are too many; it must be at most {MOST_DIRECT}")
        (resource,) = self.resources
        _, _, uses_ptr, uses_idx, *_ = net.carriers
        ptr, src, dst = net.pairs
        user = (segment_sums(uses_idx == resource, uses_ptr) > 0)[row_of_entry(ptr)]
        forced = np.zeros((k, k), dtype=bool)  # pairs of ranks whose links all use the resource
        inner = (src < k) & (dst < k)
        forced[src[inner & user], dst[inner & user]] = True
        forced[src[inner & ~user], dst[inner & ~user]] = False
        alpha = float(net.carriers.alpha_us.min()) if find_requirements(collective).any else 0.0
        loads = direct_loads(problem, forced)
        if net.hyperlinks is not None:  # One send may serve all pairs of a chunk.
            loads = np.minimum(loads, 1)
        load = float(loads @ collective.fraction)
        return alpha, load / float(net.capacity_gbs[resource]) / 1e3, 2 * alpha


def direct_loads(problem: Problem, forced: Bools, listed_below: int = LISTED_BELOW) -> Floats:
    """Return how often every chunk must go over flagged pairs of ranks if all goes in one hop, shape (nchunks,).

    A sum counts for every holder and goal; a plain chunk for each goal for which all holders are flagged.

    Args:
        problem: The problem.
        forced: Flags of pairs [holder, goal] of positions, shape (k, k).
        listed_below: As for `pairs`; it has no effect on the result.
    """
    collective = problem.collective
    load = np.zeros(collective.nchunks)
    listed = pairs(collective, listed_below)
    if len(listed.chunk):
        times = forced[listed.holder, listed.goal].astype(np.int64)
        if not listed.single:  # A plain chunk may come from any holder; of a sum every contribution must come.
            least, total = np.minimum.reduceat(times, listed.start), np.add.reduceat(times, listed.start)
            times = np.where(collective.reduces[listed.chunk], total, least)
        np.add.at(load, listed.chunk, times)
    for chunks, holders, goals in chunks_by_ends(collective, listed.unlisted):
        table = forced[np.ix_(holders, goals)]
        load[chunks] = table.sum() if collective.reduces[chunks[0]] else table.all(axis=0).sum()
    return load
