"""Libraries of clusters: how long a build takes, a second one, one after a failure, and builds that are disturbed.

    python -m results.scripts.cluster_library [--kills N] [--disks N] [--full] [--large] [--dask]

makes cluster_library.md: builds of a ring's groups, killed with kill -9 at N random moments (builder and processes
together, and processes alone), with a disk that is full after a part of what they write (a tmpfs where it can be
mounted, else a limit on the size of files), and two builds into one library and one cache at once; each must come to
the bytes of a build that nobody disturbed. To sample: fewer --kills and --disks (0: none). More, each minutes of two
cores:

    --full      the four nodes of dgx-h100:4, all groups of 2 to 8 ranks in a node, all collectives and targets
    --large     1,024 GPUs, dgx-h100:128, five collectives
    --dask      instead (cluster_library-dask.md): the four nodes on two workers of Dask against one, both in the least
                budget class, and builds of which a worker is killed

Times are of the wall; beside them processor time, which says more of a busy machine, and the most memory that all
processes had at once (resident, looked at every half second; pages that they share count for each).
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
from contextlib import suppress
from pathlib import Path

from results.measuring.measure import ROOT, TABLES, grid, page, save, seconds_words, write

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
HUGE = """topology = "dgx-h100:128"
groups = ["tp=8,dp=128"]
collectives = ["allreduce", "allgather", "reducescatter", "alltoall", "broadcast"]
budget = "15m"
"""
DEAD = {"ring:4": ("link:2-3",), "dgx-h100:4": ("link:0-nvswitch.0", "rank:5"), "dgx-h100:128": ("rank:5",)}
MOUNT = "mount", "-t", "tmpfs", "-o"


def command(lib: str, *more: str) -> list[str]:
    asked = ["library", "build", "cluster.toml", "--out", lib, "--cache", f"{lib}-cache", *more]
    return [sys.executable, "-m", "synth", *asked]


def begin(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    """A command in a session of its own, so that it can be killed with all its processes."""
    return subprocess.Popen(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(folder: Path, words: list[str]) -> tuple[str, float, float, float]:
    """What a command says last, its seconds, those of its processors, and the most memory of its processes in GB."""
    before, begun, most = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0.0
    process = begin(folder, words)
    while process.poll() is None:
        most = max(most, sum(resident for _, resident in processes_of(process.pid)) / 1e9)
        time.sleep(0.5 if time.monotonic() > begun + 5 else 0.05)
    said = (process.communicate()[0].strip().splitlines() or ["nothing"])[-1]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return said, time.monotonic() - begun, busy_s, most


def processes_of(session: int) -> list[tuple[int, int]]:
    """The processes of a session and their resident bytes."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            words = path.read_text().rpartition(")")[2].split()
            if int(words[3]) == session:
                found.append((int(path.parent.name), int(words[21]) * resource.getpagesize()))
    return found


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def measured(folder: Path, text: str) -> list[list[str]]:
    """Rows of a cluster: build, build again, build from the cache, update after each failure."""
    (folder / "cluster.toml").write_text(text)
    topology = text.split('"')[1]
    again = [*command("other")[:-1], "lib-cache"]
    dead = ["update" if word == "build" else word for word in command("lib")]
    asked = [("build", command("lib")), ("again", command("lib")), ("another library, same cache", again)]
    asked += [(f"update --without {part}", [*dead, "--without", part]) for part in DEAD[topology]]
    rows, whole_s = [], 0.0
    for what, words in asked:
        said, wall_s, busy_s, most = finish(folder, words)
        whole_s = whole_s or busy_s
        times = [seconds_words(wall_s), seconds_words(busy_s), f"{busy_s / whole_s:.3f}", f"{most:.2f}"]
        rows.append([topology, what, *times, said[:160]])
    return rows


def disturbed(folder: Path, kills: int, seed: int = 0) -> tuple[list[list[str]], list[str]]:
    """Builds that are killed, and two at once: how many came to the bytes of one that was not."""
    rng, right, faults = random.Random(seed), contents(folder / "lib"), list[str]()
    right = {name: data for name, data in right.items() if not name.startswith("faults/")}
    whole_s = finish(folder, command("calm"))[1]
    rows = []
    for what, alone in (("builder and processes", False), ("processes alone", True)) if kills else ():
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


