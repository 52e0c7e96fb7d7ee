"""Witnesses by what nodes know: a message carries no more than its sender knows, and a gap makes small messages slow.

Let a node *know* a byte of a plain chunk once the byte has come to one of its ranks, and let it know one contribution
of each node that has had its part in a byte of a sum. Knowledge never shrinks. The time is bounded in five steps.

1. Let Q(k, v) be how many bytes node k knows v contributions of, or more; plain bytes have one contribution only. A
   message of b bytes from node k tells its receiver at most Σ_v min(b, Q(k, v)) contributions that it lacked, with Q as
   it was when the message left: each byte brings no more contributions than the sender knows of it.
2. A door passes one message at a time, each for b / bandwidth and the gap g. So in the door's time a message tells no
   more than Σ_v e(Q(k, v)) per µs, where e(q) = q / (q / bandwidth + g): this rises with q, so that a larger message
   would have a higher rate, but no message is larger than what is known.
3. Let L(t) be what all nodes together have learned by t. A message that has come by t left by t - α, and the door's
   time for it, its gap included, ended by t - α + g. It tells at the rate of what the node knew when it left, which is
   no more than the node knows at any later time s, nor more than at t - α. So L(t) is at most the sum over all doors of
   ∫ Σ_v e(Q(k, v)(min(s, t - α))) ds, s from 0 to t - α + g. Besides, the door of a node that knows nothing at first
   tells nothing before α, and no door ever tells more than its bandwidth carries.
4. Only the sum of all Q(k, v) follows from L, not how it divides over k and v. As e is concave, the sum of all e is
   greatest where the least Q are raised to one level (Jensen). So L(t - α) bounds the rates of all doors together, and
   by step 3 also L(t). This is computed for one slot of time after the other.
5. Inside a node nothing gets from rank to rank in less than the least latency there, λ, or α if that is less. So a
   message that leaves before λ has a contribution to a byte of one rank only; it tells the share 1/h of its node's, if
   each node with a part in a sum has h ranks with one, or more. What comes to a node after T - λ must come to each of
   its goals, r of them or more, by a message of its own.

Whatever each goal must know at the end T, all nodes together must have been told: as much as was told by T - λ, and 1/r
of what was told since. In reverse, from the end to the start, the same counts the goals that what a node has by some
time can still reach.

Counting the nodes that a message can have reached goes back to the LogP model (Karp, Sahay, Santos, Schauser, SPAA
1993), and the gap besides the bytes to LogGP (Alexandrov and others, SPAA 1995).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2
from typing import ClassVar

import numpy as np

from synth.bounds.witness import NOTHING, Limit, Witness
from synth.bounds.witnesses.messages import crosses, most_doors, numbered
from synth.bounds.witnesses.spread import SAME
from synth.model.collective import Floats
from synth.model.problem import Problem
from topologies.arrays import row_of_entry

_SLOTS = 1000  # of time, about, until the end (10 ms)
_MOST_SLOTS = 5 * _SLOTS
_MOST_CELLS = 1 << 22  # chunks × nodes, and nodes × contributions


@dataclass(frozen=True, kw_only=True)
class Knowledge(Witness):
    """Nodes that must learn what they lack by messages with a gap, at one message size.

    Attributes:
        parts: The local ranks of each node.
        at_bytes: Message size in bytes.
    """

    kind: ClassVar[str] = "knowledge"
    of_quotients: ClassVar[bool] = False
    parts: tuple[tuple[int, ...], ...] = ()
    at_bytes: float = 0.0

    def limit(self, problem: Problem) -> Limit:
        """Return (0, µs / `at_bytes`, µs): the least time in which nodes learn all that their ranks need.

        Larger messages need that time too, and smaller ones their part of it (see `synth.bounds.witness`). The result
        is (0, 0, inf) where a message between nodes has no gap or no latency, where a switch multicasts or reduces
        between nodes, where no link joins nodes, or where tables would be too large.

        Raises:
            BadWitness: The nodes are no partition of the local ranks, or the size is no number of bytes from 1 to 10¹⁸.
        """
        self.check_size(self.at_bytes)
        listed = [rank for part in self.parts for rank in part]
        if sorted(listed) != list(range(problem.nranks)):
            raise self.refusal("its nodes must hold each local rank once")
        net, node_of = problem.network, numbered(self.parts)
        between = node_of[net.src] != node_of[net.dst]
        if not between.any() or not len(net.gap_us) or crosses(net, node_of):
            return NOTHING
        gap_us, alpha_us = float(net.gap_us[between].min()), float(net.alpha_us[between].min())
        if gap_us <= 0 or alpha_us <= 0 or problem.collective.nchunks * len(self.parts) > _MOST_CELLS:
            return NOTHING
        inner_us = min(alpha_us, float(net.alpha_us[~between].min(initial=np.inf)))
        if net.hyperlinks is not None:
            inner_us = min(inner_us, float(net.hyperlinks.alpha_us.min()))
        whole_us = self.at_bytes * 1e-3 / float(net.bandwidth_gbs[between].max())
        least_us = 0.0
        for reverse in (False, True):
            known_shares, levels, lacking = self._shares(problem, reverse)
            if len(known_shares) * levels > _MOST_CELLS:
                continue
            doors = most_doors(net, self.parts, incoming=reverse)
            learning = _Learning(known_shares * whole_us, levels, alpha_us, gap_us, doors)
            holding, wanting = self._ranks_at_ends(problem)
            ends = (wanting, holding) if reverse else (holding, wanting)
            least_us = max(least_us, learning.least_us(lacking * whole_us, inner_us, *ends))
        return 0.0, least_us / self.at_bytes, least_us

    def _ranks_at_ends(self, problem: Problem) -> tuple[int, int]:
        """Return h and r of the fifth step: the fewest ranks of a node with a part in one sum, and with one goal.

        h is 1 if there are plain chunks, of which one holder is enough.
        """
        collective, node_of, count = problem.collective, numbered(self.parts), len(self.parts)
        fewest = []
        for ptr, ranks in (collective.holders, collective.goals):
            counts = np.unique(row_of_entry(ptr) * count + node_of[ranks], return_counts=True)[1]
            fewest.append(int(counts.min(initial=problem.nranks)))
        return fewest[0] if collective.reduces.all() else 1, fewest[1]

    def _shares(self, problem: Problem, reverse: bool) -> tuple[Floats, int, float]:
        """Return what nodes know at first, how many contributions one can know of a byte, and what must be learned.

        In reverse a node knows at first the chunks that it wants, and the contributions are the goals that its data
        reach.

        Args:
            problem: The problem.
            reverse: Whether time runs from the end to the start.

        Returns:
            Shares of the message that each node knows, shape (nodes,); the number of levels; and the share of the
            message that all nodes must learn, each contribution counted.
        """
        collective, node_of, shape = problem.collective, numbered(self.parts), (-1, len(self.parts))
        (hold_ptr, holder), (goal_ptr, goal) = collective.holders, collective.goals
        holds, wants = np.zeros((2, collective.nchunks, len(self.parts)), dtype=bool).reshape(2, *shape)
        holds[row_of_entry(hold_ptr), node_of[holder]] = True
        wants[row_of_entry(goal_ptr), node_of[goal]] = True
        # Chunks that nobody wants, or that nobody has, tell nothing.
        moves = holds.any(axis=1) & wants.any(axis=1)
        holds, wants, sums = holds[moves], wants[moves], collective.reduces[moves]
        fraction = collective.fraction[moves]
        nholders, ngoals, common = holds.sum(axis=1), wants.sum(axis=1), (holds & wants).sum(axis=1)
        # Each contribution must come to each goal of a sum; a plain chunk comes to each goal that lacks it.
        lacking = np.where(sums, nholders * ngoals - common, ngoals - common) @ fraction
        contributions = ngoals if reverse else np.where(sums, nholders, 1)
        return fraction @ (wants if reverse else holds), int(contributions.max(initial=0)), float(lacking)


class _Learning:
    """How much all nodes can have learned by a time. Amounts are times in µs in which a door passes their bytes."""

    def __init__(self, known_us: Floats, levels: int, alpha_us: float, gap_us: float, doors: int) -> None:
        """Begin with what each node knows at time 0.

        Args:
            known_us: Amount that each node knows, shape (nodes,).
            levels: Number of contributions that a node can know of a byte, at least 1 if anything is known.
            alpha_us: Least latency between nodes in µs, more than 0.
            gap_us: Least gap in µs, more than 0.
            doors: Most messages at once at a node.
        """
        self._alpha_us, self._gap_us, self._doors = alpha_us, gap_us, doors
        unknown = np.zeros(len(known_us) * max(levels - 1, 0))
        # An entry for each node and number of contributions, least first.
        self._entries = np.sort(np.concatenate([known_us, unknown]))
        self._sums = np.append(0.0, np.cumsum(self._entries))
        # Amount that raises the least 0, 1, … entries to the level of the next one.
        self._fills = self._entries * np.arange(len(self._entries)) - self._sums[:-1]
        rates = self._entries / (self._entries + gap_us)
        self._rates = np.append(np.cumsum(rates[::-1])[::-1], 0.0)  # Sums of e over the entries from 0, 1, … on.

    def least_us(self, lacking_us: float, inner_us: float, first_ranks: int, last_ranks: int) -> float:
        """Return a time in µs before which not so much can be learned; 0 if nothing has to be.

        Args:
            lacking_us: Amount that all nodes lack.
            inner_us: Least latency inside nodes in µs, or between them if that is less.
            first_ranks: Ranks of a node whose parts of a sum cannot leave in one message before `inner_us`.
            last_ranks: Ranks of a node that each need a message of what comes later than `inner_us` before the end.
        """
        count, alpha_us = len(self._entries), self._alpha_us
        if lacking_us <= 0:
            return 0.0
        first = int((self._entries > 0).sum())  # entries that tell from the start on; the others from α on
        about_us = alpha_us * log2(2 * count) + (lacking_us + self._gap_us * count) / (self._doors * count)
        in_flight = max(1, round(alpha_us * _SLOTS / about_us))
        slot_us = alpha_us / in_flight
        inside = floor(inner_us / slot_us)
        # The highest rate in each slot, its integral up to the slot, and what can have come by the slot's end.
        rate, told_us, learned = np.zeros((3, _MOST_SLOTS))
        for slot in range(1, _MOST_SLOTS):
            if (sent := slot - in_flight) > 0:
                at_most_us = first * sent + (count - first) * max(0, sent - in_flight)
                learned[slot] = min(told_us[sent] + self._gap_us * rate[sent], self._doors * at_most_us * slot_us)
            before_us = learned[max(0, slot - inside)]
            if before_us + (learned[slot] - before_us) / last_ranks >= lacking_us * (1 - SAME):
                return (slot - 1) * slot_us
            rate[slot] = self._rate(learned[slot]) / (first_ranks if slot <= inside else 1)
            told_us[slot] = told_us[slot - 1] + slot_us * rate[slot]
        return (_MOST_SLOTS - 1) * slot_us

    def _rate(self, learned_us: float) -> float:
        """Return the highest rate of all doors at which nodes tell what they know, of which they have learned so much.

        It has no unit: µs of amount in a µs.
        """
        low = int(np.searchsorted(self._fills, learned_us, side="right"))
        level = (learned_us + self._sums[low]) / low
        return self._doors * float(low * level / (level + self._gap_us) + self._rates[low])
