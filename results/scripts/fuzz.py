"""Hostile files put to every reader: each is read or refused in one line, in bounded time and memory.

    python -m results.scripts.fuzz [--minutes 10]

makes fuzz.md. What fails is kept in results/fuzz-failures/, one file each, with what happened beside it.
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
AT_ONCE = 200  # inputs of a format before the next one's turn
PATIENCE_S = 15.0  # beyond the limit, for one that does not hear its alarm


@dataclass
class Row:
    """What came of the inputs of one format."""

    form: Format
    counts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    slowest: str = ""
    peak: int = 0
    start: int = 0
    failures: list[str] = field(default_factory=list)


def named_inputs(form: Format) -> list[str]:
    """Valid files, what is no file, and those made by hand."""
    seeds = [f"valid {x}" for x in range(len(form.seeds()))]
    return [*seeds, *no_files(), *NASTY.get(form.name, {})]


def made(form: Format, what: str) -> object:
    """The input of a name, or of a number."""
    if what.startswith("valid "):
        return form.seeds()[int(what.split()[1])]
    if what in no_files():
        return no_files()[what]
    if what.isdigit():
        return hostile(form, int(what))
    return NASTY[form.name][what]()


def child(form: Format, todo: list[str], pipe: int) -> None:
    """Put the inputs to the reader, each told before and after."""
    folder = folder_for(form)
    limit_memory()

    def tell(*words: object) -> None:
        os.write(pipe, (json.dumps(words) + "\n").encode())

    tell("start", resident())
    for what in todo:
        tell("try", what)
        data = made(form, what)
        path, size = place(form, folder, data)  # type: ignore[arg-type]
        del data
        outcome = tried(form, path, size)
        tell("done", what, outcome.status, outcome.seconds, outcome.words[:400], outcome.peak)
    shutil.rmtree(folder, ignore_errors=True)


def warm(form: Format) -> None:
    """Load and compile what reading needs, which is no input's doing."""
    folder = folder_for(form)
    for seed in form.seeds():
        tried(form, *place(form, folder, seed))
    shutil.rmtree(folder, ignore_errors=True)


def resident() -> int:
    """Bytes that this process has in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def run_some(row: Row, todo: list[str]) -> None:
    """Put inputs to a reader in child processes, a new one after each that dies or hangs."""
    while todo:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            # from 3.12 on Python warns where libraries have threads; these are idle here
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
            raise SystemExit(f"{row.form.name}: a child died between inputs")
        if current is not None:
            fail(row, current, "hangs" if status else "ends without a word")
            finished.add(current)
        todo = [what for what in todo if what not in finished]


def listen(row: Row, reading: int, pid: int) -> tuple[str | None, set[str]]:
    """Take what a child tells until it ends; the input that it did not come back from, and those that it did."""
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
            kind, *rest = json.loads(line)
            if kind == "start":
                row.start = max(row.start, int(rest[0]))
            elif kind == "try":
                current = rest[0]
            else:
                take(row, *rest)
                finished.add(rest[0])
                current = None


def take(row: Row, what: str, status: str, seconds: float, words: str, peak: int) -> None:
    """Count an outcome."""
    if what.startswith("valid ") and status != "accepted":
        status, words = "failed", f"a valid file was not read: {words}"
    if status == "failed" or peak > MEMORY:
        fail(row, what, words if status == "failed" else f"{peak >> 20} MB in memory")
    else:
        row.counts[status] += 1
    if seconds > row.slowest_s:
        row.slowest_s, row.slowest = seconds, f"damaged file {what}" if what.isdigit() else what
    row.peak = max(row.peak, peak)


def fail(row: Row, what: str, words: str) -> None:
    """Count a failure and keep what caused it."""
    row.counts["failed"] += 1
    row.failures.append(f"{row.form.name}, {what}: {words}")
    print(row.failures[-1], file=sys.stderr, flush=True)
    data = made(row.form, what)
    if isinstance(data, bytes):
        KEPT.mkdir(exist_ok=True)
        name = f"{row.form.name}-{what}".replace(" ", "-").replace("/", "-")
        (KEPT / name).write_bytes(data[: LARGE * 4])
        (KEPT / f"{name}.txt").write_text(words + "\n")


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--minutes", type=float, default=10.0)
    minutes = asked.parse_args().minutes
    begun = time.monotonic()
    rows = [Row(form) for form in FORMATS.values()]
    for row in rows:
        warm(row.form)
    for row in rows:
        run_some(row, named_inputs(row.form))
    numbers = itertools.count()
    while time.monotonic() - begun < minutes * 60:
        low = next(numbers) * AT_ONCE
        for row in rows:
            if time.monotonic() - begun < minutes * 60:
                run_some(row, [str(x) for x in range(low, low + AT_ONCE)])
    taken = (time.monotonic() - begun) / 60
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
            f"{total} files in {taken:.1f} minutes: valid ones with bits flipped, cut, spliced, numbers and words "
            f"changed, parts repeated, nested or left out, values of JSON and members of zips replaced; files made "
            f"by hand to be nasty (entities in entities, 40 000 brackets, a few lines that state what would fill the "
            f"memory, as much of the smallest thing as fits the largest file that is read); pipes, directories and "
            f"endless devices. Each is put to the command's own code in a process that can get "
            f"{MEMORY >> 20} MiB more than it has at its start. *Failed* is whatever is neither read nor refused in "
            f"one printable line: an exception, more than {SECONDS:g} s of the processor ({SECONDS_LARGE:g} s "
            f"where the file has over 1 MiB), memory refused by the system, or more than {MEMORY >> 20} MiB resident.",
            f"**{len(failures)} failed.**",
            grid(
                (
                    "format", "files", "accepted", "refused", "failed", "slowest", "MB at start", "MB at most",
                ),
                table,
            ),
            *(f"- {line}" for line in failures[:50]),
        ],
    )  # fmt: skip
    write(__file__, text)
    if failures:
        raise SystemExit(f"{len(failures)} failures, kept in {KEPT.name}")


if __name__ == "__main__":
    main()
