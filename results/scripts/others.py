"""MSCCL XMLs of other makers: what `verify` says of each, and which readers take it, beside what these readers do.

    python -m results.scripts.others FOLDER [--reader TARGET=COMMAND …]

makes others.md. COMMAND FILE runs the real reader of a target on a file and exits with 0 if that takes it.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from emit.findings import first_of
from emit.msccl.format import refusals, verify
from emit.msccl.read import read
from emit.targets import TARGETS
from results.measuring.measure import grid, page, write
from topologies.errors import InputError

READERS = [target.name for target in TARGETS.values() if target.format == "msccl"]
TAKES, REFUSES = "takes", "refuses"


@dataclass(frozen=True)
class Row:
    """One file: its verdict, the first line of why, what readers ignore, and by reader ours and its own answer."""

    name: str
    status: str
    why: str
    remarks: tuple[str, ...]
    ours: Mapping[str, str]  # reader → "" where it takes the file, else why not
    theirs: Mapping[str, bool]  # reader → whether it takes the file, where it was asked
    seconds: float

    def differs(self, reader: str) -> bool:
        return reader in self.theirs and self.theirs[reader] == bool(self.ours[reader])


def measured(path: Path, commands: Mapping[str, str]) -> Row:
    """A file's row."""
    begun = time.perf_counter()
    verdict = verify(path)
    seconds = time.perf_counter() - begun
    try:
        reading = read(path)
        against = refusals(reading, reading.program)
        broken = [f for f in verdict.findings if f.kind == "inconsistent"]  # which no reader takes
        ours = {name: first_of((*against[name], *broken)) if against[name] or broken else "" for name in READERS}
        remarks = reading.remarks
    except InputError as error:
        why = str(error).removeprefix(f"{path}").removeprefix(f"{path.name}").strip(": ")
        ours, remarks = dict.fromkeys(READERS, f"not readable: {why}"), ()
    theirs = {
        name: subprocess.run([*shlex.split(command), str(path)], capture_output=True, check=False).returncode == 0
        for name, command in commands.items()
    }
    why = verdict.reason if verdict.findings else "" if verdict.status == "right" else verdict.lines[0]
    return Row(path.name, verdict.status, why.replace(str(path), path.name), remarks, ours, theirs, seconds)


def counts(rows: Sequence[Row], commands: Mapping[str, str]) -> list[tuple[object, ...]]:
    """A row a reader: how many files it takes by ours and by itself, and how they agree."""
    table: list[tuple[object, ...]] = []
    for name in READERS:
        took = sum(not row.ours[name] for row in rows)
        if name not in commands:
            table.append((name, took, len(rows) - took, "not asked", "", ""))
            continue
        stricter = sum(row.differs(name) and row.theirs[name] for row in rows)
        laxer = sum(row.differs(name) and not row.theirs[name] for row in rows)
        table.append((name, took, len(rows) - took, sum(row.theirs[name] for row in rows), stricter, laxer))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Verify every file, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--reader", action="append", default=[], metavar="TARGET=COMMAND")
    given = parser.parse_args(arguments)
    if given.folder is None:
        print("no FOLDER of others' files: the table stays")
        return
    commands = dict(one.split("=", 1) for one in given.reader)
    files = sorted(path for path in given.folder.glob("*.xml") if path.is_file())
    if not files:
        raise SystemExit(f"{given.folder}: has no .xml files")
    rows = [measured(path, commands) for path in files]
    statuses = Counter(row.status for row in rows)
    summary = ", ".join(f"{number} {status}" for status, number in statuses.most_common())
    listed = [
        (row.name, row.status, ", ".join(n for n in READERS if not row.ours[n]) or "none", "; ".join(row.remarks))
        for row in rows
    ]
    reasons = [(row.name, row.why) for row in rows if row.why]
    different = [
        (row.name, name, TAKES if row.theirs[name] else REFUSES, row.ours[name] or TAKES)
        for row in rows
        for name in READERS
        if row.differs(name)
    ]
    slowest = max(rows, key=lambda row: row.seconds)
    parts = [
        f"{len(rows)} files: {summary}. The slowest takes {slowest.seconds:.1f} s ({slowest.name}).",
        grid(("reader", "ours takes", "ours refuses", "it takes", "refused by ours alone", "by it alone"),
             counts(rows, commands)),
        "A file is *refused by ours alone* where the reader parses it and the executor cannot run it: what it dies of "
        "when it runs, or refuses at launch, is listed.",
        "## Where ours and the reader differ",
        grid(("file", "reader", "it", "ours"), different) if different else "Nowhere.",
        "## Files",
        grid(("file", "verdict", "taken by", "remarks"), listed),
        "## Why not right",
        grid(("file", "first finding"), reasons) if reasons else "All are.",
    ]  # fmt: skip
    write(__file__, page(__file__, "Files of other makers", parts))


if __name__ == "__main__":
    main()
