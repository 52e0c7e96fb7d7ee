"""The answer of the commands that search: run the search, write the files and print the report."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from emit.compiler.lower import forms
from emit.library.entry import SCHEDULES, IndexEntry
from emit.library.library_file import CHECKED_PER_S
from emit.library.programs import executor_for
from emit.library.saving.save import Saved, folder_of_problem, save, save_first
from emit.library.saving.write import existing_entries
from emit.targets import TARGETS, right_target
from synth.app.arguments import QuestionArguments
from synth.app.cli.asking.cached_answers import CachedAnswer, answer_key, entries_of_question, keep_answer, take_answer
from synth.app.cli.asking.known_healthy import known_answer, known_times
from synth.app.cli.defects import say_defects
from synth.app.cli.options import SearchCommand, print_json
from synth.app.cli.progress import joined, seldom_logger
from synth.app.cli.streams import clear_line
from synth.app.present.layout import path_lines, say, terminal_width, warn
from synth.app.present.table import format_next_minute, heading, table
from synth.app.question import make_question
from synth.app.synthesis import find_answer, search_document
from synth.engines.registry import AUTO as ANY_ENGINE
from synth.engines.request import Options
from synth.model.compiled import is_first_run
from synth.model.deadline import now
from synth.model.defects import collected, contained
from synth.model.numbers import format_seconds
from synth.model.pattern import read_pattern
from synth.model.text import format_count, format_shape, format_short_size
from synth.search.first import add_first, first_result
from synth.search.pool import LATE
from synth.search.question import Question
from synth.search.result import Report, SearchResult
from synth.search.settings import AUTO, NONE
from synth.search.statement import with_source_times
from synth.solvers.workers import Workers
from synth.storage.cache import open_cache
from synth.verify.algorithm import Algorithm
from topologies.errors import InputError
from topologies.text.files import check_below

USUAL_FOLDER = Path("out")  # for the files of a command without --out
_LEAST_DIVIDED_S = 2.0  # least budget in seconds of which a part is kept for checking existing files
_STOPPING_S = 0.6  # time for writing files after Ctrl-C


def answer(command: SearchCommand, workers: Workers) -> Callable[[], None]:
    """Run a search, or take its answer from the cache; return a function that writes the files and prints the report.

    The returned function needs no solver. It exits with 130 after an interruption, with 1 without an algorithm, and
    with 3 if a named target has no file. Errors of the cache are only warned of.

    Args:
        command: The call of the command.
        workers: Solver processes.

    Raises:
        InputError: An option cannot be right, or the files cannot be written.
    """
    check_single(command)
    check_target(command.question.target)
    progress = progress_line(command.begun)
    question = make_question(with_pattern(command))
    problem = question.problem
    folder = (
        usual_folder(problem.topology.name, [problem.group], problem.relays, folder_of_problem(problem))
        if command.out is None
        else Path(command.out)
    )
    cache, report = open_cache(command.cache), partial(_report, command, folder, question)
    check_writable(folder, question.settings.name)
    if exposed := cache.exposed():
        warn(f"warning: {exposed}, so every answer of it is checked; chmod go-w keeps other users out")
    keep, first, entries = None, SearchResult(problem), list[IndexEntry]()
    if cache.folder is not None:
        key = answer_key(question, command.proof)
        if cache.has(key):
            progress("checking the cache's answer and its files", None)
        try:
            cached = take_answer(cache, key, folder, question)
        except InputError as error:
            cached = None
            clear_progress()
            warn(f"warning: {error}")
        if cached is not None:
            return partial(report, cached.result, cached_answer=cached)
        keep = partial(keep_answer, cache, key, question.options.budget_s)
    if existing := entries_of_question(existing_entries(folder), question):
        keep = None  # What is written then is not the answer of this search only.
        question = _with_time_for(existing, question)
    else:
        first, entries, progress = _write_first(command, folder, question, progress)
    result = find_answer(question, workers, progress, known_answer(cache, question))
    result.healthy_times = known_times([folder, *([] if command.out else [USUAL_FOLDER])], question)
    add_first(result, first, question.options.size)
    return partial(report, result, first=entries, keep=keep)


def _with_time_for(existing: Iterable[IndexEntry], question: Question) -> Question:
    """Return a question whose budget leaves time to check and time the files that a library has for it.

    They take at most half of the budget, and nothing of one below two seconds, which the search needs.

    Args:
        existing: The library's entries for the question.
        question: The question.
    """
    options = question.options
    if options.budget_s < _LEAST_DIVIDED_S:
        return question
    sizes = [path.stat().st_size for path in {entry.path for entry in existing} if path.is_file()]
    left_s = max(options.budget_s / 2, options.budget_s - sum(sizes) / CHECKED_PER_S)
    return dataclasses.replace(
        question, options=dataclasses.replace(options, budget_s=left_s, stated_s=options.budget_s)
    )


def _write_first(
    command: SearchCommand, folder: Path, question: Question, progress: Report
) -> tuple[SearchResult, list[IndexEntry], Report]:
    """Write the files of first programs, which are usable while the search goes on.

    Nothing is written if the library cannot be written now; the end of the search says why.

    Args:
        command: The call of the command.
        folder: Folder of the library, which has no files for the question.
        question: The question.
        progress: Receives what is tried and the best algorithm so far.

    Returns:
        What `first_result` and `save_first` returned, and `progress`, whose lines name the first file in a log. On a
        terminal, where they would not fit, a line of its own does.
    """
    first, entries = SearchResult(question.problem), list[IndexEntry]()
    with suppress(InputError):
        executor = executor_for(question.problem, question.settings, question.options.size)
        first = contained("first program", partial(first_result, question, executor), first)
        entries = contained("first file", partial(save_first, first, folder, question.settings), entries)
    if not entries:
        return first, [], progress
    size, gap = entries[0].shown_bytes, entries[0].gap
    quality = "" if size is None or gap is None else f" {gap:.2f} x the bound at {format_short_size(size)},"
    place = folder / Path(entries[0].file).parent
    line = f"first file after {time.monotonic() - command.begun:.1f} s:{quality} in {place}"
    if sys.stderr.isatty():
        clear_line()
        warn(line)
        return first, entries, progress
    return first, entries, lambda text, best: progress(f"{text} · {line}", best)


def with_pattern(command: SearchCommand) -> QuestionArguments:
    """Return the arguments of a command's question, with the collective of its pattern's file if it has one.

    Raises:
        InputError: The file cannot be read or states no pattern.
    """
    if command.file is None:
        return command.question
    return dataclasses.replace(command.question, collective=read_pattern(command.file))


def usual_folder(topology: str, groups: Iterable[Sequence[int]], relays: Sequence[int] | None, name: str) -> Path:
    """Return the folder for a question's files if the user names none: `out`, or `out`/`name` if `out` is for others.

    It is for others if an entry of its index is for another topology, other ranks or other relays. Executors load all
    files of a folder, and most of them compare neither ranks nor networks. No folder is made.

    Args:
        topology: Name of the network.
        groups: The groups of ranks that programs of the answer may be for, each with its order.
        relays: The ranks that forward; None for any.
        name: Name of the folder in `out` if `out` is for others.

    Raises:
        InputError: There is something else than an index of ours in `out`.
    """
    own_groups, own_relays = set(map(tuple, groups)), None if relays is None else tuple(relays)
    is_for_others = any(
        entry.topology != topology or entry.group not in own_groups or own_relays not in (None, entry.relays)
        for entry in existing_entries(USUAL_FOLDER)
    )
    return USUAL_FOLDER / name if is_for_others else USUAL_FOLDER


def check_single(command: SearchCommand) -> None:
    """Raise InputError if a search for one group has `--group-sizes` or `--objective`, which are for more groups."""
    for option, value in (("--group-sizes", command.group_sizes), ("--objective", command.objective)):
        if value is not None:
            raise InputError(f"{option}: is for several groups; name them with --groups, as in 0-7;8-15")


def check_target(target: str) -> None:
    """Raise InputError unless a target is "auto", "none" or the name of an executor."""
    if target not in (AUTO, NONE, *TARGETS):
        raise InputError(f"--target {target[:40]!r}: is not known; {right_target(target, [AUTO, NONE])}")


def check_writable(folder: Path, target: str = AUTO, option: str = "--out") -> None:
    """Raise InputError if files cannot be written to a library, so that no search is wasted.

    No file remains. An existing index must be readable.

    Args:
        folder: Folder of the library, which need not exist.
        target: Target of the files. In a library that exists, the folders of this target's files are checked too; for
            "auto", those of all targets.
        option: The option that names the folder, for error messages.
    """
    inner = [SCHEDULES, *(row.folder for row in TARGETS.values() if target in (AUTO, row.name))]
    check_folder(folder, option, dict.fromkeys(inner))
    existing_entries(folder)


def check_folder(folder: Path, option: str, inner: Iterable[str] = ()) -> None:
    """Raise InputError if a folder cannot be made or written, or if a folder in it is a link.

    Folders that are made for the check are removed again.

    Args:
        folder: The folder, which need not exist.
        option: What names the folder, for error messages.
        inner: Names of folders in it that are checked too if they exist.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{option} {folder}: is a file; it must be a folder")
    paths = [folder, *(path for name in inner if os.path.lexists(path := folder / name))]
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
        reason = error.strerror or error
        raise InputError(
            f"{option} {path}: cannot be written ({reason}); it must be a folder you may write to"
        ) from None
    finally:
        with suppress(OSError):  # Another process may have written to a folder, or removed it.
            for parent in missing:
                parent.rmdir()


