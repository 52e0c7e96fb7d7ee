"""One self-contained HTML page about a whole library: the cluster, which sizes are covered how well, the worst, links.

It is drawn from the index alone and has no script. A gap is what an entry states: at a column's size where its `curve`
has that, else at the size that its file is shown for. Each question's algorithms have a page of their own.
"""

from __future__ import annotations

import re
import statistics
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from emit.library.index import INDEX, Entry, is_figure, load_index, vs_library
from emit.report.layout import place_vertices
from emit.report.static_page import static_page, tiles
from synth.baselines.libraries import LIBRARIES
from synth.present.text import format_count, format_listed, format_ranks, format_served, format_size, format_time
from topologies.arrays import Floats
from topologies.topology import Topology

SIZES = tuple(1 << e for e in range(10, 31, 2))  # columns of the heat map, in bytes
STEPS = (1.005, 1.1, 1.3, 1.6, 2.5)  # gaps at which the colour changes
WORST = 10
MOST_ROWS = 400  # questions in a heat map
MOST_PAGES = 200  # of single questions
_MOST_VERTICES, _MOST_EDGES = 600, 4000  # of a cluster that is drawn
_WIDTH, _HEIGHT, _EDGE = 900.0, 320.0, 18.0


Worst = tuple[float, int | None, float | None, float | None]  # a gap, and its bytes, time and bound in µs


@dataclass(frozen=True, order=True)
class Question:
    """What is asked, whoever executes the answer; of equal groups the one that the index names first."""

    collective: str
    topology: str
    nranks: int
    group: tuple[int, ...]
    relays: tuple[int, ...]
    root: int

    @staticmethod
    def of(entry: Entry) -> Question:
        root = -1 if entry.root is None else entry.root
        return Question(entry.collective, entry.topology, entry.nranks, entry.group, entry.relays, root)

    @property
    def who(self) -> str:
        """The group, its root and relays, in a few words."""
        root = "" if self.root < 0 else f", root {self.root}"
        return f"{format_ranks(self.group, 9)}{root}" + (
            f", {format_count(len(self.relays), 'relay')}" if self.relays else ""
        )

    @property
    def page(self) -> str:
        """The name of its page's file."""
        ranks = ".".join(map(str, self.group))
        who = ranks if len(ranks) <= 40 else f"{self.nranks}ranks"
        told = f"{self.collective}-{Path(self.topology).name}-{who}" + ("" if self.root < 0 else f"-root{self.root}")
        mark = zlib.crc32(repr((self.topology, self.group, self.relays)).encode())
        return f"{re.sub(r'[^A-Za-z0-9_.-]+', '-', told)}-{mark:08x}.html"


def find_library(path: str | Path) -> dict[Question, list[Entry]] | None:
    """The questions of a library (its folder or index.json) that answers several; None where it is something else."""
    where = Path(path)
    index = where / INDEX if where.is_dir() else where
    if index.name != INDEX or not index.is_file():
        return None
    found: dict[Question, list[Entry]] = defaultdict(list)
    for entry in load_index(index):
        found[Question.of(entry)].append(entry)
    return dict(found) if len(found) > 1 else None


def library_page(
    questions: Mapping[Question, Sequence[Entry]],
    name: str,
    topologies: Mapping[str, Topology],
    links: Mapping[Question, str],
    wrong: Mapping[str, str],
) -> str:
    """The page.

    Args:
        questions: as `find_library` gives them.  name: of the library.
        topologies: those of the entries that are known, by name.
        links: where each question's own page is, beside this one; those that have none are shown without.
        wrong: by file, why a schedule, program or proof is refused.
    """
    entries = [entry for its in questions.values() for entry in its]
    refused = "".join(
        f'<p class="alert" role="alert">Wrong: {escape(file)}: {escape(why)}</p>' for file, why in wrong.items()
    )
    names = list(dict.fromkeys(entry.topology for entry in entries))
    clusters = "".join(_cluster(one, topologies.get(one)) for one in names)
    targets = list(dict.fromkeys(entry.target for entry in entries))
    maps = "".join(_heat_map(target, questions, links, number == 0) for number, target in enumerate(targets))
    main = f"""{refused}{tiles(_tiles(questions, entries))}
<section class="card"><div class="bar"><h2>Cluster</h2></div>{clusters}</section>
<section class="card"><div class="bar"><h2>Time over proved bound, by message size</h2></div>
<p class="note">Of the form of calls with the larger gap; 1 is the least there can be.</p>
{_legend()}{maps}</section>
<section class="card"><div class="bar"><h2>The largest gaps</h2></div>{_worst(questions, links)}</section>
<section class="card"><div class="bar"><h2>Questions</h2></div>{_questions(questions, links)}</section>"""
    return static_page(f"{name}: a library", name, "library.css", main)


