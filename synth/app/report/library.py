"""One self-contained HTML page about a whole library: the cluster, the gaps by size, the largest gaps, links.

Its data is the index; it has no script. A gap is what an entry states: at a column's size if its `curve` has that size,
otherwise at the size that its file is shown for. Each question's algorithms have a page of their own.
"""

from __future__ import annotations

import statistics
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from emit.library.entry import INDEX, IndexEntry, is_figure, vs_library
from emit.library.index import load_index
from synth.app.report.layout import place_vertices
from synth.app.report.static_page import against_libraries, html_table, static_page, tiles
from synth.baselines.vendors import LIBRARIES
from synth.model.text import (
    as_file_name,
    format_count,
    format_gap,
    format_listed,
    format_ranks,
    format_served,
    format_size,
    format_time,
)
from topologies.arrays import Floats
from topologies.topology import Topology

SIZES = tuple(1 << e for e in range(10, 31, 2))  # columns of the heat map, in bytes
STEPS = (1.005, 1.1, 1.3, 1.6, 2.5)  # gaps at which the colour changes
WORST = 10
MOST_ROWS = 400  # questions in a heat map
MOST_PAGES = 200  # pages of single questions
_MOST_VERTICES, _MOST_EDGES = 600, 4000  # largest cluster that is drawn
_WIDTH, _HEIGHT, _EDGE = 900.0, 320.0, 18.0


Worst = tuple[float, int | None, float | None, float | None]  # a gap, and its bytes, time and bound in µs


@dataclass(frozen=True, order=True)
class LibraryQuestion:
    """A question of a library, whoever executes the answer; of equal groups the one that the index names first.

    Attributes:
        collective: Name of the collective.
        topology: Name of the topology.
        nranks: Number of ranks of the group.
        group: Ranks of the group.
        relays: Ranks that relay.
        root: Root of the collective; −1: none.
        sizes: Proportions of the blocks, if they have sizes of their own.
    """

    collective: str
    topology: str
    nranks: int
    group: tuple[int, ...]
    relays: tuple[int, ...]
    root: int
    sizes: tuple[int, ...] = ()

    @staticmethod
    def of(entry: IndexEntry) -> LibraryQuestion:
        """Return the question that an entry answers."""
        root = -1 if entry.root is None else entry.root
        ranks = entry.nranks, entry.group, entry.relays, root
        return LibraryQuestion(entry.collective, entry.topology, *ranks, entry.sizes)

    @property
    def group_text(self) -> str:
        """Return the group, its root, relays and sizes of blocks, such as `0 1 2 3, root 0, 1 relay`.

        Of over 9 ranks only the first 8 and the last are named; of relays only their number is.
        """
        root = "" if self.root < 0 else f", root {self.root}"
        relays = f", {format_count(len(self.relays), 'relay')}" if self.relays else ""
        sizes = f", blocks {format_ranks(self.sizes, 9)}" if self.sizes else ""
        return f"{format_ranks(self.group, 9)}{root}{relays}{sizes}"

    @property
    def page(self) -> str:
        """Return the file name of the question's page, with a checksum that tells questions of one title apart."""
        ranks = ".".join(map(str, self.group))
        group = ranks if len(ranks) <= 40 else f"{self.nranks}ranks"
        title = f"{self.collective}-{Path(self.topology).name}-{group}" + ("" if self.root < 0 else f"-root{self.root}")
        mark = zlib.crc32(
            repr((self.topology, self.group, self.relays, *([self.sizes] if self.sizes else []))).encode()
        )
        return f"{as_file_name(title)}-{mark:08x}.html"


def find_library(path: str | Path) -> dict[LibraryQuestion, list[IndexEntry]] | None:
    """Return the questions of a library, each with its index entries, if it answers at least two; otherwise None.

    Args:
        path: The library's folder or its index.json. For any other path, or without an index, the result is None too.

    Raises:
        InputError: The index cannot be read.
    """
    location = Path(path)
    index = location / INDEX if location.is_dir() else location
    if index.name != INDEX or not index.is_file():
        return None
    questions: dict[LibraryQuestion, list[IndexEntry]] = defaultdict(list)
    for entry in load_index(index):
        questions[LibraryQuestion.of(entry)].append(entry)
    return dict(questions) if len(questions) > 1 else None


