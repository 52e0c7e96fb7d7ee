"""The tables that people read, made from the statement of a search or of concurrent groups, which is plain data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from synth.app.present.layout import Column, fitted, wrapped
from synth.baselines.nccl.communicator import UNSAID
from synth.bounds.prove import OPTIMAL
from synth.model.sizes import parse_size
from synth.model.text import (
    BRACKETS,
    FITTED,
    RANGES,
    format_comparison,
    format_count,
    format_gap,
    format_ranks,
    format_served,
    format_short_size,
    format_size,
    format_table,
    format_time,
)
from synth.search.result import LEFT_OUT
from synth.search.statement import is_below_bound

_LINES = 32  # groups that a table lists
_NEXT = 2  # engines that the last line names
_ROUNDED_FROM = 1024  # bytes from which sizes are rounded
_SAME_TIME = 1.005  # ratio up to which both forms of a call take as long
_FILES = {"file": "file", "schedule": "schedule", "proof_file": "proof"}


Row = TypeVar("Row")


def heading(document: dict[str, Any], nranks: int) -> str:
    """Return the heading of a search's table: `allreduce · dgx1 · group 0 2 4 6 (4 of 8 V100, α 0.7 µs, root 0)`.

    The group is `all 8 ranks` if it is all ranks in ascending order. Many ranks are abbreviated (`format_ranks`). Root
    and relays are named only if there are any. A topology without a summary is described by its number of ranks. If a
    summary does not begin with that number, a part of the ranks is "4 of 32 ranks: " and the summary.

    Args:
        document: The statement of the search (`synth.search.statement.statement`).
        nranks: Number of ranks of the topology.
    """
    group = document["group"]
    whole = group == list(range(nranks))
    members = f"all {nranks} ranks" if whole else f"group {format_ranks(group)}"
    summary = document["summary"] or f"{nranks} ranks"
    ranks = "" if summary.startswith(f"{nranks} ") else f"{nranks} ranks: "
    part = "" if whole else f"{len(group)} of {ranks}"
    extras = [f"{part}{summary}", document["alpha"]]
    if document["root"] is not None:
        extras.append(f"root {document['root']}")
    if document["relays"]:
        extras.append(f"relays {format_ranks(document['relays'])}")
    return f"{document['collective']} · {document['topology']} · {members} ({', '.join(extras)})"


def table(
    document: dict[str, Any],
    nranks: int,
    width: int | None = None,
    details: bool = False,
    more: tuple[str, str] = ("--wide", "; --details shows all of each algorithm"),
) -> str:
    """Return the table of a search as text: the heading, a line for each algorithm, and lines on what is known of them.

    Where rows for calls in place and out of place differ, each form has a title of its own, and so have the rows that
    are the same for both.

    Args:
        document: The statement of the search (`synth.search.statement.statement`).
        nranks: Number of ranks of the topology.
        width: Most characters of a line: only the most important columns that fit are shown. None for all columns, with
            the whole proof of each bound.
        details: Whether all figures of each algorithm follow the table. Then lines on what is proved of shapes are
            added too, as they are if `width` is None.
        more: What also shows the columns that are left out, and a clause on what shows even more. The last line
            consists of both and the names of these columns; it is missing with `details` and if no column is left out.
    """
    rows_of_form = _by_form(document)
    rows = [row for form_rows in rows_of_form.values() for row in form_rows]
    lines, left_out = fitted(_columns(document, rows, width is None), width)
    if len(rows_of_form) > 1:
        numbered = iter(lines[1:])
        lines[1:] = [line for form, own in rows_of_form.items() for line in (f"{form}:", *islice(numbered, len(own)))]
    is_short = width is not None and not details
    remarks = [*_searched(document), *(_without_files(rows) if width is not None else [])]
    has_brackets = details or any("× (" in line for line in lines)
    remarks += [*_compared_with_healthy(document, nranks), *_below_bounds(rows)]
    remarks += [*_libraries(document, left_out if is_short else [], has_brackets)]
    remarks += _proved(document, is_short)
    text = [*wrapped([heading(document, nranks)], width), "", *lines]
    if remarks:
        text += ["", *wrapped(remarks, width)]
    if details:
        for form, form_rows in rows_of_form.items():
            suffix = f", {form}" if len(rows_of_form) > 1 else ""
            text += [line for row in form_rows for line in ("", *_details(row, suffix, width))]
    elif left_out:
        hint = f"{more[0]} also shows {', '.join(left_out)}{more[1]}"
        text += ["", *wrapped([hint], width)]
    return "\n".join(text)


def _columns(document: dict[str, Any], rows: Sequence[dict[str, Any]], wide: bool) -> list[Column]:
    """Return the columns of a search's table with a cell for each row, from left to right.

    They are message size, steps, rounds, chunks, predicted, bound, gap, worst in range, vs baseline, "vs NAME" for each
    library that at least one row is compared with, slowdown (only if a row is compared with the healthy network),
    engine and proof.

    Args:
        document: The statement; its `libraries` give the order of the libraries, its `bounds` the kinds of proofs.
        rows: Rows of algorithms, of one form of calls or of two.
        wide: Whether "proof" has the whole proof instead of a word, and "worst in range" also its time and bound.
    """
    healthy = any(row["vs_healthy"] is not None for row in rows)
    libraries = [name for name in document["libraries"] if any(name in _choices(row) for row in rows)]
    shapes = {name: [_shape(row[name]) for row in rows] for name in ("steps", "rounds", "chunks")}
    times = [f"{format_time(row['time_us'])} @ {format_short_size(row['shown_bytes'])}" for row in rows]
    columns = [
        Column("message size", [format_served(row["min_bytes"], row["max_bytes"]) for row in rows], left=True),
        Column("steps", shapes["steps"], 6),
        Column("rounds", shapes["rounds"], 7),
        Column("chunks", shapes["chunks"], 3),
        Column("predicted", times),
        Column("bound", [_against_bound(row, row)[0] for row in rows]),
        Column("gap", [_against_bound(row, row)[1] for row in rows]),
        Column("worst in range", [_worst(row, wide) for row in rows], 1),
        Column("vs baseline", [_ratio(row["vs_baseline"]) for row in rows], 4),
    ]
    for i, name in enumerate(libraries):
        ratios = [_compared(row, name) for row in rows]
        short = [ratio.partition(" (")[0] for ratio in ratios]
        columns.append(Column(f"vs {name}", ratios, 5 if i else int(healthy), short=short))
    if healthy:
        slowdowns = [_slowdown(row, "{ratio} ({low}–{high})") for row in rows]
        columns.append(Column("slowdown", slowdowns, short=[_slowdown(row, "{low}–{high} ×") for row in rows]))
    columns.append(Column("engine", [row["engine"] or "–" for row in rows], 2, left=True))
    proofs = [_whole_proof(row) if wide else _proof_in_a_word(row, document["bounds"]) for row in rows]
    # A column of importance 0 stands in every table.
    shown = [column for column in columns if not column.importance or set(column.cells) != {"–"}]
    return [*shown, Column("proof", proofs, left=True)]


def _by_form(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of a search by the form of calls: "in place and out of place", "in place", "out of place".

    Rows that are the same for both forms are there once, with the figures and the files of the usual form. They are the
    same if their ranges of sizes and the reasons why they have no file are equal, and their times at most 0.5 % apart.
    If all are, or if only one form is known, the result has one key. Forms without rows are left out.
    """
    usual, other_form = ("in place", "out of place") if document.get("inplace") else ("out of place", "in place")
    rows, other_rows = document["algorithms"], document.get("other_form", [])
    return split_by_form({usual: rows, other_form: other_rows}, _is_same)


