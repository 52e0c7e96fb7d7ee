"""Feed hostile files to every reader, and check that each is read or refused in one line, in bounded time and memory.

    python -m results.scripts.fuzz [--minutes 10]

makes fuzz.md. Inputs that fail are kept in results/fuzz-failures/, one file each, with a text file of what happened.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import shutil
import signal
import sys
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from results.measuring.measure import ROOT, grid, page, write
from tests.fuzz.formats import FORMATS, Format
from tests.fuzz.nasty import NASTY
from tests.fuzz.trying import (
    LARGE,
    MEMORY,
    SECONDS,
    SECONDS_LARGE,
    WAITING,
    folder_for,
    hostile,
    limit_memory,
    no_files,
    place,
    tried,
)

KEPT = ROOT / "results" / "fuzz-failures"
AT_ONCE = 200  # Inputs of a format before those of the next format.
PATIENCE_S = 15.0  # Seconds beyond the limit after which a child that ignores its alarm is killed.


@dataclass
class Row:
    """The results of the inputs of one format.

    Attributes:
        form: The format.
        counts: Number of inputs by status.
        slowest_s: Seconds of the slowest input.
        slowest: Name of the slowest input.
        peak: Largest resident memory while reading, in bytes.
        start: Largest resident memory of a child before its first input, in bytes.
        failures: One line for each failure.
    """

    form: Format
    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""
    peak: int = 0
    start: int = 0
    failures: list[str] = field(default_factory=list)


def named_inputs(form: Format) -> list[str]:
    """Return the names of valid files, of things that are not files, and of the inputs made by hand."""
    seeds = [f"valid {x}" for x in range(len(form.seeds()))]
    return [*seeds, *no_files(), *NASTY.get(form.name, {})]


def input_named(form: Format, name: str) -> object:
    """Return the input of a name or of a number."""
    if name.startswith("valid "):
        return form.seeds()[int(name.split()[1])]
    if name in no_files():
        return no_files()[name]
    if name.isdigit():
        return hostile(form, int(name))
    return NASTY[form.name][name]()


def child(form: Format, todo: list[str], pipe: int) -> None:
    """Call the reader with each input, and write to the pipe before and after each."""
    folder = folder_for(form)
    limit_memory()

    def tell(*words: object) -> None:
        """Write words to the pipe as a line of JSON."""
        os.write(pipe, (json.dumps(words) + "\n").encode())

    tell("start", resident())
    for name in todo:
        tell("try", name)
        data = input_named(form, name)
        path, size = place(form, folder, data)  # type: ignore[arg-type]
        del data
        outcome = tried(form, path, size)
        tell("done", name, outcome.status, outcome.seconds, outcome.words[:400], outcome.peak)
    shutil.rmtree(folder, ignore_errors=True)


def warm(form: Format) -> None:
    """Load and compile what reading needs, so that this is not counted for an input."""
    folder = folder_for(form)
    for seed in form.seeds():
        tried(form, *place(form, folder, seed))
    shutil.rmtree(folder, ignore_errors=True)


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_some(row: Row, todo: list[str]) -> None:
    """Call a reader with inputs in child processes; a new child replaces each one that dies or hangs."""
    while todo:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # Since 3.12 Python warns of a fork in a process with threads. The threads of libraries are idle here.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            os.close(reading)
            code = 0
            try:
                child(row.form, todo, writing)
            except BaseException as error:
                print(f"{row.form.name}: {type(error).__name__}: {error}", file=sys.stderr)
                code = 1
            os._exit(code)
        os.close(writing)
        current, finished = listen(row, reading, pid)
        os.close(reading)
        _, status = os.waitpid(pid, 0)
        if status and current is None:
            raise SystemExit(f"{row.form.name}: a child process died between two inputs")
        if current is not None:
            fail(row, current, "hangs" if status else "ends without an answer")
            finished.add(current)
        todo = [name for name in todo if name not in finished]


def listen(row: Row, reading: int, pid: int) -> tuple[str | None, set[str]]:
    """Read a child's lines until it ends; return the input that it did not finish, and those that it did."""
    current: str | None = None
    finished: set[str] = set()
    buffer = b""
    while True:
        if not select.select([reading], [], [], SECONDS_LARGE * WAITING + PATIENCE_S)[0]:
            os.kill(pid, signal.SIGKILL)
            return current, finished
        data = os.read(reading, 1 << 16)
        if not data:
            return current, finished
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            kind, *values = json.loads(line)
            if kind == "start":
                row.start = max(row.start, int(values[0]))
            elif kind == "try":
                current = values[0]
            else:
                take(row, *values)
                finished.add(values[0])
                current = None


