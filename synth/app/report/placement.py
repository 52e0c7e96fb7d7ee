"""One self-contained HTML page about a ranking of placements: the hierarchy with each axis's groups, levels, ranking.

Its data is the file that `synth place -o` writes (`synth.app.present.placement`). It has no script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from synth.app.present.placement import FORMAT
from synth.app.report.static_page import html_table, static_page, tiles
from synth.model.text import format_count, format_listed, format_size, format_time
from topologies.errors import InputError
from topologies.text.files import origin_of, parse_json, read_text

NAME = "placement.json"
MAX_FILE_BYTES = 256 << 20
_BARS = 60  # placements of the ranking that are shown
_DEVICES = 2048  # devices in a drawing of the hierarchy
_HUE_STEP = 137.508  # degrees between the hues of two groups, so that neighbours differ


def find_placement(path: str | Path) -> dict[str, Any] | None:
    """Return the ranking of placements in a JSON file, or in a folder's placement.json.

    The result is None for anything else, a file that cannot be read included. Only the format's name is checked.
    """
    location = Path(path)
    location = location / NAME if location.is_dir() and (location / NAME).is_file() else location
    if location.suffix != ".json" or not location.is_file():
        return None
    try:
        text = read_text(location, "a ranking of placements", MAX_FILE_BYTES)
        document = parse_json(text, origin_of(location), "a ranking of placements")
    except InputError:
        return None
    return document if isinstance(document, dict) and document.get("format") == FORMAT else None


def placement_page(document: dict[str, Any], name: str) -> str:
    """Return the HTML page about a ranking.

    Args:
        document: The ranking, as `find_placement` returns it; it need not be complete.
        name: Name of the file, for messages.

    Raises:
        InputError: The ranking lacks or contradicts something.
    """
    try:
        # JSON may contain lone surrogates, which UTF-8 cannot encode.
        return _page(document).encode("utf-8", "backslashreplace").decode()
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise InputError(
            f"{origin_of(name)}: is not a complete ranking ({type(error).__name__}: {error});"
            " give a file that synth place -o wrote"
        ) from None


def _page(document: dict[str, Any]) -> str:
    """Return the HTML page about a ranking that is assumed to be complete.

    Raises:
        ValueError: The numbers of levels, ranks and positions of the best order disagree.
        LookupError: Something is missing; other errors are possible if a value has a wrong type.
    """
    levels, axes, rows = document["levels"], document["axes"], document["placements"]
    best, default = rows[0], document["default"]
    if math.prod(levels.values()) != len(document["ranks"]) or sorted(best["order"]) != sorted(document["ranks"]):
        raise ValueError("levels, ranks and order do not agree")
    title = f"{document['topology']}: {', '.join(f'{axis}={size}' for axis, size in axes.items())}"
    figures = [
        ("step, best", format_time(best["time_us"]), "searched" if best["searched"] else "estimated"),
        ("default order", f"place {default + 1} of {len(rows)}", format_time(rows[default]["time_us"])),
        ("gain", f"{best['vs_default']:.2f} ×", "default / best"),
        ("bound", format_time(document["bound_us"]) if document["bound_us"] else "–", "no placement is faster"),
        ("bottleneck", str(best["bottleneck"]), ""),
    ]
    drawings = "".join(_drawing(document, axis, best["groups"][axis]) for axis, size in axes.items() if size > 1)
    main = f"""{tiles(figures)}
