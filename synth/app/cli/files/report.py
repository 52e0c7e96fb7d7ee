"""The command `report`, which draws a page about a schedule, a program, a library or a folder of them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from urllib.parse import quote

import click

from emit.library.entry import IndexEntry
from emit.library.networks import Networks
from synth.app.cli.programs import check_ending, write_text
from synth.app.cli.progress import Count, counting
from synth.app.clusters.placing import at_asked_sizes
from synth.app.present.layout import say_fitted
from synth.app.report.library import MOST_PAGES, LibraryQuestion, find_library, largest_gap, library_page
from synth.app.report.page import report_sources
from synth.app.report.placement import find_placement, placement_page
from synth.app.report.sources import Source, find_sources, sources_of
from synth.model.problem import parse_ranks
from synth.model.sizes import parse_size
from synth.model.text import format_count
from synth.storage.leftovers import staging_folder
from topologies.errors import InputError
from topologies.load import STATED_COSTS, apply_costs, load
from topologies.text.files import origin_of
from topologies.topology import Topology

_LONG = 300  # characters of a printed defect; the page shows all of it


@click.command("report")
@click.argument("path", metavar="FILE|DIR")
@click.option(
    "-o", "--out", default="report.html", metavar="FILE", help="Write the page to this file. Default: report.html."
)
@click.option("--topo", metavar="T", help="Run programs on this topology. Default: that of the library's index.")
@click.option("--group", metavar="RANKS", help="With --topo: run a program's ranks on these ranks, as 0,2,4-7.")
@click.option("--size", metavar="BYTES", help="With --topo: draw the timeline at this message size.")
@click.option("--no-pages", is_flag=True, help="For a library with several questions: write only the page about all.")
def report(path: str, out: str, topo: str | None, group: str | None, size: str | None, no_pages: bool) -> None:
    """Draw the network, the timeline, the frontier and the proof on one self-contained page.

    The source is a schedule (.synth), an MSCCL XML, an execution plan (JSON), a library's index.json, or a folder of
    these. It can also be the output of synth place -o DIR: the page then shows the hierarchy with each axis's groups,
    the load of the levels and the ranking. Schedules are replayed and their proofs are checked again; programs are
    checked, and have the times and bounds that the library's index states. A library that answers several questions
    gets one page about all of them, with a heat map of the gaps, and in the folder FILE-pages one page for each
    question. Exit code 0: all right; 1: something is wrong; 2: not readable.

    \b
    synth report out -o report.html
    """
    begun = time.monotonic()
    if not out:
        raise InputError("--out: is empty; give the name of a file")
    check_ending(out, ".html", "an HTML page")
    for option, value in (("group", group), ("size", size)):
        if value is not None and topo is None:
            raise InputError(f"--{option}: needs --topo, which states where programs run")
    ranking = find_placement(path)
    if ranking is not None:
        if topo is not None:
            raise InputError("--topo: cannot be used with a ranking of placements, which has its own; leave it out")
        html = placement_page(ranking, path)
        write_text(out, html)
        _say(out, format_count(len(ranking["placements"]), "placement"), html, begun)
        return
    topology = None if topo is None else apply_costs(load(topo), STATED_COSTS)
    questions = find_library(path) if group is None and size is None else None
    if questions is not None:
        _library(questions, path, Path(out), topology, begun, pages=not no_pages)
        return
    if no_pages:
        raise InputError("--no-pages: is for a library that answers several questions; leave it out")
    ranks = None if group is None or topology is None else parse_ranks(group, "--group", topology.nranks)
    if topology is not None and path.endswith(".synth"):
        raise InputError("--topo: cannot be used with a schedule, which names its own network; leave it out")
    sources = _at_asked_sizes(find_sources(path))
    size_bytes = None if size is None else float(parse_size(size, "--size"))
    with counting("drawing") as progress:
        page = report_sources(
            sources, Path(path).resolve().name, Networks(topology), topology, ranks, size_bytes, progress
        )
    write_text(out, page.html)
    contents = f"{format_count(page.algorithms, 'algorithm')}, {format_count(page.files, 'file')}"
    _say(out, contents, page.html, begun, page.wrong)


def _at_asked_sizes(sources: Sequence[Source]) -> list[Source]:
    """Return sources whose entries state only the sizes that a build was asked for; those of other sizes are left out.

    A source without an entry stays. If nothing were left, all sources stay as they are.
    """
    limited = [(source, at_asked_sizes([] if source.entry is None else [source.entry])) for source in sources]
    inside = [
        replace(source, entry=entries[0]) if entries else source
        for source, entries in limited
        if entries or source.entry is None
    ]
    return inside or list(sources)


def _library(
    questions: Mapping[LibraryQuestion, Sequence[IndexEntry]], path: str, out: Path, topology: Topology | None,
    begun: float, *, pages: bool,
) -> None:  # fmt: skip
    """Write the page about a library and, in the folder `OUT-pages`, those about its questions; print the result.

    Of over 200 questions, those with the largest gaps get a page. Files are replaced only after all pages are drawn.

    Args:
        questions: Questions and entries as `find_library` returns them.
        path: The library.
        out: File of the page about the library.
        topology: Network of files whose topology has no known name; None for no network.
        begun: Time of `time.monotonic` at the command's start.
        pages: Whether questions get pages.

    Raises:
        InputError: A file is missing or a page cannot be written.
        SystemExit: With 1 if something is wrong.
    """
    questions = {question: at_asked_sizes(entries) or entries for question, entries in questions.items()}
    networks, folder, wrong = Networks(topology), out.with_name(f"{out.stem}-pages"), list[tuple[str, str]]()
    topology_of = {
        entries[0].topology: network
        for entries in questions.values()
        if (network := networks.of(entries[0])) is not None
    }
    sources = {question: sources_of(entries, origin_of(path)) for question, entries in questions.items()}
    shown = [question for question in questions if sources[question]]
    chosen = sorted(shown, key=lambda candidate: (-largest_gap(questions[candidate]), candidate))[
        : MOST_PAGES if pages else 0
    ]
    try:
        with staging_folder(out.parent) as staging, counting("drawing") as progress:
            ends = list(accumulate(len(sources[question]) for question in chosen))
            for question, end in zip(chosen, ends, strict=True):
                show = partial(_show_drawn, progress, end, ends[-1])
                question_page = report_sources(sources[question], question.page, networks, progress=show)
                (Path(staging) / question.page).write_text(question_page.html, encoding="utf-8")
                wrong += question_page.wrong
            links = {question: f"{quote(folder.name)}/{quote(question.page)}" for question in chosen}
            html = library_page(questions, Path(path).resolve().name, topology_of, links, wrong)
            write_text(out, html)
            if chosen:
                folder.mkdir(exist_ok=True)
            for question in chosen:
                os.replace(Path(staging) / question.page, folder / question.page)
    except OSError as error:
        reason = f"cannot be written ({error.strerror or error}); it must be a file in a folder where you may write"
        raise InputError(f"{origin_of(out)}: {reason}") from None
    contents = f"{format_count(len(questions), 'problem')}, {format_count(len(links), 'page')}"
    _say(out, contents, html, begun, wrong)


def _show_drawn(progress: Count, end: int, total: int, done: int, files: int) -> None:
    """Show how many files of all pages are drawn, while a page is drawn.

    Args:
        progress: Function that shows it.
        end: Number of files that are drawn at the end of the page.
        total: Number of files of all pages.
        done: Number of files of the page that are drawn.
        files: Number of files of the page.
    """
    progress(end - files + done, total)


def _say(out: str | Path, contents: str, html: str, begun: float, wrong: Sequence[tuple[str, str]] = ()) -> None:
    """Print what was written, and what is wrong; exit with code 1 if anything is.

    Args:
        out: The page's file.
        contents: How many things are on the page.
        html: The page, whose size is printed.
        begun: Time of `time.monotonic` at the command's start.
        wrong: Each schedule, program or proof that is refused: its name, and the reason, which is printed in at most
            300 characters.
    """
    say_fitted(f"{origin_of(out)}: {contents}, {len(html.encode()) / 1e6:.2f} MB   {time.monotonic() - begun:.1f} s")
    for name, why in wrong:
        say_fitted(f"{origin_of(name)}: wrong: {why if len(why) <= _LONG else why[:_LONG] + '…'}")
    if wrong:
        raise SystemExit(1)
