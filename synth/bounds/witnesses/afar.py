"""Witnesses by distance: what comes from far away uses a rank's links late, and what goes far away must leave early."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np

from synth.bounds.metric import latencies
from synth.bounds.witness import NOTHING, Limit, ResourceWitness, whole_network
from synth.model.collective import Bools, Collective, Floats
from synth.model.problem import Problem
from synth.model.registry import OWN, PAIR
from topologies.arrays import flags_of, reachable, segment_sums
from topologies.network import Network

_ROUNDING = 1e-9  # relative


@dataclass(frozen=True, kw_only=True)
class Afar(ResourceWitness):
    """A rank with far data: chunks that come to it from far away, or that it must send far away, at one message size.

    Every link into the rank (out of it) uses one of the witness's resources. Far data that come to the rank cannot use
    a resource before the first of them can be at a rank that sends over it, nor so late that they no longer arrive by
    the end. Far data that leave the rank cannot use it so late that they no longer reach a far goal. So in a call of T
    µs a resource of capacity C with such a delay λ carries at most C · (T - λ) of them, and all resources must carry
    all of them.

    Attributes:
        arrivals: True for data that come to the rank, False for data that leave it.
        ranks: The local rank, a member of the group.
        times: Only chunks count that need at least times[0] µs from their nearest holder to the rank, or from the rank
            to their farthest goal.
        at_bytes: Message size in bytes.
    """

    counts_all_paths: ClassVar[bool] = True
    arrivals: ClassVar[bool]
    ranks: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    at_bytes: float = 0.0

    def limit(self, problem: Problem) -> Limit:
        """Return (µs, µs per byte, µs): the least delay of a resource, rising to the least time at `at_bytes`.

        The least time rises ever more slowly with the size, as more resources help; so between an empty message and
        `at_bytes` it lies above the straight line. It is (0, 0, inf) where no chunk is far, where switches multicast or
        reduce, and where a path through switches, which is no link, uses none of the resources.

        Raises:
            BadWitness: Not one rank of the group or not one time is named, a link at the rank uses none of the
                resources, or the size is no number of bytes from 1 to 10¹⁸.
        """
        net = whole_network(problem)
        rank = self.one_member(problem, self.ranks)
        if len(self.times) != 1:
            raise self.refusal(f"{len(self.times)} times; it must be one")
        self.check_size(self.at_bytes)
        at_rank = (net.dst if self.arrivals else net.src) == rank
        if net.hyperlinks is not None or not at_rank.any():
            return NOTHING
        self.capacity(problem, net, at_rank.astype(np.int64))  # It refuses links without a resource.
        if self.is_bypassed(net, np.where((np.arange(net.nranks) == rank) == self.arrivals, -1, 0)):
            return NOTHING
        away_us = distances_at(net, rank, self.arrivals)
        share, far = far_data(problem, rank, self.arrivals, away_us, self.times[0])
        if share <= 0:
            return NOTHING
        beyond_us = latencies(net).nearest(np.flatnonzero(far), to=not self.arrivals)[: net.nranks]
        resources = np.unique(np.array(self.resources, dtype=np.int64))
        delay_us = np.full(len(resources), np.inf)
        for i, resource in enumerate(resources.tolist()):
            ends, alpha_us = _paths_over(net, rank, resource, self.arrivals)
            if ends.any() and self.arrivals:
                delay_us[i] = beyond_us[ends].min() + alpha_us
            elif ends.any():
                delay_us[i] = (away_us + beyond_us)[ends].min()
        if not np.isfinite(delay_us).any():
            return NOTHING
        least_us = _least_us(delay_us, net.capacity_gbs[resources], share * self.at_bytes * 1e-3)
        base_us = float(delay_us.min())
        return base_us, (least_us - base_us) / self.at_bytes, least_us


class FromAfar(Afar):
    """A rank to which data must come from far away."""

    kind: ClassVar[str] = "from-afar"
    arrivals: ClassVar[bool] = True


class ToAfar(Afar):
    """A rank from which data must go far away."""

    kind: ClassVar[str] = "to-afar"
    arrivals: ClassVar[bool] = False


def distances_at(net: Network, rank: int, arrivals: bool) -> Floats:
    """Return the least latency in µs from each rank to a rank, or else from this rank to each; shape (nranks,)."""
    return np.asarray(latencies(net).nearest(np.array([rank]), to=arrivals)[: net.nranks])


def far_data(problem: Problem, rank: int, arrivals: bool, away_us: Floats, since_us: float) -> tuple[float, Bools]:
    """Return the share of the message that is far data of a rank, and the ranks at their far ends.

    Of plain chunks, those count that must come from other ranks, or that no other rank holds; of sums only the rank's
    own contributions, which leave it.

    Args:
        problem: The problem.
        rank: The local rank.
        arrivals: Whether data come to the rank, else they leave it.
        away_us: Latency between each rank and the rank, in the direction of the data, in µs, shape (nranks,).
        since_us: Least latency of far data in µs.

    Returns:
        The share, and flags of shape (nranks,): the holders of far chunks, or their goals that are so far away.
    """
    collective, is_far = problem.collective, away_us >= since_us * (1 - _ROUNDING)
    is_far[rank] = False
    if problem.quotient is not None:
        is_far[collective.nranks :] = False
        return (float(is_far.sum()) / collective.nranks if _is_each_others(collective, arrivals) else 0.0), is_far
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    is_holder, is_goal = segment_sums(hold == rank, hold_ptr) > 0, segment_sums(goal == rank, goal_ptr) > 0
    if arrivals:
        counted = is_goal & ~is_holder & ~collective.reduces & (segment_sums(~is_far[hold], hold_ptr) == 0)
        ptr, ends = hold_ptr, hold
    else:
        only_here = is_holder & (collective.reduces | (np.diff(hold_ptr) == 1))
        counted = only_here & (segment_sums(is_far[goal], goal_ptr) > 0)
        ptr, ends = goal_ptr, goal
    far = flags_of(len(away_us), ends[np.repeat(counted, np.diff(ptr))]) & is_far
    return float(collective.fraction[counted].sum()), far


def _is_each_others(collective: Collective, arrivals: bool) -> bool:
    """Return whether in the whole of a quotient problem each rank has an equal share for, or from, each other rank."""
    kind = collective.kind
    if kind.unit == PAIR:
        return True
    if arrivals:
        return kind.before == OWN and not collective.reduces.any()
    return kind.after == OWN and bool(collective.reduces.all())


@lru_cache(maxsize=16)
def _paths_over(net: Network, rank: int, resource: int, arrivals: bool) -> tuple[Bools, float]:
    """Return the other ends of all links and paths through switches at a rank that use a resource, and their least α.

    Where links are only some of the paths through switches, the paths are those of `Network.switch_graph`. The last 16
    results are cached, and must not be changed.

    Args:
        net: The network.
        rank: The local rank.
        resource: The resource.
        arrivals: Whether the paths lead to the rank, else they lead away from it.

    Returns:
        Flags of the ranks at the other ends, shape (nranks,), and the least latency in µs; inf without a path.
    """
    near, far = (net.dst, net.src) if arrivals else (net.src, net.dst)
    links = (near == rank) & (segment_sums(net.uses_idx == resource, net.uses_ptr) > 0)
    ends, alpha_us = flags_of(net.nranks, far[links]), float(net.alpha_us[links].min(initial=np.inf))
    if (graph := net.switch_graph) is not None:
        near, far = (graph.dst, graph.src) if arrivals else (graph.src, graph.dst)
        edges = (near == rank) & graph.using(flags_of(net.nresources, np.array([resource])))
        behind = near >= graph.nranks  # A path goes on behind switches only.
        ends |= reachable(graph.nvertices, near[behind], far[behind], far[edges])[: net.nranks]
        alpha_us = min(alpha_us, graph.least_alpha_us(edges))
    ends[rank] = False
    return ends, alpha_us


def _least_us(delay_us: Floats, gbs: Floats, load_us: float) -> float:
    """Return the time in µs in which resources carry a load, each from its delay on.

    Args:
        delay_us: Delay of each resource in µs, shape (n,), at least one of them finite.
        gbs: Capacity of each resource in GB/s, shape (n,).
        load_us: Time in µs in which 1 GB/s would carry the load.
    """
    order = np.argsort(delay_us, kind="stable")
    delay_us, gbs = delay_us[order], gbs[order]
    finite = np.isfinite(delay_us)
    rate, offset = np.cumsum(gbs[finite]), np.cumsum((gbs * delay_us)[finite])
    return float(((load_us + offset) / rate).min())
