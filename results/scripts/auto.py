"""Compare PyTorch's back end `auto`, after the README's own steps, with Gloo: all-reduces on this machine's loopback.

    python -m results.scripts.auto [--ranks 2 4] [--tunings 3] [--rounds 41] [--every N]

makes auto.md. For each number of ranks the script calibrates, searches and tunes as the README shows. It tunes several
times to see whether the tunings agree. Then one job calls Gloo's group and ours, in alternating blocks of calls.
`--every N` measures each N-th size only. Needs PyTorch; without it, the script says so and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results.measuring.measure import grid, page, write
from runtime.torch.choice import Chooser
from runtime.torch.table import TableCall
from synth.model.text import format_size

SIZES = [4**k for k in range(1, 13)]  # 4 B to 16 MiB
NAMES = ("gloo", "auto", "again", "method")  # `again` is a second group of Gloo's: a control.
ORDERS = NAMES, ("auto", "gloo", "method", "again")  # No block follows another block of its own group.
BLOCK_S = 0.01  # Duration of a block: calls of one group in a row.
CPU = "CPU µs: Gloo, auto, Python method that calls Gloo"
GOALS = 1.05, 1.15  # Multiples of Gloo's median: to stay below at most sizes, and never to exceed.


def command(folder: Path, *words: object, **about: str) -> subprocess.Popen[str]:
    """Start a Python module as a process in the folder, with no variables of synth but those given."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("SYNTH_")}
    return subprocess.Popen(
        [sys.executable, "-m", *map(str, words)],
        cwd=folder,
        env=plain | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()} | about,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*processes: subprocess.Popen[str]) -> str:
    """Wait for all processes and return what the first one printed.

    Raises:
        SystemExit: If a process fails.
    """
    ends = [process.communicate() for process in processes]
    failed = next((err for process, (_, err) in zip(processes, ends, strict=True) if process.returncode), None)
    if failed is not None:
        raise SystemExit(failed)
    return ends[0][0]


def run_job(folder: Path, ranks: int, *words: object, **about: str) -> str:
    """Run a Python module as a job of some ranks on this machine, and return what the first one printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    about |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    return finish(*(command(folder, *words, RANK=str(rank), **about) for rank in range(ranks)))


def rows_of_job(script: str, ranks: int, rounds: int) -> list[dict[str, Any]]:
    """Run a script's work as a job in a folder of its own, and return the rows that its first rank printed as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        rows: list[dict[str, Any]] = json.loads(run_job(Path(folder), ranks, script, "--work", rounds))
    return rows


def prepare(folder: Path, ranks: int, tunings: int) -> list[list[str]]:
    """Run the README's steps, and return for each tuning the program that serves each size."""
    finish(command(folder, "synth", "calibrate", "--ranks", ranks, "--topo", f"full:{ranks}", "-o", "here.toml"))
    finish(command(folder, "synth", "allreduce", "--topo", "here.toml", "--out", "ours", "--budget", "2s"))
    programs_by_tuning = []
    for _ in range(tunings):
        words = ("--ranks", ranks, "--ops", "allreduce", "--library", "ours", "-o", "table.json")
        finish(command(folder, "synth", "tune", *words))
        chooser = Chooser("auto", folder / "ours", folder / "table.json")
        calls = [TableCall("allreduce", size, "float32", tuple(range(ranks)), 0, True) for size in SIZES]
        chosen = [chooser.choose(call).program for call in calls]
        programs_by_tuning.append(["gloo" if program is None else program.name for program in chosen])
    return programs_by_tuning


