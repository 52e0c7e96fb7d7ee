"""The answer of the commands that search: run the search, write the files and print the report."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from emit.library.index import SCHEDULES
from emit.library.saving.save import Saved, save
from emit.library.write import existing_entries
from emit.targets import TARGETS
from synth.app.cli.cached_answers import CachedAnswer, answer_key, entries_of_question, keep_answer, take_answer
from synth.app.cli.defects import say_defects
from synth.app.cli.options import SearchOptions, print_json
from synth.app.cli.programs import scratch_bytes
from synth.app.cli.streams import clear_line
from synth.app.present.table import format_next_minute, heading, table
from synth.app.synthesis import Question, find_answer, make_question
from synth.engines.registry import AUTO as ANY_ENGINE
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.defects import collected
from synth.model.pattern import collective_of
from synth.model.problem import parse_ranks
from synth.model.sizes import parse_size
from synth.model.text import format_count
from synth.search.result import Report, SearchResult
from synth.search.settings import AUTO, NONE
from synth.search.statement import next_minute, statement
from synth.solvers.workers import Workers
from synth.storage.cache import Cache, open_cache
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.load import load
from topologies.text.files import check_below

_STOPPING_S = 0.6  # time for writing files after Ctrl-C
_LOGGED_S = 15.0  # time between two lines of progress in a log


def answer(name: str, file: str | None, options: SearchOptions, workers: Workers) -> Callable[[], None]:
    """Run a search; return a function that writes the files and prints the report, for which no solver is needed.

    Args:
        name: Name of the collective, or "pattern".
        file: File of the pattern, or of the sizes of alltoallv; None for other collectives.
        options: The options of the command.
        workers: Solver processes.

    Raises:
        InputError: An option cannot be right, or the files cannot be written.
    """
    for option, value in (("--group-sizes", options.group_sizes), ("--objective", options.objective)):
        if value is not None:
            raise InputError(f"{option}: is for several groups; name them with --groups, as in 0-7;8-15")
    check_target(options.target)
    progress = progress_line(options.begun)
    topology = load(options.topo)
    question = make_question(
        collective_of(name, file),
        topology,
        None if options.group is None else parse_ranks(options.group, "--group", topology.nranks),
        relay=options.relay
        if options.relay in ("none", "all")
        else parse_ranks(options.relay, "--relay", topology.nranks),
        without=options.without,
        degrade=options.degrade,
        switch_ops=options.switch_ops,
        root=options.root,
        size=None if options.size is None else parse_size(options.size, "--size"),
        chunks=options.chunks,
        steps=options.steps,
        rounds=options.rounds,
        engine=options.engine,
        budget=options.budget,
        seed=options.seed,
        target=options.target,
        sms=options.sms,
        groups_overlap=options.groups_overlap,
        scratch_limit=scratch_bytes(options.scratch_limit),
        costs=options.costs,
        begun=options.begun,
    )
    check_writable(Path(options.out), options.target)
    cache = open_cache(options.cache)
    if exposed := cache.exposed():
        click.echo(f"warning: {exposed}, so every answer of it is checked; chmod go-w keeps other users out", err=True)
    if cache.folder is None:
        return partial(_report, find_answer(question, workers, progress), options, question)
    key = answer_key(options, question)
    cached = _cached_answer(cache, key, options, question)
    if cached is not None:
        return partial(_report, cached.found, options, question, cached_answer=cached)
    # If the library has files for the question already, the written files are not the answer of this search only.
    fresh = not entries_of_question(existing_entries(Path(options.out)), question)
    return partial(
        _report, find_answer(question, workers, progress), options, question, (cache, key) if fresh else None
    )


def check_target(target: str) -> None:
    """Raise InputError for an unknown target."""
    if target not in (AUTO, NONE, *TARGETS):
        raise InputError(f"--target {target!r}: is not known; it is auto, none or one of {', '.join(TARGETS)}")


def check_writable(folder: Path, target: str = AUTO) -> None:
    """Raise InputError if files cannot be written to a library, so that no search is wasted.

    Args:
        folder: Folder of the library, which need not exist.
        target: Target of the files. In a library that exists, the folders of this target's files are checked too.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: is a file; it must be a folder")
    existing_entries(folder)
    inner = [SCHEDULES, *(row.folder for row in TARGETS.values() if target in (AUTO, row.name))]
    paths = [folder, *(path for name in dict.fromkeys(inner) if os.path.lexists(path := folder / name))]
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    path = folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in paths:
            check_below(folder, path)
            # A writer locks the library's folder and walks through the others.
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
            tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise InputError(f"--out {path}: cannot be written ({error.strerror or error})") from None
    finally:
        for parent in missing:
            if parent.is_dir():
                parent.rmdir()


def progress_line(begun: float) -> Report:
    """Return a function that shows the current attempt and the best algorithm so far.

    On a terminal it updates one line; in a log it writes a line from time to time.

    Args:
        begun: Time of the command's start, as `time.monotonic` counts.
    """
    terminal, logged = sys.stderr.isatty(), begun

    def show(text: str, best: Algorithm | None) -> None:
        """Show a text with the elapsed seconds and the shape of the best algorithm."""
        nonlocal logged
        so_far = "" if best is None else f" · so far {best.steps} steps, {best.rounds} rounds, {best.chunks} chunks"
        line = f"{time.monotonic() - begun:5.1f} s  {text}{so_far}"
        if terminal:
            clear_line()
            sys.stderr.write(line)
            sys.stderr.flush()
        elif time.monotonic() - logged >= _LOGGED_S:
            logged = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    show("reading the topology", None)
    return show


