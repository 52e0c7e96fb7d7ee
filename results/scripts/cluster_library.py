"""Measure libraries of clusters: a first build, a second one, one after a failure, and builds that are disturbed.

    python -m results.scripts.cluster_library [--kills N] [--disks N] [--full] [--large] [--dask]

makes cluster_library.md. It builds the groups of a ring, and disturbs builds in these ways: kill -9 at N random moments
(of builder and processes, and of the processes only), a disk that fills up after a part of the output (a tmpfs where it
can be mounted, else a limit on file sizes), and two builds into one library and one cache at the same time. Each must
end with the bytes of an undisturbed build. For a sample, give smaller --kills and --disks (0: none). Further options
take minutes of two cores each:

    --full      the four nodes of dgx-h100:4, all groups of 2 to 8 ranks in a node, all collectives and targets --large
    1,024 GPUs, dgx-h100:128, five collectives --dask      instead (cluster_library-dask.md): the four nodes on two
    workers of Dask and on one, both in the least
                budget class, and builds of which a worker is killed

Times are wall times and processor times; processor times say more on a busy machine. Memory is the largest resident
memory of all processes at one time, sampled every half second; shared pages count once for each process.
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
    """Return the command line that builds a library with a cache of its own."""
    words = ["library", "build", "cluster.toml", "--out", lib, "--cache", f"{lib}-cache", *more]
    return [sys.executable, "-m", "synth", *words]


def begin(folder: Path, words: list[str]) -> subprocess.Popen[str]:
    """Start a command in a session of its own, so that it can be killed with all its processes."""
    return subprocess.Popen(
        words, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def finish(folder: Path, words: list[str]) -> tuple[str, float, float, float]:
    """Run a command; return its last line, wall seconds, processor seconds, and peak memory of its processes in GB."""
    before, start_s, peak_gb = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic(), 0.0
    process = begin(folder, words)
    while process.poll() is None:
        peak_gb = max(peak_gb, sum(resident for _, resident in processes_of(process.pid)) / 1e9)
        time.sleep(0.5 if time.monotonic() > start_s + 5 else 0.05)
    last_line = (process.communicate()[0].strip().splitlines() or ["nothing"])[-1]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    busy_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return last_line, time.monotonic() - start_s, busy_s, peak_gb


def processes_of(session: int) -> list[tuple[int, int]]:
    """Return the processes of a session, each with its resident bytes."""
    processes = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # The process has ended.
            words = path.read_text().rpartition(")")[2].split()
            if int(words[3]) == session:
                processes.append((int(path.parent.name), int(words[21]) * resource.getpagesize()))
    return processes


def contents(folder: Path) -> dict[str, bytes]:
    """Return the bytes of all files in a folder, by path."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def measured(folder: Path, text: str) -> list[list[str]]:
    """Measure builds (a first one, again, from the cache) and an update after each failure; return the table's rows."""
    (folder / "cluster.toml").write_text(text)
    topology = text.split('"')[1]
    again = [*command("other")[:-1], "lib-cache"]
    update = ["update" if word == "build" else word for word in command("lib")]
    steps = [("build", command("lib")), ("again", command("lib")), ("another library, same cache", again)]
    steps += [(f"update --without {part}", [*update, "--without", part]) for part in DEAD[topology]]
    rows, whole_s = [], 0.0
    for step, words in steps:
        last_line, wall_s, busy_s, peak_gb = finish(folder, words)
        whole_s = whole_s or busy_s
        times = [seconds_words(wall_s), seconds_words(busy_s), f"{busy_s / whole_s:.3f}", f"{peak_gb:.2f}"]
        rows.append([topology, step, *times, last_line[:160]])
    return rows


def disturbed(folder: Path, kills: int, seed: int = 0) -> tuple[list[list[str]], list[str]]:
    """Count how many builds get the right bytes after kills, and for two concurrent builds; return rows and faults."""
    rng, right, faults = random.Random(seed), contents(folder / "lib"), list[str]()
    right = {name: data for name, data in right.items() if not name.startswith("faults/")}
    whole_s = finish(folder, command("calm"))[1]
    rows = []
    for victims, spare_builder in (("builder and processes", False), ("processes only", True)) if kills else ():
        good = 0
        for number in range(kills):
            lib = f"{'p' if spare_builder else 'b'}{number}"
            process = begin(folder, command(lib))
            time.sleep(rng.uniform(0, whole_s))
            if spare_builder:
                children = subprocess.run(
                    ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
                )
                for pid in map(int, children.stdout.split()):
                    os.kill(pid, signal.SIGKILL)
            elif process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            finish(folder, command(lib))
            same = contents(folder / lib) == right
            good += same
            faults += [] if same else [f"- kill -9 of {victims}, number {number}: the library has other bytes"]
        rows.append([f"kill -9 of {victims}", str(kills), str(good)])
    builds = [begin(folder, command("twice")) for _ in range(2)]
    for process in builds:
        process.communicate()
    same = contents(folder / "twice") == right
    faults += [] if same else ["- two concurrent builds: the library has other bytes"]
    return [*rows, ["two concurrent builds into one library and one cache", "1", str(int(same))]], faults


