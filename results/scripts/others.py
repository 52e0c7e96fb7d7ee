"""Compare `verify` with real readers on MSCCL XML files of other makers: its verdict, and which readers take each file.

    python -m results.scripts.others FOLDER [--reader TARGET=COMMAND …]

makes others.md. `COMMAND FILE` runs the real reader of a target on a file, and exits with 0 if the reader takes it.
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
    """The result of one file.

    Attributes:
        name: Name of the file.
        status: Our verdict.
        why: First line of the reason; empty if the file is right.
        remarks: What readers ignore in the file.
        ours: Why each reader refuses the file by our rules, by name of the reader; "" if it takes the file.
        theirs: True if the real reader takes the file, by name of the reader; only readers with a command.
        seconds: Seconds of the verdict.
    """

    name: str
    status: str
    why: str
    remarks: tuple[str, ...]
    ours: Mapping[str, str]
    theirs: Mapping[str, bool]
    seconds: float

    def differs(self, reader: str) -> bool:
        """Return True if the real reader and our rules disagree."""
        return reader in self.theirs and self.theirs[reader] == bool(self.ours[reader])


def measured(path: Path, commands: Mapping[str, str]) -> Row:
    """Verify a file, run the real readers on it, and return its row."""
    start_s = time.perf_counter()
    verdict = verify(path)
    seconds = time.perf_counter() - start_s
    try:
        reading = read(path)
        refusals_of = refusals(reading, reading.program)
        inconsistent = [f for f in verdict.findings if f.kind == "inconsistent"]  # No reader takes such a file.
        ours = {
            name: first_of((*refusals_of[name], *inconsistent)) if refusals_of[name] or inconsistent else ""
            for name in READERS
        }
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
    """Return a row for each reader: how many files it takes by our rules and in reality, and where they disagree."""
    table: list[tuple[object, ...]] = []
    for name in READERS:
        ntaken = sum(not row.ours[name] for row in rows)
        if name not in commands:
            table.append((name, ntaken, len(rows) - ntaken, "not run", "", ""))
            continue
        stricter = sum(row.differs(name) and row.theirs[name] for row in rows)
        laxer = sum(row.differs(name) and not row.theirs[name] for row in rows)
        table.append((name, ntaken, len(rows) - ntaken, sum(row.theirs[name] for row in rows), stricter, laxer))
    return table


def main(arguments: Sequence[str] | None = None) -> None:
    """Verify every file, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--reader", action="append", default=[], metavar="TARGET=COMMAND")
    options = parser.parse_args(arguments)
    if options.folder is None:
        print("No FOLDER is given, so the table stays as it is.")
        return
    commands = dict(argument.split("=", 1) for argument in options.reader)
    files = sorted(path for path in options.folder.glob("*.xml") if path.is_file())
    if not files:
        raise SystemExit(f"{options.folder} has no .xml files")
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
        grid(("reader", "synth takes", "synth refuses", "reader takes", "refused by synth only",
              "refused by the reader only"), counts(rows, commands)),
        "A file is *refused by synth only* if the reader parses it and the executor cannot run it: the next table"
        " states why it fails at launch or while it runs.",
        "## Where synth and the reader differ",
        grid(("file", "reader", "the reader", "synth"), different) if different else "Nowhere.",
        "## Files",
        grid(("file", "verdict", "taken by", "remarks"), listed),
        "## Why files are not right",
        grid(("file", "first finding"), reasons) if reasons else "All files are right.",
    ]  # fmt: skip
    write(__file__, page(__file__, "Files of other makers", parts))


if __name__ == "__main__":
    main()