def _gap(entry: Entry) -> float | None:
    value = entry.values.get("gap")
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1 else None


def _gap_at(entry: Entry, size: int) -> float | None:
    """At a size in bytes, where the entry states it; else at the size that its file is shown for."""
    return next((max(1.0, taken / bound) for at, taken, bound in entry.curve if at == size), _gap(entry))


def _worst_of(entry: Entry) -> Worst:
    """The largest gap that an entry states of its range."""
    found = [(max(1.0, t / b), int(s), t, b) for s, t, b in entry.curve if entry.in_range(int(s))]
    stated = [entry.values.get(key) for key in ("shown_bytes", "time_us", "bound_us")]
    size, taken, bound = (value if is_figure(value) else None for value in stated)
    own = (_gap(entry) or 1.0, None if size is None else int(size), taken, bound)
    return max([own, *found], key=lambda one: one[0])


def largest_gap(entries: Sequence[Entry]) -> float:
    """Of the gaps that entries state, 1 where none does."""
    return max((_worst_of(entry)[0] for entry in entries), default=1.0)


def _tiles(questions: Mapping[Question, Sequence[Entry]], entries: Sequence[Entry]) -> list[tuple[str, str, str]]:
    gaps = [_worst_of(entry)[0] for entry in entries if _gap(entry) is not None]
    groups = {(e.topology, group) for e in entries for group in (e.group, *e.isomorphic_groups)}
    served = {(e.collective, e.topology, group) for e in entries for group in (e.group, *e.isomorphic_groups)}
    beside = {name: [vs for e in entries if (vs := vs_library(e.values, name)) is not None] for name in LIBRARIES}
    files, least = len({entry.file for entry in entries}), f"≤ {STEPS[0]}"
    return [
        ("problems", str(len(questions)), f"of {format_count(len(served), 'question')}, by symmetry"),
        ("groups", str(len(groups)), format_count(len({e.collective for e in entries}), "collective")),
        ("files", str(files), format_count(len({entry.target for entry in entries}), "executor")),
        ("gap, median", f"{statistics.median(gaps):.3f}" if gaps else "–", "of each file's worst size"),
        ("gap, largest", f"{max(gaps, default=1):.3f}", f"{sum(g <= STEPS[0] for g in gaps)} of {len(gaps)} {least}"),
        *(
            (f"vs {name}, median", f"{statistics.median(those):.2f} ×", "its time by itself / ours")
            for name, those in beside.items()
            if those
        ),
    ]


def _cluster(name: str, topology: Topology | None) -> str:
    """What a topology is, in a line, and a drawing of it where it is small enough."""
    if topology is None:
        return f'<p class="note"><b>{escape(name)}</b>: not known by this name, so not drawn (--topo)</p>'
    words = topology.summary or format_count(topology.nranks, "rank")
    line = f"<p><b>{escape(name)}</b> {escape(words)}</p>"
    ends = np.unique(np.sort(np.column_stack([topology.link_src, topology.link_dst]), axis=1), axis=0)
    switches = topology.nvertices - topology.nranks
    if topology.nvertices > _MOST_VERTICES or len(ends) > _MOST_EDGES:
        return f'{line}<p class="note">too large to draw</p>'
    at = place_vertices(name, topology.nranks, range(topology.nranks), topology.nodes, switches, ends)
    x, y = (_scaled(values, size) for values, size in ((at.x, _WIDTH), (at.y, _HEIGHT)))
    lines = "".join(
        f'<line x1="{x[a]:.1f}" y1="{y[a]:.1f}" x2="{x[b]:.1f}" y2="{y[b]:.1f}"/>' for a, b in ends.tolist()
    )
    radius = max(2.0, min(7.0, _WIDTH / (3.2 * topology.nvertices)))
    marks = "".join(
        f'<circle cx="{x[v]:.1f}" cy="{y[v]:.1f}" r="{radius:.1f}"><title>rank {v}</title></circle>'
        if v < topology.nranks
        else f'<rect x="{x[v] - radius:.1f}" y="{y[v] - radius:.1f}" width="{2 * radius:.1f}" height="{2 * radius:.1f}"'
        ' rx="2"><title>switch</title></rect>'
        for v in range(topology.nvertices)
    )
    label = escape(f"the network {name}", quote=True)
    return (
        f'{line}<svg class="cluster" viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-label="{label}">'
        f'<g stroke="currentColor">{lines}</g>{marks}</svg>'
    )


def _scaled(values: Floats, size: float) -> Floats:
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return np.full(len(values), size / 2)
    return _EDGE + (values - low) / (high - low) * (size - 2 * _EDGE)


