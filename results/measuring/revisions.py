"""Two revisions of this repository side by side: a checkout of an older one, and commands run in either."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from results.measuring.measure import ROOT


@contextmanager
def checkout(revision: str, root: Path = ROOT) -> Iterator[Path]:
    """A worktree of a revision in a temporary folder; it goes at the end.

    Raises:
        SystemExit: this is no repository, or has no such revision (a shallow clone, for one).
    """
    with tempfile.TemporaryDirectory(prefix="synth-revision-") as folder:
        path = Path(folder, "tree")
        git = ["git", "-C", str(root), "worktree"]
        made = subprocess.run([*git, "add", "--detach", str(path), revision], capture_output=True, text=True)
        if made.returncode:
            raise SystemExit(f"revision {revision}: {made.stderr.strip()}")
        try:
            yield path
        finally:
            subprocess.run([*git, "remove", "--force", str(path)], capture_output=True, check=False)


@dataclass(frozen=True)
class Ran:
    """A command's end: wall seconds, CPU seconds of all its processes, exit code, and what it printed."""

    seconds: float
    cpu_s: float
    code: int
    out: str
    err: str


def run_in(root: Path, folder: Path, arguments: Sequence[str], env: Mapping[str, str] | None = None) -> Ran:
    """Run `synth ARGUMENTS` of the checkout at `root` in `folder`, in a fresh process, from start to exit."""
    command = [sys.executable, "-m", "synth.cli", *arguments]
    environment = {**os.environ, **(env or {}), "PYTHONPATH": str(root), "COLUMNS": "160"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.monotonic()
        process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment
        )
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            process.wait()
            raise
        seconds = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return Ran(seconds, usage.ru_utime + usage.ru_stime, process.returncode, *texts)
