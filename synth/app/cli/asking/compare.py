"""The comparison of engines and vendor libraries, each with a row of one table.

Each engine searches the question by itself. A vendor library's time is that of its own choice, by its model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import click

from synth.app.cli.asking.answer import check_single, clear_progress, progress_line, with_pattern
from synth.app.cli.options import SearchCommand, print_json
from synth.app.present.layout import Column, fitted, terminal_width, wrapped
from synth.app.present.table import heading
from synth.app.question import make_question
from synth.app.synthesis import find_answer
from synth.baselines.nccl.model import LibraryChoice
from synth.baselines.vendors import LIBRARIES
from synth.engines.registry import AUTO as ANY_ENGINE
from synth.engines.registry import engines_named
from synth.model.deadline import now
from synth.model.sizes import size_in_bytes
from synth.model.text import format_gap, format_short_size, format_time
from synth.search.result import SearchResult
from synth.search.settings import AUTO, NONE
from synth.search.statement import described_question
from synth.solvers.workers import Workers
from topologies.errors import InputError, NotModelled

_SIZES = tuple(1 << exponent for exponent in (10, 15, 20, 25, 30))  # Bytes; for questions of all sizes.


def compare(command: SearchCommand, workers: Workers) -> Callable[[], None]:
    """Search a question once for each engine of `--compare`, each with an equal share of the budget; write no files.

    If `--compare` names vendor libraries only, they are compared with the engine "auto".

    Args:
        command: The call of the command.
        workers: Solver processes.

    Returns:
        A function that prints the comparison.

    Raises:
        InputError: An option cannot be right, or no engine takes the question.
        KeyboardInterrupt: Ctrl-C came before any engine had an answer.
    """
    if command.groups is not None:
        raise InputError("--compare: does not go with --groups; it compares searches for one group")
    chooses_target = command.question.target not in (AUTO, NONE)
    for option, is_given in {
        "--target": chooses_target, "--out": command.out, "--proof": command.proof, "--replace": command.replace,
    }.items():  # fmt: skip
        if is_given:
            raise InputError(f"{option}: does not go with --compare, which compares schedules and writes no files")
    check_single(command)
    if command.question.engine != ANY_ENGINE:
        raise InputError("--engine: cannot be used with --compare, which names the engines; leave it out")
    names = _named(str(command.compare))
    engines = [name for name in names if name not in LIBRARIES]
    progress = progress_line(command.begun)
    stated = with_pattern(command)
    share_s, results, refused = command.budget_s / len(engines), dict[str, SearchResult](), dict[str, str]()
    for name in engines:
        arguments = dataclasses.replace(stated, engine=name, budget=share_s, begun=now())
        try:
            question = dataclasses.replace(make_question(arguments), healthy=None)
            results[name] = find_answer(question, workers, progress)
        except InputError as error:  # An engine need not take every question.
            refused[name] = str(error)
            continue
        except KeyboardInterrupt:  # The engines before it have answers.
            if not results:
                raise
            refused[name] = "interrupted"
            break
        if results[name].stop_reason == "interrupted":
            break
    if not results:
        raise InputError(next(iter(refused.values())))
    return partial(_report, command, names, results, refused)


def _named(text: str) -> list[str]:
    """Return what `--compare` names: engines, and vendor libraries as `LIBRARIES` writes them; at least one engine.

    Args:
        text: Names with commas between them. Those of libraries may be in lower case, with "pp" for "++".

    Raises:
        InputError: A name is unknown, or there twice.
    """
    libraries = {name.casefold().replace("++", "pp"): name for name in LIBRARIES}
    words = [word.strip() for word in text.split(",")]
    names = [libraries.get(word.casefold().replace("++", "pp"), word) for word in words]
    for name in names:
        if name not in LIBRARIES:
            try:
                engines_named(name)
            except InputError as error:
                reason = str(error).removeprefix("engine: ")
                raise InputError(f"--compare: {reason}; libraries: {', '.join(LIBRARIES)}") from None
    if len(set(names)) < len(names):
        raise InputError(f"--compare {text}: names an engine or a library twice; name each once")
    return names if any(name not in LIBRARIES for name in names) else [ANY_ENGINE, *names]


def _report(
    command: SearchCommand, names: Sequence[str], results: dict[str, SearchResult], refused: dict[str, str]
) -> None:
    """Print one row for each engine or library, the best bound of all searches, and why some have no row.

    It is printed as a table or as JSON.

    Args:
        command: The call of the command.
        names: Engines and libraries in the order of their rows.
        results: The search results by engine; at least one.
        refused: Why engines have no result, by name; engines that proved that there is no schedule are added, and
            libraries whose models do not cover the question.

    Raises:
        SystemExit: With 130 after an interruption, with 1 if no engine has an algorithm.
    """
    clear_progress()
    refused |= {name: result.impossible for name, result in results.items() if result.impossible}
    first = next(iter(results.values()))
    size = command.question.size
    sizes = _SIZES if size is None else (size_in_bytes(size, "--size"),)
    bounds_us = {size: max(result.bound.at(size)[0] for result in results.values()) for size in sizes}
    rows = []
    for name in names:
        if name in results:
            rows.append(_row(name, results[name], bounds_us))
        elif name in LIBRARIES:
            choices = {size: first.library(name, size) for size in sizes}
            why = next((str(choice) for choice in choices.values() if not isinstance(choice, LibraryChoice)), "")
            refused |= {name: why} if why else {}
            rows += [] if why else [_library_row(name, choices, bounds_us, command.libraries == "source")]
    if command.as_json:
        sized = [{"bytes": size, "bound_us": bound_us} for size, bound_us in bounds_us.items()]
        name = first.problem.collective.name
        print_json("compare", {"collective": name, "bounds": sized, "engines": rows, "refused": refused})
    else:
        nranks, width = first.problem.topology.nranks, None if command.wide else terminal_width()
        lines, _ = fitted(_columns(rows, bounds_us, len(bounds_us) == 1 or command.wide), width)
        title = wrapped([heading(described_question(first.problem), nranks)], width)
        remarks = [*(f"{name}: {why}" for name, why in refused.items()), *_remarks(rows, results)]
        click.echo("\n".join([*title, "", *lines, *([""] if remarks else []), *wrapped(remarks, width)]))
    if "interrupted" in (*refused.values(), *(result.stop_reason for result in results.values())):
        raise SystemExit(130)
    if not any(result.ranges for result in results.values()):
        raise SystemExit(1)


def _row(name: str, result: SearchResult, bounds_us: dict[int, float]) -> dict[str, Any]:
    """Return the row of an engine as a JSON object.

    Args:
        name: Name of the engine.
        result: Its search result.
        bounds_us: The best bound in µs by size in bytes.

    Returns:
        A dictionary: "engine" (the name); "found", a list with bytes, time_us, gap (time / best bound, at least 1) and
        engine for each size, which is empty if there is no algorithm; "ended" ("" or why the search stopped early); and
        "seconds".
    """
    answers = []
    for size, bound_us in bounds_us.items():
        if not result.ranges:
            break
        fastest = result.fastest(size)
        answers.append(
            {
                "bytes": size,
                "time_us": fastest.time_us(size),
                "gap": max(1.0, fastest.time_us(size) / bound_us),
                "engine": fastest.library or fastest.algorithm.engine,
            }
        )
    return {"engine": name, "found": answers, "ended": result.stop_reason, "seconds": round(result.seconds, 3)}


def _library_row(
    name: str, choices: Mapping[int, LibraryChoice | NotModelled], bounds_us: dict[int, float], by_source: bool
) -> dict[str, Any]:
    """Return the row of a vendor library as `_row` returns that of an engine; its algorithms stand for engines.

    Args:
        name: Name of the library.
        choices: What the library would run, by size in bytes.
        bounds_us: The best bound in µs by size in bytes.
        by_source: Whether times are by the cost model in the library's source, where that is known.
    """
    answers = []
    for size, choice in choices.items():
        if isinstance(choice, LibraryChoice):
            time_us = (by_source and choice.source_us) or choice.time_us
            gap = max(1.0, time_us / bounds_us[size])
            source = f"{choice.algorithm} {choice.protocol}"
            answers.append({"bytes": size, "time_us": time_us, "gap": gap, "engine": source})
    return {"engine": name, "found": answers, "ended": "", "seconds": 0.0}


def _remarks(rows: list[dict[str, Any]], results: dict[str, SearchResult]) -> list[str]:
    """Return a line for each row whose times are not an engine's own: a library's, or those of other engines.

    Args:
        rows: The rows of engines and libraries.
        results: The search results by engine.
    """
    remarks = []
    for row in rows:
        name, sources = row["engine"], list(dict.fromkeys(answer["engine"] for answer in row["found"]))
        if name in LIBRARIES:
            library = LIBRARIES[name]
            remarks.append(f"{name}: what {name} {library.version} would run by its own choice ({', '.join(sources)})")
        elif others := [source for source in sources if source in results[name].other_engines]:
            where = "" if len(others) == len(sources) else " at some sizes"
            remarks.append(f"{name}: found nothing faster{where} than what {', '.join(others)} had found before")
    return remarks


def _columns(rows: list[dict[str, Any]], bounds_us: dict[int, float], with_gaps: bool) -> list[Column]:
    """Return the columns of the comparison; the last row is the bound.

    They are the engine, its time and maybe gap at each size, what has the times, and the seconds of the search.

    Args:
        rows: Row of each engine or library.
        bounds_us: The best bound in µs by size in bytes.
        with_gaps: Whether a column with the gap follows each time.
    """
    columns = [Column("engine", [*(row["engine"] for row in rows), "bound"], left=True)]
    for i, (size, bound_us) in enumerate(bounds_us.items()):
        cells = [format_time(row["found"][i]["time_us"]) if row["found"] else "–" for row in rows]
        columns.append(Column(f"@ {format_short_size(size)}", [*cells, format_time(bound_us)]))
        if with_gaps:
            gaps = [_gap(row, i, bound_us) for row in rows]
            columns.append(Column("gap", [*gaps, ""]))
    by = [", ".join(dict.fromkeys(answer["engine"] for answer in row["found"])) or "nothing" for row in rows]
    columns.append(Column("found by", [*by, ""], 2, left=True))
    seconds = ["–" if row["engine"] in LIBRARIES else f"{row['seconds']:.1f} s" for row in rows]
    columns.append(Column("search", [*seconds, ""], 1))
    return columns


def _gap(row: dict[str, Any], i: int, bound_us: float) -> str:
    """Return the gap of a row at the i-th size as text; "–" for none, and where a library's model counts less."""
    if not row["found"] or (row["engine"] in LIBRARIES and row["found"][i]["time_us"] < bound_us):
        return "–"
    return format_gap(row["found"][i]["gap"])