def library_page(
    questions: Mapping[LibraryQuestion, Sequence[IndexEntry]],
    name: str,
    topologies: Mapping[str, Topology],
    links: Mapping[LibraryQuestion, str],
    wrong: Sequence[tuple[str, str]],
) -> str:
    """Return the HTML page about a library.

    Args:
        questions: Questions and entries as `find_library` returns them.
        name: Name of the library.
        topologies: Known topologies of the entries, by name; others are not drawn.
        links: Address of each question's own page, relative to this one; questions without a page are missing.
        wrong: Each schedule, program or proof that is refused: its file, and the reason.
    """
    entries = [entry for question_entries in questions.values() for entry in question_entries]
    refused = "".join(f'<p class="alert" role="alert">Wrong: {escape(file)}: {escape(why)}</p>' for file, why in wrong)
    names = list(dict.fromkeys(entry.topology for entry in entries))
    clusters = "".join(_cluster(topology_name, topologies.get(topology_name)) for topology_name in names)
    targets = list(dict.fromkeys(entry.target for entry in entries))
    maps = "".join(_heat_map(target, questions, links, number == 0) for number, target in enumerate(targets))
    main = f"""{refused}{tiles(_tiles(questions, entries))}{against_libraries(entries)}
<section class="card"><div class="bar"><h2>Cluster</h2></div>{clusters}</section>
<section class="card"><div class="bar"><h2>Gap (time / bound) by message size</h2></div>
<p class="note">Each cell shows the larger gap of calls in and out of place. 1 means optimal.</p>
{_legend()}{maps}</section>
<section class="card"><div class="bar"><h2>The largest gaps</h2></div>{_worst(questions, links)}</section>
<section class="card"><div class="bar"><h2>Questions</h2></div>{_questions(questions, links)}</section>"""
    return static_page(f"{name}: a library", name, "library.css", main)


def _gap(entry: IndexEntry) -> float | None:
    """Return the gap that an entry states at the size that its file is shown for; None if it is missing or below 1."""
    return float(entry.gap) if entry.gap is not None and entry.gap >= 1 else None


def _gap_at(entry: IndexEntry, size: int) -> float | None:
    """Return the gap at a size in bytes, at least 1, if the entry's curve has that size.

    Otherwise it is the gap at the size that the entry's file is shown for, or None if there is none.
    """
    return next((max(1.0, time_us / bound) for at, time_us, bound in entry.curve if at == size), _gap(entry))


def _worst_of(entry: IndexEntry) -> Worst:
    """Return the largest gap that an entry states in its range of sizes, with its size in bytes, time and bound in µs.

    Gaps are at least 1. If neither the entry's `worst` nor a point of its curve has a larger gap, the result is that of
    the size that the file is shown for, with 1 for a missing gap and None for missing figures.
    """
    points = [(size, time_us, bound_us) for size, time_us, bound_us in entry.curve if entry.in_range(int(size))]
    if worst := entry.row.get("worst"):  # Its size need not be one of the curve.
        points.append((worst["bytes"], worst["time_us"], worst["bound_us"]))
    on_curve = [(max(1.0, time_us / bound_us), int(size), time_us, bound_us) for size, time_us, bound_us in points]
    stated = entry.shown_bytes, entry.time_us, entry.bound_us
    size, time_us, bound = (value if is_figure(value) else None for value in stated)
    own = (_gap(entry) or 1.0, None if size is None else int(size), time_us, bound)
    return max([own, *on_curve], key=lambda worst: worst[0])


def largest_gap(entries: Sequence[IndexEntry]) -> float:
    """Return the largest gap that entries state at any size in their ranges; 1 if none states one."""
    return max((_worst_of(entry)[0] for entry in entries), default=1.0)


