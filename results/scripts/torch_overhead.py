"""Measure what our back end adds to calls that Gloo serves: every operation of torch.distributed under `auto`.

    python -m results.scripts.torch_overhead [--ranks 2 4] [--rounds 20]

makes torch_overhead.md. One job has a group of Gloo's, one of ours and a second one of Gloo's as a control. Blocks of
calls of the three alternate. No table says that ours is faster, so Gloo serves all that it can. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from results.measuring.measure import grid, page, write
from results.scripts.auto import run_job
from synth.model.text import format_size

SIZES = (4, 4096, 65536)
CALLS = 10  # of a block
ORDER = ("gloo", "auto", "again", "auto", "gloo", "again")


def operations(size: int, rank: int, ranks: int) -> dict[str, Callable[[Any], Any]]:
    """Return by name a function for each operation, which makes one call of a group.

    Args:
        size: Bytes of a rank's tensor, at least; it has as many elements as there are ranks, or more.
        rank: This rank.
        ranks: Number of ranks, which is even.
    """
    import torch  # Only ranks need it.
    import torch.distributed as dist

    own = torch.ones(max(1, size // 4 // ranks) * ranks)
    other, wide, part = torch.empty_like(own), torch.empty(len(own) * ranks), torch.empty(len(own) // ranks)
    parts = [torch.empty_like(own) for _ in range(ranks)]
    at_root = rank == 0

    def to_and_fro(group: Any) -> None:
        first, second = (dist.send, dist.recv) if rank % 2 == 0 else (dist.recv, dist.send)
        first(own, rank ^ 1, group=group)
        second(own, rank ^ 1, group=group)

    return {
        "all_reduce": lambda group: dist.all_reduce(own, group=group),
        "all_reduce, async": lambda group: dist.all_reduce(own, group=group, async_op=True).wait(),
        "broadcast": lambda group: dist.broadcast(own, 0, group=group),
        "reduce": lambda group: dist.reduce(own, 0, group=group),
        "all_gather_into_tensor": lambda group: dist.all_gather_into_tensor(wide, own, group=group),
        "reduce_scatter_tensor": lambda group: dist.reduce_scatter_tensor(part, own, group=group),
        "all_to_all_single": lambda group: dist.all_to_all_single(other, own, group=group),
        "all_gather": lambda group: dist.all_gather(parts, own, group=group),
        "gather": lambda group: dist.gather(own, parts if at_root else None, 0, group=group),
        "scatter": lambda group: dist.scatter(other, parts if at_root else None, 0, group=group),
        "send, recv": to_and_fro,
        "barrier": lambda group: dist.barrier(group=group),
    }


def work(rounds: int) -> None:
    """Run one rank; rank 0 prints a row for each operation and size, with medians in µs."""
    import torch
    import torch.distributed as dist

    import synth.torch  # noqa: F401 - it registers our back end

    torch.set_num_threads(1)
    dist.init_process_group("cpu:gloo")
    groups = {name: dist.new_group(backend="cpu:synth" if name == "auto" else "cpu:gloo") for name in ORDER[:3]}
    rows = []
    for size in SIZES:
        for name, call in operations(size, dist.get_rank(), dist.get_world_size()).items():
            wall: dict[str, list[float]] = {group: [] for group in groups}
            busy: dict[str, list[float]] = {group: [] for group in groups}
            for group in groups.values():
                call(group)
            for _ in range(rounds):
                for group in ORDER:
                    start_s, start_busy_s = time.perf_counter(), time.process_time()
                    for _ in range(CALLS):
                        call(groups[group])
                    wall[group].append((time.perf_counter() - start_s) / CALLS * 1e6)
                    busy[group].append((time.process_time() - start_busy_s) / CALLS * 1e6)
            times = {group: [statistics.median(wall[group]), statistics.median(busy[group])] for group in groups}
            rows.append({"operation": name, "size": size, **times})
    if dist.get_rank() == 0:
        print(json.dumps(rows))
    dist.destroy_process_group()


def section(ranks: int, rounds: int) -> str:
    """Run a job, and return the part of the page for a number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        rows = json.loads(run_job(Path(folder), ranks, "results.scripts.torch_overhead", "--work", rounds))
    table = grid(
        ("operation", "size", "Gloo µs", "auto / Gloo", "Gloo again / Gloo", "CPU µs of Gloo", "auto", "again"),
        (
            (
                row["operation"], format_size(row["size"]), f"{row['gloo'][0]:.0f}",
                *(f"{row[key][0] / row['gloo'][0]:.2f}" for key in ("auto", "again")), f"{row['gloo'][1]:.0f}",
                *(f"{row[key][1] / row['gloo'][1]:.2f}" for key in ("auto", "again")),
            )
            for row in rows
        ),
    )  # fmt: skip
    by_operation = {
        name: statistics.median(row["auto"][0] / row["gloo"][0] for row in rows if row["operation"] == name)
        for name in dict.fromkeys(row["operation"] for row in rows)
    }
    medians = ", ".join(f"{name} {value:.2f}" for name, value in by_operation.items())
    control = [row["again"][0] / row["gloo"][0] for row in rows]
    noise = f"the control's ratios of time go from {min(control):.2f} to {max(control):.2f}"
    return f"## {ranks} ranks\n\n{table}\n\nMedians of auto / Gloo by operation: {medians}; {noise}."


def main() -> None:
    """Measure, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--work", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if find_spec("torch") is None:
        raise SystemExit("PyTorch is not installed: pip install 'synth-collectives[torch]'")
    if options.work:
        work(options.work)
        return
    parts = [
        f"Calls that Gloo serves, PyTorch {version('torch')}, on this machine's loopback. Times are medians of"
        f" {2 * options.rounds} blocks of {CALLS} calls of rank 0; CPU time is that of all threads of its process."
        f" Load before the run: {os.getloadavg()[0]:.1f} processes."
    ]
    parts += [section(ranks, options.rounds) for ranks in options.ranks]
    write(__file__, page(__file__, "What our back end adds to Gloo's calls", parts))


if __name__ == "__main__":
    main()
