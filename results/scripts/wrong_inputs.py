"""Wrong command lines, each given to a process of its own: one line, exit code 2, nothing written.

    python -m results.scripts.wrong_inputs [--every 8]

makes wrong_inputs.md. The cases are those of tests/wrong, which calls all commands in one process.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from results.measuring.measure import ROOT, grid, page, write
from tests.synth.cli.calling import Answer
from tests.wrong.command_lines import cases, contents, fault, prepare

WAIT_S = 60.0  # for a call that does not end


def call(folder: Path, *arguments: str) -> Answer:
    """The command in a process of its own."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "synth.cli", *arguments],
            cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
            timeout=WAIT_S, check=False, errors="backslashreplace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(-1, "", f"no end after {WAIT_S:g} s")
    return Answer(done.returncode, done.stdout, done.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=int, default=1, help="of so many cases only the first")
    every = parser.parse_args().every
    asked, right, slowest = Counter[str](), Counter[str](), dict[str, float]()
    faults = []
    known = cases()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, lambda *given: call(folder, *map(str, given)))
        before = contents(folder)
        for case in known[::every]:
            begun = time.monotonic()
            answer = call(folder, *case.arguments)
            took = time.monotonic() - begun
            why = fault(case, answer) or ("something was written" if contents(folder) != before else "")
            before = contents(folder)
            command = case.command if case.where else "several wrong, or no option"
            asked[command] += 1
            right[command] += not why
            slowest[command] = max(took, slowest.get(command, 0.0))
            if why:
                faults.append(f"- `{' '.join(map(repr, case.arguments))[:160]}`: {why}")
    rows = [[name, str(asked[name]), str(right[name]), f"{slowest[name]:.1f}"] for name in asked]
    rows.append(["all", str(asked.total()), str(right.total()), f"{max(slowest.values()):.1f}"])
    which = "All" if every == 1 else f"One in {every}"
    text = (
        f"{which} of the {len(known)} wrong command lines of tests/wrong, each given to a process of its own. Refused"
        " as it should be: exit code 2, one line on standard error that names what is wrong, nothing on standard"
        " output, no file made or changed. The slowest says little of a busy machine."
    )
    titles = ("command", "wrong calls", "refused as they should be", "slowest (s)")
    write(__file__, page(__file__, "Wrong inputs", [text, grid(titles, rows), *faults]))
    if faults:
        raise SystemExit(f"{len(faults)} were not")


if __name__ == "__main__":
    main()