def progress_line(begun: float) -> Report:
    """Return a function that shows the current attempt and the best algorithm so far on stderr.

    On a terminal it updates one line; in a log it writes a line from time to time. A first text is shown at once. Parts
    of a text with " · " between them are left out where they do not fit the terminal's width.

    Args:
        begun: Time of the command's start, as `time.monotonic` counts.
    """
    log = None if sys.stderr.isatty() else seldom_logger(begun)

    def show(text: str, best: Algorithm | None) -> None:
        """Show a text with the elapsed seconds and the shape of the best algorithm; None if there is none yet."""
        so_far = "" if best is None else f"so far {format_shape(best.steps, best.rounds, best.chunks)}"
        parts = f"{time.monotonic() - begun:5.1f} s  {text}".split(" · ")
        line = joined(
            [*parts, so_far], " · ", terminal_width() - 1
        )  # A second line of a terminal would not be cleared.
        if log is None:
            clear_line()
            sys.stderr.write(line)
            sys.stderr.flush()
        else:
            log(line)

    show("reading the topology", None)
    return show


def clear_progress() -> None:
    """Remove the progress line from stderr; do nothing if that is no terminal."""
    if sys.stderr.isatty():
        clear_line()


def ending(ended: str, begun: float, has_answer: bool = True) -> list[str]:
    """Return the last parts of every report: why the search stopped early, if it did, and the seconds that all took.

    Args:
        ended: Why the search stopped early: "interrupted", "budget" or "".
        begun: Time of the command's start, as `time.monotonic` counts.
        has_answer: Whether the report shows an answer.
    """
    why = {"interrupted": "interrupted", "budget": "the budget ended"}
    return [
        *([why[ended] + (": the best so far" if has_answer else "")] if ended in why else []),
        f"{time.monotonic() - begun:.1f} s",
    ]