def on_full_disks(folder: Path, disks: int) -> tuple[list[list[str]], list[str]]:
    """Builds whose disk is full after a part of what they write, and then is not: how many came to the same bytes."""
    right = {name: data for name, data in contents(folder / "calm").items() if not name.startswith("faults/")}
    whole = sum(map(len, right.values())) + sum(map(len, contents(folder / "calm-cache").values()))
    good, faults, how = 0, list[str](), "tmpfs"
    for number in range(disks):
        place, size = folder / f"disk{number}", whole * (number + 1) // (disks + 1)
        place.mkdir()
        mounted = subprocess.run([*MOUNT, f"size={size}", "tmpfs", place], capture_output=True, check=False)
        how = how if mounted.returncode == 0 else "a limit on the size of files"
        largest = sorted(map(len, right.values()))[-1]
        limit = () if mounted.returncode == 0 else ("prlimit", f"--fsize={largest * (number + 1) // (disks + 1)}")
        words = command(f"disk{number}/lib")
        said = begin(folder, [*limit, *words]).communicate()[0]
        if mounted.returncode == 0:
            subprocess.run([*MOUNT, "remount,size=1g", "tmpfs", place], check=True)
        finish(folder, words)
        same, told = contents(place / "lib") == right, "Traceback" not in said and "cannot be written" in said
        good += same and told
        faults += [] if same else [f"- disk full, number {number}: other bytes"]
        faults += [] if told else [f"- disk full, number {number}: it said: {said.strip()[-200:]}"]
        if mounted.returncode == 0:
            subprocess.run(["umount", place], check=True)
    return [[f"a full disk ({how}), said in one line", str(disks), str(good)]], faults


def on_dask(folder: Path, kills: int, seed: int = 0) -> tuple[list[list[str]], list[list[str]], list[str]]:
    """Rows of one and of two workers, and of builds of which a worker is killed.

    Both have the least budget class, so that they answer with the same work.
    """
    (folder / "cluster.toml").write_text(LARGE.replace('"5m"', '"1m"'))
    rows, alone_s = [], 0.0
    for workers in (1, 2):
        said, wall_s, busy_s, most = finish(folder, [*command(f"on{workers}"), "--on", "dask", "--jobs", str(workers)])
        alone_s = alone_s or wall_s
        what = f"--on dask --jobs {workers}: {alone_s / wall_s:.2f} × as fast as one"
        rows.append(["dgx-h100:4", what, seconds_words(wall_s), seconds_words(busy_s), "", f"{most:.2f}", said[:160]])
    same = contents(folder / "on1") == contents(folder / "on2")
    faults = [] if same else ["- one worker of Dask and two: other bytes"]
    (folder / "cluster.toml").write_text(SMALL)
    words = [*command("calm"), "--on", "dask", "--jobs", "2"]
    whole_s, rng, good = finish(folder, words)[1], random.Random(seed), 0
    for number in range(kills):
        words = [*command(f"w{number}"), "--on", "dask", "--jobs", "2"]
        process = begin(folder, words)
        time.sleep(rng.uniform(0, whole_s))
        workers_now = [pid for pid, _ in processes_of(process.pid) if b"spawn_main" in command_line(pid)]
        if workers_now:
            os.kill(rng.choice(workers_now), signal.SIGKILL)
        said = process.communicate()[0]
        same = contents(folder / f"w{number}") == contents(folder / "calm") and process.returncode == 0
        good += same
        faults += [] if same else [f"- a worker of Dask killed, number {number}: {said.strip()[-200:]}"]
    return rows, [["kill -9 of one worker of Dask, not called again", str(kills), str(good)]], faults


def command_line(pid: int) -> bytes:
    """Of a process; empty where it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="of each kind")
    parser.add_argument("--disks", type=int, default=5, help="points at which the disk is full")
    for name in ("full", "large", "dask"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    rows: list[list[str]] = []
    if asked.dask:
        with tempfile.TemporaryDirectory() as name:
            rows, ends, faults = on_dask(Path(name), asked.kills)
    else:
        with tempfile.TemporaryDirectory() as name:
            rows = measured(Path(name), SMALL)
            ends, faults = disturbed(Path(name), asked.kills)
            more, wrong = on_full_disks(Path(name), asked.disks)
            ends, faults = ends + more, faults + wrong
        for text, wanted in ((LARGE, asked.full), (HUGE, asked.large)):
            if wanted:
                with tempfile.TemporaryDirectory() as name:
                    rows += measured(Path(name), text)
    load = f"Load of the machine at the end: {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores."
    left = [f"--{name}" for name in ("full", "large") if not getattr(asked, name)]
    sample = f"Asked: --kills {asked.kills} --disks {asked.disks}; left out: {' '.join(left) or 'nothing'}."
    titles = ("cluster", "what", "wall (s)", "processors (s)", "of the build", "memory (GB)", "what it says")
    ended = grid(("ended by", "builds", "came to the same bytes"), ends)
    if asked.dask:
        parts = [load, grid(titles, rows), ended, *faults]
        save(TABLES / "cluster_library-dask.md", page(__file__, "A cluster's library on Dask", parts))
    else:
        write(__file__, page(__file__, "Libraries of clusters", [load, sample, grid(titles, rows), ended, *faults]))
    if faults:
        raise SystemExit(f"{len(faults)} were not right")


if __name__ == "__main__":
    main()