def _tiles(
    questions: Mapping[LibraryQuestion, Sequence[IndexEntry]], entries: Sequence[IndexEntry]
) -> list[tuple[str, str, str]]:
    """Return the page's tiles, each as (label, figure, remark).

    Args:
        questions: The questions of the library.
        entries: All of its entries.
    """
    gaps = [_worst_of(entry)[0] for entry in entries if _gap(entry) is not None]
    groups = {(e.topology, group) for e in entries for group in (e.group, *e.isomorphic_groups)}
    served = {(e.collective, e.topology, group) for e in entries for group in (e.group, *e.isomorphic_groups)}
    ratios_by_library = {
        name: [vs for e in entries if (vs := vs_library(e.row, name)) is not None] for name in LIBRARIES
    }
    files, least = len({entry.file for entry in entries}), f"≤ {STEPS[0]}"
    return [
        ("problems", str(len(questions)), f"of {format_count(len(served), 'question')}, by symmetry"),
        ("groups", str(len(groups)), format_count(len({e.collective for e in entries}), "collective")),
        ("files", str(files), format_count(len({entry.target for entry in entries}), "executor")),
        ("gap, median", format_gap(statistics.median(gaps)) if gaps else "–", "of each file's worst size"),
        (
            "gap, largest",
            format_gap(max(gaps, default=1)),
            f"{sum(g <= STEPS[0] for g in gaps)} of {len(gaps)} {least}",
        ),
        *(
            (f"vs {name}, median", f"{statistics.median(ratios):.2f} ×", "its own time / ours")
            for name, ratios in ratios_by_library.items()
            if ratios
        ),
    ]


def _cluster(name: str, topology: Topology | None) -> str:
    """Return an HTML line about a topology, and an SVG drawing of it if it is small enough.

    It may have at most 600 vertices and 4000 connected pairs of them.

    Args:
        name: Name of the topology.
        topology: The topology; None if it is unknown, which the line then states.
    """
    if topology is None:
        return (
            f'<p class="note"><b>{escape(name)}</b>: not drawn, since its topology is unknown; give it with --topo</p>'
        )
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
    """Return places scaled to a drawing of a width or height `size`, with a margin; equal places go to the middle."""
    low, high = float(values.min()), float(values.max())
    if high <= low:
        return np.full(len(values), size / 2)
    return _EDGE + (values - low) / (high - low) * (size - 2 * _EDGE)


def _step(gap: float | None) -> str:
    """Return the CSS class of a gap's colour: h0 for a gap of at most 1.005 up to h5 for one over 2.5; hx for None."""
    return "hx" if gap is None else f"h{sum(gap > step for step in STEPS)}"


def _legend() -> str:
    """Return the HTML legend of the heat maps' colours."""
    words = [f"up to {STEPS[0]:g}", *(f"to {step:g}" for step in STEPS[1:]), f"over {STEPS[-1]:g}"]
    items = "".join(f'<li><i class="h{i}"></i>{word}</li>' for i, word in enumerate(words))
    unknown = '<li><i class="hx"></i>bound not known</li><li>– no file, or not asked for</li>'
    return f'<ul class="swatches">{items}{unknown}</ul>'


def _heat_map(
    target: str,
    questions: Mapping[LibraryQuestion, Sequence[IndexEntry]],
    links: Mapping[LibraryQuestion, str],
    opened: bool,
) -> str:
    """Return the HTML heat map of an executor's gaps by question and message size.

    Only questions with a file of the executor have a row. Of over 400 questions the first 400 are shown, and a note
    states how many there are more.

    Args:
        target: Name of the executor.
        questions: Entries of each question, of all executors.
        links: Address of each question's own page; questions without a page are missing.
        opened: Whether the map is shown at first; otherwise only its title is.
    """
    entries_of = {q: [e for e in entries if e.target == target] for q, entries in questions.items()}
    shown_questions = sorted(question for question, entries in entries_of.items() if entries)
    rows, last_collective = [], ""
    for question in shown_questions[:MOST_ROWS]:
        target_entries = entries_of[question]
        more = len({group for entry in target_entries for group in entry.isomorphic_groups})
        group_text = escape(_told_apart(question, questions)) + (f" <small>+{more}</small>" if more else "")
        group_text = _linked(group_text, links.get(question))
        first = "" if question.collective == last_collective else escape(question.collective)
        last_collective = question.collective
        cells = "".join(_cell(target_entries, size) for size in SIZES)
        rows.append(f'<tr><th scope="row">{first}</th><th scope="row">{group_text}</th>{cells}</tr>')
    heads = "".join(f'<th scope="col">{format_size(size)}</th>' for size in SIZES)
    omitted = len(shown_questions) - len(rows)
    note = f'<p class="note">and {format_count(omitted, "question")} more, in the list below</p>' if omitted > 0 else ""
    files = len({entry.file for entries in entries_of.values() for entry in entries})
    return (
        f"<details{' open' if opened else ''}><summary><b>{escape(target)}</b>, {format_count(files, 'file')}</summary>"
        f'<div class="scroll"><table class="heat"><thead><tr><th></th><th></th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{note}</details>"
    )


