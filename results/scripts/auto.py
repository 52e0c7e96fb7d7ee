"""torch's `auto` after the README's own steps, beside Gloo: all-reduces on this machine's loopback, in one run.

    python -m results.scripts.auto [--ranks 2 4] [--tunings 3] [--rounds 41] [--every N]

makes auto.md: for each number of ranks it calibrates, searches and tunes as the README shows, several times over to see
whether the tunings agree, and then calls Gloo's group and ours in one job, block by block in turn. `--every N`: each
N-th size. Needs PyTorch; without it, it says so and writes nothing.
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
from runtime.torch.table import Call
from synth.model.text import format_size

SIZES = [4**k for k in range(1, 13)]  # 4 B to 16 MiB
NAMES = ("gloo", "auto", "again", "method")  # again: a second group of Gloo's, a control
ORDERS = NAMES, ("auto", "gloo", "method", "again")  # no block follows another of its own group
BLOCK_S = 0.01  # of one group's calls in a row
CPU = "CPU µs of Gloo, auto, a method alone"
ASKED = 1.05, 1.15  # times Gloo's median: at every size, and at none more


def command(folder: Path, *words: object, **about: str) -> subprocess.Popen[str]:
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
    """What the first printed, once all have ended well."""
    ends = [process.communicate() for process in processes]
    failed = next((err for process, (_, err) in zip(processes, ends, strict=True) if process.returncode), None)
    if failed is not None:
        raise SystemExit(failed)
    return ends[0][0]


def prepare(folder: Path, ranks: int, tunings: int) -> list[list[str]]:
    """The README's steps; by tuning, what serves each size."""
    finish(command(folder, "synth", "calibrate", "--ranks", ranks, "--topo", f"full:{ranks}", "-o", "here.toml"))
    finish(command(folder, "synth", "allreduce", "--topo", "here.toml", "--out", "ours", "--budget", "2s"))
    found = []
    for _ in range(tunings):
        words = ("--ranks", ranks, "--ops", "allreduce", "--library", "ours", "-o", "table.json")
        finish(command(folder, "synth", "tune", *words))
        chooser = Chooser("auto", folder / "ours", folder / "table.json")
        calls = [Call("allreduce", size, "float32", tuple(range(ranks)), 0, True) for size in SIZES]
        chosen = [chooser.choose(call).program for call in calls]
        found.append(["gloo" if program is None else program.name for program in chosen])
    return found