def written_until(ended: str, command: SearchCommand) -> float:
    """Return the time of `synth.model.deadline.now` until which files may be made.

    Args:
        ended: Why the search stopped early, as in `SearchResult.stop_reason`: after "interrupted" 0.6 s are left, but
            no more than the rest of the budget; otherwise that rest.
        command: The call of the command, which states the budget.
    """
    end = command.begun + command.budget_s
    return min(end, now() + _STOPPING_S) if ended == "interrupted" else end


def _report(
    command: SearchCommand,
    folder: Path,
    question: Question,
    result: SearchResult,
    *,
    first: Sequence[IndexEntry] = (),
    keep: Callable[[Saved], None] | None = None,
    cached_answer: CachedAnswer | None = None,
) -> None:
    """Write the files of an answer to a library and print its table or JSON; keep it in the cache if it is whole.

    Args:
        command: The call of the command.
        folder: Folder of the files.
        question: The question.
        result: The search result.
        first: What `_write_first` returned.
        keep: Function that keeps the answer in the cache; None if it is not to be kept. It is not called if a part of
            synth failed, after an interruption, or if the budget ended before a program was written.
        cached_answer: The answer, if it comes from the cache.

    Raises:
        SystemExit: With 130 after an interruption, with 1 without an algorithm, with 3 if a named target has no file.
        InputError: The files cannot be written.
    """
    if sys.stderr.isatty():
        clear_line()
        sys.stderr.write("checking and writing")
        sys.stderr.flush()
    with collected() as defects:
        written = save(
            result,
            folder,
            question.settings,
            proof=command.proof,
            anew=command.replace,
            until=written_until(result.stop_reason, command),
            other_result=None if cached_answer is None else cached_answer.other_form,
            # Where Ctrl-C cut the search short, the first files stay where they are no slower.
            first=() if result.stop_reason == "interrupted" else first,
        )
        clear_progress()
        document = search_document(written)
    defects.update((defect.line, defect) for defect in result.defects)
    say_defects(defects.values(), "its answers are missing")
    document |= {"defects": list(defects), "cached": cached_answer is not None}
    # Where the budget ended before a file, as on a busy machine, the same question may get one later. So it may get a
    # better answer where the budget ended while loops were compiled.
    is_late = LATE.partition(";")[0] in written.refused or (bool(first) and written.index is None)
    is_late = is_late or (bool(result.stop_reason) and is_first_run())
    is_whole = result.stop_reason != "interrupted" and not is_late
    if keep is not None and not defects and is_whole:
        keep(written)
    if command.libraries == "source":
        document = with_source_times(document)
    if command.as_json:
        print_json("search", document)
    else:
        nranks, width = result.problem.topology.nranks, None if command.wide else terminal_width()
        if result.ranges:
            click.echo(table(document, nranks, width, command.details))
        else:
            say([heading(document, nranks), "", _why_nothing(result, question.options)], width)
        cached = [] if cached_answer is None else [_of_cache(result, command)]
        outlook = [format_next_minute(document["next_minute"], result.stop_reason)] if result.ranges else []
        say(["", *_closing(result, written, command.begun, width, cached, command.budget_s), *outlook], width)
    if result.stop_reason == "interrupted":
        raise SystemExit(130)
    if not result.ranges:
        raise SystemExit(1)
    lacks_files = any(row["refused"] for row in written.rows)
    if lacks_files and (missing := written.refused or written.left) and question.settings.name != AUTO:
        warn(f"warning: --target {question.settings.name}: no file: {missing}")
        raise SystemExit(3)


