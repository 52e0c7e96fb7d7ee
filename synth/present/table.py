"""The table that people read: a search's statement, which is plain data, as text."""

from __future__ import annotations

from typing import Any

from synth.present.text import format_count, format_ranks, format_size, format_table, format_time


def heading(document: dict[str, Any], nranks: int) -> str:
    """`allreduce · dgx-a100 · group 0 2 4 6 (4 of 8 …)`; nranks: of the topology."""
    group = document["group"]
    whole = group == list(range(nranks))
    who = f"all {nranks} ranks" if whole else f"group {format_ranks(group)}"
    part = "" if whole else f"{len(group)} of "
    extras = [f"{part}{document['summary'] or str(nranks) + ' ranks'}", document["alpha"]]
    if document["root"] is not None:
        extras.append(f"root {document['root']}")
    if document["relays"]:
        extras.append(f"relays {format_ranks(document['relays'])}")
    return f"{document['collective']} · {document['topology']} · {who} ({', '.join(extras)})"


def _served(row: dict[str, Any]) -> str:
    low, high = row["min_bytes"], row["max_bytes"]
    if high is None:
        return f"from {format_size(low)}" if low else "all sizes"
    if low == high:
        return format_size(low)
    return f"{format_size(low)} to {format_size(high)}" if low else f"up to {format_size(high)}"


def table(document: dict[str, Any], nranks: int) -> str:
    """A statement of a search on a topology of `nranks`: heading, one line an algorithm, what is proved of shapes."""
    rows = document["algorithms"]
    healthy = any(row["vs_healthy"] is not None for row in rows)
    lines = [
        ("message size", "steps", "rounds", "chunks", "predicted", "bound", "gap", "vs baseline")
        + (("vs healthy",) if healthy else ())
        + ("proof",)
    ]
    for row in rows:
        shown = format_size(row["shown_bytes"]).replace(" ", "").replace("iB", "")
        lines.append(
            (
                _served(row),
                *(str(row[shape]) for shape in ("steps", "rounds", "chunks")),
                f"{format_time(row['time_us'])} @ {shown}",
                format_time(row["bound_us"]),
                f"{row['gap']:.3f}",
                _ratio(row["vs_baseline"]),
                *([_ratio(row["vs_healthy"])] if healthy else []),
                row["proof"],
            )
        )
    proved = _proved(document)
    text = [heading(document, nranks), "", *format_table(lines, (0, -1)), *([""] if proved else []), *proved]
    return "\n".join(text)


def _ratio(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} ×"


def _proved(document: dict[str, Any]) -> list[str]:
    """One line for every number of steps of which something is proved."""
    lines = []
    for claim in document["k_synchronous"]:
        if not claim["proved"] or claim["rounds"] is None:
            continue
        part = f" ({claim['part']})" if claim["part"] else ""
        rounds, chunks = format_count(claim["rounds"], "round"), format_count(claim["chunks"], "chunk")
        steps = format_count(claim["steps"], "step")
        lines.append(f"k-synchronous{part}: {rounds} / {chunks} is the least in {steps} {claim['proof']}")
    for claim in document["time_slots"]:
        chunks, size = format_count(claim["chunks"], "chunk"), format_size(claim["bytes"])
        lines.append(
            f"time slots: with {chunks} a block no schedule of {size} takes less than"
            f" {format_time(claim['bound_us'])}, by {claim['solver']}'s dual bound"
        )
    return lines