def compare(folder: Path, ranks: int, sizes: list[int], rounds: int) -> list[dict[str, Any]]:
    """Times of both groups, as `work` has them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    about = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks),
             "SYNTH_LIBRARY": "ours", "SYNTH_TABLE": "table.json"}  # fmt: skip
    words = ("results.scripts.auto", "--work", json.dumps([sizes, rounds]))
    found: list[dict[str, Any]] = json.loads(
        finish(*(command(folder, *words, RANK=str(rank), **about) for rank in range(ranks)))
    )
    return found


def work(sizes: list[int], rounds: int) -> None:
    """One rank: each size with every contender, in turn; rank 0 prints the slowest rank's times."""
    import torch  # only ranks need it
    import torch.distributed as dist

    import runtime.torch.process_group as ours

    torch.set_num_threads(1)
    dist.init_process_group("cpu:synth,cuda:synth")
    plain, again, wrapped = (dist.new_group(backend="gloo") for _ in range(3))

    class Method:
        """What any method in Python costs that calls Gloo and does nothing else."""

        def __init__(self, gloo: Any) -> None:
            self.allreduce = lambda tensors, opts: gloo.allreduce(tensors, opts)

    method = Method(wrapped._get_backend(torch.device("cpu")))
    groups = {"gloo": plain, "auto": dist.group.WORLD, "again": again, "method": method}
    rows = []
    for size in sizes:
        tensor = torch.zeros(size // 4)
        for group in groups.values():
            dist.all_reduce(tensor, group=group)
        begun = time.perf_counter()
        dist.all_reduce(tensor, group=plain)
        took = torch.tensor([time.perf_counter() - begun])
        dist.all_reduce(took, dist.ReduceOp.MAX, group=plain)
        runs = max(1, min(100, int(BLOCK_S / took.item())))
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in groups}
        for turn in range(rounds):
            for name in ORDERS[turn % 2]:
                for _ in range(1 + runs // 5):  # a group's threads sleep while another's calls run
                    dist.all_reduce(tensor, group=groups[name])
                begun, busy = time.perf_counter(), time.process_time()
                for _ in range(runs):
                    dist.all_reduce(tensor, group=groups[name])
                times[name].append(((time.perf_counter() - begun) / runs, (time.process_time() - busy) / runs))
        by = ours.counters.last("allreduce")
        held = torch.tensor([times[name] for name in groups])
        dist.all_reduce(held, dist.ReduceOp.MAX, group=plain)
        rows.append({"size": size, "by": by} | dict(zip(groups, held.tolist(), strict=True)))
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def figures(row: dict[str, Any]) -> dict[str, float]:
    """Medians in µs, their ratio, and the quartiles of the ratios of neighbouring blocks."""
    wall = {name: [pair[0] for pair in row[name]] for name in NAMES}
    found = {name: 1e6 * statistics.median(times) for name, times in wall.items()}
    found |= {f"{name} busy": 1e6 * statistics.median(pair[1] for pair in row[name]) for name in wall}
    quarters = statistics.quantiles([a / g for a, g in zip(wall["auto"], wall["gloo"], strict=True)])
    ratios = {"ratio": found["auto"] / found["gloo"], "control": found["again"] / found["gloo"]}
    return found | ratios | {"low": quarters[0], "high": quarters[2]}


def section(ranks: int, tunings: list[list[str]], rows: list[dict[str, Any]]) -> str:
    made = [(row, figures(row)) for row in rows]
    table = grid(
        ("size", "ran on", "Gloo µs", "auto µs", "auto / Gloo", "quartiles", "Gloo again / Gloo", CPU),
        (
            (
                format_size(row["size"]), row["by"], f"{f['gloo']:.1f}", f"{f['auto']:.1f}", f"{f['ratio']:.3f}",
                f"{f['low']:.2f}–{f['high']:.2f}", f"{f['control']:.3f}",
                ", ".join(f"{f[name]:.1f}" for name in ("gloo busy", "auto busy", "method busy")),
            )
            for row, f in made
        ),
    )  # fmt: skip
    ratios, controls = ([f[name] for _, f in made] for name in ("ratio", "control"))
    above, noise = ([sum(each > limit for each in every) for limit in ASKED] for every in (ratios, controls))
    agree = all(one == tunings[0] for one in tunings)
    return "\n\n".join([
        f"## {ranks} ranks",
        table,
        f"Largest ratio of medians: {max(ratios):.3f}; above {ASKED[0]}: {above[0]} of {len(ratios)} sizes, above"
        f" {ASKED[1]}: {above[1]}; of Gloo's second group, which is the measurement's own noise, {max(controls):.3f};"
        f" {noise[0]} and {noise[1]}. {len(tunings)} tunings {'agree at every size' if agree else 'differ'}:"
        f" {'; '.join(', '.join(sorted(set(one))) for one in tunings)}.",
    ])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--tunings", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--work", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if find_spec("torch") is None:
        raise SystemExit("PyTorch is not installed: pip install 'synth-collectives[torch]'")
    if given.work:
        work(*json.loads(given.work))
        return
    parts = [
        "All-reduces of float32 after the README's steps (`calibrate`, `allreduce`, `tune`), PyTorch"
        f" {version('torch')}. Medians of {given.rounds} blocks of calls, the slowest rank's, Gloo's group and ours in"
        " turn in one job; quartiles of the ratios of neighbouring blocks; a second group of Gloo's beside its first,"
        " as a control. CPU: of one rank's process, all its threads; a method alone is one in Python that calls Gloo"
        " and does nothing else. Load before the run:"
        f" {os.getloadavg()[0]:.1f} processes."
    ]
    for ranks in given.ranks:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            tunings = prepare(folder, ranks, given.tunings)
            parts.append(section(ranks, tunings, compare(folder, ranks, SIZES[:: given.every], given.rounds)))
    write(__file__, page(__file__, "torch's auto beside Gloo", parts))


if __name__ == "__main__":
    main()
