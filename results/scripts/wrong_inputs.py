"""Wrong command lines, each given to a process of its own, and wrong calls in Python: one line, nothing written.

    python -m results.scripts.wrong_inputs [--every 8]

makes wrong_inputs.md. The cases are those of tests/wrong, which calls all commands in one process. Of wrong calls in
Python all are made, in this process: each must raise InputError.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import chdir
from pathlib import Path

from results.measuring.measure import ROOT, grid, page, write
from tests.synth.cli.calling import Answer
from tests.wrong import python_calls
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


def in_python() -> tuple[list[list[str]], list[str]]:
    """Of the wrong calls in Python by function how many there are and are refused, and the faults."""
    asked, right, faults = Counter[str](), Counter[str](), []
    with tempfile.TemporaryDirectory() as name, chdir(name):
        for case in python_calls.cases():
            why = python_calls.fault(case) or ("something was written" if any(Path(name).iterdir()) else "")
            asked[case.function] += 1
            right[case.function] += not why
            if why:
                faults.append(f"- `{case.function}({case.argument}={str(case.value)[:80]!r})`: {why}")
    rows = [[f"`{function}`", str(asked[function]), str(right[function])] for function in asked]
    return [*rows, ["all", str(asked.total()), str(right.total())]], faults


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
    calls, more = in_python()
    about = "Wrong calls in Python, all in one process: each must raise InputError with one line, and write nothing."
    parts = [text, grid(titles, rows), about, grid(("function", "wrong calls", "refused as they should be"), calls)]
    faults += more
    write(__file__, page(__file__, "Wrong inputs", [*parts, *faults]))
    if faults:
        raise SystemExit(f"{len(faults)} were not")


if __name__ == "__main__":
    main()
