"""One self-contained HTML page about algorithms: network and load, timeline, sources of chunks, frontier, proof.

The page holds all that it shows (style, script and figures as JSON) and loads nothing. The texts, the proof and the
frontier work without the script; `report_*.js` draws what moves.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

from emit.library.networks import Networks
from synth.app.report.item import Item, Points
from synth.app.report.program import program_item
from synth.app.report.schedule import schedule_item
from synth.app.report.sources import Source, find_sources
from synth.app.report.static_page import against_libraries, tiles
from synth.baselines.vendors import LIBRARIES
from synth.model.text import format_gap, format_short_size, format_size, format_time
from topologies.errors import InputError
from topologies.topology import Topology

FORMAT = "synth-report-1"
MOST_ITEMS = 200
_SENDS = 24_000  # most sends that a page lists, of all its algorithms
_FEWEST_SENDS = 400  # sends of each algorithm that a page lists at least
_PARTS = Path(__file__).parent / "static"
_SCRIPTS = ("report_data.js", "report_network.js", "report_timeline.js", "report_save.js", "report.js")

WIDTH, HEIGHT = 560, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 44
_APART = 60  # Two dots that are nearer to each other share a label.
COLOURS = 6  # colours of curves in the page's style; further curves reuse them


@dataclass(frozen=True)
class Page:
    """An HTML page about algorithms.

    Attributes:
        html: The whole page.
        algorithms: Number of algorithms on it.
        files: Number of their files: an algorithm's schedule, and its file for either form of calls.
        wrong: Each schedule, program or proof on it that is refused: its name, and the reason.
    """

    html: str
    algorithms: int
    files: int
    wrong: tuple[tuple[str, str], ...]


def report(
    path: str | Path,
    topology: Topology | None = None,
    group: Sequence[int] | None = None,
    size_bytes: float | None = None,
) -> Page:
    """Build the page about a schedule (.synth), an MSCCL XML, an execution plan, a library or a folder of these.

    Schedules are replayed, proofs are recomputed, programs are checked; the page shows what is wrong. No file is
    written.

    Args:
        path: The file, a library's index.json, or the folder.
        topology: Topology on which programs run; None for the one that a library's index names, and for steps instead
            of times where it names none that is known. Schedules have their own.
        group: Ranks of the topology on which programs run; None for the ranks that the library states for this
            topology, otherwise for the first ranks.
        size_bytes: Message size of programs in bytes; None for the size for which the index states a time, otherwise
            1 MiB.

    Raises:
        InputError: A file cannot be read, there is none or there are over 200, switches multicast or reduce in
            a schedule, or the only program cannot be timed on the topology.
    """
    sources = find_sources(path)
    return report_sources(
        sources, Path(path).resolve().name or str(path), Networks(topology), topology, group, size_bytes
    )


def report_sources(
    sources: Sequence[Source],
    name: str,
    networks: Networks,
    topology: Topology | None = None,
    group: Sequence[int] | None = None,
    size_bytes: float | None = None,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Page:
    """Build the page about some files, in their order; the algorithm with the largest message size is shown first.

    Args:
        sources: The files; at least one.
        name: Title of the page if the files answer more than one question.
        networks: The networks that a library's index may name.
        topology: As for `report`.
        group: As for `report`.
        size_bytes: As for `report`.
        progress: Function that is called with the number of files that are checked, and of all.

    Raises:
        InputError: As for `report`.
    """
    if len(sources) > MOST_ITEMS:
        raise InputError(f"{len(sources)} files: a page shows at most {MOST_ITEMS}; give one file, or a smaller folder")
    most = max(_FEWEST_SENDS, _SENDS // len(sources))
    ranks = None if group is None else tuple(group)
    items = list[Item]()
    for source in sources:
        progress(len(items), len(sources))
        items.append(
            schedule_item(source, most)
            if source.kind == "schedule"
            else program_item(source, most, networks, topology, ranks, size_bytes, only=len(sources) == 1)
        )
    entries = list({source.entry.file: source.entry for source in sources if source.entry is not None}.values())
    one_title = len({item.title for item in items}) == 1
    title = items[0].title if one_title else name
    first = max(range(len(items)), key=lambda number: (items[number].timing.size_bytes, -number))
    data = {"format": FORMAT, "first": first, "algorithms": [item.view for item in items]}
    parts = {
        "title": escape(title),
        "chooser": _chooser(items),
        "overview": _overview(items, against_libraries(entries)) if len(items) > 1 else "",
        "articles": "".join(_article(number, item) for number, item in enumerate(items)),
        "frontiers": _frontiers(items),
        "proofs": "".join(_proof(number, item) for number, item in enumerate(items)),
        "data": _script_safe(json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))),
        "style": (_PARTS / "report.css").read_text(encoding="utf-8"),
        "script": "\n".join((_PARTS / name).read_text(encoding="utf-8") for name in _SCRIPTS),
    }
    template = (_PARTS / "report.html").read_text(encoding="utf-8")
    # A single pass, so that inserted text is never taken for a mark.
    html = re.sub(r"<!--@([a-z]+)-->", lambda mark: parts[mark[1]], template)
    algorithms = len({source.algorithm for source in sources})
    return Page(html, algorithms, len(items), tuple((item.name, item.wrong) for item in items if item.wrong))


def _script_safe(text: str) -> str:
    """Return JSON with `<`, `>`, `&` and two line separators escaped, so that nothing in it ends the script."""
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _chooser(items: Sequence[Item]) -> str:
    """Return the HTML list from which a reader chooses an algorithm, grouped by title; "" if there is only one."""
    if len(items) < 2:
        return ""
    parts = ['<label class="chooser">File <select id="chooser">']
    for title, group_items in groupby(enumerate(items), key=lambda numbered: numbered[1].title):
        options = "".join(f'<option value="{number}">{escape(item.name)}</option>' for number, item in group_items)
        parts.append(f'<optgroup label="{escape(title, quote=True)}">{options}</optgroup>')
    return "".join([*parts, "</select></label>"])


def _overview(items: Sequence[Item], comparisons: str) -> str:
    """Return an HTML table with a row for each algorithm: name, sizes, time, bound, gap and badge.

    What is unknown is "–".

    Args:
        items: The algorithms.
        comparisons: HTML that compares all of them with vendor libraries.
    """
    libraries = [name for name in LIBRARIES if any(name in item.timing.vendors for item in items)]
    heads = ("file", "for", "time", "bound", "gap", *(f"vs {name}" for name in libraries), "")
    rows = []
    for number, item in enumerate(items):
        time_us, bound_us, gap = item.timing.time_us, item.timing.bound_us, item.timing.gap
        cells = [
            f'<a href="#algorithm-{number}" data-choose="{number}">{escape(item.name)}</a>',
            escape(item.serves or "–"),
            f"{format_time(time_us)} @ {format_size(round(item.timing.size_bytes))}" if time_us is not None else "–",
            format_time(bound_us) if bound_us is not None else "–",
            format_gap(gap) if gap is not None else "–",
            *(_vs(item, name) for name in libraries),
            _badge(item),
        ]
        rows.append(f'<tr data-row="{number}">' + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    return (
        '<details class="card overview" open><summary><h2>Files</h2></summary><div class="scroll">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>{comparisons}</details>"
    )


def _vs(item: Item, name: str) -> str:
    """Return a vendor library's time for what it would run / the algorithm's time, at its size; "–" if unknown."""
    vendor_us = dict(item.timing.vendors.get(name, ())).get(item.timing.size_bytes)
    return "–" if vendor_us is None or not item.timing.time_us else f"{vendor_us / item.timing.time_us:.2f} ×"


def _badge(item: Item) -> str:
    """Return the HTML badge of an algorithm: `wrong` if it is refused, else its verdict."""
    word = "wrong" if item.wrong else item.verdict
    kind = {"wrong": " bad", "optimal": " best"}.get(word, "")
    return f'<span class="badge{kind}">{escape(word)}</span>'


def _article(number: int, item: Item) -> str:
    """Return the HTML head of one algorithm: its question with a badge, why it is refused, its notes and its tiles.

    Args:
        number: Number of the algorithm on the page, from 0.
        item: The algorithm.
    """
    wrong = f'<p class="alert" role="alert">Wrong: {escape(item.wrong)}</p>' if item.wrong else ""
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in item.notes)
    return (
        f'<article class="algorithm" id="algorithm-{number}" data-algorithm="{number}">'
        f'<p class="subtitle"><b>{escape(item.title)}</b> · {escape(item.subtitle)} {_badge(item)}</p>{wrong}{notes}'
        f"{tiles(item.facts)}</article>"
    )


def _frontiers(items: Sequence[Item]) -> str:
    """Return an HTML figure for each question with all of its algorithms: drawing, legend, and times as CSV for saving.

    If no time of a question is known, a note replaces the drawing.
    """
    parts = []
    for question in dict.fromkeys(item.question for item in items):
        answers = {number: item for number, item in enumerate(items) if item.question == question}
        placeholder = '<p class="note">No times are known. Give a topology (--topo) to predict them.</p>'
        drawing = frontier_plot(answers) or placeholder
        colours = _colours(answers)
        legend = "".join(
            f'<li class="c{colours[number]}" data-algorithm="{number}"><i></i>{escape(item.name)}</li>'
            for number, item in answers.items()
            if item.timing.marks
        )
        for name in _vendors(answers):
            legend += f'<li class="vendor"><i></i>{escape(name)}, by its own choice</li>'
        if any(item.timing.bound or item.timing.stated for item in answers.values()):
            legend += '<li class="limit"><i></i>bound: nothing can be below it</li>'
        numbers, table = " ".join(map(str, answers)), escape(_table(answers), quote=True)
        parts.append(
            f'<figure class="frontier" data-algorithms="{numbers}" data-table="{table}">{drawing}'
            f'<ul class="legend">{legend}</ul></figure>'
        )
    return "".join(parts)


def _colours(items: Mapping[int, Item]) -> dict[int, int]:
    """Return the number of the colour of each algorithm's curve; algorithms whose curves are equal share one."""
    order = dict.fromkeys((item.timing.curve, item.timing.marks) for item in items.values())
    number_of = {curve: number for number, curve in enumerate(order)}
    return {number: number_of[item.timing.curve, item.timing.marks] % COLOURS for number, item in items.items()}


