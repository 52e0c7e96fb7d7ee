"""What a library lacks, in words: sizes and forms of calls without files; and the failures that it has answers for."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import click

from emit.library.entry import IndexEntry
from emit.library.overlay import FAULTS, failures_in
from emit.targets import TARGETS
from synth.app.clusters.placing import recorded_shares, why_no_file
from synth.app.present.layout import say_fitted
from synth.model.problem import LARGEST, SMALLEST
from synth.model.registry import COLLECTIVE_KINDS
from synth.model.text import format_served, format_size, format_spans

NO_FILE = "no file"  # The predicted time of sizes that are left to the executor.
_SHOWN_QUESTIONS = 6  # questions or failures that a line names


def unserved_ranges(entries: Sequence[IndexEntry], low: int, high: int | None) -> list[tuple[int, int | None]]:
    """Return the ranges of sizes in bytes, (first, last), that no entry serves; last is None where there is no end.

    Sizes above the largest of a question do not count, nor do ranges whose ends are the same as people read them. There
    are none if each entry serves one size, because nobody asked for the others.

    Args:
        entries: All entries of one question and form of calls, with ascending sizes.
        low: The smallest size that was asked for.
        high: The largest size that was asked for, inclusive; None for all sizes.
    """
    ranges, begin = list[tuple[int, int | None]](), low
    if all(format_size(entry.min_bytes) == format_size(entry.last_bytes) for entry in entries):
        return ranges
    for entry in entries:
        if format_size(begin) != format_size(entry.min_bytes) and begin < entry.min_bytes > SMALLEST:
            ranges.append((begin, entry.min_bytes - 1))
        begin = max(begin, entry.last_bytes + 1)
    return ranges + ([(begin, high)] if begin <= (LARGEST if high is None else high) else [])


def say_why_no_file(entries: Sequence[IndexEntry]) -> None:
    """Print why ranges of sizes have no file where a build's record says it, a line for each reason; maybe nothing.

    Args:
        entries: The entries of one library, sorted.
    """
    ranges: dict[str, list[str]] = {}
    shares = recorded_shares(entries[0].folder) if entries else []
    for _, same in groupby(entries, lambda entry: entry.question_and_form):
        same_entries = list(same)
        for low, high in unserved_ranges(same_entries, *(same_entries[0].asked or (0, None))):
            if why := why_no_file(shares, same_entries[0], low, high):
                question = f"{same_entries[0].collective} of {format_spans(same_entries[0].group)}"
                ranges.setdefault(why, []).append(f"{question}, {format_served(low, high)}")
    if ranges:
        click.echo()
    for why, served in ranges.items():
        say_fitted(f"{NO_FILE} ({'; '.join(dict.fromkeys(served))}): {why}")


def say_missing_forms(entries: Sequence[IndexEntry]) -> None:
    """Print which questions have files for one form of calls only, in or out of place, though they have two forms.

    Args:
        entries: The entries of one library, sorted.
    """
    entries_of: dict[tuple[object, ...], list[IndexEntry]] = {}
    for entry in entries:
        entries_of.setdefault((entry.question, entry.target), []).append(entry)
    questions: dict[str, list[str]] = {}
    for first, *others in entries_of.values():
        if _has_two_forms(first) and all(other.inplace == first.inplace for other in others):
            title = f"{first.collective} of {format_spans(first.group)}"
            questions.setdefault("out of place" if first.inplace else "in place", []).append(title)
    for form, titles in questions.items():
        click.echo()
        say_fitted(
            f"no file for calls {form} ({_first_of(titles)}): none could be made, or the time ran out before"
            " it was checked; the same command with a longer budget may add them"
        )


def say_failures(folder: str) -> None:
    """Print for which failures a library has answers too, and in which folders; nothing if there are none."""
    failures = failures_in(folder)
    if failures:
        names = [f"{','.join(fault.without)} in {FAULTS}/{path.name}" for path, fault in failures.items()]
        say_fitted(f"answers for failures: {_first_of(names)}; synth library show {next(iter(failures))}")


def _has_two_forms(entry: IndexEntry) -> bool:
    """Return whether a search makes files for calls in place and out of place where it made an entry's file."""
    kind, only_outofplace = COLLECTIVE_KINDS.get(entry.collective), TARGETS[entry.target].only_outofplace
    is_whole = kind is not None and bool(kind.whole) and entry.collective not in only_outofplace
    # The goal of a program without a name has one form, and a program that was written by hand has no engine.
    return is_whole and entry.stated_goal is None and bool(entry.row.get("engine"))


def _first_of(titles: Sequence[str]) -> str:
    """Return the first texts of a list with semicolons between them, and how many more there are."""
    more = len(titles) - _SHOWN_QUESTIONS
    return "; ".join([*titles[:_SHOWN_QUESTIONS], *([f"and {more} more"] if more > 0 else [])])
