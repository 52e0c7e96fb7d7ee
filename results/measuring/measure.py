"""Helpers of all scripts: run and time whole commands, and write tables.

A script `results/scripts/NAME.py` makes `results/tables/NAME.md`. Nothing in a table is typed by hand, except
figures that others published. These are constants that name their source.
"""

from __future__ import annotations

import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLES = ROOT / "results" / "tables"
os.environ.setdefault("SYNTH_CACHE", "none")  # A table states what a search finds, not what the cache kept.
SOLVERS = ("z3-solver", "ortools", "highspy")


@dataclass(frozen=True)
class Timed:
    """The end of a command.

    Attributes:
        seconds: Wall time in seconds.
        code: Exit code; None if the command was killed at the time limit.
        out: Standard output.
        err: Standard error.
    """

    seconds: float
    code: int | None
    out: str
    err: str = ""


def run(command: Sequence[str], limit_s: float = 600.0) -> Timed:
    """Run a command in a fresh process and return its wall time, exit code and output."""
    start_s = time.monotonic()
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Timed(time.monotonic() - start_s, None, "")
    return Timed(time.monotonic() - start_s, process.returncode, process.stdout, process.stderr)


def median_run(command: Sequence[str], times: int = 3, limit_s: float = 600.0, once_over_s: float = 60.0) -> Timed:
    """Run a command several times and return the run of median wall time.

    Args:
        command: Command line.
        times: Number of runs.
        limit_s: Time limit of a run in seconds.
        once_over_s: A command whose first run takes more than so many seconds is run only once.
    """
    runs = [run(command, limit_s)]
    while len(runs) < times and runs[0].seconds <= once_over_s:
        runs.append(run(command, limit_s))
    return sorted(runs, key=lambda r: r.seconds)[(len(runs) - 1) // 2]


def synth(*arguments: object) -> list[str]:
    """Return a command line of `synth` in the environment of this Python."""
    return [str(Path(sys.executable).parent / "synth"), *map(str, arguments)]


def geometric_mean(values: Iterable[float]) -> float:
    """Return the geometric mean of positive numbers."""
    return math.exp(statistics.fmean(math.log(v) for v in values))


def machine() -> str:
    """Return this machine's cores, processor, Python and solver versions in one line."""
    solver_versions = []
    for name in SOLVERS:
        try:
            solver_versions.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({_processor()}), Python {platform.python_version()}, {', '.join(solver_versions)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def seconds_words(seconds: float) -> str:
    """Format seconds with two or three digits: `0.61`, `7.3`, `125`."""
    return f"{seconds:.2f}" if seconds < 2 else f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def grid(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Format a Markdown table."""
    lines = [list(titles), ["---"] * len(titles), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "∣") for cell in line) + " |" for line in lines)


def page(script: str, title: str, parts: Iterable[str]) -> str:
    """Return the text of a table file: its title, the command that makes it, the machine, and the parts."""
    origin = f"Made by `python -m results.scripts.{Path(script).stem}` on {machine()}."
    return "\n\n".join([f"# {title}", origin, *parts]) + "\n"


def write(script: str, text: str) -> Path:
    """Write the text to the script's table file, whole or not at all, and print it."""
    path = TABLES / f"{Path(script).stem}.md"
    save(path, text)
    print(text, end="")
    return path


def save(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as part:
        part.write(text)
    os.chmod(part.name, 0o644)
    os.replace(part.name, path)
