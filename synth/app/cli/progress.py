"""The progress of a command that works through a known number of things: a bar on a terminal, lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from synth.app.cli.streams import drawing_stream

Count = Callable[[int, int], None]  # It receives how many things are done, and of how many.

_LOGGED_S = 15.0  # time between two lines in a log


@contextmanager
def counting(what: str) -> Iterator[Count]:
    """Yield a function that shows how many things are done, with the time left.

    Args:
        what: What is done with the things, as "checking".
    """
    if not sys.stderr.isatty():
        logged = time.monotonic()

        def log(done: int, total: int) -> None:
            """Print a line if the last one is long enough ago."""
            nonlocal logged
            if time.monotonic() - logged >= _LOGGED_S:
                logged = time.monotonic()
                print(f"{what}: {done} of {total}", file=sys.stderr, flush=True)

        yield log
        return
    from rich.console import Console  # It takes a tenth of a second to load.
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        TextColumn("left:"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=Console(file=drawing_stream()), transient=True) as bar:
        shown = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(shown, completed=done, total=total)
