"""Witnesses by a node's doors: what comes in messages must then be copied inside, and what leaves is first gathered.

Let a node need far data: chunks, or contributions to sums, that none of its ranks has. A byte of them that q ranks want
must be brought to q ranks, each time by a message from another node, or by a copy inside the node that begins after
some message has brought the byte. Links into ranks of the node carry at most R bytes per µs of such copies, and a copy
takes the latency λ besides.

1. Let the byte be in D messages in all, and in A(T - δ) messages that come by T - δ. If A(T - δ) is 0, all its copies
   are made after T - δ, and it has at least q - D of them. Else D is 1 or more too, so that q ≤ D + (q - 1) · A(T - δ).
   What is copied after T - δ is at most R · (δ - λ). In sum over all bytes, where D and A count those in messages, Q
   bytes must be brought to ranks, and each to at most c + 1 ranks: Q ≤ D + c · A(T - δ) + R · (δ - λ) for every δ.
2. Weigh these inequalities for several δ with w(δ), 1 in sum. Then each byte in a message counts 1 + c · W, where W is
   the weight of all δ by whose T - δ the message comes. The node has d doors. A door passes one message at a time, each
   for b / bandwidth and the gap, and the message comes a latency after its last byte. What one door's messages count at
   most follows by dynamic programming: a message that comes between two of the times T - δ may as well end at the later
   one, and of two such messages one would do, with a gap less.
3. The least T for which d doors and the copies reach Q is the bound: all terms but the first message of a door are the
   same for every T.

The same holds from the end to the start for sums that leave a node: before a message leaves, the contributions in it
must be gathered at the rank that sends it.

With a gap, few large messages pass a door sooner than many small ones, but the last of them is then copied late. This
is the trade-off of pipelined trees (Sanders, Speck, Träff, Parallel Computing 35, 2009, section 2) as a lower limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from synth.bounds.witness import NOTHING, Limit, ResourceWitness
from synth.bounds.witnesses.messages import crosses, doors_at
from synth.model.collective import Bools, Floats, Ints
from synth.model.problem import Problem
from topologies.arrays import segment_sums

_MOST_TIMES = 64


class Doorway(NamedTuple):
    """What a witness counts of a node. Amounts are in KB, so that KB / µs are GB/s.

    Attributes:
        counted: How often each link or hyperlink counts as copies inside, int64, shape (links and hyperlinks,).
        wanted_kb: What must be brought to ranks, or gathered from them, each rank counted: Q.
        copies: Most ranks that need a byte, without the one to which a message may bring it: c.
        doors: Most messages at once between the node and others: d.
        door_gbs: Highest bandwidth of a door.
        gap_us: Least gap.
        alpha_us: Least latency between the node and others.
        inner_us: Least latency of a copy: λ.
    """

    counted: Ints
    wanted_kb: float
    copies: int
    doors: int
    door_gbs: float
    gap_us: float
    alpha_us: float
    inner_us: float

    def least_us(self, inner_gbs: float, before_us: Floats, weights: Floats) -> Floats:
        """Return for each row of weights a time in µs before which the node cannot have what it needs, shape (m,).

        Args:
            inner_gbs: R, in GB/s.
            before_us: Each δ in µs, rising, at least `inner_us`, shape (n,).
            weights: Weight of each δ, in each row 1 in sum, shape (m, n).
        """
        copied_kb = inner_gbs * weights @ (before_us - self.inner_us)
        each_door_kb = (self.wanted_kb - copied_kb) / self.doors
        # A byte that comes by T - δ counts for this δ and all smaller ones; the last column is what comes by T.
        worth = 1.0 + self.copies * np.cumsum(weights, axis=1)
        worth = np.concatenate([np.ones((len(weights), 1)), worth], axis=1) * self.door_gbs
        ends = np.append(0.0, before_us)  # The times at which messages come, counted from the end.
        # What a door's messages after one that comes at each of these times count at most.
        after_kb = np.zeros_like(worth)
        for place in range(1, len(ends)):
            longest_us = np.maximum(ends[place] - ends[:place] - self.gap_us, 0.0)
            after_kb[:, place] = (after_kb[:, :place] + worth[:, :place] * longest_us).max(axis=1)
        first_us = np.maximum(each_door_kb[:, None] - after_kb, 0.0) / worth
        enough = np.where(each_door_kb > 0, (ends + self.alpha_us + first_us).min(axis=1), 0.0)
        return np.asarray(enough, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Passage(ResourceWitness):
    """A node whose ranks need far data, or contribute to sums that others need, at one message size.

    Every link inside the node that counts uses one of the witness's resources.

    Attributes:
        enters: True for data that come to the node, False for sums that leave it.
        ranks: The local ranks of the node.
        times: Each δ in µs, rising.
        prices: (place in `times`, weight) of every δ that counts.
        at_bytes: Message size in bytes.
    """

    of_quotients: ClassVar[bool] = False
    enters: ClassVar[bool]
    ranks: tuple[int, ...] = ()
    times: tuple[float, ...] = ()
    prices: tuple[tuple[int, float], ...] = ()
    at_bytes: float = 0.0

    def limit(self, problem: Problem) -> Limit:
        """Return (0, µs / `at_bytes`, µs): the least time for the node's far data, or for the sums that leave it.

        Larger messages need that time too, and smaller ones their part of it (see `synth.bounds.witness`). The result
        is (0, 0, inf) where `doorway_of` finds nothing to count.

        Raises:
            BadWitness: A rank does not exist, a link that counts uses none of the resources, the size is no number of
                bytes from 1 to 10¹⁸, the times are more than 64, do not rise or are below the latency inside the node,
                or weights are not from 0 to 1, or of times that do not exist.
        """
        self.check_size(self.at_bytes)
        doorway = doorway_of(problem, self.flags(problem, self.ranks), self.at_bytes, self.enters)
        if doorway is None:
            return NOTHING
        inner_gbs = self.capacity(problem, problem.network, doorway.counted)
        before_us = np.array(self.times, dtype=np.float64)
        weights = np.zeros(len(before_us))
        if not 0 < len(before_us) <= _MOST_TIMES or not np.isfinite(before_us).all():
            raise self.refusal(f"{len(before_us)} times; it must be 1 to {_MOST_TIMES}, all finite")
        if (np.diff(before_us) <= 0).any() or before_us[0] < doorway.inner_us:
            raise self.refusal(f"the times must rise from {doorway.inner_us:g} µs or more")
        for place, weight in self.prices:
            if not 0 <= place < len(weights) or not 0 <= weight <= 1:  # An infinite sum would leave no weight.
                raise self.refusal(f"weight {weight:g} of time {place}; it must be 0 to 1, of one of the times")
            weights[place] += weight
        if weights.sum() <= 0 or not np.isfinite(inner_gbs):
            return NOTHING
        least_us = float(doorway.least_us(inner_gbs, before_us, weights[None, :] / weights.sum())[0])
        return 0.0, least_us / self.at_bytes, least_us


class Entering(Passage):
    """A node whose ranks need far data, which must be copied inside it after they have come."""

    kind: ClassVar[str] = "entering"
    enters: ClassVar[bool] = True


class Leaving(Passage):
    """A node whose ranks contribute to sums for others, and must gather them before they leave."""

    kind: ClassVar[str] = "leaving"
    enters: ClassVar[bool] = False


def doorway_of(problem: Problem, near: Bools, size_bytes: float, enters: bool) -> Doorway | None:
    """Return what can be counted of a node at a message size; None if there is nothing.

    That is so without far data, without a gap or a latency between the node and others, without links inside, and
    where a switch multicasts or reduces between the node and others.

    Args:
        problem: The problem, no quotient.
        near: Flags of the node's ranks, shape (local ranks,).
        size_bytes: Message size in bytes.
        enters: Whether data come to the node, else sums leave it.
    """
    net, collective = problem.network, problem.collective
    across = near[net.src] != near[net.dst]
    across &= near[net.dst] if enters else near[net.src]
    if not across.any() or not len(net.gap_us) or crosses(net, near.astype(np.int64)):
        return None
    gap_us, alpha_us = float(net.gap_us[across].min()), float(net.alpha_us[across].min())
    (hold_ptr, hold), (goal_ptr, goal) = collective.holders, collective.goals
    near_holders, near_goals = segment_sums(near[hold], hold_ptr), segment_sums(near[goal], goal_ptr)
    if enters:
        ends, end_ptr, members = goal, goal_ptr, near_goals
        far_holders = np.diff(hold_ptr) - near_holders
        counts = (near_goals > 0) & (far_holders > 0) & (collective.reduces | (near_holders == 0))
    else:
        ends, end_ptr, members = hold, hold_ptr, near_holders
        counts = collective.reduces & (near_holders > 0) & (np.diff(goal_ptr) > near_goals)
    if not counts.any() or gap_us <= 0 or alpha_us <= 0:
        return None
    at_ends = np.zeros(net.nranks, dtype=bool)
    at_ends[ends[np.repeat(counts, np.diff(end_ptr))]] = True
    pairs = net.pairs
    own, peer = (pairs.dst, pairs.src) if enters else (pairs.src, pairs.dst)
    counted = segment_sums((near[peer] & near[own] & at_ends[own]).astype(np.int64), pairs.ptr)
    if not counted.any():
        return None
    return Doorway(
        counted=counted,
        wanted_kb=float(collective.fraction[counts] @ members[counts]) * size_bytes * 1e-3,
        copies=int(members[counts].max()) - 1,
        doors=doors_at(net, across),
        door_gbs=float(net.bandwidth_gbs[across].max()),
        gap_us=gap_us,
        alpha_us=alpha_us,
        inner_us=float(net.carriers.alpha_us[counted > 0].min()),
    )