def _step(gap: float | None) -> str:
    return "hx" if gap is None else f"h{sum(gap > step for step in STEPS)}"


def _legend() -> str:
    words = [f"up to {STEPS[0]:g}", *(f"to {step:g}" for step in STEPS[1:]), f"over {STEPS[-1]:g}"]
    items = "".join(f'<li><i class="h{i}"></i>{word}</li>' for i, word in enumerate(words))
    return f'<ul class="swatches">{items}<li><i class="hx"></i>bound not known</li><li>– no file</li></ul>'


def _heat_map(
    target: str, questions: Mapping[Question, Sequence[Entry]], links: Mapping[Question, str], opened: bool
) -> str:  # fmt: skip
    rows, last, mine = [], "", sorted(q for q, its in questions.items() if any(e.target == target for e in its))
    for question in mine[:MOST_ROWS]:
        its = [entry for entry in questions[question] if entry.target == target]
        more = len({group for entry in its for group in entry.isomorphic_groups})
        who = escape(question.who) + (f" <small>+{more}</small>" if more else "")
        where = links.get(question)
        who = _linked(who, where)
        first = "" if question.collective == last else escape(question.collective)
        last = question.collective
        cells = "".join(_cell(its, size) for size in SIZES)
        rows.append(f'<tr><th scope="row">{first}</th><th scope="row">{who}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{format_size(size)}</th>' for size in SIZES)
    left = len(mine) - len(rows)
    note = f'<p class="note">and {format_count(left, "question")} more, in the list below</p>' if left > 0 else ""
    files = len({e.file for q in mine for e in questions[q] if e.target == target})
    return (
        f"<details{' open' if opened else ''}><summary><b>{escape(target)}</b>, {format_count(files, 'file')}</summary>"
        f'<div class="scroll"><table class="heat"><thead><tr><th></th><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}</details>"
    )


def _cell(entries: Sequence[Entry], size: int) -> str:
    """The gap of the files that serve a size, the larger of both forms'."""
    serving = [entry for entry in entries if entry.in_range(size)]
    if not serving:
        return '<td class="none">–</td>'
    known = [(gap, entry) for entry in serving if (gap := _gap_at(entry, size)) is not None]
    gap, entry = max(known, key=lambda one: one[0]) if known else (None, serving[0])
    told = f"{entry.file}: {format_served(entry.min_bytes, entry.max_bytes)}"
    times = [time_us for at, time_us, _ in entry.curve if at == size]
    told += f", {format_time(times[0])}" if times else ""
    words = "" if gap is None else f"{gap:.2f}"
    return f'<td class="{_step(gap)}" title="{escape(told, quote=True)}">{words}</td>'


def _worst(questions: Mapping[Question, Sequence[Entry]], links: Mapping[Question, str]) -> str:
    """The largest gap of each question and executor, the largest of these first."""
    worst: dict[tuple[Question, str], tuple[Worst, Question, Entry]] = {}
    for question, its in questions.items():
        for entry in (one for one in its if _gap(one) is not None):
            key, found = (question, entry.target), _worst_of(entry)
            if key not in worst or found[0] > worst[key][0][0]:
                worst[key] = found, question, entry
    rated = sorted(worst.values(), key=lambda one: (-one[0][0], one[2].file))
    if not rated:
        return '<p class="note">No file states a gap.</p>'
    heads = ("collective", "group", "executor", "serves", "gap", "predicted", "bound", "what proves it", "file")
    body = []
    for (gap, size, taken, bound), question, entry in rated[:WORST]:
        cells = (
            escape(question.collective),
            escape(question.who),
            escape(entry.target),
            escape(format_served(entry.min_bytes, entry.max_bytes)),
            f"{gap:.3f}",
            "–" if taken is None else f"{format_time(taken)} @ {format_size(size or 0)}",
            "–" if bound is None else format_time(bound),
            escape(str(entry.values.get("proof") or "–")),
            _linked(escape(Path(entry.file).name), links.get(question)),
        )
        body.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def _linked(words: str, where: str | None) -> str:
    return words if where is None else f'<a href="{escape(where, quote=True)}">{words}</a>'


def _questions(questions: Mapping[Question, Sequence[Entry]], links: Mapping[Question, str]) -> str:
    items = []
    for question in sorted(questions):
        words = escape(f"{question.collective}, {question.topology}, {question.who}")
        where = links.get(question)
        its = sorted({group for e in questions[question] for group in e.isomorphic_groups})
        more = f' <small title="{escape("; ".join(map(format_listed, its[:40])))}">+{len(its)}</small>' if its else ""
        items.append(f"<li>{_linked(words, where)}{more}</li>")
    return f'<ul class="names">{"".join(items)}</ul>'
