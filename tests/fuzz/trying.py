"""One hostile input put to a reader: it is read, or refused in one line; anything else is a failure."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.formats import FORMATS, Format
from topologies.errors import InputError

MEMORY = 1 << 30  # bytes that reading may take beyond what the process has before
SECONDS = 10.0  # of the processor, for an input of up to LARGE bytes
WAITING = 6.0  # times as much by the clock
SECONDS_LARGE = 60.0
LARGE = 1 << 20
LONGEST_LINE = 2000
_OUT_OF_MEMORY = ("not fit in memory", "fits in memory", "Unable to allocate")


@dataclass(frozen=True)
class Outcome:
    """status: accepted, refused or failed.  words: the refusal, or what failed.

    seconds: of the processor.  peak: bytes resident at most.
    """

    status: str
    seconds: float
    words: str
    peak: int = 0


class TooLongError(BaseException):
    """The time for one input is over; no reader may swallow it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """So many seconds of the processor, and some more of waiting: on a busy machine the clock says little."""

    def over(*_: object) -> None:
        raise TooLongError

    timers = (
        (signal.SIGPROF, signal.ITIMER_PROF, seconds),
        (signal.SIGALRM, signal.ITIMER_REAL, WAITING * seconds),
    )
    before = [signal.signal(which, over) for which, _, _ in timers]
    for _, timer, limit in timers:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (which, timer, _), handler in zip(timers, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(which, handler)


def limit_memory() -> None:
    """From here on this process can get MEMORY more, and no more."""
    limit = _status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _status(field: str) -> int:
    """Bytes that /proc tells of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    return 0


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # then the peak is that of all inputs so far


def tried(form: Format, path: Path, size: int) -> Outcome:
    """Read one file."""
    _forget_peak()
    begun = time.process_time()
    try:
        with time_limit(SECONDS if size <= LARGE else SECONDS_LARGE):
            form.read(path)
        status, words = "accepted", ""
    except InputError as error:
        words = str(error)
        status = "refused" if _one_line(words) else "failed"
        if any(part in words for part in _OUT_OF_MEMORY):
            status = "failed"
    except TooLongError:
        status, words = "failed", "takes too long"
    except BaseException as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        status = "failed"
        words = f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {str(error)[:200]}"
    return Outcome(status, time.process_time() - begun, words, _status("VmHWM"))


def _one_line(words: str) -> bool:
    return bool(words) and len(words.splitlines()) == 1 and len(words) <= LONGEST_LINE and words.isprintable()


def folder_for(form: Format, inside: Path | None = None) -> Path:
    """A new folder with what must stand beside a file."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=inside))
    for name, data in form.beside().items():
        where = folder / name
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_bytes(data)
    return folder


def place(form: Format, folder: Path, made: bytes | Callable[[Path], None]) -> tuple[Path, int]:
    """The input as a file of the format's name; a callable makes what is no file."""
    path = folder / form.file
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if callable(made):
        made(path)
        return path, 0
    path.write_bytes(made)
    return path, len(made)


def hostile(form: Format, number: int, seed: int = 0) -> bytes:
    """The damaged input of a number; the same each time."""
    return form.damage(form.seeds(), random.Random(f"{form.name} {seed} {number}"))


def no_files() -> dict[str, Callable[[Path], None]]:
    """What a path can be instead of a plain file."""

    def sparse(path: Path) -> None:
        with path.open("wb") as file:
            file.truncate(1 << 36)

    def broken_link(path: Path) -> None:
        path.symlink_to(path.with_name("nowhere"))

    def circle(path: Path) -> None:
        path.symlink_to(path)

    def zeros(path: Path) -> None:
        path.symlink_to("/dev/zero")

    return {
        "no such file": lambda _: None,
        "a directory": lambda path: path.mkdir(),
        "a pipe without a writer": lambda path: os.mkfifo(path),
        "64 GiB of nothing": sparse,
        "a link to nowhere": broken_link,
        "a link to itself": circle,
        "endless zeros": zeros,
    }


__all__ = ["FORMATS", "Outcome", "folder_for", "hostile", "limit_memory", "no_files", "place", "tried"]