def split_by_form(rows_of: Mapping[str, Sequence[Row]], is_same: Callable[[Row, Row], bool]) -> dict[str, list[Row]]:
    """Return the rows that two forms of calls share, then those of the first form only and of the second form only.

    Shared rows are those of the first form, and their key is "FIRST and SECOND". Keys without rows are left out.

    Args:
        rows_of: The rows of both forms, by the form's name.
        is_same: Returns whether a row of the first form and one of the second are the same.
    """
    (first, rows), (second, other_rows) = rows_of.items()
    shared = [row for row in rows if any(is_same(row, other_row) for other_row in other_rows)]
    by_form = {
        f"{first} and {second}": shared,
        first: [row for row in rows if row not in shared],
        second: [other_row for other_row in other_rows if not any(is_same(row, other_row) for row in rows)],
    }
    return {form: form_rows for form, form_rows in by_form.items() if form_rows}


def _is_same(row: dict[str, Any], other_row: dict[str, Any]) -> bool:
    """Return whether rows of two forms of calls have the same range as people read it, refusal, and times 0.5 % apart.

    Times at different sizes are not the same.
    """
    ranges = (
        tuple(None if form_row[end] is None else format_size(form_row[end]) for end in ("min_bytes", "max_bytes"))
        for form_row in (row, other_row)
    )
    if len({*ranges}) > 1 or any(row[key] != other_row[key] for key in ("shown_bytes", "refused")):
        return False
    times_us = row["time_us"], other_row["time_us"]
    return bool(max(times_us) <= _SAME_TIME * min(times_us))


