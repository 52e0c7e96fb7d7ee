"""Witnesses by cuts: what must leave a set of ranks shares the capacity of the links out of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from synth.bounds.metric import crossing_times, latencies
from synth.bounds.witness import NOTHING, Limit, ResourceWitness, whole_network
from synth.model.collective import Bools, Collective
from synth.model.problem import Problem
from synth.model.registry import OWN, PAIR
from synth.model.requirements import find_requirements
from topologies.arrays import flags_of, row_of_entry, segment_sums

MOST_TIMED = 512  # ranks: the check of a cut with times measures distances from each rank at the cut
_ROUNDING = 1e-9  # relative


@dataclass(frozen=True, kw_only=True)
class Cut(ResourceWitness):
    """A set of ranks, with resources of which every link out of it uses one.

    Attributes:
        ranks: Local ranks on the sending side.
        times: Only chunks count that need at least times[0] µs until they can cross, and at least times[1] µs from then
            to their goals; empty: all chunks count.
    """

    kind: ClassVar[str] = "cut"
    counts_all_paths: ClassVar[bool] = True
    ranks: tuple[int, ...] = ()
    times: tuple[float, ...] = ()

    def limit(self, problem: Problem) -> Limit:
        """Return (µs, µs per byte, inf at most): all that must leave a set of ranks shares all links out of it.

        The µs are the least latency from a holder in the set to the start of any link out of it, plus the least over
        any such link to a goal outside. It is (0, 0, inf) where nothing has to leave, where no link leaves, or where a
        path through switches, which is no link, uses none of the resources. With `times` only late chunks count, and
        their latency. For quotient problems, and where links are only some of the paths through switches, `times` are
        ignored, and the µs are the least α of the links and paths out.

        Raises:
            BadWitness: A rank or resource does not exist, a link out of the set uses none of the resources, or there
                are times that are not two or are for too many ranks.
        """
        net, collective = whole_network(problem), problem.collective
        inside = self.flags(problem, self.ranks)
        _, src, dst = net.pairs
        crossed = inside[src] & ~inside[dst]
        capacity = self.capacity(problem, net, np.minimum(segment_sums(crossed, net.pairs.ptr), 1))
        if self.is_bypassed(net, np.where(inside, 0, -1)):
            return NOTHING
        alpha = net.carriers.alpha_us[row_of_entry(net.pairs.ptr)[crossed]]
        if problem.quotient is not None:  # Only the α of the crossing links counts.
            share = _whole_leaving(collective, inside)
            if share <= 0 or not crossed.any():
                return NOTHING
            return self.crossing_alpha_us(net, alpha), share / capacity / 1e3, np.inf
        crossing = must_leave(collective, inside)
        if not crossing.any() or not crossed.any():
            return NOTHING
        if net.switch_graph is not None:
            leaving = float(collective.fraction[crossing].sum()) / capacity / 1e3
            return self.crossing_alpha_us(net, alpha), leaving, np.inf
        if self.times:
            return self._late_limit(problem, inside, crossed, crossing, capacity)
        (_, hold), (_, goal), need = collective.holders, collective.goals, find_requirements(collective)
        sources = flags_of(net.nranks, hold[crossing[need.hold_chunk]])
        goals = flags_of(net.nranks, goal[crossing[need.goal_chunk]])
        distances = latencies(net)
        before = distances.nearest(np.flatnonzero(sources & inside))[src[crossed]].min()
        after = distances.nearest(np.flatnonzero(goals & ~inside), to=True)[dst[crossed]]
        leaving = float(collective.fraction[crossing].sum()) / capacity / 1e3
        return float(before + (alpha + after).min()), leaving, np.inf

    def _late_limit(self, problem: Problem, inside: Bools, crossed: Bools, crossing: Bools, capacity: float) -> Limit:
        """Return (µs, µs per byte, inf at most) by the chunks that reach the cut late or have far to go after it.

        The µs are the least time until such a chunk can cross, and the least from then to its goals. It is (0, 0, inf)
        where no chunk is so late.

        Args:
            problem: The problem, which is no quotient.
            inside: Flags of the ranks on the sending side.
            crossed: Flags of the pairs of `Network.pairs` that leave them.
            crossing: Flags of the chunks that must leave them.
            capacity: GB/s that the links out of the set share.

        Raises:
            BadWitness: `times` has not two entries, or the problem has more than 512 ranks.
        """
        if len(self.times) != 2 or problem.nranks > MOST_TIMED:
            raise self.refusal(f"{len(self.times)} times; it must be two, of {MOST_TIMED} ranks at most, or none")
        begins, takes = crossing_times(problem, inside, crossed)
        since, last = (us * (1 - _ROUNDING) for us in self.times)
        counted = crossing & (begins >= since) & (takes >= last)
        if not counted.any():
            return NOTHING
        latency = float(begins[counted].min() + takes[counted].min())
        return latency, float(problem.collective.fraction[counted].sum()) / capacity / 1e3, np.inf


def must_leave(collective: Collective, inside: Bools) -> Bools:
    """Return which chunks must leave a set of ranks; bool, shape (nchunks,).

    They are wanted outside; and only these ranks hold them, or they are sums to which these ranks contribute.

    Args:
        collective: The collective.
        inside: Flags of the ranks of the set, shape (local ranks,).
    """
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    within = segment_sums(inside[hold], hold_ptr)
    any_inside, all_inside = within > 0, (within == np.diff(hold_ptr)) & (within > 0)
    return (segment_sums(~inside[goal], goal_ptr) > 0) & np.where(collective.reduces, any_inside, all_inside)


def _whole_leaving(collective: Collective, inside: Bools) -> float:
    """Return the share of the message that must leave a set of ranks in the whole of a quotient problem.

    With m of k members in the set it is m (k - m) / k for alltoall, m / k for allgather, (k - m) / k for
    reducescatter, and 1 for allreduce.

    Args:
        collective: The quotient problem's collective.
        inside: Flags of the ranks of the set; 0 is returned for no members and for all.
    """
    k, kind = collective.nranks, collective.kind
    within = int(inside[:k].sum())
    if not 0 < within < k:
        return 0.0
    if kind.unit == PAIR:
        return within * (k - within) / k
    if kind.before == OWN:  # Each rank's data goes to all ranks, or into sums of all.
        return within / k
    return (k - within) / k if kind.after == OWN else 1.0
