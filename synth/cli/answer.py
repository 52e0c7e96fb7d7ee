"""Answers the commands that search, writes the files and prints the report."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from emit.library.programs import NONE
from emit.library.save import Saved, save
from emit.library.write import standing
from emit.targets import AUTO, TARGETS
from synth.cli.defects import say_defects
from synth.cli.known import Known, keep, known_key, of_question, take
from synth.cli.options import Asked, print_json
from synth.cli.programs import scratch_bytes
from synth.cli.streams import clear_line
from synth.engines.registry import AUTO as ANY_ENGINE
from synth.engines.request import Options
from synth.model.deadline import now
from synth.model.defects import collected
from synth.model.pattern import collective_of
from synth.model.problem import parse_ranks
from synth.model.sizes import parse_size
from synth.present.statement import next_minute, statement
from synth.present.table import format_next_minute, heading, table
from synth.present.text import format_count
from synth.search.result import Report, SearchResult
from synth.solvers.workers import Workers
from synth.storage.cache import Cache, open_cache
from synth.synthesis import Question, answered, ask
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.load import load

_STOPPING_S = 0.6  # after Ctrl-C, in which what was found becomes files
_LOGGED_S = 15.0  # between two lines of what is tried where there is no terminal


def answer(name: str, file: str | None, asked: Asked, workers: Workers) -> Callable[[], None]:
    """Search; returns what writes the files and prints the report, for which no solver is needed.

    file: of the pattern (name "pattern"), or of the sizes of alltoallv.
    """
    for option, value in (("--group-sizes", asked.group_sizes), ("--objective", asked.objective)):
        if value is not None:
            raise InputError(f"{option}: is for several groups; name them with --groups, as in 0-7;8-15")
    check_target(asked.target)
    progress = progress_line(asked.begun)
    topology = load(asked.topo)
    question = ask(
        collective_of(name, file),
        topology,
        None if asked.group is None else parse_ranks(asked.group, "--group", topology.nranks),
        relay=asked.relay if asked.relay in ("none", "all") else parse_ranks(asked.relay, "--relay", topology.nranks),
        without=asked.without,
        degrade=asked.degrade,
        switch_ops=asked.switch_ops,
        root=asked.root,
        size=None if asked.size is None else parse_size(asked.size, "--size"),
        chunks=asked.chunks,
        steps=asked.steps,
        rounds=asked.rounds,
        engine=asked.engine,
        budget=asked.budget,
        seed=asked.seed,
        target=asked.target,
        sms=asked.sms,
        groups_overlap=asked.groups_overlap,
        scratch_limit=scratch_bytes(asked.scratch_limit),
        costs=asked.costs,
        begun=asked.begun,
    )
    check_writable(Path(asked.out))
    cache = open_cache(asked.cache)
    if exposed := cache.exposed():
        click.echo(f"warning: {exposed}: every answer from it is checked; chmod go-w keeps others out", err=True)
    if cache.folder is None:
        return partial(_report, answered(question, workers, progress), asked)
    key = known_key(asked, question)
    known = _known(cache, key, asked, question)
    if known is not None:
        return partial(_report, known.found, asked, known=known)
    # beside files that are there already, what is written is more than the answer
    fresh = not of_question(standing(Path(asked.out)), question)
    return partial(_report, answered(question, workers, progress), asked, (cache, key) if fresh else None)


def check_target(target: str) -> None:
    """Raise InputError for a target that is not known."""
    if target not in (AUTO, NONE, *TARGETS):
        raise InputError(f"--target {target!r}: is not known; it is auto, none or one of {', '.join(TARGETS)}")


def check_writable(folder: Path) -> None:
    """Raise InputError before the search, not after it, where the files could not be written."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--out {folder}: is a file; it must be a folder")
    standing(folder)
    missing = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written ({error.strerror or error})") from None
    finally:
        for made in missing:
            if made.is_dir():
                made.rmdir()


def progress_line(begun: float) -> Report:
    """What shows what is tried, and the best so far: on a terminal at once, in a log a line now and then."""
    terminal, said = sys.stderr.isatty(), begun

    def show(text: str, best: Algorithm | None) -> None:
        nonlocal said
        so_far = "" if best is None else f" · so far {best.steps} steps, {best.rounds} rounds, {best.chunks} chunks"
        line = f"{time.monotonic() - begun:5.1f} s  {text}{so_far}"
        if terminal:
            clear_line()
            sys.stderr.write(line)
            sys.stderr.flush()
        elif time.monotonic() - said >= _LOGGED_S:
            said = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    show("reading the topology", None)
    return show


def clear_progress() -> None:
    """Take that line away."""
    if sys.stderr.isatty():
        clear_line()