def _vendors(items: Mapping[int, Item]) -> dict[str, Points]:
    """Return the curves of vendor libraries (bytes, µs) that are known for a question, by the library's name.

    If two algorithms know a library's curve, that of the last counts.
    """
    return {name: curve for item in items.values() for name, curve in item.timing.vendors.items()}


def _bounds(items: Mapping[int, Item]) -> Points:
    """Return the bounds that are known for a question as points (bytes, µs), ascending, one for each size.

    If two algorithms know the bound at a size, that of the last counts.
    """
    bounds = {size: bound_us for item in items.values() for size, bound_us in item.timing.bound}
    return tuple(sorted(bounds.items()))


def _table(items: Mapping[int, Item]) -> str:
    """Return all times and bounds of one question as CSV with the columns curve, bytes and us (µs).

    The curves are those of the algorithms by name, then of vendor libraries, then `bound`.
    """
    curves = {item.name: tuple(sorted({*item.timing.curve, *item.timing.marks})) for item in items.values()}
    curves |= _vendors(items) | {"bound": _bounds(items)}
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(("curve", "bytes", "us"))
    rows.writerows((name, f"{size:.12g}", f"{us:.9g}") for name, points in curves.items() for size, us in points)
    return text.getvalue()


def _proof(number: int, item: Item) -> str:
    """Return the HTML with the proof of one algorithm: a paragraph for each sentence, or the text that replaces it.

    Args:
        number: Number of the algorithm on the page, from 0.
        item: The algorithm.
    """
    lines = item.timing.proof
    body = "".join(f"<p>{escape(line)}</p>" for line in lines) or f'<p class="note">{escape(item.no_proof)}</p>'
    return f'<div class="proof" data-algorithm="{number}">{body}</div>'


