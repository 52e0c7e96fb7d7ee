"""The progress of long commands: a bar on a terminal, a line every ten seconds in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from synth.app.cli.streams import drawing_stream
from synth.app.present.layout import terminal_width

Count = Callable[[int, int], None]  # It receives how many things are done, and of how many.

_FIRST_S = 1.0  # time before the first line in a log, and between two looks at what is left on a terminal
_LOGGED_S = 10.0  # time between two lines in a log


def seldom_logger(begun: float | None = None) -> Callable[[str], None]:
    """Return a function that prints a line on standard error if the last one was 10 s ago or more; others are dropped.

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


def joined(parts: Iterable[str], separator: str, width: int) -> str:
    """Return the parts of a line with a separator between them, without those that do not fit into a width.

    Args:
        parts: The parts; the first one is there in any case, and cut if it is too long.
        separator: Text between two parts.
        width: Most characters of the line.
    """
    first, *others = filter(None, parts)
    line = first if len(first) <= width else f"{first[: width - 2]} …"
    for part in others:
        if len(line) + len(separator) + len(part) <= width:
            line += separator + part
    return line


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
def showing(what: str, state: Callable[[], tuple[int, int, str]], *, quiet: bool = False) -> Iterator[None]:
    """Show on stderr, while the block runs, how many things are done, of how many, and a remark.

    On a terminal it is a bar, otherwise a line after a second and then every 10 s. Another thread asks for the state,
    so that the progress is shown also while the block works on one long thing.

    Args:
        what: What is done with the things, as "checking".
        state: Returns how many things are done, of how many (0 if that is not known yet), and a remark.
        quiet: Whether no lines are printed; it does not hide the bar.
    """
    if not sys.stderr.isatty():
        if quiet:
            yield
            return

        def say_line() -> None:
            """Print a line on the state."""
            done, total, remark = state()
            counted = f"{what}: {done} of {total}" if total else what
            print(joined([counted, *remark.split(", ")], ", ", terminal_width()), file=sys.stderr, flush=True)

        with _ticking(say_line, _FIRST_S, _LOGGED_S):
            yield
        return
    total, remark = state()[1:]
    with bar(what, total or None, remark) as draw, _ticking(lambda: draw(*state()), _FIRST_S, _FIRST_S):
        yield
        draw(*state())


@contextmanager
def counting(what: str) -> Iterator[Count]:
    """Yield a function that is called with how many things are done, and of how many; they are shown as by `showing`.

    The remark is about how long the other things take.

    Args:
        what: What is done with the things, as "checking".
    """
    begun, done, total = time.monotonic(), 0, 0

    def set_counts(done_now: int, total_now: int) -> None:
        """Set how many things are done, and of how many."""
        nonlocal done, total
        done, total = done_now, total_now

    def state() -> tuple[int, int, str]:
        """Return how many things are done, of how many, and how long the others take; "" while nothing is done."""
        left_s = (time.monotonic() - begun) * (total - done) / max(1, done)
        return done, total, f"about {left_s:.0f} s left" if done else ""

    with showing(what, state):
        yield set_counts


@contextmanager
def _ticking(show: Callable[[], None], first_s: float, every_s: float) -> Iterator[None]:
    """Call a function in another thread while the block runs: after `first_s` seconds, then every `every_s` seconds."""
    has_ended = threading.Event()

    def tick() -> None:
        """Call the function until the block has ended."""
        wait_s = first_s
        while not has_ended.wait(wait_s):
            show()
            wait_s = every_s

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
