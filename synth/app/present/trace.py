"""The table of a trace: what few files do for all-to-alls whose sizes change at every call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synth.app.present.layout import LEAST_WIDTH, Column, fitted, path_lines, wrapped
from synth.app.present.table import heading
from synth.model.text import format_count, format_short_size, format_time

_COMPARED = {
    "files": "all files",
    "even": "even padding",
    "planned": "planned for each call",
    "straight": "sent straight",
}


def trace_table(document: dict[str, Any], nranks: int, width: int | None = LEAST_WIDTH) -> str:
    """Return the statement of a trace as text: heading, a row for each capacity, and what they are compared with.

    Args:
        document: The statement, as `--json` prints it.
        nranks: Number of ranks of the topology.
        width: Most characters of a line, as far as columns can be left out; None for all columns.
    """
    chosen = document["calls"] - document["held_out"]
    rows = [(str(i), file, chosen, file["buffer_bytes"]) for i, file in enumerate(document["files"], start=1)]
    for part, count, label in (("chosen", chosen, ""), ("held", document["held_out"], "held out: ")):
        compared = {name: figures for name, figures in (document[part] or {}).items() if figures is not None}
        rows += [(label + _COMPARED[name], figures, count, None) for name, figures in compared.items()]
    columns = [
        Column("file", [name for name, *_ in rows], left=True),
        Column("calls", [f"{figures['served'] / count:.0%}" for _, figures, count, _ in rows]),
        Column("mean time", [_time(figures["time_us"]) for _, figures, *_ in rows]),
        Column("mean bound", [_time(figures["bound_us"]) for _, figures, *_ in rows], 2),
        Column("gap", [_ratio(figures["gap"]) for _, figures, *_ in rows]),
        Column("padding", [_ratio(figures["padding"]) for _, figures, *_ in rows]),
        Column("worst", [_ratio(figures["worst_gap"]) for _, figures, *_ in rows]),
        Column("longest", [_time(figures["worst_us"]) for _, figures, *_ in rows], 3),
        Column("buffer", ["" if size is None else format_short_size(size) for *_, size in rows], 1),
    ]
    lines, no_room = fitted(columns, width)
    text = [
        heading(document, nranks),
        f"{format_count(chosen, 'call')} to choose files for"
        + (f", {format_count(document['held_out'], 'call')} held out" if document["held_out"] else "")
        + (f", {format_count(document['idle'], 'call')} without data" if document["idle"] else ""),
        "",
        *lines,
        "",
        "calls: share of the calls that fit the file and take it; bound: proved for each call's own sizes, without"
        " padding; padding: the part of the gap that no file of these proportions avoids; worst: largest gap of a call;"
        " buffer: bytes that the fullest rank sends or receives at the"
        f" capacity; a call fits up to {document['headroom']:g} times it",
    ]
    text += document["remarks"]
    paths = dict.fromkeys(Path(path) for file in document["files"] for path in file["paths"])
    text += path_lines(list(paths), width)
    if document["unsaved"]:
        text.append(f"not every capacity has all its files: {document['unsaved']}")
    if no_room:
        text.append(f"--wide also shows {', '.join(no_room)}")
    end = "interrupted: some capacities have no answer   " if document["ended"] else ""
    return "\n".join(wrapped([*text, f"{end}{document['seconds']:.1f} s"], width))


def _time(time_us: float | None) -> str:
    """Return a time as text; a dash where there is none."""
    return "–" if time_us is None else format_time(time_us)


def _ratio(value: float | None) -> str:
    """Return a ratio as text; a dash where there is none."""
    return "–" if value is None else f"{value:.3f}"