def take(row: Row, input_name: str, status: str, seconds: float, words: str, peak: int) -> None:
    """Count an outcome."""
    if input_name.startswith("valid ") and status != "accepted":
        status, words = "failed", f"a valid file was refused: {words}"
    if status == "failed" or peak > MEMORY:
        fail(row, input_name, words if status == "failed" else f"{peak >> 20} MiB of memory")
    else:
        row.counts[status] += 1
    if seconds > row.slowest_s:
        row.slowest_s, row.slowest = seconds, f"damaged file {input_name}" if input_name.isdigit() else input_name
    row.peak = max(row.peak, peak)


def fail(row: Row, input_name: str, words: str) -> None:
    """Count a failure and keep its input."""
    row.counts["failed"] += 1
    row.failures.append(f"{row.form.name}, {input_name}: {words}")
    print(row.failures[-1], file=sys.stderr, flush=True)
    data = input_named(row.form, input_name)
    if isinstance(data, bytes):
        KEPT.mkdir(exist_ok=True)
        name = f"{row.form.name}-{input_name}".replace(" ", "-").replace("/", "-")
        (KEPT / name).write_bytes(data[: LARGE * 4])
        (KEPT / f"{name}.txt").write_text(words + "\n")


def main() -> None:
    """Call the readers with files for some minutes, and write the table; exit with an error if one fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    start_s = time.monotonic()
    rows = [Row(form) for form in FORMATS.values()]
    for row in rows:
        warm(row.form)
    for row in rows:
        run_some(row, named_inputs(row.form))
    numbers = itertools.count()
    while time.monotonic() - start_s < minutes * 60:
        low = next(numbers) * AT_ONCE
        for row in rows:
            if time.monotonic() - start_s < minutes * 60:
                run_some(row, [str(x) for x in range(low, low + AT_ONCE)])
    spent_minutes = (time.monotonic() - start_s) / 60
    table = [
        (
            row.form.name,
            row.counts.total(),
            row.counts["accepted"],
            row.counts["refused"],
            row.counts["failed"],
            f"{row.slowest_s:.1f} s ({row.slowest})",
            row.start >> 20,
            row.peak >> 20,
        )
        for row in rows
    ]
    total = sum(row.counts.total() for row in rows)
    failures = [line for row in rows for line in row.failures]
    text = page(
        __file__,
        "Hostile files",
        [
            f"{total} files in {spent_minutes:.1f} minutes. Valid files were damaged: bits flipped, files cut and"
            " spliced, numbers and words changed, parts repeated, nested or left out, values of JSON and members of"
            " zips replaced. Other files were made by hand: entities in entities, 40 000 brackets, a few lines whose"
            " content would fill the memory, as many of the smallest element as fit into the largest file that is"
            " read; also pipes, directories and endless devices. The command's own code reads each file in a process"
            f" that can get {MEMORY >> 20} MiB more than it has at its start. A file *failed* if it is neither read"
            f" nor refused in one printable line: by an exception, more than {SECONDS:g} s of processor time"
            f" ({SECONDS_LARGE:g} s for files over 1 MiB), memory refused by the system, or more than {MEMORY >> 20}"
            " MiB resident.",
            f"**{len(failures)} failed.**",
            grid(
                (
                    "format", "files", "accepted", "refused", "failed", "slowest", "MiB at start", "peak MiB",
                ),
                table,
            ),
            *(f"- {line}" for line in failures[:50]),
        ],
    )  # fmt: skip
    write(__file__, text)
    if failures:
        raise SystemExit(f"{len(failures)} inputs failed; they are kept in results/{KEPT.name}")


if __name__ == "__main__":
    main()