class _PlotAxes:
    """Logarithmic axes that cover some points (bytes, µs).

    Attributes:
        low_x: Exponent of 2 of the smallest size.
        high_x: Exponent of 2 of the largest size.
        low_y: Exponent of 10 of the smallest time.
        high_y: Exponent of 10 of the largest time.
    """

    def __init__(self, points: Points) -> None:
        sizes = [math.log2(size) for size, _ in points]
        times = [math.log10(time) for _, time in points]
        self.low_x, self.low_y = math.floor(min(sizes) - 0.3), math.floor(min(times) - 0.05)
        self.high_x = max(math.ceil(max(sizes) + 0.3), self.low_x + 2)
        self.high_y = max(math.ceil(max(times) + 0.05), self.low_y + 1)

    def x(self, size: float) -> float:
        """Return the horizontal place of a size in bytes, in units of the drawing, from its left edge."""
        part = (math.log2(size) - self.low_x) / (self.high_x - self.low_x)
        return round(_LEFT + part * (WIDTH - _LEFT - _RIGHT), 2)

    def y(self, time: float) -> float:
        """Return the vertical place of a time in µs, in units of the drawing, from its upper edge."""
        part = (math.log10(time) - self.low_y) / (self.high_y - self.low_y)
        return round(HEIGHT - _BOTTOM - part * (HEIGHT - _TOP - _BOTTOM), 2)

    def holds(self, size: float, time: float) -> bool:
        """Return whether a point (bytes, µs), both over 0, is between the axes' ends."""
        return self.low_x <= math.log2(size) <= self.high_x and self.low_y <= math.log10(time) <= self.high_y

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        """Return the SVG path data of the straight lines through points (bytes, µs); at least one point."""
        return "M" + "L".join(f"{self.x(size)} {self.y(time)}" for size, time in points)