def _of_cache(result: SearchResult, command: SearchCommand) -> str:
    """Return that an answer comes from the cache, how long its search took, and how to search on if its budget ended.

    Args:
        result: The answer.
        command: The call of the command, which states the budget.
    """
    search = f"from the cache; the search took {result.seconds:.1f} s"
    if not result.stop_reason:
        return search
    longer = format_seconds(2 * command.budget_s)  # Twice the budget is in another class of the cache's key.
    return f"{search} and ended with its budget: --budget {longer} searches longer, --cache none again"


def _why_nothing(result: SearchResult, options: Options) -> str:
    """Return a sentence on why a search has no algorithm, with advice on options where these can help."""
    if result.impossible or result.stop_reason == "interrupted":
        return result.impossible or "interrupted before an algorithm was found"
    if result.stop_reason:
        return f"no algorithm was found within the budget of {options.budget_s:g} s; a larger --budget may help"
    shape = options.shape
    by_engine = "" if options.engine == ANY_ENGINE else f" by --engine {options.engine}"
    advice = " or ".join([*(["another shape"] if shape else []), *(["another --engine"] if by_engine else [])])
    return (
        f"no algorithm was found{by_engine}{shape and f' with {shape}'}: the engines ended before the budget,"
        f" and nothing is proved{advice and f'; {advice} may help'}"
    )


def _late_in_other_form(written: Saved) -> list[str]:
    """Return a line if the other form of calls has no file of the algorithm for the largest messages; otherwise [].

    The line states why. It is left out if the other form's own algorithm for the largest messages is the same, or if
    these are left to a vendor library.
    """
    if written.other_form is None or not written.other_form.result.ranges or not written.result.ranges:
        return []
    if written.other_form.rows and written.other_form.rows[-1]["kept"]:  # The library's own file serves them.
        return []
    own, other_offer = (form.result.ranges[-1] for form in (written, written.other_form))
    late = next((o for o in written.other_form.result.refused if o.algorithm is own.algorithm and o.refused), None)
    if late is None or other_offer.algorithm is own.algorithm or own.library:
        return []
    form = "out of place" if forms(written.result.problem)[0] else "in place"
    # The other form has only the end of the budget, which the reason counts from.
    reason, is_late, _ = late.refused.partition("; try --budget")
    advice = "; try a longer --budget" if is_late else ""
    size = format_short_size(own.shown)
    return [f"{form}, the algorithm that serves {size} in the other form has no file: {reason}{advice}"]


def _closing(
    result: SearchResult,
    written: Saved,
    begun: float,
    width: int | None,
    remarks: Sequence[str] = (),
    budget_s: float | None = None,
) -> list[str]:
    """Return the last lines of a report: the number of algorithms and the seconds, then paths of files and remarks.

    Args:
        result: The search result.
        written: The answer as it was written.
        begun: Time of the command's start, as `time.monotonic` counts.
        width: Most characters of a line of paths; None for any number.
        remarks: Texts for the first line, after the number of algorithms.
        budget_s: The budget in seconds, of which the line says how much the files did not need; None for no word.
    """
    own = sum(row["sends"] is not None for row in written.rows)  # The other rows are left to vendor libraries.
    has_answer = bool(result.ranges)
    parts = [f"{format_count(own, 'algorithm')}, replayed and right" if own else "no file"] if has_answer else []
    ended = "" if remarks else result.stop_reason  # Remarks on the cache say whether its search ended early.
    unused_s = 0.0 if budget_s is None or ended != "budget" else budget_s - (time.monotonic() - begun)
    kept = [f"of {format_seconds(budget_s)}, {unused_s:.1f} s were kept for files"] if budget_s and unused_s > 1 else []
    lines = [", ".join(["   ".join([*parts, *remarks, *ending(ended, begun, has_answer)]), *kept])]
    lines += path_lines(written.paths, width)
    kept_paths = [] if written.index is None else written.kept_paths
    if kept_paths:
        lines += ["kept, since the new ones are no faster there:", *path_lines(kept_paths, width)]
    lines += _late_in_other_form(written)
    if written.padding:
        lines.append(f"blocks are padded to whole chunks, {written.padding:.2%} of the fullest buffer")
    return lines + list(written.remarks)