def clear_progress() -> None:
    """Remove the progress line from the terminal."""
    if sys.stderr.isatty():
        clear_line()


def ending(ended: str, begun: float, has_answer: bool = True) -> list[str]:
    """Return the last parts of every report: why the search stopped early, if it did, and the seconds that all took."""
    why = {"interrupted": "interrupted", "budget": "the budget ended"}
    return [
        *([why[ended] + (": the best so far" if has_answer else "")] if ended in why else []),
        f"{time.monotonic() - begun:.1f} s",
    ]


def written_until(ended: str, options: SearchOptions) -> float:
    """Return the time of `now` until which files may be made: the end of the budget, or shortly after Ctrl-C."""
    end = options.begun + options.budget
    return min(end, now() + _STOPPING_S) if ended == "interrupted" else end


def _cached_answer(cache: Cache, key: str, options: SearchOptions, question: Question) -> CachedAnswer | None:
    """Return the cached answer after its check; warn on stderr and return None if the check fails."""
    try:
        return take_answer(cache, key, Path(options.out), question)
    except InputError as error:
        clear_progress()
        click.echo(f"warning: {error}", err=True)
        return None


def _report(
    result: SearchResult,
    options: SearchOptions,
    question: Question,
    keeping: tuple[Cache, str] | None = None,
    cached_answer: CachedAnswer | None = None,
) -> None:
    """Write the files of an answer and print it.

    Args:
        result: The search result.
        options: The options of the command.
        question: The question.
        keeping: The cache and the key under which the answer is kept; None if it is not to be kept.
        cached_answer: The answer, if it comes from the cache.
    """
    if sys.stderr.isatty():
        clear_line()
        sys.stderr.write("checking and writing")
        sys.stderr.flush()
    with collected() as defects:
        written = save(
            result,
            options.out,
            question.settings,
            proof=options.proof,
            anew=options.replace,
            until=written_until(result.ended, options),
            other_found=None if cached_answer is None else cached_answer.other_form,
        )
        clear_progress()
        document = statement(written.found)
    defects.update((defect.line, defect) for defect in result.defects)
    say_defects(defects.values(), "its answers are missing")
    document["defects"] = list(defects)
    document["algorithms"] = _rows(written)
    if written.other_form is not None:
        document["other_form"] = _rows(written.other_form)
    document["next_minute"] = next_minute(written.found, document["algorithms"])
    document["unsaved"] = written.refused
    document["remarks"] = list(written.remarks)
    document["cached"] = cached_answer is not None
    if keeping is not None and not defects and result.ended != "interrupted":
        keep_answer(*keeping, written)
    if options.as_json:
        print_json(document)
    else:
        nranks = result.problem.topology.nranks
        heading_lines = f"{heading(document, nranks)}\n\n"
        click.echo(table(document, nranks) if result.ranges else heading_lines + _why_nothing(result, options))
        cached = [] if cached_answer is None else [f"from the cache; the search took {result.seconds:.1f} s"]
        click.echo("\n" + _closing(result, written, options.begun, cached))
        if result.ranges:
            click.echo(format_next_minute(document["next_minute"]))
    if result.ended == "interrupted":
        raise SystemExit(130)
    if not result.ranges:
        raise SystemExit(1)
    if written.refused and options.target != AUTO:
        click.echo(f"warning: --target {options.target}: no file for {written.refused}", err=True)
        raise SystemExit(3)


def _why_nothing(result: SearchResult, options: SearchOptions) -> str:
    """Return a line that says why a search found no algorithm."""
    if result.impossible or result.ended == "interrupted":
        return result.impossible or "interrupted before an algorithm was found"
    if result.ended:
        return f"no algorithm was found within the budget of {options.budget:g} s; a larger --budget may help"
    shape = Options(chunks=options.chunks, steps=options.steps, rounds=options.rounds).shape
    by_engine = "" if options.engine == ANY_ENGINE else f" by --engine {options.engine}"
    advice = " or ".join([*(["another shape"] if shape else []), *(["another --engine"] if by_engine else [])])
    return (
        f"no algorithm was found{by_engine}{shape and f' with {shape}'}: the engines ended before the budget,"
        f" and nothing is proved{advice and f'; {advice} may help'}"
    )


def _rows(written: Saved) -> list[dict[str, Any]]:
    """Return the rows of the algorithms that the library now has, each with its files."""
    return [
        row | {kind: str(path) for kind, path in files.items()}
        for row, files in zip(written.rows, written.files, strict=True)
    ]


def _closing(result: SearchResult, written: Saved, begun: float, remarks: Sequence[str] = ()) -> str:
    """Return the last line of a report: how many algorithms there are, their files, remarks, and the seconds."""
    parts = [f"{format_count(len(written.rows), 'algorithm')}, replayed and right"] if result.ranges else []
    if written.paths:
        parts[-1] += " → " + ", ".join(str(path) for path in written.paths)
    parts += written.remarks
    padded = f"blocks are padded to whole chunks, {written.padding:.2%} of the fullest buffer"
    return "   ".join(
        parts + ([padded] if written.padding else []) + list(remarks) + ending(result.ended, begun, bool(result.ranges))
    )