def ending(ended: str, begun: float, found: bool = True) -> list[str]:
    """The last part of every report: why the search stopped early, if it did, and the seconds that all took."""
    why = {"interrupted": "interrupted", "budget": "the budget ended"}
    return [
        *([why[ended] + (": the best so far" if found else "")] if ended in why else []),
        f"{time.monotonic() - begun:.1f} s",
    ]


def written_until(ended: str, asked: Asked) -> float:
    """To when files may be made, of `now`: to the end of the budget, or for a moment after Ctrl-C."""
    end = asked.begun + asked.budget
    return min(end, now() + _STOPPING_S) if ended == "interrupted" else end


def _known(cache: Cache, key: str, asked: Asked, question: Question) -> Known | None:
    """Return the answer that the cache has, checked; say on stderr why one is not believed."""
    try:
        return take(cache, key, Path(asked.out), question)
    except InputError as error:
        clear_progress()
        click.echo(f"warning: {error}", err=True)
        return None


def _report(
    found: SearchResult, asked: Asked, keeping: tuple[Cache, str] | None = None, known: Known | None = None
) -> None:
    """Write the files of an answer and print it.

    Args:
        keeping: The cache and the key under which the answer is kept; None where it is not.
        known: The answer, where it comes from the cache.
    """
    if sys.stderr.isatty():
        clear_line()
        sys.stderr.write("checking and writing")
        sys.stderr.flush()
    with collected() as defects:
        written = save(
            found,
            asked.out,
            asked.target,
            sms=asked.sms,
            groups_overlap=asked.groups_overlap,
            scratch_limit=scratch_bytes(asked.scratch_limit),
            proof=asked.proof,
            anew=asked.replace,
            until=written_until(found.ended, asked),
            other_found=None if known is None else known.other_form,
        )
        clear_progress()
        document = statement(written.found)
    defects.update((defect.line, defect) for defect in found.defects)
    say_defects(defects.values(), "its answers are missing")
    document["defects"] = list(defects)
    document["algorithms"] = _rows(written)
    if written.other_form is not None:
        document["other_form"] = _rows(written.other_form)
    document["next_minute"] = next_minute(written.found, document["algorithms"])
    document["unsaved"] = written.refused
    document["remarks"] = list(written.remarks)
    document["cached"] = known is not None
    if keeping is not None and not defects and found.ended != "interrupted":
        keep(*keeping, written)
    if asked.as_json:
        print_json(document)
    else:
        nranks = found.problem.topology.nranks
        nothing = f"{heading(document, nranks)}\n\n"
        click.echo(table(document, nranks) if found.ranges else nothing + _why_nothing(found, asked))
        cached = [] if known is None else [f"from the cache: no search, which took {found.seconds:.1f} s"]
        click.echo("\n" + _closing(found, written, asked.begun, cached))
        if found.ranges:
            click.echo(format_next_minute(document["next_minute"]))
    if found.ended == "interrupted":
        raise SystemExit(130)
    if not found.ranges:
        raise SystemExit(1)
    if written.refused and asked.target != AUTO:
        click.echo(f"warning: --target {asked.target}: no file for {written.refused}", err=True)
        raise SystemExit(3)


def _why_nothing(found: SearchResult, asked: Asked) -> str:
    """One line on a search that found nothing."""
    if found.impossible or found.ended == "interrupted":
        return found.impossible or "interrupted before anything was found"
    if found.ended:
        return f"nothing found within the budget of {asked.budget:g} s; more --budget may do"
    shape = Options(chunks=asked.chunks, steps=asked.steps, rounds=asked.rounds).shape
    by = "" if asked.engine == ANY_ENGINE else f" by --engine {asked.engine}"
    others = " or ".join([*(["another shape"] if shape else []), *(["another --engine"] if by else [])])
    return (
        f"nothing found{by}{shape and f' with {shape}'}: all that is tried was, before the budget was over, and"
        f" nothing is proved{others and f'; {others} may do'}"
    )


def _rows(written: Saved) -> list[dict[str, Any]]:
    """The rows of what the library has now, each with its files."""
    return [
        row | {kind: str(path) for kind, path in files.items()}
        for row, files in zip(written.rows, written.files, strict=True)
    ]


def _closing(found: SearchResult, written: Saved, begun: float, remarks: Sequence[str] = ()) -> str:
    parts = [f"{format_count(len(written.rows), 'algorithm')}, replayed and right"] if found.ranges else []
    if written.paths:
        parts[-1] += " → " + ", ".join(str(p) for p in written.paths)
    parts += written.remarks
    padded = f"blocks padded to whole chunks, {written.padding:.2%} of the fullest buffer"
    return "   ".join(
        parts + ([padded] if written.padding else []) + list(remarks) + ending(found.ended, begun, bool(found.ranges))
    )
