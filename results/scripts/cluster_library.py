"""Libraries of clusters: how long a build takes, a second one, one after a dead link, and builds that are killed.

    python -m results.scripts.cluster_library [--kills N] [--full]

makes cluster_library.md: builds of a ring's groups, killed with kill -9 at N random moments (builder and processes
together, and processes alone), and two builds into one library and one cache at once; each must come to the bytes of a
build that nobody disturbed. --full: the four nodes of dgx-h100:4 too, with all groups of 2 to 8 ranks in a node, all
collectives and targets. Times are of the wall; beside them processor time, which says more of a busy machine.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from results.measuring.measure import ROOT, grid, page, seconds_words, write

SMALL = """topology = "ring:4"
groups = ["0,1,2", "0,1,3", "0,1", "1,2,3"]
collectives = ["allgather", "broadcast"]
targets = ["executor-nccl"]
sizes = "1536K"
budget = "10s"
"""
LARGE = """topology = "dgx-h100:4"
groups = ["tp=8,dp=4", "all 2..8 in a node"]
budget = "5m"
"""
DEAD = {"ring:4": "link:2-3", "dgx-h100:4": "link:0-nvswitch.0"}


def command(lib: str, *more: str) -> list[str]:
    asked = ["library", "build", "cluster.toml", "--out", lib, "--cache", f"{lib}-cache", *more]
    return [sys.executable, "-m", "synth.cli", *asked]


def begin(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    """A command in a session of its own, so that it can be killed with all its processes."""
    return subprocess.Popen(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(folder: Path, words: list[str]) -> tuple[str, float, float]:
    """What a command says last, its seconds, and those of its processors."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    said = begin(folder, words).communicate()[0].strip().splitlines()[-1]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return said, time.monotonic() - begun, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def measured(folder: Path, text: str) -> list[list[str]]:
    """Rows of a cluster: build, build again, build from the cache, update after a dead link."""
    (folder / "cluster.toml").write_text(text)
    topology = text.split('"')[1]
    again = [*command("other")[:-1], "lib-cache"]
    dead = ["update" if word == "build" else word for word in command("lib")] + ["--without", DEAD[topology]]
    rows, whole_s = [], 0.0
    for what, words in (
        ("build", command("lib")),
        ("again", command("lib")),
        ("another library, same cache", again),
        (f"update --without {DEAD[topology]}", dead),
    ):
        said, wall_s, busy_s = finish(folder, words)
        whole_s = whole_s or busy_s
        times = [seconds_words(wall_s), seconds_words(busy_s), f"{busy_s / whole_s:.2f}"]
        rows.append([topology, what, *times, said[:160]])
    return rows


def disturbed(folder: Path, kills: int, seed: int = 0) -> tuple[list[list[str]], list[str]]:
    """Builds that are killed, and two at once: how many came to the bytes of one that was not."""
    rng, right, faults = random.Random(seed), contents(folder / "lib"), list[str]()
    right = {name: data for name, data in right.items() if not name.startswith("faults/")}
    whole_s = finish(folder, command("calm"))[1]
    rows = []
    for what, alone in (("builder and processes", False), ("processes alone", True)):
        good = 0
        for number in range(kills):
            lib = f"{'p' if alone else 'b'}{number}"
            process = begin(folder, command(lib))
            time.sleep(rng.uniform(0, whole_s))
            if alone:
                found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
                for pid in map(int, found.stdout.split()):
                    os.kill(pid, signal.SIGKILL)
            elif process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            finish(folder, command(lib))
            same = contents(folder / lib) == right
            good += same
            faults += [] if same else [f"- kill -9 of {what}, number {number}: other bytes"]
        rows.append([f"kill -9 of {what}", str(kills), str(good)])
    both = [begin(folder, command("twice")) for _ in range(2)]
    for process in both:
        process.communicate()
    same = contents(folder / "twice") == right
    faults += [] if same else ["- two builds at once: other bytes"]
    return [*rows, ["two builds into one library and one cache at once", "1", str(int(same))]], faults


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="of each kind")
    parser.add_argument("--full", action="store_true", help="four nodes too")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        rows = measured(Path(name), SMALL)
        ends, faults = disturbed(Path(name), asked.kills)
    if asked.full:
        with tempfile.TemporaryDirectory() as name:
            rows += measured(Path(name), LARGE)
    load = f"Load of the machine at the end: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores."
    titles = ("cluster", "what", "wall (s)", "processors (s)", "of the build", "what it says")
    parts = [load, grid(titles, rows), grid(("ended by", "builds", "resumed to the same bytes"), ends), *faults]
    write(__file__, page(__file__, "Libraries of clusters", parts))
    if faults:
        raise SystemExit(f"{len(faults)} were not right")


if __name__ == "__main__":
    main()
