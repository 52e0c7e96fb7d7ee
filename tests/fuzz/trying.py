"""A reader's behaviour on a hostile input: it reads the input, or refuses it in one line, or fails."""

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

MEMORY = 1 << 30  # Bytes that reading may need in addition to the process's memory.
SECONDS = 10.0  # Processor time for an input of up to LARGE bytes.
WAITING = 6.0  # Limit of the elapsed time, as a multiple of the processor time.
SECONDS_LARGE = 60.0
LARGE = 1 << 20
LONGEST_LINE = 2000
_OUT_OF_MEMORY = ("not fit in memory", "fits in memory", "Unable to allocate")


@dataclass(frozen=True)
class Outcome:
    """The outcome of reading an input.

    Attributes:
        status: "accepted", "refused" or "failed".
        seconds: Processor time.
        words: The refusal, or the failure.
        peak: Largest resident memory in bytes.
    """

    status: str
    seconds: float
    words: str
    peak: int = 0


class TooLongError(BaseException):
    """The time for one input has ended; no reader may swallow this exception."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TooLongError after so many seconds of the processor, or a multiple of elapsed seconds.

    A busy machine delays a process, so that the elapsed time says little.
    """

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
    """Set a limit of MEMORY bytes beyond what this process has."""
    limit = _status("VmSize") + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _status(field: str) -> int:
    """Return a number of bytes that /proc states for this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    return 0


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # The peak then covers all inputs so far.


def tried(form: Format, path: Path, size: int) -> Outcome:
    """Read a file and return the outcome."""
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
        frame = traceback.extract_tb(error.__traceback__)[-1]
        status = "failed"
        words = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {str(error)[:200]}"
    return Outcome(status, time.process_time() - begun, words, _status("VmHWM"))


def _one_line(words: str) -> bool:
    return bool(words) and len(words.splitlines()) == 1 and len(words) <= LONGEST_LINE and words.isprintable()


def folder_for(form: Format, inside: Path | None = None) -> Path:
    """Make a folder with the files that must stand beside an input."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-", dir=inside))
    for name, data in form.beside().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def place(form: Format, folder: Path, data_or_maker: bytes | Callable[[Path], None]) -> tuple[Path, int]:
    """Write the input under the format's file name; a callable makes something other than a file."""
    path = folder / form.file
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if callable(data_or_maker):
        data_or_maker(path)
        return path, 0
    path.write_bytes(data_or_maker)
    return path, len(data_or_maker)


def hostile(form: Format, number: int, seed: int = 0) -> bytes:
    """Return the damaged input of a number, which is the same in every run."""
    return form.damage(form.seeds(), random.Random(f"{form.name} {seed} {number}"))


def no_files() -> dict[str, Callable[[Path], None]]:
    """Return ways to make a path that is not a plain file."""

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