def compare(folder: Path, ranks: int, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Run a job of all ranks and return its times of all groups, one row for each size."""
    words = ("results.scripts.auto", "--work", json.dumps([sizes, rounds]))
    printed = run_job(folder, ranks, *words, SYNTH_LIBRARY="ours", SYNTH_TABLE="table.json")
    rows: list[dict[str, Any]] = json.loads(printed)
    return rows


def work(sizes: list[int], rounds: int) -> None:
    """Run one rank: time each size with every group in alternating blocks; rank 0 prints the slowest rank's times."""
    import torch  # Only ranks need it.
    import torch.distributed as dist

    import runtime.torch.process_group as ours

    torch.set_num_threads(1)
    dist.init_process_group("cpu:synth,cuda:synth")
    plain, again, wrapped = (dist.new_group(backend="gloo") for _ in range(3))

    class Method:
        """A Gloo group behind a method in Python that does nothing else, to measure what such a method costs."""

        def __init__(self, gloo: Any) -> None:
            self.allreduce = lambda tensors, opts: gloo.allreduce(tensors, opts)

    method = Method(wrapped._get_backend(torch.device("cpu")))
    groups = {"gloo": plain, "auto": dist.group.WORLD, "again": again, "method": method}
    rows = []
    for size in sizes:
        tensor = torch.zeros(size // 4)
        for group in groups.values():
            dist.all_reduce(tensor, group=group)
        start_s = time.perf_counter()
        dist.all_reduce(tensor, group=plain)
        call_s = torch.tensor([time.perf_counter() - start_s])
        dist.all_reduce(call_s, dist.ReduceOp.MAX, group=plain)
        runs = max(1, min(100, int(BLOCK_S / call_s.item())))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in groups}
        for block in range(rounds):
            for name in ORDERS[block % 2]:
                for _ in range(
                    1 + runs // 5
                ):  # The threads of a group sleep while another group's calls run, so wake them first.
                    dist.all_reduce(tensor, group=groups[name])
                start_s, busy = time.perf_counter(), time.process_time()
                for _ in range(runs):
                    dist.all_reduce(tensor, group=groups[name])
                times[name].append(((time.perf_counter() - start_s) / runs, (time.process_time() - busy) / runs))
        served_by = ours.counters.last("allreduce")
        slowest = torch.tensor([times[name] for name in groups])
        dist.all_reduce(slowest, dist.ReduceOp.MAX, group=plain)
        rows.append({"size": size, "by": served_by} | dict(zip(groups, slowest.tolist(), strict=True)))
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def figures(row: dict[str, Any]) -> dict[str, float]:
    """Return medians in µs, their ratios, and the quartiles of the ratios of neighbouring blocks."""
    wall = {name: [pair[0] for pair in row[name]] for name in NAMES}
    medians_us = {name: 1e6 * statistics.median(times) for name, times in wall.items()}
    medians_us |= {f"{name} busy": 1e6 * statistics.median(pair[1] for pair in row[name]) for name in wall}
    quarters = statistics.quantiles([a / g for a, g in zip(wall["auto"], wall["gloo"], strict=True)])
    ratios = {"ratio": medians_us["auto"] / medians_us["gloo"], "control": medians_us["again"] / medians_us["gloo"]}
    return medians_us | ratios | {"low": quarters[0], "high": quarters[2]}


def section(ranks: int, tunings: list[list[str]], rows: list[dict[str, Any]]) -> str:
    """Return the part of the page for a number of ranks."""
    figures_by_row = [(row, figures(row)) for row in rows]
    table = grid(
        ("size", "auto used", "Gloo µs", "auto µs", "auto / Gloo", "quartiles", "second Gloo group / Gloo", CPU),
        (
            (
                format_size(row["size"]), row["by"], f"{f['gloo']:.1f}", f"{f['auto']:.1f}", f"{f['ratio']:.3f}",
                f"{f['low']:.2f}–{f['high']:.2f}", f"{f['control']:.3f}",
                ", ".join(f"{f[name]:.1f}" for name in ("gloo busy", "auto busy", "method busy")),
            )
            for row, f in figures_by_row
        ),
    )  # fmt: skip
    ratios, controls = ([f[name] for _, f in figures_by_row] for name in ("ratio", "control"))
    above, noise = ([sum(ratio > limit for ratio in every) for limit in GOALS] for every in (ratios, controls))
    agree = all(tuning == tunings[0] for tuning in tunings)
    return "\n\n".join([
        f"## {ranks} ranks",
        table,
        f"The largest ratio of medians is {max(ratios):.3f}. Ratios exceed {GOALS[0]} at {above[0]} of {len(ratios)}"
        f" sizes and {GOALS[1]} at {above[1]}. Gloo's second group shows the noise: its largest ratio is"
        f" {max(controls):.3f}, and it exceeds these limits at {noise[0]} and {noise[1]} sizes. {len(tunings)}"
        f" tunings {'agree at every size' if agree else 'differ'}:"
        f" {'; '.join(', '.join(sorted(set(tuning))) for tuning in tunings)}.",
    ])  # fmt: skip


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tunings", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if find_spec("torch") is None:
        raise SystemExit("PyTorch is not installed: pip install '.[torch]'")
    if options.work:
        work(*json.loads(options.work))
        return
    parts = [
        f"All-reduces of float32 with PyTorch {version('torch')}, after the README's steps (`calibrate`, `allreduce`,"
        f" `tune`). Times are the slowest rank's medians of {options.rounds} blocks of calls. In one job, blocks of"
        " Gloo's group and of ours alternate. Quartiles are those of the ratios of neighbouring blocks. A second group"
        " of Gloo's is the control. CPU time is that of all threads of the slowest rank's process, also for a Python"
        f" method that only calls Gloo. Load before the run: {os.getloadavg()[0]:.1f} processes."
    ]
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tunings = prepare(folder, ranks, options.tunings)
            parts.append(section(ranks, tunings, compare(folder, ranks, SIZES[:: options.every], options.rounds)))
    write(__file__, page(__file__, "PyTorch's back end auto and Gloo", parts))


if __name__ == "__main__":
    main()
