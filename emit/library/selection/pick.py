"""The choice of a library's file for a call, one per executor, with the reasons; or the reason why no file fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from emit.library.entry import IndexEntry
from emit.library.selection.selector import Selector
from emit.targets import TARGETS
from synth.model.text import format_listed, format_served, format_size, format_time


def pick(
    entries: Sequence[IndexEntry],
    collective: str,
    ranks: tuple[int, ...],
    size_bytes: int,
    inplace: bool,
    *,
    target: str | None = None,
    topology: str | None = None,
    root: int | None = None,
    element_bytes: int = 1,
) -> list[tuple[IndexEntry, str]]:
    """Return the entry that serves a call for each executor that has one, in the order of TARGETS, with the reason.

    The arguments and errors are those of `emit.library.selection.lookup.choose`, which is asked for a file in any order
    of the ranks.
    """
    selector, choices = Selector(entries), []
    for name in [name for name in TARGETS if target in (None, name)]:
        entry = selector.choose(
            collective,
            len(ranks),
            ranks,
            size_bytes,
            inplace,
            target=name,
            topology=topology,
            root=root,
            element_bytes=element_bytes,
            any_order=True,
        )
        if entry is not None:
            choices.append((entry, _why(entry, ranks)))
    return choices


def _why(entry: IndexEntry, ranks: tuple[int, ...]) -> str:
    """Return in words what an entry serves, and how well."""
    form = "in place" if entry.inplace else "out of place"
    clauses = [f"serves {format_served(entry.min_bytes, entry.max_bytes)} {form}"]
    if entry.time_us is not None and entry.shown_bytes is not None:
        clauses.append(f"{format_time(entry.time_us)} at {format_size(entry.shown_bytes)}")
    if entry.gap is not None:
        clauses.append("optimal" if entry.row.get("optimal") else f"time / bound {entry.gap:.3f}")
    if entry.divides > 1:
        clauses.append(f"takes multiples of {entry.divides} {'elements' if entry.counts_elements else 'bytes'}")
    if entry.group != ranks:
        clauses.append(f"the communicator's ranks must be in the order {format_listed(entry.communicator)}")
    return ", ".join(clauses)


def why_none(
    entries: Sequence[IndexEntry],
    collective: str,
    ranks: tuple[int, ...],
    size_bytes: int,
    inplace: bool,
    *,
    target: str | None = None,
    topology: str | None = None,
    root: int | None = None,
    element_bytes: int = 1,
) -> str:
    """Return why no file fits a call.

    It is the first of these that no file meets: collective, ranks, topology, executor, root, relays, form, size,
    divisor.
    """
    candidates = Selector(entries).expanded()
    sorted_ranks = sorted(ranks)
    form = "in place" if inplace else "out of place"
    steps: list[tuple[str, Callable[[IndexEntry], bool]]] = [
        (f"no file for {collective}", lambda e: e.collective == collective),
        (f"none of {collective} for ranks {format_listed(ranks)}", lambda e: sorted(e.group) == sorted_ranks),
        (f"none of topology {topology}", lambda e: topology in (None, e.topology)),
        (f"none for executor {target}", lambda e: target in (None, e.target)),
        (f"none with root {root}", lambda e: root == e.root),
        ("none without relays", lambda e: not e.relays),
        (f"none for calls {form}", lambda e: e.inplace == inplace),
    ]
    for reason, fits in steps:
        if not any(fits(entry) for entry in candidates):
            return f"{reason}{_alternatives(candidates, reason)}"
        candidates = [entry for entry in candidates if fits(entry)]
    served = sorted({(e.min_bytes, e.max_bytes or 1 << 63) for e in candidates})
    in_range = [entry for entry in candidates if entry.in_range(size_bytes)]
    if not in_range:
        ranges = ", ".join(format_served(low, None if high == 1 << 63 else high) for low, high in served)
        return f"files are for {ranges}, not for {size_bytes} bytes"
    units = sorted({entry.unit(element_bytes) for entry in in_range})
    return (
        f"{in_range[0].file} serves multiples of {' or '.join(map(str, units))} bytes; {size_bytes} is not one of them"
    )


def _alternatives(candidates: Sequence[IndexEntry], reason: str) -> str:
    """Return what the library has instead of what is missing, if that is short."""
    if reason.startswith("no file for"):
        return f"; there are {', '.join(sorted({entry.collective for entry in candidates}))}" if candidates else ""
    if reason.startswith("none of topology"):
        return f"; there are {', '.join(sorted({entry.topology for entry in candidates}))}"
    if reason.startswith("none for executor"):
        return f"; there are {', '.join(sorted({entry.target for entry in candidates}))}"
    if reason.startswith("none with root"):
        return f"; there are {', '.join(sorted({str(entry.root) for entry in candidates}))}"
    return ""
