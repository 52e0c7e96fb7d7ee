"""The reasons of a choice in words: what a file serves, and how well; or why no file of a library fits a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter

from emit.library.entry import IndexEntry
from emit.library.selection.call import LibraryCall
from synth.bounds.prove import OPTIMAL
from synth.model.sizes import parse_size
from synth.model.text import (
    format_gap,
    format_listed,
    format_served,
    format_short_size,
    format_size,
    format_spans,
    format_time,
)


def why_served(entry: IndexEntry, call: LibraryCall, size_bytes: int) -> str:
    """Return in words what an entry serves, and how well at a size in bytes (see `_figures_near`)."""
    form = "in place" if entry.inplace else "out of place"
    clauses = [f"serves {format_served(entry.min_bytes, entry.max_bytes)} {form}"]
    figures = _figures_near(entry, size_bytes)
    if figures is not None:
        size, time_us, bound_us = figures
        about = "" if size in (entry.shown_bytes, *(point[0] for point in entry.curve)) else "about "
        clauses.append(f"{about}{format_time(time_us)} at {format_size(int(size))}")
        if bound_us is not None:
            gap = max(1.0, time_us / bound_us)
            clauses.append("optimal" if gap <= OPTIMAL else f"gap {about}{format_gap(gap)}")
    if entry.divides > 1:
        clauses.append(f"takes multiples of {entry.divides} {'elements' if entry.counts_elements else 'bytes'}")
    if call.ranks is not None and entry.group != call.ranks:
        clauses.append(f"the communicator's ranks must be in the order {format_listed(entry.communicator)}")
    return ", ".join(clauses)


def _figures_near(entry: IndexEntry, size_bytes: int) -> tuple[float, float, float | None] | None:
    """Return a size in bytes, and the time and the bound of an entry in µs there; None if it states no time.

    The size is the one asked for if the entry states it, or smaller and larger ones between which the time is then
    interpolated; otherwise it is the nearest size that it states. The bound is interpolated too, at most up to what is
    proved: `synth.search.statement.over_sizes` says why that is so between sizes at most a factor of 2 apart. Between
    sizes further apart it is the smaller one's, because no larger message has a lower bound.
    """
    points: list[tuple[float, float, float | None]] = [*entry.curve]
    if entry.shown_bytes is not None and entry.time_us is not None:
        points.append((entry.shown_bytes, entry.time_us, entry.bound_us))
    below = max((point for point in points if point[0] <= size_bytes), key=itemgetter(0), default=None)
    above = min((point for point in points if point[0] >= size_bytes), key=itemgetter(0), default=None)
    if below is None or above is None or below[0] == above[0]:
        return below or above
    part = (size_bytes - below[0]) / (above[0] - below[0])
    bound_us = None
    if below[2] is not None and above[2] is not None:
        bound_us = below[2] + (part * (above[2] - below[2]) if above[0] <= 2 * below[0] else 0.0)
    return size_bytes, below[1] + part * (above[1] - below[1]), bound_us


def why_none(candidates: Sequence[IndexEntry], call: LibraryCall, size_bytes: int) -> str:
    """Return why no file fits a call, given that none does.

    It is the first of these that no file meets, of the files that meet all before it: collective, ranks, their order,
    topology, executor, root, sizes, relays, form, size, divisor. The text may name what the library has instead.

    Args:
        candidates: All entries, also restated for each isomorphic group (`Selector.expanded`).
        call: The call, checked, with its collective as the library spells it.
        size_bytes: Message size in bytes.
    """
    ranks, relays, collective = call.ranks, tuple(call.relays), call.collective
    form = "in place" if call.inplace else "out of place"
    steps: list[tuple[str, Callable[[IndexEntry], bool]]] = [
        (f"no file for {collective}", lambda e: e.collective == collective),
        (
            f"none of {collective} for {call.nranks} ranks"
            if ranks is None
            else f"none of {collective} for ranks {format_listed(ranks)}",
            lambda e: e.nranks == call.nranks if ranks is None else sorted(e.group) == sorted(ranks),
        ),
        (
            f"{_IN_ORDER} {format_listed(ranks or ())}",
            lambda e: ranks is None or e.group == ranks or (call.any_order and not call.sizes),
        ),
        (f"none of topology {call.topology}", lambda e: call.topology in (None, e.topology)),
        (f"none for executor {call.target}", lambda e: call.target in (None, e.target)),
        (f"none with root {call.root}", lambda e: call.root == e.root),
        (
            "none for blocks of these sizes" if call.sizes else "none for blocks of one size",
            lambda e: e.sizes == call.sizes,
        ),
        (
            f"none with relays {format_listed(relays)}" if relays else _WITHOUT_RELAYS,
            lambda e: e.relays == relays,
        ),
        (f"none for calls {form}", lambda e: e.inplace == call.inplace),
    ]
    for reason, fits in steps:
        if not any(fits(entry) for entry in candidates):
            return f"{reason}{_alternatives(candidates, reason, bool(call.sizes))}"
        candidates = [entry for entry in candidates if fits(entry)]
    served = sorted({(e.min_bytes, e.max_bytes or 1 << 63) for e in candidates})
    in_range = [entry for entry in candidates if entry.in_range(size_bytes)]
    if not in_range:
        ranges = ", ".join(format_served(low, None if high == 1 << 63 else high) for low, high in served)
        return f"files are for {ranges}, not for {_exact_size(size_bytes)}"
    units = sorted({entry.unit(call.element_bytes) for entry in in_range})
    return (
        f"{in_range[0].file} serves multiples of {' or '.join(map(str, units))} bytes; {_exact_size(size_bytes)} is"
        " not one of them"
    )


def _exact_size(size_bytes: int) -> str:
    """Return a size in bytes as text that states it exactly, such as `2 MiB` or `2097153 bytes`."""
    text = format_short_size(size_bytes)
    is_exact = "." not in text and parse_size(text, "size") == size_bytes
    return format_size(size_bytes) if is_exact else f"{size_bytes} bytes"


def _few(names: Sequence[str]) -> str:
    """Return at most three texts with "or" between them, followed by the number of further ones."""
    return " or ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


_WITHOUT_RELAYS = "none without relays"
_IN_ORDER = "none for the ranks in the order"
_ALTERNATIVES = {
    "no file for": "collective",
    "none of topology": "topology",
    "none for executor": "target",
    "none with root": "root",
}  # how a reason begins; the field of the entries that holds the alternatives


def _alternatives(candidates: Sequence[IndexEntry], reason: str, has_sizes: bool) -> str:
    """Return what the library has instead of what is missing, as the end of a sentence.

    It is "" for reasons without a list of alternatives, which are those of form and of named relays, or without
    candidates.

    Args:
        candidates: The entries that meet all earlier conditions.
        reason: What is missing, as `why_none` words it.
        has_sizes: Whether the call's blocks have sizes of their own, whose order is that of the ranks.
    """
    if candidates and re.match("none of [^ ]+ for", reason):
        groups = sorted({format_spans(entry.group) for entry in candidates})
        return f"; there are files for {_few(groups)}"
    if reason.startswith(_IN_ORDER):
        orders = dict.fromkeys(format_listed(entry.group) for entry in candidates)
        advice = "" if has_sizes else " (any_order=True takes one whose order the communicator must then have)"
        return f"; there are files for {_few([*orders])}{advice}"
    name = next((name for beginning, name in _ALTERNATIVES.items() if reason.startswith(beginning)), None)
    if reason == _WITHOUT_RELAYS:
        relays = sorted({format_listed(entry.relays) for entry in candidates})
        return f"; there are files whose communicator also has the relays {' or '.join(relays[:3])}"
    if name is None or not candidates:
        return ""
    return f"; there are {', '.join(sorted({str(getattr(entry, name)) for entry in candidates}))}"
