"""What the scripts of this folder share: timing whole commands, and writing tables.

A script `results/scripts/NAME.py` makes `results/tables/NAME.md`. Nothing in a table is typed by hand, except
figures that others published, which are constants that name their source.
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
os.environ.setdefault("SYNTH_CACHE", "none")  # a figure is of what is found, not of what was kept
SOLVERS = ("z3-solver", "ortools", "highspy", "pulp")


@dataclass(frozen=True)
class Timed:
    """A command's end: wall seconds, exit code (None: killed at the limit), what it printed."""

    seconds: float
    code: int | None
    out: str
    err: str = ""


def run(command: Sequence[str], limit_s: float = 600.0) -> Timed:
    """Run a command in a fresh process, from start to exit."""
    begun = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return Timed(time.monotonic() - begun, None, "")
    return Timed(time.monotonic() - begun, done.returncode, done.stdout, done.stderr)


def median_run(command: Sequence[str], times: int = 3, limit_s: float = 600.0, once_over_s: float = 60.0) -> Timed:
    """The run of median wall time; one run only where the first takes more than `once_over_s`."""
    runs = [run(command, limit_s)]
    while len(runs) < times and runs[0].seconds <= once_over_s:
        runs.append(run(command, limit_s))
    return sorted(runs, key=lambda r: r.seconds)[(len(runs) - 1) // 2]


def synth(*arguments: object) -> list[str]:
    """The command line of `synth` in the environment of this Python."""
    return [str(Path(sys.executable).parent / "synth"), *map(str, arguments)]


def geometric_mean(values: Iterable[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values))


def machine() -> str:
    """Cores, processor, Python and solvers, in one line."""
    found = []
    for name in SOLVERS:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores ({_processor()}), Python {platform.python_version()}, {', '.join(found)}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def seconds_words(seconds: float) -> str:
    """`0.61`, `7.3`, `125`."""
    return f"{seconds:.2f}" if seconds < 2 else f"{seconds:.1f}" if seconds < 100 else f"{seconds:.0f}"


def grid(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [list(titles), ["---"] * len(titles), *([str(cell) for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "∣") for cell in line) + " |" for line in lines)


def page(script: str, title: str, parts: Iterable[str]) -> str:
    """A table's whole text: title, command and machine, then the parts."""
    made = f"Made by `python -m results.scripts.{Path(script).stem}` on {machine()}."
    return "\n\n".join([f"# {title}", made, *parts]) + "\n"


def write(script: str, text: str) -> Path:
    """Put the text among the tables, whole or not at all, and print it."""
    path = TABLES / f"{Path(script).stem}.md"
    save(path, text)
    print(text, end="")
    return path


def save(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".part", delete=False, encoding="utf-8") as part:
        part.write(text)
    os.chmod(part.name, 0o644)
    os.replace(part.name, path)
