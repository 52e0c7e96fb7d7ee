"""Splitting the ranges of a search's answers into files, each with one program and the sizes that it can serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from emit.library.lowered import Lowered, LoweredBySize
from emit.targets import LL_MOST_BYTES
from synth.model.problem import LARGEST, SMALLEST
from synth.model.text import format_size
from synth.search.frontier import Contender, Range

_FASTER = 1.002  # ratio of times at a size from which on the faster program takes over
_WORTH = 1.02  # ratio of Simple's to LL's time from which on small messages get their own file


def by_size(ranges: Sequence[Range]) -> list[Range]:
    """Return the ranges split so that each is served by one program."""
    files = [file for served in ranges for file in _files(served)]
    return _joined([part for file in files for fitting in _split_at_limit(file) for part in _divided(fitting)])


def _files(served: Range) -> list[Range]:
    """Return a range of sizes as one file, or as several if the smallest or largest messages gain by their own."""
    programs = served.contender.execution
    if not isinstance(programs, LoweredBySize):
        return [served]
    if served.high is not None and served.high <= LL_MOST_BYTES:
        return [_serve(served, programs.small)]
    sizes = [1 << e for e in range(SMALLEST.bit_length() - 1, LL_MOST_BYTES.bit_length())]
    small = [size for size in sizes if size >= served.low]
    if all(_does_as_well(programs.large, programs.small, size) for size in small):
        return _larger(served, programs)
    shown = small[0] if served.low == 0 else small[len(small) // 2]
    small_range = _serve(replace(served, high=LL_MOST_BYTES, shown=min(served.shown, shown)), programs.small)
    middle = min(2 * LL_MOST_BYTES, served.high or LARGEST)
    first, *larger_ranges = _larger(replace(served, low=LL_MOST_BYTES + 1, shown=max(served.shown, middle)), programs)
    if first.contender.execution is programs.small:
        return [replace(small_range, high=first.high), *larger_ranges]
    return [small_range, first, *larger_ranges]


def _larger(served: Range, programs: LoweredBySize) -> list[Range]:
    """Return a range served by the program for any size, or from some power of two on by a program that is faster."""
    last = served.high or LARGEST
    sizes = [1 << e for e in range(last.bit_length()) if served.low <= 1 << e <= last] or [last]
    programs_in_order, begins = [programs.large], [served.low]
    for size in sizes:
        best = min(
            programs.able(size) if size > LL_MOST_BYTES else programs_in_order[-1:],
            key=lambda candidate: candidate.time_us(size),
        )
        if best.time_us(size) * _FASTER < programs_in_order[-1].time_us(size):
            is_later_size = size > sizes[0]
            programs_in_order, begins = (
                ([*programs_in_order, best], [*begins, size]) if is_later_size else ([best], [served.low])
            )
    ends = [low - 1 for low in begins[1:]]
    parts = []
    for program, low, high in zip(programs_in_order, begins, [*ends, served.high], strict=True):
        sizes_in_part = [size for size in sizes if low <= size <= (high or last)]
        shown = served.shown if low <= served.shown <= (high or last) else sizes_in_part[len(sizes_in_part) // 2]
        parts.append(_serve(replace(served, low=low, high=high, shown=shown), program))
    return parts


def _split_at_limit(served: Range) -> list[Range]:
    """Return the part of a file's range that it can serve, and the part up to LARGEST that no file serves."""
    by = served.contender.execution
    most = None if not isinstance(by, Lowered) or by.largest is None else int(by.largest / by.scale)
    if most is None or not isinstance(by, Lowered) or (served.high is not None and served.high <= most):
        return [served]
    last = served.high or LARGEST
    limits = by.target.limits
    reason = f"offsets beyond {most} bytes of a message do not fit 32 bits"
    if limits.scratch_bytes:
        reason = f"{limits.name} allocates its scratch at the communicator's start, and larger messages need more than "
        reason += f"--scratch-limit {format_size(limits.scratch_bytes)}"
    beyond = Contender(served.algorithm, refused=reason, found_s=served.contender.found_s)
    unserved = replace(served, contender=beyond, low=max(served.low, most + 1), shown=max(served.shown, most + 1))
    servable = replace(served, high=most, shown=min(served.shown, most))
    return [*([servable] if served.low <= most else []), *([unserved] if most < last else [])]


def _joined(parts: Sequence[Range]) -> list[Range]:
    """Return the parts with each refused part joined to the next part, if there is one."""
    joined: list[Range] = []
    low = None
    for number, part in enumerate(parts):
        if part.contender.execution is None and part.contender.refused and number < len(parts) - 1:
            low = part.low if low is None else low
            continue
        joined.append(part if low is None else replace(part, low=low))
        low = None
    return joined


def _divided(served: Range) -> list[Range]:
    """Return the range, as refused if no size in it is a multiple of what the file needs."""
    by = served.contender.execution
    if not isinstance(by, Lowered) or served.high is None:
        return [served]
    first, last = by.served(max(served.low, 1), served.high)
    if last is None or -(-first // by.divides) * by.divides <= last:
        return [served]
    sizes = f"{served.low} to {served.high} bytes" if served.low < served.high else f"{served.low} bytes"
    reason = f"no message of {sizes} is a multiple of {by.divides} bytes: {by.target.otherwise} serves it"
    return [replace(served, contender=Contender(served.algorithm, refused=reason))]


def _does_as_well(large: Lowered, small: Lowered, size: int) -> bool:
    """Return True if the program for large messages also serves a size, and takes at most _WORTH times as long."""
    serves = large.serves(size) or not small.serves(size)
    return serves and large.time_us(size) <= _WORTH * small.time_us(size)


def _serve(served: Range, by: Lowered) -> Range:
    """Return the range with its algorithm served by a program."""
    return replace(served, contender=Contender(served.contender.algorithm, by, found_s=served.contender.found_s))
