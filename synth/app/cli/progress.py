"""The progress of long commands: a bar on a terminal, lines from time to time in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from synth.app.cli.streams import drawing_stream

Count = Callable[[int, int], None]  # It receives how many things are done, and of how many.

_LOGGED_S = 15.0  # time between two lines in a log


def seldom_logger(begun: float | None = None) -> Callable[[str], None]:
    """Return a function that prints a line on standard error if the last one was 15 s ago or more; others are dropped.

    Args:
        begun: Time of `time.monotonic` that counts as that of the line before the first; None for now.
    """
    logged = time.monotonic() if begun is None else begun

    def log(line: str) -> None:
        """Print a line, or drop it."""
        nonlocal logged
        if time.monotonic() - logged >= _LOGGED_S:
            logged = time.monotonic()
            print(line, file=sys.stderr, flush=True)

    return log


@contextmanager
def bar(what: str, total: int | None = None, remark: str = "") -> Iterator[Callable[[int, int, str], None]]:
    """Draw a bar on the terminal, and yield a function that updates it; at the end of the block it is removed.

    The function takes how many things are done, of how many, and a remark that stands after the bar.

    Args:
        what: Text before the bar.
        total: Number of things; None if it is not known yet.
        remark: First remark.
    """
    from rich.console import Console  # It takes a tenth of a second to load.
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("{task.fields[remark]}"),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=drawing_stream()), transient=True) as drawn:
        shown = drawn.add_task(what, total=total, remark=remark)
        yield lambda count, total, remark: drawn.update(shown, completed=count, total=total, remark=remark)


@contextmanager
def counting(what: str) -> Iterator[Count]:
    """Yield a function that shows on stderr how many things are done, of how many, and about how long the others take.

    On a terminal it draws a bar; otherwise it prints a line at most every 15 s, without a duration.

    Args:
        what: What is done with the things, as "checking".
    """
    if not sys.stderr.isatty():
        log = seldom_logger()
        yield lambda count, total: log(f"{what}: {count} of {total}")
        return
    begun = time.monotonic()
    with bar(what) as draw:

        def show(count: int, total: int) -> None:
            """Update the bar with the estimated seconds of what is left."""
            left_s = (time.monotonic() - begun) * (total - count) / max(1, count)
            draw(count, total, f"{left_s:.0f} s left" if count else "")

        yield show
