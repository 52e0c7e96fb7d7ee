"""Columns and texts that fit a width: columns by their importance, texts broken between words."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

import click

from synth.model.text import format_table

_UNIT = re.compile(r"(\d) ((?:s|ms|µs|B|KiB|MiB|GiB|GB/s|×)(?![\w/]))")
LEAST_WIDTH = 80  # columns of a terminal; also the width of what is piped or written to a file


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: The title.
        cells: The cells, one a row.
        importance: 0 for a column that is always shown; of the others, those with smaller numbers are shown first.
        left: Whether cells are flush left.
        short: Shorter cells, for where the columns that are always shown do not fit; empty if there are none.
    """

    title: str
    cells: Sequence[str]
    importance: int = 0
    left: bool = False
    short: Sequence[str] = ()


def terminal_width() -> int:
    """Return the width of the terminal in characters, or what COLUMNS states; at least 80, as for pipes and files."""
    return max(LEAST_WIDTH, shutil.get_terminal_size((LEAST_WIDTH, 24)).columns)


def fitted(columns: Sequence[Column], width: int | None) -> tuple[list[str], list[str]]:
    """Return the lines of a table, the titles first, and the titles of the columns for which there is no room.

    Columns keep their order. They are taken by importance until one does not fit; it and those after it are left out.
    Where those that are always shown do not fit, columns have their short cells, and so has one that fits only so.

    Args:
        columns: The columns from left to right, all with equally many cells.
        width: Most characters of a line; None for any number. Columns of importance 0 are shown in any case.
    """
    shown = [column for column in columns if not column.importance]
    has_short = any(column.short for column in columns)
    if has_short and width is not None and len(max(_lines(shown), key=len)) > width:
        return fitted([replace(column, cells=column.short or column.cells, short=()) for column in columns], width)
    for column in sorted((c for c in columns if c.importance), key=lambda c: c.importance):
        wider = [c for c in columns if c in shown or c is column]
        if width is not None and len(max(_lines(wider), key=len)) > width and column.short:
            brief = replace(column, cells=column.short, short=())
            columns = [brief if c is column else c for c in columns]
            wider = [brief if c is column else c for c in wider]
        if width is not None and len(max(_lines(wider), key=len)) > width:
            break
        shown = wider
    return _lines(shown), [column.title for column in columns if column not in shown]


def _lines(columns: Sequence[Column]) -> list[str]:
    """Return the titles and rows of columns as aligned lines."""
    rows = list(zip(*([column.title, *column.cells] for column in columns), strict=True))
    return format_table(rows, [i for i, column in enumerate(columns) if column.left])


def wrapped(texts: Sequence[str], width: int | None, indent: str = "  ") -> list[str]:
    """Return texts as lines of at most `width` characters; words that are longer, such as paths, stay whole.

    A number stays with its unit.

    A text keeps the blanks with which it begins.

    Args:
        texts: The texts, each of which begins on a new line; an empty text is an empty line.
        width: Most characters of a line; None for one line a text.
        indent: What the second line of a text and those after it begin with.
    """
    if width is None:
        return list(texts)
    texts = [_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text) for text in texts]
    wrapper = textwrap.TextWrapper(width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    lines: list[str] = []
    for text in texts:
        words = text.lstrip()
        wrapper.initial_indent = text[: len(text) - len(words)]  # As blanks of the text, a long word would drop them.
        lines += wrapper.wrap(words) or [""]
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def path_lines(paths: Sequence[Path], width: int | None) -> list[str]:
    """Return paths as lines, one file on a line, each indented by two spaces.

    Neighbours in one folder stand by their names under the folder's if a path of them would not fit.

    Args:
        paths: The paths.
        width: Most characters of a line; None for whole paths.
    """
    lines = []
    for folder, group in groupby(paths, lambda path: path.parent):
        members = list(group)
        whole = [f"  {path}" for path in members]
        if width is None or max(map(len, whole)) <= width:
            lines += whole
        else:
            mark = "" if str(folder).endswith("/") else "/"  # A root has it already.
            lines += [f"  {folder}{mark}", *(f"    {path.name}" for path in members)]
    return lines


def say(texts: Sequence[str], width: int | None) -> None:
    """Print texts, each from a new line on, broken between words so that lines have at most `width` characters.

    With a width of None texts are not broken.
    """
    click.echo("\n".join(wrapped(texts, width)))


def say_fitted(*texts: str) -> None:
    """Print texts that fit the terminal, as `say` does; what follows a first line is indented by two more spaces."""
    for text in texts:
        click.echo("\n".join(wrapped([text], terminal_width(), " " * (2 + len(text) - len(text.lstrip())))))


def warn(*texts: str) -> None:
    """Print texts on stderr: broken between words on a terminal, and one line each in files and pipes."""
    width = terminal_width() if sys.stderr.isatty() else None
    click.echo("\n".join(wrapped(texts, width)), err=True)