def frontier_plot(items: Mapping[int, Item]) -> str:
    """Return a drawing (SVG) of one question's times and bounds by size, with logarithmic axes; "" without points.

    The points of algorithms and bounds set the axes; what of a library's curve lies beyond them is not drawn. Points
    whose size or time is not positive are left out. A bound that a file states without a proof is a dash at its size.

    Args:
        items: The algorithms by their number on the page.
    """
    timings = [item.timing for item in items.values()]
    bound, vendors = _drawn(_bounds(items)), {name: _drawn(curve) for name, curve in _vendors(items).items()}
    stated = [point for timing in timings for point in _drawn(timing.stated)]
    points = (*bound, *stated, *(p for timing in timings for p in _drawn((*timing.curve, *timing.marks))))
    if not points:
        return ""
    axes = _PlotAxes(points)
    title = escape(f"time by message size, {next(iter(items.values())).title}", quote=True)
    parts = [
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">',
        f"<title>{title}</title>",
        *_grid(axes),
    ]
    if len(bound) > 1:
        line, bottom = axes.path(bound), axes.y(10**axes.low_y)
        area = f"M{axes.x(bound[0][0])} {bottom}L{line[1:]}L{axes.x(bound[-1][0])} {bottom}Z"
        parts.append(f'<path class="never" d="{area}"/>')
        parts.append(f'<path class="bound" d="{line}"><title>bound: nothing is faster</title></path>')
    for size, time in stated:
        x, y = axes.x(size), axes.y(time)
        words = f"bound: {_format_point(size, time)}"
        parts.append(f'<path class="bound" d="M{x - 9:.2f} {y}H{x + 9:.2f}"><title>{words}</title></path>')
    for name, curve in vendors.items():
        within = [point for point in curve if axes.holds(*point)]
        if len(within) > 1:
            title = f"{escape(name)}, by its own choice"
            parts.append(f'<path class="vendor" d="{axes.path(within)}"><title>{title}</title></path>')
    labelled, colours = list[tuple[float, float]](), _colours(items)
    for number, item in items.items():
        if not item.timing.marks:
            continue
        name, curve = escape(item.name), _drawn(item.timing.curve)
        parts.append(f'<g class="curve c{colours[number]}" data-algorithm="{number}">')
        if len(curve) > 1:
            parts.append(f'<path d="{axes.path(curve)}"><title>{name}</title></path>')
        for size, time in _drawn(item.timing.marks):
            x, y, words = axes.x(size), axes.y(time), f"{name}: {_format_point(size, time)}"
            parts.append(f'<circle cx="{x}" cy="{y}" r="4.5"><title>{words}</title></circle>')
            if all(abs(x - other_x) > _APART or abs(y - other_y) > _APART / 3 for other_x, other_y in labelled):
                labelled.append((x, y))
                words = f"{format_time(time)} @ {format_short_size(math.ceil(size))}"
                # Below a dot is the bound's area, where no curve goes; at the right end there is more room above.
                end, below = ("end", -10) if x > WIDTH - 2 * _APART else ("start", 18)
                parts.append(f'<text x="{x}" y="{y + below:.2f}" text-anchor="{end}">{words}</text>')
        parts.append("</g>")
    parts.append("</svg>")
    return "".join(parts)


def _drawn(points: Points) -> Points:
    """Return the points that have a place on logarithmic axes: those whose size and time are over 0."""
    return tuple((size, time) for size, time in points if size > 0 and time > 0)


def _format_point(size: float, time: float) -> str:
    """Return the text of a point, such as `5.37 µs at 64 KiB`.

    Args:
        size: Size in bytes; a fraction is rounded up.
        time: Time in µs.
    """
    return f"{format_time(time)} at {format_size(math.ceil(size))}"


def _grid(axes: _PlotAxes) -> list[str]:
    """Return SVG elements: grid lines with labels at powers of two bytes and of ten µs, and the size axis's title."""
    parts = []
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM
    step = max(1, math.ceil((axes.high_x - axes.low_x) / 6))
    for power in range(math.ceil(axes.low_x / step) * step, axes.high_x + 1, step):
        x = axes.x(2.0**power)
        label = format_size(1 << power) if power >= 0 else f"{2.0**power:g} B"
        parts.append(f'<path class="grid" d="M{x} {_TOP}V{bottom}"/>')
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}" text-anchor="middle">{label}</text>')
    step = max(1, math.ceil((axes.high_y - axes.low_y) / 7))
    for power in range(axes.low_y, axes.high_y + 1, step):
        y = axes.y(10.0**power)
        label = format_time(10.0**power) if power >= -1 else f"1e{power} µs"
        parts.append(f'<path class="grid" d="M{_LEFT} {y}H{right}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{label}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">message size</text>')
    return parts