def _cell(entries: Sequence[IndexEntry], size: int) -> str:
    """Return an HTML cell with the largest gap of the entries that serve a size in bytes, and their file as a tooltip.

    It is `–` if no entry serves the size, and empty if none of them states a gap.
    """
    serving = [entry for entry in entries if entry.in_range(size)]
    if not serving:
        return '<td class="none">–</td>'
    rated = [(gap, entry) for entry in serving if (gap := _gap_at(entry, size)) is not None]
    gap, entry = max(rated, key=lambda gap_and_entry: gap_and_entry[0]) if rated else (None, serving[0])
    tooltip = f"{entry.file}: {format_served(entry.min_bytes, entry.max_bytes)}"
    times = [time_us for at, time_us, _ in entry.curve if at == size]
    tooltip += f", {format_time(times[0])}" if times else ""
    words = "" if gap is None else f"{gap:.2f}"
    return f'<td class="{_step(gap)}" title="{escape(tooltip, quote=True)}">{words}</td>'


def _worst(questions: Mapping[LibraryQuestion, Sequence[IndexEntry]], links: Mapping[LibraryQuestion, str]) -> str:
    """Return the HTML table of the ten largest gaps, one for each question and executor, the largest first.

    If no entry states a gap, the result is a note.

    Args:
        questions: Entries of each question.
        links: Address of each question's own page; questions without a page are missing.
    """
    worst: dict[tuple[LibraryQuestion, str], tuple[Worst, LibraryQuestion, IndexEntry]] = {}
    for question, question_entries in questions.items():
        for entry in (rated_entry for rated_entry in question_entries if _gap(rated_entry) is not None):
            key, entry_worst = (question, entry.target), _worst_of(entry)
            if key not in worst or entry_worst[0] > worst[key][0][0]:
                worst[key] = entry_worst, question, entry
    rated = sorted(worst.values(), key=lambda rated_entry: (-rated_entry[0][0], rated_entry[2].file))
    if not rated:
        return '<p class="note">No file states a gap.</p>'
    heads = ("collective", "group", "executor", "serves", "gap", "predicted", "bound", "what proves it", "file")
    rows = [
        (
            escape(question.collective),
            escape(_told_apart(question, questions)),
            escape(entry.target),
            escape(format_served(entry.min_bytes, entry.max_bytes)),
            format_gap(gap),
            "–" if time_us is None else f"{format_time(time_us)} @ {format_size(size or 0)}",
            "–" if bound is None else format_time(bound),
            escape(str(entry.row.get("proof") or "–")),
            _linked(escape(Path(entry.file).name), links.get(question)),
        )
        for (gap, size, time_us, bound), question, entry in rated[:WORST]
    ]
    return html_table(heads, rows)


def _told_apart(question: LibraryQuestion, questions: Iterable[LibraryQuestion]) -> str:
    """Return the group of a question, and its topology where the questions have more than one, as one with a fault."""
    return question.group_text + (f", on {question.topology}" if len({q.topology for q in questions}) > 1 else "")


def _linked(words: str, page: str | None) -> str:
    """Return words (HTML) as a link to the address of a page; the words themselves if this is None."""
    return words if page is None else f'<a href="{escape(page, quote=True)}">{words}</a>'


def _questions(questions: Mapping[LibraryQuestion, Sequence[IndexEntry]], links: Mapping[LibraryQuestion, str]) -> str:
    """Return the HTML list of all questions, sorted, with links to their pages and the number of further groups."""
    items = []
    for question in sorted(questions):
        words = escape(f"{question.collective}, {question.topology}, {question.group_text}")
        isomorphic = sorted({group for e in questions[question] for group in e.isomorphic_groups})
        title = escape("; ".join(map(format_listed, isomorphic[:40])))
        more = f' <small title="{title}">+{len(isomorphic)}</small>' if isomorphic else ""
        items.append(f"<li>{_linked(words, links.get(question))}{more}</li>")
    return f'<ul class="names">{"".join(items)}</ul>'
