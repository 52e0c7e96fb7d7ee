"""A witness of all-reduces: almost all sums need two sends one after the other, or ports carry many contributions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from synth.bounds.witness import NOTHING, Limit, Witness
from synth.model.collective import Collective, Floats, Ints
from synth.model.problem import Problem
from topologies.arrays import row_entries, row_of_entry
from topologies.network import Network

_MOST_PAIRS = 1 << 20  # of ranks over all links and hyperlinks; the check of so many takes a second


@dataclass(frozen=True, kw_only=True)
class TwoSteps(Witness):
    """The ports of the members of an all-reduce, at one message size.

    Let α be the least latency of all links, k the number of members, S the bytes of the message, and c_g the capacity
    of a resource that everything into member g uses (its port). Before α a rank has only its own contributions. Some
    bytes come to g late, by a send that begins at α or later; it begins early enough to arrive, so that late bytes use
    the port of g for at most T - 2α. Of any other byte all k - 1 contributions come to g straight from their ranks:
    each takes a byte of g's port, or, where a switch sums contributions for g, a byte of its own rank's port out. With
    Z the bytes of the latter kind, in sum over all members, and C the capacities of all ports in and out:

        (k - 1) Z ≤ C (T - α) - (k S - Z),    k S - Z ≤ Σ c_g (T - 2α)

    The same holds for a time that runs backwards, with the ports in and out exchanged. The last term is smaller where
    links of large latency are the only wide ones, as what goes over these must leave still sooner.

    Attributes:
        at_bytes: Message size in bytes.
    """

    kind: ClassVar[str] = "two-steps"
    of_quotients: ClassVar[bool] = False
    at_bytes: float = 0.0

    def limit(self, problem: Problem) -> Limit:
        """Return (α, µs per byte, µs): the latency, rising to the least time at `at_bytes`.

        The least time rises ever more slowly with the size, so between an empty message and `at_bytes` it lies above
        the straight line. It is (0, 0, inf) where a member has no port, or the network has too many links.

        Raises:
            BadWitness: The collective is no all-reduce of three or more ranks, or the size is no number of bytes from 1
                to 10¹⁸.
        """
        net, collective = problem.network, problem.collective
        k = collective.nranks
        if not is_all_reduce(collective):
            raise self.refusal("it must be an allreduce of three or more ranks")
        self.check_size(self.at_bytes)
        if len(net.pairs.src) > _MOST_PAIRS:
            return NOTHING
        ports_in, ports_out = ports_of(net, net.pairs.dst, k), ports_of(net, net.pairs.src, k)
        if ports_in is None or ports_out is None:
            return NOTHING
        alpha_us, total_gbs = float(net.carriers.alpha_us.min()), ports_in.total_gbs + ports_out.total_gbs
        least_us = max(
            alpha_us + _least_us(ports, k - 2, total_gbs, k * (k - 1) * self.at_bytes * 1e-3)
            for ports in (ports_in, ports_out)
        )
        return alpha_us, (least_us - alpha_us) / self.at_bytes, least_us


def is_all_reduce(collective: Collective) -> bool:
    """Return True if a collective is the all-reduce of three or more ranks, each of which has every chunk."""
    k, is_same = collective.nranks, np.array_equal(collective.pre, collective.post)
    return k >= 3 and is_same and bool(collective.reduces.all()) and len(collective.pre) == k * collective.nchunks


class Ports(NamedTuple):
    """The ports of the members of a group in one direction.

    Attributes:
        total_gbs: Capacity of all ports in GB/s.
        alpha_us: Latencies in µs at which the rate of a port rises, ascending in each port, shape (n,).
        gain_gbs: How much it rises there, in GB/s, shape (n,): before the end of a call, what goes through the port and
            still arrives goes over links whose latency is not above the time that is left.
    """

    total_gbs: float
    alpha_us: Floats
    gain_gbs: Floats


def ports_of(net: Network, near: Ints, members: int) -> Ports | None:
    """Return the ports of the first ranks of a network: for each the narrowest resource that all its sends use.

    None where the sends of a member have no resource in common.

    Args:
        net: The network.
        near: The rank at one end of each pair of ranks that a carrier joins, `net.pairs.src` or `net.pairs.dst`.
        members: Number of ranks, from the first.
    """
    carriers, carrier_of_pair = net.carriers, row_of_entry(net.pairs.ptr)
    order = np.argsort(near, kind="stable")
    first = np.searchsorted(near[order], np.arange(members + 1))
    total_gbs, alphas, gains = 0.0, list[Floats](), list[Floats]()
    for rank in range(members):
        own = np.unique(carrier_of_pair[order[first[rank] : first[rank + 1]]])
        # A carrier names each of its resources once.
        resource, times = np.unique(carriers.uses_idx[row_entries(carriers.uses_ptr, own)], return_counts=True)
        common = resource[times == len(own)]
        if not len(common):
            return None
        capacity = float(net.capacity_gbs[common].min())
        by_alpha = own[np.argsort(carriers.alpha_us[own], kind="stable")]
        rate = np.maximum.accumulate(capacity / carriers.holds[by_alpha])
        total_gbs += capacity
        alphas.append(carriers.alpha_us[by_alpha])
        gains.append(np.diff(rate, prepend=0.0))
    alpha_us, gain_gbs = np.concatenate(alphas), np.concatenate(gains)
    return Ports(total_gbs, alpha_us[gain_gbs > 0], gain_gbs[gain_gbs > 0])


def _least_us(ports: Ports, weight: float, total_gbs: float, load: float) -> float:
    """Return the least u in µs with weight · ∫ rate(τ) dτ + total · u ≥ load, where τ runs from 0 to u.

    Args:
        ports: The ports, whose rates in sum are the rate.
        weight: Factor on the bytes that come late.
        total_gbs: Capacity of all ports in both directions in GB/s.
        load: Bytes that the ports carry, in KB (a GB/s moves 1 KB in 1 µs).
    """
    order = np.argsort(ports.alpha_us, kind="stable")
    begins_us, rises_gbs = ports.alpha_us[order], weight * ports.gain_gbs[order]
    slope_gbs = total_gbs + np.append(0.0, np.cumsum(rises_gbs))
    offset = np.append(0.0, np.cumsum(rises_gbs * begins_us))
    # The largest of these lines is the left side, because it is convex.
    return float(((load + offset) / slope_gbs).min())
