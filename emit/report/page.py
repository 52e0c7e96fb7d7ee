"""One self-contained HTML page about algorithms: network and load, timeline, where chunks come from, frontier, proof.

It holds all that it shows (style, script and figures as JSON) and asks for nothing from anywhere. The words, the
proof and the frontier are there without a script too; what moves is drawn by `report_*.js`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from emit.report.items import Item, make_items
from emit.report.sources import find_sources
from synth.present.text import format_size, format_time
from topologies.topology import Topology

FORMAT = "synth-report-1"
_PARTS = Path(__file__).parent / "static"
_SCRIPTS = ("report_data.js", "report_network.js", "report_timeline.js", "report.js")

WIDTH, HEIGHT = 560, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44
COLOURS = 6  # that the page's style has for curves; then they come round again


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

    Schedules are replayed, proofs worked out again, programs checked; what is wrong is shown as such. topology, group:
    where programs run, at size_bytes (1 MiB when None); else they are shown in steps. Schedules have their own. Raises
    InputError for what cannot be read, or a program that cannot be timed on the topology.
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
    kind, word = (" bad", "wrong") if item.wrong else (" best", "optimal") if item.optimal else ("", item.verdict)
    return f'<span class="badge{kind}">{escape(word)}</span>'


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
        none = '<p class="note">No times are known: give a topology (--topo) to predict them.</p>'
        drawing = frontier_plot(curves, bound, stated, f"time by message size, {mine[0].title}") or none
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
    body = "".join(f"<p>{escape(line)}</p>" for line in item.proof) or f'<p class="note">{escape(item.no_proof)}</p>'
    return f'<div class="proof" data-algorithm="{item.number}">{body}</div>'


@dataclass(frozen=True)
class Curve:
    """Times of one algorithm in (bytes, µs), ascending; `marks`, stated in its file, are dots with their words."""

    number: int
    label: str
    points: tuple[tuple[float, float], ...]
    marks: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class _Axes:
    low_x: float
    high_x: float
    low_y: float
    high_y: float

    def x(self, size: float) -> float:
        part = (math.log2(size) - self.low_x) / (self.high_x - self.low_x)
        return round(_LEFT + part * (WIDTH - _LEFT - _RIGHT), 2)

    def y(self, time: float) -> float:
        part = (math.log10(time) - self.low_y) / (self.high_y - self.low_y)
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM), 2)


def frontier_plot(
    curves: Sequence[Curve], bound: Sequence[tuple[float, float]], stated: Sequence[tuple[float, float]], title: str
) -> str:
    """A drawing (SVG) with logarithmic axes of (bytes, µs); empty where there is nothing to draw.

    stated: points of a bound that is known at some sizes only; between these nothing is drawn.
    """
    every = [p for curve in curves for p in (*curve.points, *curve.marks)] + [*bound, *stated]
    every = [(size, time) for size, time in every if size > 0 and time > 0]
    if not every:
        return ""
    axes = _axes(every)
    bottom = axes.y(10**axes.low_y)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        f"<title>{escape(title)}</title>",
        *_grid(axes),
    ]
    below = [(axes.x(s), axes.y(t)) for s, t in bound if s > 0 and t > 0]
    if len(below) > 1:
        area = f"M{below[0][0]} {bottom}" + "".join(f"L{x} {y}" for x, y in below) + f"L{below[-1][0]} {bottom}Z"
        parts.append(f'<path class="never" d="{area}"/>')
        parts.append(f'<path class="bound" d="{_path(below)}"><title>bound: nothing is faster</title></path>')
    for size, time in stated:
        if size > 0 and time > 0:
            words = f"bound: {format_time(time)} at {format_size(math.ceil(size))}"
            x, y = axes.x(size), axes.y(time)
            parts.append(f'<path class="bound" d="M{x - 9:.2f} {y}H{x + 9:.2f}"><title>{words}</title></path>')
    for curve in curves:
        colour = f"c{curve.number % COLOURS}"
        line = [(axes.x(s), axes.y(t)) for s, t in curve.points if s > 0 and t > 0]
        name = escape(curve.label)
        parts.append(f'<g class="curve {colour}" data-algorithm="{curve.number}">')
        if len(line) > 1:
            parts.append(f'<path d="{_path(line)}"><title>{name}</title></path>')
        for size, time in curve.marks:
            if size > 0 and time > 0:
                words = f"{name}: {format_time(time)} at {format_size(math.ceil(size))}"
                parts.append(f'<circle cx="{axes.x(size)}" cy="{axes.y(time)}" r="4.5"><title>{words}</title></circle>')
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


def _axes(points: Sequence[tuple[float, float]]) -> _Axes:
    sizes = [math.log2(size) for size, _ in points]
    times = [math.log10(time) for _, time in points]
    low_x, high_x = math.floor(min(sizes) - 0.3), math.ceil(max(sizes) + 0.3)
    low_y, high_y = math.floor(min(times) - 0.05), math.ceil(max(times) + 0.05)
    return _Axes(low_x, max(high_x, low_x + 2), low_y, max(high_y, low_y + 1))


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x} {y}" for x, y in points)


def _grid(axes: _Axes) -> list[str]:
    parts = []
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    step = max(1, math.ceil((axes.high_x - axes.low_x) / 6))
    for power in range(math.ceil(axes.low_x / step) * step, math.floor(axes.high_x) + 1, step):
        x = axes.x(2.0**power)
        label = format_size(1 << power) if power >= 0 else f"{2.0**power:g} B"
        parts.append(f'<path class="grid" d="M{x} {_TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{label}</text>')
    step = max(1, math.ceil((axes.high_y - axes.low_y) / 7))
    for power in range(math.ceil(axes.low_y), math.floor(axes.high_y) + 1, step):
        y = axes.y(10.0**power)
        label = format_time(10.0**power) if power >= -1 else f"1e{power} µs"
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">message size</text>')
    return parts
