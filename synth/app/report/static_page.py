"""Common parts of pages: tiles of figures and tables; of pages without a script also head and style."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from emit.library.entry import IndexEntry
from emit.library.selection.against_vendor import count_sizes
from synth.baselines.vendors import LIBRARIES

_PARTS = Path(__file__).parent / "static"


def static_page(title: str, heading: str, style: str, main: str) -> str:
    """Return a self-contained HTML page without a script.

    Args:
        title: Title of the document, as plain text.
        heading: Heading of the page, as plain text.
        style: Name of the file in `static` that extends report.css.
        main: HTML of the page's body.
    """
    styles = "".join((_PARTS / part).read_text(encoding="utf-8") for part in ("report.css", style))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>{styles}</style>
</head>
<body>
<header><span class="brand" aria-hidden="true"><i></i><i></i><i></i></span>
<div class="heading"><p>synth report</p><h1>{escape(heading)}</h1></div></header>
<main>
{main}
</main>
</body>
</html>
"""


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return an HTML table that scrolls where it is too wide.

    Args:
        heads: HTML of each cell of the head; nothing is escaped.
        rows: HTML of the cells of each row.
    """
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def tiles(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return HTML tiles of figures from rows of label, value and remark, all plain text."""
    cells = (
        f'<div class="tile"><dt>{escape(a)}</dt><dd>{escape(b)}<small>{escape(c)}</small></dd></div>'
        for a, b, c in rows
    )
    return f'<dl class="tiles">{"".join(cells)}</dl>'


def against_libraries(entries: Sequence[IndexEntry]) -> str:
    """Return an HTML note for each vendor library: how often the files of entries are faster than its own choice."""
    sentences = [count_sizes(entries, name).sentence(name) for name in LIBRARIES]
    return "".join(f'<p class="note">{escape(words[0].upper() + words[1:])}.</p>' for words in sentences if words)
