"""Ranges of message sizes as files: each served by one program, as far as that can hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emit.library.lowered import Lowered, LoweredBySize
from emit.targets import LL_MOST_BYTES
from synth.model.problem import LARGEST, SMALLEST
from synth.present.text import format_size
from synth.search.frontier import Contender, Range

_FASTER = 1.002  # time of one program over another's at a size, from which on that takes over
_WORTH = 1.02  # time of a Simple program over LL's for small messages, from which on these get a file of their own


def by_size(ranges: Sequence[Range]) -> list[Range]:
    """The same ranges, each served by one program."""
    files = [file for served in ranges for file in _files(served)]
    return _joined([part for file in files for held in _held(file) for part in _divided(held)])


def _files(served: Range) -> list[Range]:
    """A range of sizes as one file, or as more where the smallest or largest messages gain by one of their own."""
    made = served.contender.execution
    if not isinstance(made, LoweredBySize):
        return [served]
    if served.high is not None and served.high <= LL_MOST_BYTES:
        return [_serve(served, made.small)]
    sizes = [1 << e for e in range(SMALLEST.bit_length() - 1, LL_MOST_BYTES.bit_length())]
    small = [size for size in sizes if size >= served.low]
    if all(_does_as_well(made.large, made.small, size) for size in small):
        return _larger(served, made)
    shown = small[0] if served.low == 0 else small[len(small) // 2]
    below = _serve(replace(served, high=LL_MOST_BYTES, shown=min(served.shown, shown)), made.small)
    middle = min(2 * LL_MOST_BYTES, served.high or LARGEST)
    first, *others = _larger(replace(served, low=LL_MOST_BYTES + 1, shown=max(served.shown, middle)), made)
    if first.contender.execution is made.small:
        return [replace(below, high=first.high), *others]
    return [below, first, *others]


def _larger(served: Range, made: LoweredBySize) -> list[Range]:
    """A range by the program for any size; from a power of two on by another that is faster there."""
    last = served.high or LARGEST
    sizes = [1 << e for e in range(last.bit_length()) if served.low <= 1 << e <= last] or [last]
    by, begins = [made.large], [served.low]
    for size in sizes:
        best = min(made.able(size) if size > LL_MOST_BYTES else by[-1:], key=lambda one: one.time_us(size))
        if best.time_us(size) * _FASTER < by[-1].time_us(size):
            here = size > sizes[0]
            by, begins = ([*by, best], [*begins, size]) if here else ([best], [served.low])
    ends = [low - 1 for low in begins[1:]]
    parts = []
    for program, low, high in zip(by, begins, [*ends, served.high], strict=True):
        within = [size for size in sizes if low <= size <= (high or last)]
        shown = served.shown if low <= served.shown <= (high or last) else within[len(within) // 2]
        parts.append(_serve(replace(served, low=low, high=high, shown=shown), program))
    return parts


def _held(served: Range) -> list[Range]:
    """A file's range as far as it can serve, and what is beyond up to LARGEST, which no file serves."""
    by = served.contender.execution
    most = None if not isinstance(by, Lowered) or by.largest is None else int(by.largest / by.scale)
    if most is None or not isinstance(by, Lowered) or (served.high is not None and served.high <= most):
        return [served]
    last = served.high or LARGEST
    limits = by.target.limits
    reason = f"offsets beyond {most} bytes of a message do not fit 32 bits"
    if limits.scratch_bytes:
        reason = f"{limits.name} allocates its scratch at the communicator's start, for larger messages more than "
        reason += f"--scratch-limit {format_size(limits.scratch_bytes)}"
    beyond = Contender(served.algorithm, refused=reason, found_s=served.contender.found_s)
    rest = replace(served, contender=beyond, low=max(served.low, most + 1), shown=max(served.shown, most + 1))
    held = replace(served, high=most, shown=min(served.shown, most))
    return [*([held] if served.low <= most else []), *([rest] if most < last else [])]


def _joined(parts: Sequence[Range]) -> list[Range]:
    """The same with what one program cannot serve left to the next, where there is one."""
    made: list[Range] = []
    low = None
    for number, part in enumerate(parts):
        if part.contender.execution is None and part.contender.refused and number < len(parts) - 1:
            low = part.low if low is None else low
            continue
        made.append(part if low is None else replace(part, low=low))
        low = None
    return made


def _divided(served: Range) -> list[Range]:
    """The range; refused where no size in it divides as the file needs."""
    by = served.contender.execution
    if not isinstance(by, Lowered) or served.high is None:
        return [served]
    first, last = by.served(max(served.low, 1), served.high)
    if last is None or -(-first // by.divides) * by.divides <= last:
        return [served]
    sizes = f"{served.low} to {served.high} bytes" if served.low < served.high else f"{served.low} bytes"
    why = f"no message of {sizes} is a multiple of {by.divides} bytes: {by.target.otherwise} serves it"
    return [replace(served, contender=Contender(served.algorithm, refused=why))]


def _does_as_well(large: Lowered, small: Lowered, size: int) -> bool:
    """Whether the program for large messages takes those of a size too, in little more time."""
    serves = large.serves(size) or not small.serves(size)
    return serves and large.time_us(size) <= _WORTH * small.time_us(size)


def _serve(served: Range, by: Lowered) -> Range:
    return replace(served, contender=Contender(served.contender.algorithm, by, found_s=served.contender.found_s))
