"""The order in which the algorithms of a pool get programs, by the times of schedules and programs so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from synth.model.deadline import now
from synth.search.budget import Budget
from synth.search.offer import Offer
from synth.search.pace import LoweringPace

FASTER = 0.98  # The part of a program's time below which another program is clearly faster.
MUCH_FASTER = 0.75  # The part of the best program's time below which a schedule does not wait for others.
_NEAR_SMALLEST = 1.5  # The factor on the sends of the smallest algorithm up to which the fastest is lowered first.
_NEARLY = 1.04  # The factor on a time up to which a coarser algorithm is lowered first.
_UNLIKE = 0.997  # The part of the time of a schedule with a program below which another schedule is clearly faster.
_WORTH_LOWERING = 0.985  # The part of the best program's time below which a library lowers another algorithm.


@dataclass(frozen=True)
class LoweringOrder:
    """The state by which the next algorithm to lower is chosen.

    Attributes:
        offers: Offers of the algorithms, with or without a program.
        pace: How long lowering takes.
        budget: Time for lowering and writing.
    """

    offers: Sequence[Offer]
    pace: LoweringPace
    budget: Budget

    @property
    def lowered(self) -> list[Offer]:
        """Return the offers that have a program, in their order."""
        return [offer for offer in self.offers if offer.execution is not None]

    @property
    def waiting(self) -> list[Offer]:
        """Return the offers that have no program, in their order."""
        return [offer for offer in self.offers if offer.execution is None]

    def rivals(self, offer: Offer) -> list[Offer]:
        """Return the offers of other algorithms than that of `offer` that have a program."""
        return [rival for rival in self.lowered if rival.algorithm is not offer.algorithm]

    def rival_us(self, offer: Offer, size_bytes: int) -> float:
        """Return the time in µs of the fastest program of another algorithm at a size; inf if none serves it."""
        return min((rival.taken_us(size_bytes) for rival in self.rivals(offer)), default=math.inf)

    def is_worth_lowering(self, offer: Offer, sizes: Sequence[int]) -> bool:
        """Return whether a schedule is clearly faster than what has a program, at one of some message sizes in bytes.

        It must be faster than all programs by 1.5 %, and by 0.3 % than the schedules of its own engine's programs with
        no more sends, whose times its own program would exceed in much the same proportion. There must be a program.
        """
        engine, sends = offer.algorithm.engine, self.pace.sends(offer.algorithm)
        peers = [p for p in self.lowered if p.algorithm.engine == engine and self.pace.sends(p.algorithm) <= sends]
        return any(
            offer.time_us(size) < _WORTH_LOWERING * self.rival_us(offer, size)
            and offer.time_us(size) < _UNLIKE * min((own.algorithm.time_us(size) for own in peers), default=math.inf)
            for size in sizes
        )

    def first(self, size_bytes: int, candidates: Iterable[Offer]) -> Offer:
        """Return which of some algorithms is lowered first where the fastest takes long: the fastest with few sends."""
        sends_of = {offer: self.pace.sends(offer.algorithm) for offer in candidates}
        most_sends = _NEAR_SMALLEST * min(sends_of.values())
        small = (offer for offer, sends in sends_of.items() if sends <= most_sends)
        return min(small, key=lambda offer: offer.rank_at(size_bytes))

    def next(self, offer: Offer, sizes: Sequence[int]) -> Offer:
        """Return the algorithm to lower next at the end: the fastest one, or another one whose program comes sooner.

        While the best program is much slower than the fastest of those that are lowered surely in time, that one comes
        first. Of algorithms that are nearly as fast at all these sizes, the coarsest is lowered, since executors slow
        down programs of very many sends.

        Args:
            offer: The fastest algorithm, which has no program.
            sizes: Message sizes in bytes at which it is the fastest; the last one counts most.
        """
        if self.budget.is_patient:
            return offer
        size_bytes = sizes[-1]
        program_us = min(rival.time_us(size_bytes) for rival in self.lowered)
        waiting = [rival for rival in self.waiting if rival.serves(size_bytes)]
        faster = [rival for rival in waiting if rival.time_us(size_bytes) < MUCH_FASTER * program_us]
        surely = [rival for rival in faster if self.budget.is_short(self.pace.needs_s(rival.algorithm), False)]
        target = min(surely, key=lambda rival: rival.rank_at(size_bytes), default=offer)
        most_us = min(_NEARLY * target.time_us(size_bytes), FASTER * program_us)
        near = [
            rival
            for rival in waiting
            if rival.time_us(size_bytes) < most_us
            and all(rival.time_us(size) < _NEARLY * target.time_us(size) for size in sizes)
            and self.pace.takes_much_longer(target.algorithm, rival.algorithm)
            and self.pace.needs_s(rival.algorithm) < self.budget.left_s
        ]
        return min(near, key=lambda rival: self.pace.sends(rival.algorithm), default=target)

    def has_better_waiting(self, offer: Offer, sizes: Sequence[int]) -> bool:
        """Return whether a clearly faster schedule waits for its program, for which there is time.

        Args:
            offer: The algorithm whose schedule is to be slower.
            sizes: Message sizes in bytes at which it was the fastest.
        """
        return any(
            now() + self.pace.needs_s(rival.algorithm) < self.budget.writing_deadline
            and all(rival.time_us(size) < FASTER * offer.algorithm.time_us(size) for size in sizes)
            for rival in self.waiting
        )

    def promising(self, offers: Sequence[Offer]) -> list[Offer]:
        """Return the other algorithms whose schedules, but not their programs, are faster than some offer's program.

        They must be faster by 2 % at the size at which that offer is shown, and are returned as offers for that size
        only. An algorithm may occur more than once.
        """
        return [
            rival.at_size(offer.shown)
            for offer in offers
            for rival in self.rivals(offer)
            if rival.algorithm.time_us(offer.shown) < FASTER * offer.time_us(offer.shown)
        ]
