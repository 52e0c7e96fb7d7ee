"""Splitting the offers of a search into files, each with one program and the sizes that it can serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emit.library.lowered import Lowered, LoweredBySize
from emit.targets import LL_MOST_BYTES
from synth.model.problem import LARGEST, SMALLEST
from synth.search.offer import Offer, partition

_FASTER = 1.002  # ratio of times at a size from which on the faster program takes over
_WORTH = 1.02  # ratio of Simple's to LL's time from which on small messages get their own file


def by_size(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers split so that each has one program, in the order of the offers and their sizes.

    Sizes that no file can serve become part of the next file's range, or an offer with the reason in `refused` if there
    is no next one. Offers that have not been lowered stay as they are.
    """
    files = [file for offer in offers for file in _files(offer)]
    return _joined([_divided(fitting) for file in files for fitting in _split_at_limit(file)])


def _files(offer: Offer) -> list[Offer]:
    """Return an offer as one file, or as more of adjacent sizes if the smallest or largest messages gain by their own.

    An offer that has no programs by size is returned as it is.
    """
    programs = offer.execution
    if not isinstance(programs, LoweredBySize):
        return [offer]
    if offer.high is not None and offer.high <= LL_MOST_BYTES:
        return [replace(offer, execution=programs.small)]
    sizes = [1 << e for e in range(SMALLEST.bit_length() - 1, LL_MOST_BYTES.bit_length())]
    small = [size for size in sizes if size >= offer.low]
    if all(_does_as_well(programs.large, programs.small, size) for size in small):
        return _larger(offer, programs)
    shown = min(offer.shown, small[0] if offer.low == 0 else small[len(small) // 2])
    small_offer = replace(offer, execution=programs.small, high=LL_MOST_BYTES, shown=shown)
    middle = min(2 * LL_MOST_BYTES, offer.high or LARGEST)
    first, *larger_offers = _larger(replace(offer, low=LL_MOST_BYTES + 1, shown=max(offer.shown, middle)), programs)
    if first.execution is programs.small:
        return [replace(small_offer, high=first.high), *larger_offers]
    return [small_offer, first, *larger_offers]


def _larger(offer: Offer, programs: LoweredBySize) -> list[Offer]:
    """Split an offer into offers of one program each, which together serve all its sizes.

    The first has the program for large messages. Another program takes over at a power of two from which on it is
    clearly faster (by `_FASTER`).

    Args:
        offer: The offer.
        programs: Its programs by size.

    Returns:
        Offers of one program each, in the order of their sizes.
    """
    last = offer.high or LARGEST
    sizes = [1 << e for e in range(last.bit_length()) if offer.low <= 1 << e <= last] or [last]
    program, samples = programs.large, list[tuple[int, Lowered]]()
    for size in sizes:
        if size > LL_MOST_BYTES:
            fastest = min(programs.able(size), key=lambda candidate: candidate.time_us(size))
            program = fastest if fastest.time_us(size) * _FASTER < program.time_us(size) else program
        samples.append((size, program))
    offers = []
    for server, low, high in partition(offer.low, offer.high, samples, lambda _, __, size, later: [(size, later)]):
        own_sizes = [size for size in sizes if low <= size <= (high or last)]
        shown = offer.shown if low <= offer.shown <= (high or last) else own_sizes[len(own_sizes) // 2]
        offers.append(replace(offer, execution=server, low=low, high=high, shown=shown))
    return offers


def _split_at_limit(offer: Offer) -> list[Offer]:
    """Return the part of an offer that its file can serve, and the part up to LARGEST that no file serves.

    The latter is refused, with the reason. A part without sizes is left out, and an offer without a limit is returned
    unchanged.
    """
    program = offer.execution
    if not isinstance(program, Lowered) or program.largest is None:
        return [offer]
    most = int(program.largest / program.scale)
    if offer.high is not None and offer.high <= most:
        return [offer]
    served = [replace(offer, high=most, shown=min(offer.shown, most))] if offer.low <= most else []
    if most >= (offer.high or LARGEST):
        return served
    first = max(offer.low, most + 1)
    return [*served, replace(offer.without_program(program.why_no_larger), low=first, shown=max(offer.shown, first))]


def _joined(offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers with each refused one joined to the next, whose range then begins with its.

    The last offer is kept, refused or not, and takes the sizes of the refused ones just before it.
    """
    joined: list[Offer] = []
    low = None
    for number, offer in enumerate(offers):
        if offer.execution is None and offer.refused and number < len(offers) - 1:
            low = offer.low if low is None else low
            continue
        joined.append(offer if low is None else replace(offer, low=low))
        low = None
    return joined


def _divided(offer: Offer) -> Offer:
    """Return the offer, as refused if no size of it is a multiple of what the file needs.

    An offer without a program, or without a largest size, is returned unchanged.
    """
    program = offer.execution
    if not isinstance(program, Lowered) or offer.high is None:
        return offer
    first, last = program.served(max(offer.low, 1), offer.high)
    if last is None or -(-first // program.divides) * program.divides <= last:
        return offer
    sizes = f"{offer.low} to {offer.high} bytes" if offer.low < offer.high else f"{offer.low} bytes"
    return offer.without_program(f"no message of {sizes} is a multiple of {program.divides} bytes")


def _does_as_well(large: Lowered, small: Lowered, size: int) -> bool:
    """Return True if `large` takes at most _WORTH times as long as `small` at a size, and serves it if `small` does."""
    serves = large.serves(size) or not small.serves(size)
    return serves and large.time_us(size) <= _WORTH * small.time_us(size)
