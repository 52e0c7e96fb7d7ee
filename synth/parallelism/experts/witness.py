"""What proves that no placement of experts is faster: prices on parts of the group, and what they prove.

Take the nodes, or the ranks, as parts. A part of `room` slots holds few experts, and a copy whose expert is elsewhere
must leave its part. Write x for whether part p holds expert e, n for its replicas there, t for the copies that p has
for e, and L for the largest load of a rank. Then:

- the messages that leave p are at least Σ m (1 - x), and the time is at least u · their bytes for every part. Where
  copies are sent each by itself, m is t. Where a token is sent once to a node, a token counts for one of its experts
  only, as it leaves p if that one is not there;
- Σ n over the experts is at most `room`, and n is at most the ranks of the part;
- x = 1 needs n ≥ t / L, as the copies of a part that holds their expert stay there (see `traffic`), and n ≥ 1;
- an expert needs n ≥ 1, and n ≥ its copies / L, in all parts.

Any weights y of the parts, Σ y = 1, and prices λ ≥ 0 of the experts' replicas give a limit (Lagrangian relaxation):
the time is at least Σ y u (bytes that leave p) + Σ λ (replicas that are needed - replicas), and its minimum splits
into a knapsack with fractions for every part. A greedy choice solves each of these exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synth.model.collective import Floats, Ints
from topologies.errors import BadWitness

_SLACK = 1e-9  # Of a quotient that is rounded up; it makes the limit lower.
_ROUNDING = 1e-12  # Relative error of the sums, by which the limit is lowered.


@dataclass(frozen=True, eq=False)
class GroupParts:
    """The parts of a group, and what their ranks want of one layer.

    Attributes:
        copies: Copies from each part to each expert: float64, shape (parts, experts).
        leaving: Messages that leave each part if it lacks the expert, at most `copies`, same shape.
        ranks: Ranks of each part: int64, shape (parts,).
        slots: Slots of a rank.
        out_us: Time in µs of a byte out of each part, shape (parts,).
        in_us: Time in µs of a byte into each part, shape (parts,).
        alpha_us: Least α of a link out of or into each part, in µs, shape (parts,).
        start_us: Time in µs before which nothing is sent.
        dispatch_bytes: Bytes of a copy.
        combine_bytes: Bytes of its result.
    """

    copies: Floats
    leaving: Floats
    ranks: Ints
    slots: int
    out_us: Floats
    in_us: Floats
    alpha_us: Floats
    start_us: float
    dispatch_bytes: float
    combine_bytes: float

    def needed(self, rank_load: float) -> tuple[Ints, Ints]:
        """Return the replicas that a part with an expert needs (parts, experts), and that an expert needs (experts,).

        Args:
            rank_load: Largest load of a rank in copies, more than 0; may be infinite.
        """
        inside = np.maximum(np.ceil(self.copies / rank_load - _SLACK), 1).astype(np.int64)
        overall = np.maximum(np.ceil(self.copies.sum(axis=0) / rank_load - _SLACK), 1).astype(np.int64)
        return inside, overall


@dataclass(frozen=True, eq=False)
class Prices:
    """A witness of a bound on the time of a layer, for all placements whose ranks have at most a certain load.

    Attributes:
        weight: Weight of each part, at least 0, in all 1: float64, shape (parts,).
        price: Price of a replica of each expert, at least 0, in µs for a copy of one byte: float64, shape (experts,).
        rank_load: Largest load of a rank in copies that a placement may have; infinite for all placements.
    """

    weight: Floats
    price: Floats
    rank_load: float

    def limit(self, parts: GroupParts) -> float:
        """Return a time in µs of dispatch and combine that no placement beats whose ranks have at most `rank_load`.

        Raises:
            BadWitness: The arrays have wrong shapes, a number is negative or no number, or the weights are not 1 in
                all.
        """
        self._check(parts)
        total = 0.0
        for byte_us, nbytes in ((parts.out_us, parts.dispatch_bytes), (parts.in_us, parts.combine_bytes)):
            least = self._least(parts, self.weight * byte_us) * nbytes
            if least > 0:
                # The part with most to send, of those with a weight, sends something, so that its α counts.
                total += parts.start_us + least + float(parts.alpha_us[self.weight > 0].min())
        return total

    def _least(self, parts: GroupParts, value: Floats) -> float:
        """Return the least Σ value · (messages out of the part), by the prices, over all placements."""
        inside, overall = parts.needed(self.rank_load)
        least = (1 - _ROUNDING) * (float(value @ parts.leaving.sum(axis=1)) + float(self.price @ overall))
        for part, ranks in enumerate(parts.ranks.tolist()):
            # Of an expert: `inside` slots with all of its value, then further ones which only have its price. The first
            # are always worth more for a slot, so that a greedy choice over all of these items is right.
            fits = inside[part] <= ranks
            size = np.where(fits, inside[part], 0)
            worth = value[part] * parts.leaving[part] * fits + self.price * size
            worth_per_slot = np.divide(worth, size, out=np.zeros(len(size)), where=size > 0)
            worths = np.concatenate([worth_per_slot, self.price])
            sizes = np.concatenate([size, np.maximum(ranks - size, 0)])
            order = np.argsort(-worths, kind="stable")
            room = ranks * parts.slots
            slots_taken = np.clip(room - (np.cumsum(sizes[order]) - sizes[order]), 0, sizes[order])
            least -= float(slots_taken @ worths[order])
        return least

    def _check(self, parts: GroupParts) -> None:
        """Raise BadWitness unless the witness fits the parts."""
        nparts, nexperts = parts.copies.shape
        if self.weight.shape != (nparts,) or self.price.shape != (nexperts,):
            raise BadWitness(f"prices: are for other parts or experts; they must be for {nparts} and {nexperts}")
        numbers = np.concatenate([self.weight, self.price])
        if not np.isfinite(numbers).all() or (numbers < 0).any() or not self.rank_load > 0:
            raise BadWitness("prices: a number is negative or not finite; each must be 0 or more")
        if abs(float(self.weight.sum()) - 1) > 1e-9:
            raise BadWitness(f"prices: the weights are {self.weight.sum()} in all; it must be 1")
