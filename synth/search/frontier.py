"""The frontier: which algorithm serves which message sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress, pairwise

import numpy as np

from synth.model.collective import Floats
from synth.model.problem import LARGEST, SMALLEST
from synth.search.offer import Offer, partition, rounded

_WORTH = 0.02  # An algorithm that is nowhere faster than the others by this part is left out.
_QUICK = 200_000  # Up to so many sends of all algorithms, their times at all sizes are quick to compute.
_ENDS = 20.0  # The factor for the smallest and the largest size, where a twentieth of that counts.
POWERS = [1 << e for e in range(SMALLEST.bit_length() - 1, LARGEST.bit_length())]


def frontier(offers: Sequence[Offer], time_us: Callable[[Offer, int], float] = Offer.time_us) -> list[Offer]:
    """Return offers that cover all sizes with the fastest algorithms by predicted time; few ranges rather than many.

    They are copies with `low`, `high` and `shown` set, in ascending order of sizes. The first begins at 0 and the last
    has no end. The last is shown at LARGEST, the first of two or more at SMALLEST, and the others at a middle size of
    theirs. An algorithm may have more than one range. Without offers the list is empty. `time_us` is as for `winners`.
    """
    won = winners(offers, time_us)
    if not won:
        return []
    samples = [(size, offer) for offer, sizes in won for size in sizes]
    parts = partition(0, None, samples, lambda low, before, high, after: [(_takeover(before, after, low, high), after)])
    middles = [sizes[(len(sizes) - 1) // 2] for _, sizes in won]
    shown_sizes = [LARGEST] if len(won) == 1 else [SMALLEST, *middles[1:-1], LARGEST]
    return [
        replace(offer, low=low, high=high, shown=shown)
        for (offer, low, high), shown in zip(parts, shown_sizes, strict=True)
    ]


def winners(
    offers: Sequence[Offer], time_us: Callable[[Offer, int], float] = Offer.time_us
) -> list[tuple[Offer, list[int]]]:
    """Return the offers on the frontier, each with the neighbouring powers of two in bytes that it is fastest for.

    They are in ascending order of sizes and cover all of `POWERS`; an offer with more than one range occurs for each.
    An offer that gains at most 2 % at every size is left out (at the ends of the range, a twentieth of that), and the
    next best takes its sizes. Of equally fast offers the simplest (`Offer.order`) wins. Without offers the list is
    empty. `time_us` returns the time in µs by which an offer competes at a size in bytes.
    """
    if not offers:
        return []
    candidates = sorted(_worth_looking_at(offers, time_us), key=lambda offer: offer.order)
    times = _times(candidates, POWERS, time_us)
    while len(candidates) > 1:
        losses = _losses(times)
        least = losses.min()
        if least > _WORTH:
            break
        last = int(np.flatnonzero(losses == least)[-1])
        candidates.pop(last)
        times = np.delete(times, last, axis=0)
    winner = times.argmin(axis=0)
    starts = [0, *(np.flatnonzero(np.diff(winner)) + 1).tolist(), len(POWERS)]
    return [(candidates[winner[first]], POWERS[first:after]) for first, after in pairwise(starts)]


def _times(offers: Sequence[Offer], sizes: Sequence[int], time_us: Callable[[Offer, int], float]) -> Floats:
    """Return times in µs, shape (offers, sizes); inf where an offer does not serve a size that another does."""
    times = rounded([[time_us(c, size) for size in sizes] for c in offers])
    serves = np.array([[c.serves(size) for size in sizes] for c in offers])
    return np.where(serves | ~serves.any(axis=0), times, np.inf)


def _worth_looking_at(offers: Sequence[Offer], time_us: Callable[[Offer, int], float]) -> list[Offer]:
    """Return the offers that are not clearly slower than others at a few sizes spread over the whole range.

    At one of these sizes or more they take at most 1.2 times the least time.
    """
    every = 2 if sum(len(c.algorithm.schedule) for c in offers) < _QUICK else 4
    times = _times(offers, POWERS[::every], time_us)
    return list(compress(offers, (times <= 1.2 * times.min(axis=0)).any(axis=1)))


def _losses(times: Floats) -> Floats:
    """Return for each offer the largest part by which a size gets slower without it, shape (offers,).

    The part counts 20 times at the first and the last size. There must be two or more offers.

    Args:
        times: Times in µs, shape (offers, sizes).
    """
    first, second = np.partition(times, 1, axis=0)[:2]
    own = times == first  # If two are equally fast, neither is missed.
    with np.errstate(invalid="ignore"):
        loss = np.where(own & (first > 0) & (first < np.inf), second / np.where(first > 0, first, 1.0) - 1, 0.0)
    return np.asarray(np.maximum(loss.max(axis=1), _ENDS * np.maximum(loss[:, 0], loss[:, -1])))


def _takeover(before: Offer, after: Offer, low: int, high: int) -> int:
    """Return about the first size at which `after` is faster than `before`, by bisection between two sizes in bytes.

    If only `before` serves `low`, it is `high`. The size next to `low` comes first, because the protocol may change
    there. The result may be too large by up to 1/256 of `low`.
    """
    if before.serves(low) and not after.serves(low):
        return high
    if after.time_us(low + 1) < before.time_us(low + 1):  # The protocol changes there.
        return low + 1
    while high - low > max(1, low // 256):
        middle = (low + high) // 2
        if after.time_us(middle) < before.time_us(middle):
            high = middle
        else:
            low = middle
    return high
