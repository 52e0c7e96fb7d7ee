"""Ctrl-C once and twice at many moments, with compiled loops on disk and without: how soon a command ends, with what.

    python -m results.scripts.interrupts [--every N] [--moments N] [--only once|twice]

makes interrupts.md. Moments are spread over the whole command, from before its imports to after its files are written.
A moment is counted by the processor time that the command has had, so that it is the same on a busy machine; so is what
it takes after the signal, beside the seconds that passed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner

from results.measuring.measure import grid, page, synth, write
from synth.cli import cli

QUESTIONS = (
    ("allreduce", "--topo", "dgx-h100:2", "--budget", "4s"),
    ("alltoall", "--topo", "torus:8x8", "--chunks", "1", "--budget", "4s"),  # whose loops are compiled
)
AGAIN_S = 0.3  # between the two signals
MOMENTS = 20
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Ended:
    """How a command ended: seconds and processor seconds after the last signal, its exit code, and what is on disk.

    disk: "right": all that was printed, and each file as it was said; "nothing": neither an answer nor a file; else
    what is wrong.
    """

    seconds: float
    cpu_s: float
    code: int
    disk: str


def cpu_s(process: subprocess.Popen[bytes]) -> float | None:
    """Processor seconds that a process has had, without its children; None where it has ended."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else (int(fields[11]) + int(fields[12])) / _TICKS


def interrupted(question: Sequence[str], at_s: float, signals: int, cache: str) -> Ended:
    """Run a command, and interrupt it when it has had so much processor time or, while it waits, after twice that."""
    with tempfile.TemporaryDirectory() as folder:
        command = synth(*question, "--json", "--out", f"{folder}/out")
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)
        begun = time.monotonic()
        while (had := cpu_s(process)) is not None and had < at_s and time.monotonic() - begun < 4 * at_s + 1:
            time.sleep(0.01)
        for number in range(signals):
            time.sleep(AGAIN_S if number else 0)
            had, begun = cpu_s(process), time.monotonic()
            os.kill(process.pid, signal.SIGINT)  # send_signal would take the end of one that has ended, and its times
        assert process.stdout is not None
        out = process.stdout.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        after = math.nan if had is None else used.ru_utime + used.ru_stime - had
        return Ended(seconds, after, process.returncode, on_disk(Path(folder, "out"), out))


def on_disk(folder: Path, out: bytes) -> str:
    """Whether a library holds what was printed; see `Ended`."""
    if list(folder.glob(".synth-*")):
        return "what was being written was left there"
    index = folder / "index.json"
    entries = json.loads(index.read_text())["algorithms"] if index.exists() else []
    for entry in entries:
        if CliRunner().invoke(cli, ["verify", str(folder / entry["file"])]).exit_code:
            return f"{entry['file']} is wrong"
    named = {name for entry in entries for name in (entry["file"], entry["schedule"]) if name}
    there = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    if not entries and {name for name in there if not name.endswith(".synth")}:
        return "files that are in no index"
    if not out:
        return "nothing" if not there else "right" if named or there else "nothing"
    try:
        rows = json.loads(out)["algorithms"]
    except ValueError:
        return "half of an answer was printed"
    for row in rows:
        path = Path(row.get("file") or row.get("schedule") or "")
        if not path.is_file():
            return f"{path} is not there"
        if "file" in row and abs(simulated_us(path, row) / row["time_us"] - 1) > 1e-9:
            return f"{path} takes another time than was said"
    return "right" if rows else "nothing"


def simulated_us(path: Path, row: dict[str, object]) -> float:
    """What `synth simulate` says of a file at the size that a row shows."""
    topology = json.loads((path.parent.parent / "index.json").read_text())["algorithms"][0]["topology"]
    asked = ["simulate", str(path), "--topo", topology, "--sizes", str(row["shown_bytes"]), "--json"]
    return float(json.loads(CliRunner().invoke(cli, asked).output)["sizes"][0]["time_us"])


def length_s(question: Sequence[str], cache: str) -> float:
    """Processor seconds that the whole command takes."""
    with tempfile.TemporaryDirectory() as folder:
        command = synth(*question, "--out", f"{folder}/out")
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, "NUMBA_CACHE_DIR": cache})
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return used.ru_utime + used.ru_stime


def main(arguments: Sequence[str] | None = None) -> None:
    """Interrupt at all moments, and write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--every", type=int, default=1, metavar="N", help="each N-th case only")
    parser.add_argument("--moments", type=int, default=MOMENTS, metavar="N", help="of each question")
    parser.add_argument("--only", choices=("once", "twice"))
    given = parser.parse_args(arguments)
    rows, done, lengths = [], [], {}
    with tempfile.TemporaryDirectory() as warm:
        for question in QUESTIONS:
            for caches in ("cold", "warm"):
                lengths[question, caches] = length_s(question, warm)  # the first one compiles
        cases = [
            (question, caches, how, number)
            for question in QUESTIONS
            for caches in ("cold", "warm")
            for how in ("once", "twice")
            for number in range(given.moments)
            if given.only in (None, how)
        ]
        cases = cases[:: given.every]
        for question, caches, how, number in cases:
            at_s = lengths[question, caches] * (number + 0.5) / given.moments
            with tempfile.TemporaryDirectory() as fresh:
                signals = 1 if how == "once" else 2
                ended = interrupted(question, at_s, signals, fresh if caches == "cold" else warm)
            done.append((how, ended))
            took = (f"{at_s:.2f} s", f"{ended.seconds:.2f} s", f"{ended.cpu_s:.2f} s")
            rows.append((" ".join(question), caches, how, *took, ended.code, ended.disk))
            print(rows[-1], flush=True)
    about = [f"{len(rows)} cases. Load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores."]
    for how, most in (("once", 1.0), ("twice", 0.2)):
        mine = [ended for one, ended in done if one == how]
        late, bad = sum(e.seconds > most for e in mine), sum(e.disk not in ("right", "nothing") for e in mine)
        if mine:
            longest, cpu = max(e.seconds for e in mine), max((e.cpu_s for e in mine if e.cpu_s == e.cpu_s), default=0.0)
            about.append(
                f"Ctrl-C {how}: {len(mine)} cases, {late} ended later than {most:g} s (the longest {longest:.2f} s, of"
                f" processor time {cpu:.2f} s), in {bad} the disk did not hold what was shown."
            )
    titles = ("command", "loops", "Ctrl-C", "at", "seconds", "processor", "code", "on disk")
    write(__file__, page(__file__, "Commands that are interrupted", [*about, grid(titles, rows)]))


if __name__ == "__main__":
    main()