def _against_bound(row: dict[str, Any], figures: dict[str, Any]) -> tuple[str, str]:
    """Return the bound and the gap of a row at a size as texts.

    Both are "–" for a vendor library's own time that is below the bound.

    Args:
        row: The row.
        figures: The row itself, for the size that is shown, or its `worst`.
    """
    if is_below_bound(row, figures):
        return "–", "–"
    return format_time(figures["bound_us"]), format_gap(figures["gap"])


def _shape(number: int | None) -> str:
    """Return a number of steps, rounds or chunks as text; "–" for None."""
    return "–" if number is None else str(number)


def _worst(row: dict[str, Any], wide: bool) -> str:
    """Return the largest gap of a row's range with its size, such as `1.204 @ 64K`; "–" if that size is the one shown.

    Args:
        row: The row.
        wide: Whether the time and the bound at that size follow.
    """
    worst = row["worst"]
    bound, gap = _against_bound(row, worst)
    if worst["bytes"] == row["shown_bytes"]:
        return "–"
    figures = f": {format_time(worst['time_us'])}, bound {bound}" if wide else ""
    return f"{gap} @ {format_short_size(worst['bytes'])}{figures}"


def _proof_in_a_word(row: dict[str, Any], bounds: Sequence[dict[str, Any]]) -> str:
    """Return "optimal", or else the kind of the bound, each with ", no file" if the row's schedule has no file.

    Of a range that is left to a vendor library it is "no file" only.

    Args:
        row: The row.
        bounds: The bounds of the statement. The first whose text ends the row's proof counts; "–" if none does.
    """
    if row["sends"] is None:
        return "no file"
    proof = next((str(bound["kind"]) for bound in bounds if row["proof"].endswith(bound["text"])), "–")
    return ("optimal" if row["optimal"] else proof) + (", no file" if row["refused"] else "")


def _whole_proof(row: dict[str, Any]) -> str:
    """Return what proves a row's bound, then why it has no file if it has none, then `kept` if the library had it."""
    no_file = f" · no file: {row['refused']}" if row["refused"] else ""
    return f"{row['proof']}{no_file}{' · kept' if row.get('kept') else ''}"


