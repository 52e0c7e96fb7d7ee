"""One self-contained HTML page about algorithms: network and load, timeline, where chunks come from, frontier, proof.

The page holds all that it shows (style, script and figures as JSON) and asks for nothing from anywhere. The words, the
proof and the frontier are there without a script too; what moves is drawn by `report_*.js`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from emit.report.items import Item, make_items
from emit.report.plot import COLOURS, Curve, frontier_plot
from emit.report.sources import find_sources
from synth.present.text import format_size, format_time
from topologies.topology import Topology

FORMAT = "synth-report-1"
_PARTS = Path(__file__).parent / "static"
_SCRIPTS = ("report_data.js", "report_network.js", "report_timeline.js", "report.js")


@dataclass(frozen=True)
class Page:
    """html: the whole page. wrong: by name, why a schedule, program or proof in it is refused."""

    html: str
    algorithms: int
    wrong: dict[str, str]


def report(
    path: str | Path,
    topology: Topology | None = None,
    group: Sequence[int] | None = None,
    size_bytes: float | None = None,
) -> Page:
    """The page about a schedule (.synth), an MSCCL XML, a library (index.json) or a folder of these.

    Schedules are replayed and proofs worked out again; programs are checked. What is wrong is shown as such.

    Args:
        topology, group: where programs run (the topology's rank of each of theirs); None: they are shown in steps.
        size_bytes: message size at which programs are timed; 1 MiB when None. Schedules have their own.

    Raises:
        InputError: what cannot be read, or a program that cannot be timed on the topology.
    """
    found = make_items(find_sources(path), topology, None if group is None else tuple(group), size_bytes)
    one_title = len({item.title for item in found}) == 1
    title = found[0].title if one_title else Path(path).resolve().name or str(path)
    data = {"format": FORMAT, "algorithms": [item.view for item in found]}
    parts = {
        "title": escape(title),
        "chooser": _chooser(found),
        "overview": _overview(found) if len(found) > 1 else "",
        "articles": "".join(_article(item) for item in found),
        "frontiers": _frontiers(found),
        "proofs": "".join(_proof(item) for item in found),
        "data": _script_safe(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        "style": (_PARTS / "report.css").read_text(encoding="utf-8"),
        "script": "\n".join((_PARTS / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    }
    template = (_PARTS / "report.html").read_text(encoding="utf-8")
    # one pass: nothing that is put in is looked at again
    html = re.sub(r"<!--@([a-z]+)-->", lambda mark: parts[mark[1]], template)
    return Page(html, len(found), {item.name: item.wrong for item in found if item.wrong})


def _script_safe(text: str) -> str:
    """JSON that no tag or comment in it can end."""
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _chooser(found: Sequence[Item]) -> str:
    if len(found) < 2:
        return ""
    parts = ['<label class="chooser">Algorithm <select id="chooser">']
    for number, item in enumerate(found):
        if number == 0 or item.title != found[number - 1].title:
            parts.append("</optgroup>" * (number > 0) + f'<optgroup label="{escape(item.title, quote=True)}">')
        parts.append(f'<option value="{number}">{escape(item.name)}</option>')
    return "".join([*parts, "</optgroup></select></label>"])


def _overview(found: Sequence[Item]) -> str:
    """A line for each algorithm."""
    heads = ("algorithm", "for", "time", "bound", "time / bound", "")
    rows = []
    for number, item in enumerate(found):
        cells = [
            f'<a href="#algorithm-{number}" data-choose="{number}">{escape(item.name)}</a>',
            escape(item.serves or "–"),
            f"{format_time(item.time_us)} @ {format_size(round(item.size_bytes))}" if item.time_us is not None else "–",
            format_time(item.bound_us) if item.bound_us is not None else "–",
            f"{item.gap:.3f}" if item.gap is not None else "–",
            _badge(item),
        ]
        rows.append(f'<tr data-row="{number}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    return (
        '<details class="card overview" open><summary><h2>Algorithms</h2></summary><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div></details>"
    )


def _badge(item: Item) -> str:
    if item.wrong:
        return '<span class="badge bad">wrong</span>'
    if item.optimal:
        return '<span class="badge best">optimal</span>'
    return f'<span class="badge">{escape(item.verdict)}</span>'


def _article(item: Item) -> str:
    """The head of one algorithm: what it is for, its figures, whether it is right."""
    tiles = "".join(
        f'<div class="tile"><dt>{escape(label)}</dt><dd>{escape(value)}<small>{escape(note)}</small></dd></div>'
        for label, value, note in item.facts
    )
    wrong = f'<p class="alert" role="alert">Wrong: {escape(item.wrong)}</p>' if item.wrong else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in item.notes)
    return (
        f'<article class="algorithm" id="algorithm-{item.number}" data-algorithm="{item.number}">'
        f'<p class="subtitle"><b>{escape(item.title)}</b> · {escape(item.subtitle)} {_badge(item)}</p>{wrong}{notes}'
        f'<dl class="tiles">{tiles}</dl></article>'
    )


def _frontiers(found: Sequence[Item]) -> str:
    """One drawing a question, with all of its algorithms."""
    parts = []
    for question in dict.fromkeys(item.question for item in found):
        mine = [item for item in found if item.question == question]
        curves = [Curve(item.number, item.name, item.curve, item.marks) for item in mine if item.curve or item.marks]
        bound = next((item.bound for item in mine if item.bound), ())
        numbers = " ".join(str(item.number) for item in mine)
        stated = [point for item in mine for point in item.stated]
        drawing = frontier_plot(curves, bound, stated, f"time by message size, {mine[0].title}")
        if not drawing:
            drawing = '<p class="note">No times are known: give a topology (--topo) to predict them.</p>'
        legend = "".join(
            f'<li class="c{curve.number % COLOURS}" data-algorithm="{curve.number}"><i></i>{escape(curve.label)}</li>'
            for curve in curves
        )
        if bound or stated:
            legend += '<li class="limit"><i></i>bound: nothing can be below it</li>'
        parts.append(
            f'<figure class="frontier" data-algorithms="{numbers}">{drawing}<ul class="legend">{legend}</ul></figure>'
        )
    return "".join(parts)


def _proof(item: Item) -> str:
    if item.proof:
        body = "".join(f"<p>{escape(line)}</p>" for line in item.proof)
    else:
        body = f'<p class="note">{escape(item.no_proof)}</p>'
    return f'<div class="proof" data-algorithm="{item.number}">{body}</div>'