def on_full_disks(folder: Path, disks: int) -> tuple[list[list[str]], list[str]]:
    """Build on disks that fill up, then again with space; return rows that count right results, and faults."""
    right = {name: data for name, data in contents(folder / "calm").items() if not name.startswith("faults/")}
    whole = sum(map(len, right.values())) + sum(map(len, contents(folder / "calm-cache").values()))
    good, faults, how = 0, list[str](), "tmpfs"
    for number in range(disks):
        place, size = folder / f"disk{number}", whole * (number + 1) // (disks + 1)
        place.mkdir()
        mounted = subprocess.run([*MOUNT, f"size={size}", "tmpfs", place], capture_output=True, check=False)
        how = how if mounted.returncode == 0 else "a limit on file sizes"
        largest = sorted(map(len, right.values()))[-1]
        limit = () if mounted.returncode == 0 else ("prlimit", f"--fsize={largest * (number + 1) // (disks + 1)}")
        words = command(f"disk{number}/lib")
        output = begin(folder, [*limit, *words]).communicate()[0]
        if mounted.returncode == 0:
            subprocess.run([*MOUNT, "remount,size=1g", "tmpfs", place], check=True)
        finish(folder, words)
        same, reported = contents(place / "lib") == right, "Traceback" not in output and "cannot be written" in output
        good += same and reported
        faults += [] if same else [f"- full disk, number {number}: the library has other bytes"]
        faults += (
            []
            if reported
            else [f"- full disk, number {number}: the message does not name the cause: {output.strip()[-200:]}"]
        )
        if mounted.returncode == 0:
            subprocess.run(["umount", place], check=True)
    return [[f"a full disk ({how}), reported in one line", str(disks), str(good)]], faults


def on_dask(folder: Path, kills: int, seed: int = 0) -> tuple[list[list[str]], list[list[str]], list[str]]:
    """Build on one and on two Dask workers, then kill workers; return rows of times, rows of kills, and faults.

    All builds have the least budget class, so that they do the same work.
    """
    (folder / "cluster.toml").write_text(LARGE.replace('"5m"', '"1m"'))
    rows, one_worker_s = [], 0.0
    for workers in (1, 2):
        last_line, wall_s, busy_s, peak_gb = finish(
            folder, [*command(f"on{workers}"), "--on", "dask", "--jobs", str(workers)]
        )
        one_worker_s = one_worker_s or wall_s
        step = f"--on dask --jobs {workers}: {one_worker_s / wall_s:.2f} × as fast as one worker"
        rows.append(
            ["dgx-h100:4", step, seconds_words(wall_s), seconds_words(busy_s), "", f"{peak_gb:.2f}", last_line[:160]]
        )
    same = contents(folder / "on1") == contents(folder / "on2")
    faults = [] if same else ["- one worker of Dask and two: the libraries differ"]
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
        output = process.communicate()[0]
        same = contents(folder / f"w{number}") == contents(folder / "calm") and process.returncode == 0
        good += same
        faults += [] if same else [f"- a worker of Dask killed, number {number}: {output.strip()[-200:]}"]
    return rows, [["kill -9 of one worker of Dask, without a second build", str(kills), str(good)]], faults


def command_line(pid: int) -> bytes:
    """Return the command line of a process; empty if the process has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def main() -> None:
    """Build the libraries, and write the table; exit with an error if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30, help="number of killed builds of each kind")
    parser.add_argument(
        "--disks", type=int, default=5, help="number of builds on disks of different sizes that fill up"
    )
    for name in ("full", "large", "dask"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    rows: list[list[str]] = []
    if options.dask:
        with tempfile.TemporaryDirectory() as name:
            rows, ends, faults = on_dask(Path(name), options.kills)
    else:
        with tempfile.TemporaryDirectory() as name:
            rows = measured(Path(name), SMALL)
            ends, faults = disturbed(Path(name), options.kills)
            disk_rows, disk_faults = on_full_disks(Path(name), options.disks)
            ends, faults = ends + disk_rows, faults + disk_faults
        for text, included in ((LARGE, options.full), (HUGE, options.large)):
            if included:
                with tempfile.TemporaryDirectory() as name:
                    rows += measured(Path(name), text)
    load = f"The machine's load at the end was {os.getloadavg()[1]:.1f} on {os.cpu_count()} cores."
    omitted = [f"--{name}" for name in ("full", "large") if not getattr(options, name)]
    sample = f"Options: --kills {options.kills} --disks {options.disks}; not run: {' '.join(omitted) or 'nothing'}."
    titles = (
        "cluster",
        "command",
        "wall (s)",
        "processors (s)",
        "share of the build",
        "peak memory (GB)",
        "last line of its output",
    )
    ended = grid(("disturbed by", "builds", "same bytes as undisturbed"), ends)
    if options.dask:
        parts = [load, grid(titles, rows), ended, *faults]
        save(TABLES / "cluster_library-dask.md", page(__file__, "A cluster's library on Dask", parts))
    else:
        write(__file__, page(__file__, "Libraries of clusters", [load, sample, grid(titles, rows), ended, *faults]))
    if faults:
        raise SystemExit(f"{len(faults)} builds were not right; the table lists them")


if __name__ == "__main__":
    main()