<section class="card"><div class="bar"><h2>Groups of the best placement</h2></div>
<p class="note">The boxes are the hierarchy. Devices of one colour form a group along the axis. Rank order:
{escape(format_listed(best["order"]))}</p>
<div class="drawings">{drawings}</div></section>
<div class="columns">
<section class="card"><div class="bar"><h2>Busiest resource of every level</h2></div>{_levels(document)}</section>
<section class="card"><div class="bar"><h2>Calls of a step</h2></div>{_calls(document)}</section>
</div>
<section class="card"><div class="bar"><h2>Ranking</h2></div>{_ranking(document)}</section>"""
    return static_page(title, title, "placement.css", main)


def _drawing(document: dict[str, Any], axis: str, groups: Sequence[Sequence[int]]) -> str:
    """Return an HTML drawing of the hierarchy in which devices of one colour are a group along one axis.

    Of over 2048 ranks the first 2048 are drawn, with a note.

    Args:
        document: The ranking.
        axis: Name of the axis.
        groups: Ranks of each group along it.
    """
    number = {int(rank): i for i, group in enumerate(groups) for rank in group}
    ranks = [int(rank) for rank in document["ranks"]]
    shown = ranks[:_DEVICES]
    names, sizes = list(document["levels"]), list(document["levels"].values())

    def part(level: int, begin: int, count: int) -> str:
        """Return the drawing of `count` ranks from position `begin` on, divided by `level` and the levels within it.

        It is "" if they are beyond the ranks that are drawn.
        """
        if begin >= len(shown):
            return ""
        if level == len(sizes):
            rank = shown[begin]
            hue = number[rank] * _HUE_STEP % 360
            label = f"rank {rank}, {axis} group {number[rank]}"
            return f'<i style="--h:{hue:.0f}" title="{escape(label)}">{rank}</i>'
        part_size = count // sizes[level]
        inner = "".join(part(level + 1, begin + i * part_size, part_size) for i in range(sizes[level]))
        return f'<div class="part l{min(level, 3)}" title="{escape(names[level])}">{inner}</div>'

    more = f'<p class="note">the first {len(shown)} of {len(ranks)} ranks</p>' if len(shown) < len(ranks) else ""
    many = f"{format_count(len(groups), 'group')} of {len(groups[0])}"
    caption = f"<figcaption><b>{escape(axis)}</b> {many}</figcaption>"
    return f'<figure class="hierarchy">{caption}{part(0, 0, len(ranks))}{more}</figure>'


def _levels(document: dict[str, Any]) -> str:
    """Return HTML bars for every level, of the best and the default order.

    A bar is the time for which the level's busiest resource is in use / the time of a step.
    """
    lines = []
    rows = {"best": document["placements"][0], "default": document["placements"][document["default"]]}
    for i, level in enumerate(document["levels"]):
        for name, row in rows.items():
            share = row["level_us"][i] / row["time_us"]
            lines.append(_bar(f"{level}, {name}", share, f"{100 * share:.0f} % of {format_time(row['time_us'])}", name))
    return f'<div class="bars">{"".join(lines)}</div>'


def _ranking(document: dict[str, Any]) -> str:
    """Return an HTML bar for each of the first 60 placements, with its matrix and its time of a step.

    A bar's length is the time / the longest of the times shown.
    """
    rows = document["placements"]
    longest = max(row["time_us"] for row in rows[:_BARS])
    lines = []
    for i, row in enumerate(rows[:_BARS]):
        matrix = row["matrix"] or {}
        parts = "  ".join(f"{axis} {'×'.join(map(str, split))}" for axis, split in matrix.items()) or "no matrix"
        kind = "best" if i == 0 else "default" if i == document["default"] else "other"
        note = f"{'' if row['searched'] else '~'}{format_time(row['time_us'])} · {row['bottleneck']}"
        note += " · default order" if i == document["default"] else ""
        lines.append(_bar(f"{i + 1}  {parts}", row["time_us"] / longest, note, kind))
    levels = escape(" × ".join(document["levels"]))
    return f'<p class="note">Parts of {levels} by axis; ~ estimated.</p><div class="bars">{"".join(lines)}</div>'


def _bar(label: str, share: float, note: str, kind: str) -> str:
    """Return an HTML row with a label, a bar and a remark.

    Args:
        label: The label, as plain text.
        share: Length of the bar as a share of the room; it is clipped to 0..1.
        note: The remark, as plain text.
        kind: CSS class of the bar.
    """
    return (
        f'<div class="row"><span>{escape(label)}</span><div class="track"><div class="fill {kind}"'
        f' style="width:{100 * min(max(share, 0.0), 1.0):.1f}%"></div></div><span>{escape(note)}</span></div>'
    )


def _calls(document: dict[str, Any]) -> str:
    """Return the HTML table of the calls of a step, with the time of all runs of each for the best placement."""
    rows = [
        (
            escape(f"{call['name']} ({call['collective']})"),
            escape(", ".join(call["over"])),
            format_size(int(call["bytes"])),
            f"{call['times']:g}",
            format_time(time_us * call["times"]),
        )
        for call, time_us in zip(document["calls"], document["placements"][0]["call_us"], strict=True)
    ]
    return html_table(("call", "over", "message", "times", "a step"), rows)