def _without_files(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each reason why rows have no file, with the ranges concerned; [] if all rows have files."""
    ranges: dict[str, list[str]] = {}
    for row in rows:
        if row["refused"]:
            ranges.setdefault(row["refused"], []).append(format_served(row["min_bytes"], row["max_bytes"]))
    return [f"no file ({', '.join(dict.fromkeys(served))}): {reason}" for reason, served in ranges.items()]


def _below_bounds(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line for each vendor library whose time in a row is below the bound, in the order of the rows."""
    names = dict.fromkeys(row["engine"] for row in rows if is_below_bound(row, row))
    return [
        f"–: the model of {name}'s time leaves out costs that our bound counts, so that the two cannot be compared"
        for name in names
    ]


def _details(row: dict[str, Any], form: str, width: int | None) -> list[str]:
    """Return the lines on one row: its range and form as a title, then its figures, each indented by two spaces.

    They are its engine and shape, time and gap, bound with the whole proof, worst size, comparisons, and names of its
    files. An unknown engine or gap is "–"; other unknown figures are left out. The title is not wrapped; further lines
    of a figure are indented by four spaces.

    Args:
        row: A row of the search's statement (`algorithms` or `other_form`).
        form: Text that follows the range in the title, such as ", in place"; "" for none.
        width: Most characters of a line; None for one line for each group of figures.
    """
    shape = [format_count(row[name], name[:-1]) for name in ("steps", "rounds", "chunks", "sends") if row[name]]
    parts = [", ".join([f"engine {row['engine'] or '–'}", *shape])]
    gap = _against_bound(row, row)[1]
    parts.append(f"{format_time(row['time_us'])} for {format_size(row['shown_bytes'])}, gap {gap}")
    parts.append(f"bound {format_time(row['bound_us'])}: {_whole_proof(row)}")
    if row["worst"]["bytes"] != row["shown_bytes"]:
        parts.append(f"worst in range: {_worst(row, True)}")
    compared = [] if row["vs_baseline"] is None else [f"vs baseline {_ratio(row['vs_baseline'])}"]
    compared += [] if row["vs_healthy"] is None else [f"slowdown {_slowdown(row, '{ratio} ({low}–{high})')}"]
    for name, choice in _choices(row).items():
        source = f"; {format_time(choice['source_us'])} by its own cost model" if choice["source_us"] else ""
        at_size = {key: value for key, value in choice.items() if key != "vs_range"}
        over = format_comparison(choice, name) if "vs_range" in choice else ""
        over = f", {over} over the row's sizes" if over.endswith(" ×") and "–" in over else ""
        time = f"{format_time(choice['time_us'])}{source}"
        compared.append(f"vs {name} {format_comparison(at_size, name)} ({time}){over}")
    parts += [", ".join(compared)] if compared else []
    parts += [f"{kind}: {row[key]}" for key, kind in _FILES.items() if row.get(key)]
    title = format_served(row["min_bytes"], row["max_bytes"]) + form
    return [title, *wrapped([f"  {part}" for part in parts], width, "    ")]


def format_next_minute(outlook: dict[str, Any], ended: str = "") -> str:
    """Return the last line of a search's output: what the search would do with one minute more, and the largest gap.

    It names at most two engines. The gap is left out if it is unknown or counts as optimal. If nothing remains, the
    line states whether all is optimal or every engine has ended, and then perhaps how to search at the size of the
    largest gap only. If the search ended early although every engine has ended, bounds and programs remain.

    Args:
        outlook: The dictionary `next_minute` of a statement.
        ended: Why the search ended early, as a statement's `ended`; "" if it did not.
    """
    tasks = [f"engine {' then '.join(outlook['engines'][:_NEXT])}"] if outlook["engines"] else []
    if outlook["window_bytes"] is not None:
        tasks.append(f"bounds by windows of time for {format_short_size(outlook['window_bytes'])}")
    if not tasks and ended:
        tasks.append("bounds and programs (every engine has ended)")
    largest_gap = ""
    if outlook["gap"] is not None and outlook["gap"] > OPTIMAL:
        size = format_short_size(outlook["bytes"])
        of_all = "" if outlook["one_size"] else " of all sizes"
        # The last size before a power of two is written as that, which may be another algorithm's.
        is_end = outlook["bytes"] >= _ROUNDED_FROM and outlook["bytes"] & (outlook["bytes"] + 1) == 0
        largest_gap = f" · largest gap{of_all} {format_gap(outlook['gap'])} {'just below' if is_end else 'at'} {size}"
        if not tasks and not outlook["one_size"]:  # Without a pinned size, engines work on a few sizes only.
            is_exact = "." not in size and parse_size(size, "size") == outlook["bytes"]
            exact = size if is_exact else str(outlook["bytes"])
            largest_gap += f" (--size {exact} searches there only)"
    # Without a gap, all rows are vendor libraries' own, below our bounds.
    is_optimal = outlook["gap"] is not None and not largest_gap
    nothing = "nothing, all is proved optimal" if is_optimal else "nothing, every engine has ended"
    return f"next minute: {' and '.join(tasks) or nothing}{largest_gap}"


def _ratio(value: float | None) -> str:
    """Return a ratio as text, such as `1.41 ×`; "–" for None."""
    return "–" if value is None else f"{value:.2f} ×"


def _slowdown(row: dict[str, Any], form: str) -> str:
    """Return how a row's time compares with the healthy network; "–" if it does not.

    Args:
        row: The row.
        form: The text if the range of the optimal times' ratio does not round to one number, with ratio, low and high.
    """
    ratio = _ratio(row["vs_healthy"])
    low, high = (f"{end:.2f}" for end in row.get("vs_healthy_range") or (0.0, 0.0))  # Older libraries state no range.
    return ratio if low == high else form.format(ratio=ratio, low=low, high=high)


def _compared_with_healthy(document: dict[str, Any], nranks: int) -> list[str]:
    """Return a line on the column slowdown: with which ranks times are compared, and what a range says; [] without it.

    Args:
        document: The statement.
        nranks: Number of ranks of the topology.
    """
    rows = [row for row in document["algorithms"] if row["vs_healthy"] is not None]
    if not rows:
        return []
    group = document["healthy"]["group"]
    ranks = "the same ranks" if group == document["group"] else f"all {nranks} ranks"
    line = f"slowdown: the time / that of {ranks} on the healthy network"
    if all(_slowdown(row, "") for row in rows):
        return [line]
    return [f"{line}; that of optimal times is in the range, which a longer --budget may narrow"]


def _choices(row: dict[str, Any]) -> dict[str, Any]:
    """Return what libraries would run in place of a row's file, by their names; {} if its schedule has no file."""
    can_run = row["sends"] is None or not row["refused"]
    return row["libraries"] if can_run else {}


def _compared(row: dict[str, Any], name: str) -> str:
    """Return how a library's time compares with a row's, as `format_comparison` does.

    It is "–" if the library is not among the row's choices, or if the row's range is left to this library.
    """
    is_its_own = row["sends"] is None and row["engine"] == name
    return format_comparison(None if is_its_own else _choices(row).get(name), name)


def _libraries(document: dict[str, Any], left_out: Sequence[str], has_brackets: bool) -> list[str]:
    """Return a line for each library that a row is compared with: what it would run, and where its times come from.

    Args:
        document: The statement.
        left_out: Titles of the columns that are not shown. Libraries of these columns get no line.
        has_brackets: Whether the table shows intervals of comparisons, in brackets.
    """
    lines = []
    for name, library in document["libraries"].items():
        if f"vs {name}" in left_out:
            continue
        sizes_of_choice: dict[str, list[str]] = {}
        for row in document["algorithms"]:
            if name in _choices(row):
                choice = _choices(row)[name]
                sizes_of_choice.setdefault(f"{choice['algorithm']} {choice['protocol']}", []).append(
                    format_short_size(row["shown_bytes"])
                )
        if not sizes_of_choice:
            if library["own_clock"] and any(why in library["not_modelled"] for why in (UNSAID, LEFT_OUT)):
                lines.append(f"no vs {name}: {library['not_modelled']}")
            continue
        choices = ", ".join(f"{word} @ {', '.join(dict.fromkeys(sizes))}" for word, sizes in sizes_of_choice.items())
        source = "its own cost model" if library["own_clock"] else "the model of the times above"
        if any(_choices(row).get(name, {}).get("vs_low") for row in document["algorithms"]):
            has_ranges = any(_compared(row, name).endswith(" ×") for row in document["algorithms"])
            source = FITTED + BRACKETS * has_brackets + RANGES * has_ranges
        lines.append(f"vs {name}: what {name} {library['version']} would run ({choices}), timed by {source}")
    return lines


def _searched(document: dict[str, Any]) -> list[str]:
    """Return lines on engines of the algorithms other than the named one, and on what switches do besides forwarding.

    There are at most two lines; [] if no other engine is shown and no switch can multicast or reduce.
    """
    lines, rows, other_engines = [], document["algorithms"], document["other_engines"]
    if other_engines:
        is_shown = any(row["engine"] not in other_engines for row in rows)
        reason = "found nothing clearly faster at some sizes" if is_shown else "found nothing faster"
        engines = ", ".join(other_engines)
        lines.append(f"--engine {document['engine']} {reason}; engines of the algorithms shown: {engines}")
    switches = document["switch_ops"]
    if document["unsaid"]:
        lines.append(f"{document['unsaid']}; algorithms and bounds are for switches that only forward")
    elif switches:
        names = ", ".join(switches[:4]) + (" …" if len(switches) > 4 else "")
        used = sum(row["switch_ops"] for row in rows)
        does = f"in {used} of {format_count(len(rows), 'algorithm')}" if used else "in no algorithm"
        lines.append(
            f"{names} may multicast and reduce, as the bounds assume; sums or multicasts in switches are used {does}"
            " (--no-switch-ops: neither use nor assume them)"
        )
    return lines


def _proved(document: dict[str, Any], is_short: bool) -> list[str]:
    """Return lines on proved shapes, then on faster schedules without a file, then on the dual bounds of time slots.

    Args:
        document: The statement.
        is_short: Whether to leave out all but the faster schedules.
    """
    lines = []
    for claim in document["k_synchronous"] if not is_short else ():
        if not claim["proved"] or claim["rounds"] is None:
            continue
        part = f" ({claim['part']})" if claim["part"] else ""
        rounds, chunks = format_count(claim["rounds"], "round"), format_count(claim["chunks"], "chunk")
        steps = format_count(claim["steps"], "step")
        lines.append(f"k-synchronous{part}: {rounds} / {chunks} is the least in {steps} {claim['proof']}")
    for schedule in document["out_of_reach"]:
        chunks, size = format_count(schedule["chunks"], "chunk"), format_size(schedule["bytes"])
        lines.append(
            f"a schedule of {chunks} takes {format_time(schedule['time_us'])} for {size}"
            f" (gap {format_gap(schedule['gap'])}), but has no file: {schedule['refused']}"
        )
    for claim in document["time_slots"] if not is_short else ():
        chunks, size = format_count(claim["chunks"], "chunk"), format_size(claim["bytes"])
        lines.append(
            f"time slots: with {chunks} a block no schedule of {size} takes less than"
            f" {format_time(claim['bound_us'])}, by {claim['solver']}'s dual bound"
        )
    return lines


def concurrent_table(document: dict[str, Any], labels: Sequence[str], nranks: int, width: int | None = None) -> str:
    """Return the table of concurrent groups as text: heading, a line for each group, and lines that compare the plans.

    Of more than 32 groups only the first 30 and the last are listed, and a line states how many others there are.

    Args:
        document: The statement of `synth.concurrent.result.statement`.
        labels: Name of each group, in the order of the statement.
        nranks: Number of ranks of the topology.
        width: Most characters of a line of text; None for any number. The lines of the groups have any length.
    """
    lines = [("group", "collective", "size", "together", "alone", "slowdown", "bound alone")]
    groups = document["groups"]
    for i, (label, group) in enumerate(zip(labels, groups, strict=True)):
        if len(groups) > _LINES and _LINES - 2 <= i < len(groups) - 1:
            continue
        lines.append(
            (
                label,
                group["collective"],
                format_size(math.ceil(group["size_bytes"])),
                format_time(group["time_us"]),
                format_time(group["alone_us"]),
                f"{group['slowdown']:.2f} ×",
                format_time(group["alone_bound_us"]),
            )
        )
    text = [*wrapped([_concurrent_heading(document, nranks)], width), "", *format_table(lines, (0, 1))]
    if len(groups) > _LINES:
        text.insert(-1, f"… {len(groups) - _LINES + 1} more …")
    return "\n".join([*text, "", *wrapped(_concurrent_closing(document, labels), width)])


def _concurrent_heading(document: dict[str, Any], nranks: int) -> str:
    """Return the heading, such as `8 groups · mesh:8x8 · 64 of 64 ranks (8x8 mesh, α 0.7 µs assumed) · relay all`."""
    groups = document["groups"]
    ranks = len({rank for group in groups for rank in group["ranks"]})
    about = ", ".join(part for part in (document["summary"], document["alpha"]) if part)
    return (
        f"{format_count(len(groups), 'group')} · {document['topology']} · {ranks} of {nranks} ranks ({about})"
        f" · relay {document['relay']}"
    )


def _concurrent_closing(document: dict[str, Any], labels: Sequence[str]) -> list[str]:
    """Return lines that compare the chosen plan with the others, the fastest first, and a line on the largest slowdown.

    The first line has the chosen plan's makespan, method, bound and gap; the second the groups one after another.

    Args:
        document: The statement of `synth.concurrent.result.statement`.
        labels: Name of each group.
    """
    makespan, group, fair = document["time_us"], document["proved_by"], document["objective"] == "fair"
    proof = document["proof"] if group is None else f"group {labels[group]} alone: {document['proof']}"
    best = ", optimal" if document["optimal"] else ""
    bound = f"{document['by']} ({document['engine']}); bound {format_time(document['bound_us'])} ({proof})"
    rows = [
        ("all groups", makespan, f"{bound}, gap {format_gap(max(1.0, document['gap']))}{best}"),
        ("alone, in sum", document["sum_us"], f"{document['vs_sum']:.2f} × as long"),
    ]
    plans = {name: (plan["time_us"], plan["slowdown"]) for name, plan in document["plans"].items()}
    # The other plans are schedules: a program of the chosen plan takes longer than its schedule, as theirs would.
    schedule_us = plans.get(document["by"], (makespan, 1.0))[0]
    is_program = makespan > _SAME_TIME * schedule_us
    compared_us, as_schedules = (schedule_us, "as schedules ") if is_program else (makespan, "")
    for name, (plan_us, slowdown) in sorted(plans.items(), key=lambda item: item[1]):
        if name != document["by"]:
            note = f", slowdown {slowdown:.2f} ×" if fair else ""
            rows.append((name, plan_us, f"{as_schedules}{plan_us / compared_us:.2f} × as long{note}"))
    width = max(len(name) for name, _, _ in rows)
    lines = [f"{name.ljust(width)}  {format_time(plan_us).rjust(8)}  {about}" for name, plan_us, about in rows]
    slowdowns = [row["slowdown"] for row in document["groups"]]
    slowest = slowdowns.index(max(slowdowns))
    chosen = ", the smallest of all plans" if fair else ""
    lines.append(f"largest slowdown {slowdowns[slowest]:.2f} ×, group {labels[slowest]}{chosen}")
    return lines
